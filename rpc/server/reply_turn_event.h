// Waits for a reply's turn where the protocol must not.
#ifndef FLARE_RPC_SERVER_REPLY_TURN_EVENT_H_
#define FLARE_RPC_SERVER_REPLY_TURN_EVENT_H_

#include <chrono>

#include "flare/fiber/event.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// One for each answer kLater. The replies before it leave sooner or later: on a
// connection that was closed, too, as their handlers end.
class ReplyTurnEvent final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { told_.Set(); }
  // Blocks the fiber or thread.
  void Wait() { told_.Wait(); }
  // False: `length` has passed before. It may be told yet.
  bool WaitFor(std::chrono::nanoseconds length) {
    return told_.WaitFor(length);
  }

 private:
  fiber::Event told_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_REPLY_TURN_EVENT_H_
