#include "flare/fiber/wait_list.h"

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/fiber/carrier.h"
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

void Waiter::Wake() {
  if (carrier_ != nullptr) {
    Submit(carrier_->resume_task());
    return;
  }
  // release: pairs with the acquire in BlockThread [WL2]. From here on the
  // waiter may be gone; waking a futex nobody sleeps on any more is harmless.
  std::atomic<std::uint32_t>* const word = &woken_;
  word->store(1, std::memory_order_release);
  FutexWake(word, 1);
}

void Waiter::OnTimeout(Timer* timer) {
  Waiter* const waiter = static_cast<TimeoutTimer*>(timer)->waiter;
  // The waiter can't leave before this callback has ended [WL3].
  std::scoped_lock guard(*waiter->lock_);
  if (waiter->list_ == nullptr) return;  // Woken already.
  waiter->list_->Remove(waiter);
  waiter->timed_out_ = true;
  waiter->Wake();
}

void Waiter::BlockThread(std::unique_lock<Spinlock>* guard,
                         std::int64_t deadline_ns) {
  guard->unlock();
  // acquire: pairs with the release in Wake [WL2].
  while (woken_.load(std::memory_order_acquire) == 0) {
    if (deadline_ns != kNoDeadline && NowNs() >= deadline_ns) {
      guard->lock();
      if (list_ != nullptr) {
        list_->Remove(this);
        timed_out_ = true;
        guard->unlock();
        return;
      }
      guard->unlock();
      deadline_ns = kNoDeadline;  // Somebody is about to wake us.
    }
    FutexWait(&woken_, 0, deadline_ns == kNoDeadline ? -1 : deadline_ns);
  }
}

bool WaitList::Wait(std::unique_lock<Spinlock>* guard,
                    std::int64_t deadline_ns) {
  return Wait(guard, deadline_ns, nullptr, nullptr);
}

bool WaitList::Wait(std::unique_lock<Spinlock>* guard, std::int64_t deadline_ns,
                    void (*before)(void*), void* argument) {
  Waiter waiter;
  waiter.lock_ = guard->mutex();
  waiter.carrier_ = CurrentCarrier();
  PushBack(&waiter);
  if (before != nullptr) before(argument);
  if (waiter.carrier_ == nullptr) {
    waiter.BlockThread(guard, deadline_ns);
    return !waiter.timed_out_;
  }
  const bool timed = deadline_ns != kNoDeadline;
  if (timed) {
    waiter.timer_.waiter = &waiter;
    waiter.timer_.set_callback(&Waiter::OnTimeout);
    ArmTimer(&waiter.timer_, deadline_ns);
  }
  guard->release();
  SuspendFiber(
      {"WaitList", this},
      [](void* lock) { static_cast<Spinlock*>(lock)->unlock(); },
      waiter.lock_);                       // [WL1]
  if (timed) CancelTimer(&waiter.timer_);  // [WL3]
  return !waiter.timed_out_;
}

}  // namespace flare::fiber
