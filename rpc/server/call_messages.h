// The request and the response message of a call that a server serves.
//
// Messages are kept from call to call with the memory of their fields, so that
// the next call of the same method constructs and allocates nothing: most
// services read small messages of few kinds all the time. An arena for each
// call costs more than that (some 600 instructions to create and destroy one,
// and strings of 16 bytes or more are allocated on top of it).
//
// A cleared message keeps the elements of its repeated fields, so it grows to
// the union of all shapes that it has had. That is bounded without being
// measured: the bytes that pass through a pair of messages times the memory
// that each can add (message_growth.h) stay below an allowance. A pair that has
// used it up is dropped, unless it can be measured, and keeps little: then it
// may use the rest. All pairs together have kTotalAllowance, beyond
// which each gets kLeastAllowance.
//
// One call at a time; nothing is thread-safe, nothing blocks.
#ifndef FLARE_RPC_SERVER_CALL_MESSAGES_H_
#define FLARE_RPC_SERVER_CALL_MESSAGES_H_

#include <google/protobuf/message.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/rpc/server/method_table.h"

namespace flare::rpc {

class CallMessages {
 public:
  // Bytes of memory that a pair of messages may gain while it is kept: this
  // much at least, up to kMostAllowance while there is enough for all pairs of
  // the process.
  static constexpr std::uint32_t kLeastAllowance = 32 << 10;
  static constexpr std::uint32_t kMostAllowance = 1 << 20;
  static constexpr std::size_t kTotalAllowance = 32 << 20;

  CallMessages() = default;
  ~CallMessages();
  CallMessages(const CallMessages&) = delete;
  CallMessages& operator=(const CallMessages&) = delete;

  // Messages for a call of `method`: request() as it was left, to be parsed
  // into, which clears it; response() empty. Until Release().
  void Acquire(const Method& method);

  // The call is over. Messages that took more than kMaxKeptBytes
  // (base/string.h) as `request` or `response` aren't kept: they may have grown
  // large. Nor are those that have used up their allowance. Without Acquire():
  // nothing happens.
  void Release(std::size_t request_bytes, std::size_t response_bytes);

  // Between Acquire() and Release().
  bool acquired() const { return current_ != nullptr; }
  // Only then.
  google::protobuf::Message* request() const { return current_->request.get(); }
  google::protobuf::Message* response() const {
    return current_->response.get();
  }

  // The part of kTotalAllowance that the pairs of the process have. Any thread.
  static std::size_t allowed_in_total();

 private:
  struct Pair {
    // Their prototypes: those of generated types stay forever; messages of
    // others aren't kept.
    const google::protobuf::Message* request_prototype = nullptr;
    const google::protobuf::Message* response_prototype = nullptr;
    std::unique_ptr<google::protobuf::Message> request;
    std::unique_ptr<google::protobuf::Message> response;
    // Bytes on the wire that may still pass through them.
    std::uint32_t bytes_left = 0;
    // KiB of kTotalAllowance.
    std::uint16_t allowance_kib = 0;
    // The method's; 0: it can't be measured.
    std::uint16_t memory_per_byte = 0;

    std::size_t allowance() const;
  };

  Pair* Find(const Method& method);
  Pair* Make(const Method& method);
  static void DropOrRenew(Pair* pair);
  static void Drop(Pair* pair);

  Pair* current_ = nullptr;
  std::size_t next_ = 0;  // The one to be replaced.
  // Pairs of the methods that were called last.
  std::array<Pair, 4> pairs_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_MESSAGES_H_
