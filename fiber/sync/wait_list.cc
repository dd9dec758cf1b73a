// [WL1] A waiter is linked under the primitive's lock. A fiber's lock is
//       released only after its registers are saved (after-switch hook), so any
//       thread that finds it linked may resume it.
// [WL2] Three may want to end a wait: a waker, the timer, a stop request. The
//       one that unlinks the waiter, under the lock, decides its result and
//       wakes it, exactly once, under the lock or after it. The others find it
//       unlinked and do nothing.
// [WL3] A waiter lives on its owner's stack. The owner leaves only after it was
//       woken, and after the callbacks of timer and token, if it had any, are
//       known to have ended. Hence both may use the waiter and the primitive's
//       lock. Neither callback suspends or waits for anything but that lock.
// [WL4] The token's callback is registered with the lock held, before anybody
//       can wake the waiter, and may be called at once: by the registration
//       itself, which must not take the lock again, or by another thread. So
//       a callback that comes before the waiter listens only leaves a mark, and
//       the waiter, when it starts to listen, finds the mark or is listening:
//       one exchange on either side, of which the second acts.
// [WL5] ~stop_callback waits, blocking its thread, for a callback that runs on
//       another thread: for as long as one critical section takes. On the
//       thread that called request_stop() it doesn't wait, taking itself for
//       part of the callback. A woken fiber can't get there while its own
//       callback runs: the callback doesn't suspend, so the task that it queued
//       runs on that thread only after it. But if *another* callback of the
//       same request suspends its fiber, and that goes on elsewhere, the
//       library takes the wrong thread for the requesting one. Therefore no
//       callback of a token that waits are given may suspend its fiber.
#include "flare/fiber/sync/wait_list.h"

#include <utility>

#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

void WaitList::PushBack(Waiter* waiter) {
  waiter->list_ = this;
  waiter->prev_ = tail_;
  waiter->next_ = nullptr;
  (tail_ != nullptr ? tail_->next_ : head_) = waiter;
  tail_ = waiter;
}

void WaitList::Remove(Waiter* waiter) {
  (waiter->prev_ != nullptr ? waiter->prev_->next_ : head_) = waiter->next_;
  (waiter->next_ != nullptr ? waiter->next_->prev_ : tail_) = waiter->prev_;
  waiter->list_ = nullptr;
}

bool WaitList::WakeOne() {
  Waiter* const waiter = head_;
  if (waiter == nullptr) return false;
  Remove(waiter);
  waiter->Wake();
  return true;
}

void WaitList::WakeAll() {
  while (WakeOne()) {
  }
}

Waiter* WaitList::TakeAll() {
  for (Waiter* waiter = head_; waiter != nullptr; waiter = waiter->next_) {
    waiter->list_ = nullptr;  // [WL2]
  }
  tail_ = nullptr;
  return std::exchange(head_, nullptr);
}

void WaitList::WakeTaken(Waiter* taken) {
  while (taken != nullptr) {
    Waiter* const next = taken->next_;  // A woken one may be gone.
    taken->Wake();
    taken = next;
  }
}

WaitResult WaitList::Wait(ScopedLock<Spinlock>* guard, WaitReason reason,
                          const WaitLimit& limit) {
  return Wait(guard, reason, limit, nullptr, nullptr);
}

WaitResult WaitList::Wait(ScopedLock<Spinlock>* guard, WaitReason reason,
                          const WaitLimit& limit, void (*before)(void*),
                          void* argument) {
  Waiter waiter(guard->mutex());
  PushBack(&waiter);
  if (before != nullptr) before(argument);
  if (limit.stop != nullptr && limit.stop->stop_possible()) {
    waiter.BlockStoppable(guard, reason, limit);
  } else {
    waiter.Block(guard, reason, limit.deadline_ns);
  }
  return waiter.result_;
}

Waiter::Waiter(Spinlock* lock) : lock_(lock), carrier_(CurrentCarrier()) {}

void Waiter::Wake() {
  if (carrier_ != nullptr) {
    ResumeFiber(carrier_);
    return;
  }
  thread_wait_.Wake();  // From here on the waiter may be gone.
}

bool Waiter::GiveUp(WaitResult result) {
  if (list_ == nullptr) return false;  // Woken already [WL2].
  list_->Remove(this);
  result_ = result;
  return true;
}

void Waiter::OnTimeout(Timer* timer) {
  Waiter* const waiter = static_cast<TimeoutTimer*>(timer)->waiter;
  ScopedLock guard(*waiter->lock_);  // [WL3]
  if (waiter->GiveUp(WaitResult::kTimedOut)) waiter->Wake();
}

void Waiter::OnStop() {
  // acq_rel: pairs with the exchange in BlockStoppable [WL4].
  if (stop_.exchange(Stop::kRequested, std::memory_order_acq_rel) ==
      Stop::kRegistering) {
    return;
  }
  ScopedLock guard(*lock_);  // [WL3]
  if (GiveUp(WaitResult::kStopped)) Wake();
}

void Waiter::BlockThread(ScopedLock<Spinlock>* guard,
                         std::int64_t deadline_ns) {
  guard->unlock();
  while (!thread_wait_.Until(deadline_ns)) {
    ScopedLock again(*lock_);
    if (GiveUp(WaitResult::kTimedOut)) return;
    deadline_ns = kNoDeadline;  // Somebody is about to wake us.
  }
}

void Waiter::Block(ScopedLock<Spinlock>* guard, WaitReason reason,
                   std::int64_t deadline_ns) {
  if (carrier_ == nullptr) {
    BlockThread(guard, deadline_ns);
    return;
  }
  const bool timed = deadline_ns != kNoDeadline;
  if (timed) {
    timer_.waiter = this;
    timer_.set_callback(&Waiter::OnTimeout);
    ArmTimer(&timer_, deadline_ns);
  }
  guard->release();
  SuspendFiber(
      reason,
      [](void* lock) FLARE_NO_THREAD_SAFETY_ANALYSIS {
        static_cast<Spinlock*>(lock)->unlock();
      },
      lock_);                       // [WL1]
  if (timed) CancelTimer(&timer_);  // [WL3]
}

void Waiter::BlockStoppable(ScopedLock<Spinlock>* guard, WaitReason reason,
                            const WaitLimit& limit) {
  // relaxed: nobody else looks at it before the registration.
  stop_.store(Stop::kRegistering, std::memory_order_relaxed);
  const auto on_stop = [this] { OnStop(); };
  const std::stop_callback<decltype(on_stop)> callback(*limit.stop, on_stop);
  // acq_rel: pairs with the exchange in OnStop [WL4].
  Stop registering = Stop::kRegistering;
  if (!stop_.compare_exchange_strong(registering, Stop::kListening,
                                     std::memory_order_acq_rel)) {
    GiveUp(WaitResult::kStopped);  // Still linked: we hold the lock.
    guard->unlock();
    return;
  }
  Block(guard, reason, limit.deadline_ns);
  // ~callback: [WL3] [WL5].
}

}  // namespace flare::fiber
