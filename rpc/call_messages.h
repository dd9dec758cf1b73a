// The request and the response message of a call that a server serves.
//
// Messages are kept from call to call with the memory of their fields, so that
// the next call of the same method constructs and allocates nothing: what most
// services do all the time is read small messages of few kinds. An arena for
// each call costs more than that (some 600 instructions to create and destroy
// one, and strings of 16 bytes or more are allocated on top of it).
//
// One call at a time; nothing is thread-safe, nothing blocks.
#ifndef FLARE_RPC_CALL_MESSAGES_H_
#define FLARE_RPC_CALL_MESSAGES_H_

#include <google/protobuf/message.h>

#include <array>
#include <cstddef>
#include <memory>

#include "flare/rpc/method_table.h"

namespace flare::rpc {

class CallMessages {
 public:
  // Messages for a call of `method`: request() as it was left, to be parsed
  // into, which clears it; response() empty. Until Release().
  void Acquire(const Method& method);

  // The call is over. Messages that took more than kMaxKeptBytes
  // (base/string.h) as `request` or `response` aren't kept: they may have grown
  // large. Without Acquire(): nothing happens.
  void Release(std::size_t request_bytes, std::size_t response_bytes);

  // Null outside of Acquire() and Release().
  google::protobuf::Message* request() const {
    return current_ == nullptr ? nullptr : current_->request.get();
  }
  google::protobuf::Message* response() const {
    return current_ == nullptr ? nullptr : current_->response.get();
  }

 private:
  struct Pair {
    // What they were made of. Prototypes of generated types, which stay
    // forever; messages of others aren't kept.
    const google::protobuf::Message* request_prototype = nullptr;
    const google::protobuf::Message* response_prototype = nullptr;
    std::unique_ptr<google::protobuf::Message> request;
    std::unique_ptr<google::protobuf::Message> response;
  };

  Pair* Find(const Method& method);
  Pair* Make(const Method& method);

  Pair* current_ = nullptr;
  std::size_t next_ = 0;  // The one to be replaced.
  // Of the methods that were called last.
  std::array<Pair, 4> pairs_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CALL_MESSAGES_H_
