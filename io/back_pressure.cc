//  [BK1] A waiter links itself (an asker sets `asked_`) and sets `waited_for_`,
//        then looks at `queued_`; Release lowers `queued_`, then looks at
//        `waited_for_`. All four are seq_cst, so one of the two sees the other:
//        no waiter sleeps through the moment when the count falls below the
//        mark.
//  [BK2] A waiter lives on its fiber's stack; it is linked, unlinked and set
//        only under the lock, so once it is not linked any more and the lock
//        was held, nobody touches it.
//      The budget is no part of that: when it is no longer tight, a waiter
//      waits on until the next Release() or LookForRoom(), whose caller looks
//      from time to time, if MemoryBudget::TakeWaiting() says so. A waiter sets
//      `waited_for_` and notes it there, in this order; that caller takes the
//      note and looks at `waited_for_`. All are seq_cst, too: it finds the
//      waiter, or a note for the next time.
//  [BK3] Once `closed_` can be seen, no waiter is linked: a waiter whose
//        deadline passes while Close() runs may return at once.
#include "flare/io/back_pressure.h"

#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"

namespace flare::io {

struct BackPressure::Waiter {
  fiber::Event event;
  Waiter* next = nullptr;
  bool linked = true;
};

BackPressure::~BackPressure() {
  if (budget_ != nullptr) budget_->Change(queued(), 0);
}

bool BackPressure::Admit(std::size_t n) noexcept {
  // relaxed: a limit, exact to the bytes that others admit at the same moment.
  if (queued_.load(std::memory_order_relaxed) >= limit_) return false;
  Add(n);
  return true;
}

bool BackPressure::Release(std::size_t n) noexcept {
  if (n == 0) return false;
  // seq_cst: store then load, pairs with the store and load in Wait and in
  // AskForRoom [BK1].
  const std::size_t left = queued_.fetch_sub(n, std::memory_order_seq_cst) - n;
  Count(left + n, left);
  if (IsRoom(left) && waited_for_.load(std::memory_order_seq_cst)) {
    ScopedLock guard(lock_);
    return WakeAll();
  }
  return false;
}

bool BackPressure::LookForRoom() noexcept {
  // seq_cst: behind MemoryBudget::TakeWaiting() [BK1].
  if (!waited_for_.load(std::memory_order_seq_cst)) return false;
  if (!IsRoom(queued())) return false;
  ScopedLock guard(lock_);
  return WakeAll();
}

bool BackPressure::AskForRoom() noexcept {
  ScopedLock guard(lock_);
  if (closed_) return false;
  asked_ = true;
  // seq_cst: store then load, pairs with Release [BK1].
  waited_for_.store(true, std::memory_order_seq_cst);
  if (!IsRoom(queued_.load(std::memory_order_seq_cst))) return true;
  asked_ = false;
  return false;
}

RoomResult BackPressure::Wait(std::int64_t deadline_ns,
                              const std::stop_token& stop) {
  Waiter self;
  {
    ScopedLock guard(lock_);
    if (closed_) return RoomResult::kClosed;
    self.next = waiters_;
    waiters_ = &self;
    // seq_cst: store then load, pairs with Release [BK1].
    waited_for_.store(true, std::memory_order_seq_cst);
    if (IsRoom(queued_.load(std::memory_order_seq_cst))) {
      waiters_ = self.next;
      return RoomResult::kRoom;
    }
  }
  self.event.WaitUntil(stop, ToTimePoint(deadline_ns));
  ScopedLock guard(lock_);                  // [BK2]
  if (closed_) return RoomResult::kClosed;  // [BK3]
  if (!self.linked) return RoomResult::kRoom;
  for (Waiter** link = &waiters_; *link != nullptr; link = &(*link)->next) {
    if (*link == &self) {
      *link = self.next;
      break;
    }
  }
  return RoomResult::kTimedOut;
}

bool BackPressure::WakeAll() noexcept {
  // relaxed: under the lock; a waiter that comes later sets it again [BK1].
  waited_for_.store(false, std::memory_order_relaxed);
  while (Waiter* const waiter = waiters_) {
    waiters_ = waiter->next;
    waiter->linked = false;
    waiter->event.Set();
  }
  return std::exchange(asked_, false);
}

bool BackPressure::Close() noexcept {
  ScopedLock guard(lock_);
  closed_ = true;
  return WakeAll();  // With the same lock [BK3].
}

}  // namespace flare::io
