// Notices of a server that stops, in protocols whose published peers know none:
// a client asks for one in its first requests, and a server sends it to clients
// that have asked. The form of such a request and of the notice is the
// protocol's own.
#ifndef FLARE_RPC_WIRE_STOP_NOTICE_H_
#define FLARE_RPC_WIRE_STOP_NOTICE_H_

#include <atomic>
#include <cstdint>

#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// Value of a field `notice`: in a request the client takes notices; in a reply
// to no call the server stops.
inline constexpr std::uint32_t kStopNotice = 1;

// For a client. Thread-safe after SetOutput(); nothing blocks.
class StopNoticeAsker {
 public:
  // Call it first. Without an output the client doesn't ask.
  void SetOutput(StreamOutput* output) { asks_ = output != nullptr; }

  // Whether the request with that id, which counts from 1, should ask: several
  // do, as the first may fail before it is written.
  bool Asks(std::uint64_t correlation_id) const {
    return correlation_id <= kAskingCalls && asks_;
  }

 private:
  static constexpr std::uint64_t kAskingCalls = 16;

  bool asks_ = false;
};

// For a server's connection.
class StopNoticeTaker {
 public:
  // Reader, for each request: whether to look if it asks. The first ones may.
  bool Looks() {
    if (left_ == 0) [[likely]]
      return false;
    --left_;
    return true;
  }
  // Reader: a request asks.
  void OnAsked() {
    left_ = 0;
    // seq_cst: before the reader looks at lingers_; pairs with the load in
    // asked() [SN2].
    asked_.store(true, std::memory_order_seq_cst);
  }

  // Any thread.
  bool asked() const {
    // seq_cst: behind the store of lingers_ in ServerConnection; pairs with the
    // store in OnAsked() [SN2].
    return asked_.load(std::memory_order_seq_cst);
  }

 private:
  static constexpr int kLooks = 32;

  int left_ = kLooks;
  std::atomic<bool> asked_{false};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_STOP_NOTICE_H_
