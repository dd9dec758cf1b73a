// The word counts edges, above three bits:
//
//   kWaiting  the list of waiters isn't empty (or was not, a moment ago)
//   kQueued   a task is queued that wakes one of them
//   kClosed   nobody waits any more
//
//  [EW1] A caller reads the number of edges before its system call, and waits
//        only while that is still the number. A change of the socket that the
//        call came too early for makes an edge, which counts.
//  [EW2] kWaiting is set with the lock held, by an exchange that finds the
//        caller's number and no kClosed, and cleared with the lock held when
//        nobody is in the list. So an edge either comes before that exchange,
//        which then fails, or finds kWaiting and has one waiter woken.
//  [EW3] A woken caller is an edge's messenger: it makes its system call in any
//        case, and afterwards wakes the next one, unless the call has found the
//        socket empty (or full). So nobody waits for something that is there:
//        a caller that began to wait after the edge has itself found the socket
//        empty since, and a waiter that was there before is seen by the
//        messenger, which was woken after that.
//  [EW4] kQueued is set by the edge that queues the task, and cleared when that
//        begins. An edge in between queues nothing: the task wakes a waiter
//        after it.
#include "flare/io/edge_wait.h"

#include "flare/fiber/scheduler/carrier.h"

namespace flare::io {

bool EdgeWait::OnEdge() noexcept {
  // relaxed: validated by the exchange.
  std::uint64_t old = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool queues = (old & (kWaiting | kQueued)) == kWaiting;
    // acq_rel: pairs with the load in edges(), and the exchanges in Wait and
    // WakeQueued [EW1] [EW2] [EW4].
    if (state_.compare_exchange_weak(
            old, (old + kEdge) | (queues ? kQueued : 0),
            std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return queues;
    }
  }
}

void EdgeWait::WakeQueued() noexcept {
  // acq_rel: pairs with the exchange of each edge that queued nothing [EW4].
  state_.fetch_and(~kQueued, std::memory_order_acq_rel);
  WakeOne();
}

void EdgeWait::WakeOne() noexcept {
  ScopedLock guard(lock_);
  waiters_.WakeOne();
  // relaxed: a waiter sets it under the lock [EW2].
  if (waiters_.empty()) {
    state_.fetch_and(~kWaiting, std::memory_order_relaxed);
  }
}

EdgeWait::Outcome EdgeWait::Wait(std::uint64_t seen,
                                 const fiber::WaitLimit& limit) {
  ScopedLock guard(lock_);
  // relaxed: validated by the exchange.
  std::uint64_t old = state_.load(std::memory_order_relaxed);
  do {
    if ((old & kClosed) != 0) return Outcome::kClosed;
    if (old / kEdge != seen) return Outcome::kEdge;
    // acq_rel: pairs with the exchange in OnEdge [EW1] [EW2].
  } while (!state_.compare_exchange_weak(old, old | kWaiting,
                                         std::memory_order_acq_rel,
                                         std::memory_order_relaxed));
  switch (waiters_.Wait(&guard, {"Socket", this}, limit)) {
    case fiber::WaitResult::kWoken:
      return Outcome::kEdge;
    case fiber::WaitResult::kTimedOut:
      return Outcome::kTimedOut;
    case fiber::WaitResult::kStopped:
      return Outcome::kStopped;
  }
  return Outcome::kEdge;
}

void EdgeWait::Close() noexcept {
  ScopedLock guard(lock_);
  // relaxed: a waiter looks at it under the lock.
  state_.fetch_or(kClosed, std::memory_order_relaxed);
  waiters_.WakeAll();
}

}  // namespace flare::io
