// Stops calls of a connection: those whose execution contexts somebody watches
// (fiber/execution_context.h). The others cost nothing and are only asked
// (RpcServerController::IsCanceled).
//
// The first stop_token() of a call's context makes a CallWatch, which adds
// itself to the WatchedCalls of the connection and has a timer for the call's
// deadline. Its rules are in call_watch.cc.
#ifndef FLARE_RPC_SERVER_CALL_WATCH_H_
#define FLARE_RPC_SERVER_CALL_WATCH_H_

#include <google/protobuf/stubs/callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class CallWatch;
class StopNotification;

// The watched calls of one connection. Thread-safe; no function blocks.
class WatchedCalls {
 public:
  WatchedCalls() = default;
  WatchedCalls(const WatchedCalls&) = delete;
  WatchedCalls& operator=(const WatchedCalls&) = delete;

  // Stops all calls that are watched, or will be. The first cause stays. Runs
  // callbacks of their tokens. Returns how many calls it has stopped.
  std::size_t StopAll(fiber::StopCause cause) FLARE_EXCLUDES(lock_);

  // Stops those whose callers have left (ServerProtocol::CallerLeft).
  void StopLeft() FLARE_EXCLUDES(lock_);

  // The cause given to StopAll(); kNone: it wasn't called.
  fiber::StopCause cause() const {
    // relaxed: an answer that may be old; Add() looks under the lock.
    return cause_.load(std::memory_order_relaxed);
  }

 private:
  friend class CallWatch;

  // Unless it returns kNone the watch isn't added.
  [[nodiscard]] fiber::StopCause Add(CallWatch* watch) FLARE_EXCLUDES(lock_);
  // Unless StopAll() has taken it out.
  void Remove(CallWatch* watch) FLARE_EXCLUDES(lock_);
  void Unlink(CallWatch* watch) FLARE_REQUIRES(lock_);

  // Linked by CallWatch::next_: every connection has a list, and most are
  // always empty.
  CallWatch* first_ FLARE_GUARDED_BY(lock_) = nullptr;
  Spinlock lock_;
  std::atomic<fiber::StopCause> cause_{fiber::StopCause::kNone};
};

// The watch of one call.
class CallWatch {
 public:
  CallWatch(RefPtr<fiber::ExecutionContext> context,
            const ServerProtocol* protocol, const ReplyTicket& ticket)
      : context_(std::move(context)), protocol_(protocol), ticket_(ticket) {}

  // For ExecutionContext::Owner::OnWatched(). `deadline_ns` of 0: none. `calls`
  // must live until End().
  [[nodiscard]] fiber::StopCause Begin(WatchedCalls* calls,
                                       std::int64_t deadline_ns);

  // Runs `callback` once: on a fiber of its own when the context is stopped, or
  // in End(). Not thread-safe, and not after Begin() has returned a cause.
  void NotifyOnStop(google::protobuf::Closure* callback);

  // The call has ended, and nobody calls Begin() any more. Destroys the watch.
  // A stop that somebody else is about to request may still come.
  void End();

  // From the pool.
  static void* operator new(std::size_t);
  static void operator delete(void* memory);

 private:
  friend class WatchedCalls;

  ~CallWatch() = default;

  bool CallerLeft() const { return protocol_->CallerLeft(ticket_); }

  const RefPtr<fiber::ExecutionContext> context_;
  const ServerProtocol* const protocol_;
  const ReplyTicket ticket_;
  WatchedCalls* calls_ = nullptr;
  // Guarded by the list's lock. The pointer to this watch; null: it isn't
  // listed.
  CallWatch** place_ = nullptr;
  CallWatch* next_ = nullptr;
  fiber::TimerId timer_ = 0;
  StopNotification* notifications_ = nullptr;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_WATCH_H_
