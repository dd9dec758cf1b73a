// A call that waits for the end of an attempt, as its connection sees it.
// ClientCall (client_call.h) is the only kind.
//
//   connection->calls().Insert(call);  // The call.
//   // The connection's reader.
//   connection->calls().Take(id)->OnReply(reply, now_ns, &ready);
//
// An attempt has two holders: its issuer, which sends the request, and its
// completer, which notes how the attempt ended. The last one to let go owns the
// call. The invariants are at the top of client_call.cc.

#ifndef FLARE_RPC_CLIENT_PENDING_CALL_H_
#define FLARE_RPC_CLIENT_PENDING_CALL_H_

#include <google/protobuf/service.h>

#include <atomic>
#include <cstdint>

#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/task.h"
#include "flare/rpc/client_protocol.h"

namespace flare::rpc {

// The task goes on with a call that nobody blocks for, once an attempt has
// ended.
class PendingCall : protected fiber::Task {
 public:
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // These end an attempt. Called once, by the party that has taken the call
  // out of its connection's table; the caller must not touch the call
  // afterwards. `ready` collects tasks to submit; null: they are submitted at
  // once. OnReply() takes `reply`, which the call puts back into its pool.
  void OnReply(InboundResponse* reply, std::int64_t now_ns,
               fiber::TaskList* ready);
  void OnConnectionLost(const flare::Status& why, fiber::TaskList* ready);
  // The request was handed over, and no reply is to come.
  void OnSent() { Complete(Outcome::kSent, nullptr); }

 protected:
  enum class Outcome : std::uint8_t {
    kNone,
    kReply,      // In inbound_.
    kSent,       // One-way: there is no reply.
    kTimer,      // The timer has fired, and must not be cancelled.
    kCancelled,  // By StartCancel().
    kFailed,     // As failure_ says.
  };

  PendingCall() = default;
  ~PendingCall() = default;

  // The owner says so if there is no `done`: the calling fiber (or thread)
  // waits for the end.
  void BlockCaller();
  // The owner turns into the issuer of the next attempt.
  void StartPending() {
    outcome_ = Outcome::kNone;
    // relaxed: there is only the owner; the table publishes it [CA1].
    holders_.store(2, std::memory_order_relaxed);
  }
  // For the issuer of a call that blocks: lets go, and returns with the call in
  // the owner's hands.
  void WaitForEnd();
  // For issuer and completer. True: the other one had let go before, and the
  // call is the caller's.
  [[nodiscard]] bool LetGo();
  // True: of issuer and completer only the one that asks is left, and the
  // other's changes are visible to it.
  bool OtherHasLetGo() const {
    // acquire: pairs with the release in LetGo [CA2].
    return holders_.load(std::memory_order_acquire) == 1;
  }
  // The completer's last touch.
  void Complete(Outcome outcome, fiber::TaskList* ready);

  google::protobuf::Closure* done_ = nullptr;  // Null: the caller blocks.
  // The completer's, and then the owner's.
  InboundResponse* inbound_ = nullptr;  // Owned.
  std::int64_t received_ns_ = 0;
  flare::Status failure_;
  Outcome outcome_ = Outcome::kNone;

 private:
  [[gnu::cold, gnu::noinline]] void BlockThread();

  bool blocks_thread_ = false;  // Rather than a fiber.
  std::atomic<std::uint32_t> holders_{0};
  union {
    fiber::Carrier* carrier_ = nullptr;
    fiber::Event* ended_;  // For the thread, on whose stack it is.
  };
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_PENDING_CALL_H_
