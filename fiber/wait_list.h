// What all blocking primitives are made of: a list of waiters, each a suspended
// fiber or a blocked thread, guarded by the primitive's own spinlock.
//
//   void Gate::Enter() {
//     std::unique_lock guard(lock_);
//     if (!open_) waiters_.Wait(&guard, kNoDeadline);  // Releases lock_.
//   }
//   void Gate::Open() {
//     std::scoped_lock guard(lock_);
//     open_ = true;
//     waiters_.WakeAll();
//   }
//
// Rules:
//  [WL1] A waiter is linked under the primitive's lock. A fiber's lock is
//        released only after its registers are saved (after-switch hook), so
//        whoever finds it linked may resume it.
//  [WL2] Whoever unlinks a waiter, under the lock, decides its result and wakes
//        it exactly once, under the lock or after it.
//  [WL3] A waiter lives on its owner's stack. The owner leaves only after it
//        was woken, and, if it had a deadline, after the timer's callback is
//        known to have ended.

#ifndef FLARE_FIBER_WAIT_LIST_H_
#define FLARE_FIBER_WAIT_LIST_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "flare/base/spinlock.h"
#include "flare/fiber/timer.h"

namespace flare::fiber {

class Carrier;
class WaitList;

inline constexpr std::int64_t kNoDeadline =
    std::numeric_limits<std::int64_t>::max();

// One blocked fiber or thread; on its stack.
class Waiter {
 public:
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  friend class WaitList;

  struct TimeoutTimer : Timer {
    Waiter* waiter = nullptr;
  };

  Waiter() = default;
  void Wake();
  static void OnTimeout(Timer* timer);
  void BlockThread(std::unique_lock<Spinlock>* guard, std::int64_t deadline_ns);

  Waiter* prev_ = nullptr;
  Waiter* next_ = nullptr;
  WaitList* list_ = nullptr;  // The one it is linked in; guarded by lock_.
  Spinlock* lock_ = nullptr;
  Carrier* carrier_ = nullptr;           // nullptr: a plain thread.
  bool timed_out_ = false;               // Decided by who unlinks it [WL2].
  std::atomic<std::uint32_t> woken_{0};  // Threads sleep on it.
  TimeoutTimer timer_;
};

// First in, first out. Every call needs the lock that guards the list.
class WaitList {
 public:
  WaitList() = default;
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;

  bool empty() const { return head_ == nullptr; }

  // Blocks the caller (fiber or thread) until it is woken or the deadline (in
  // NowNs() time) has passed; returns false in the latter case. `*guard` holds
  // the lock that guards this list and is released on return.
  bool Wait(std::unique_lock<Spinlock>* guard, std::int64_t deadline_ns);

  // ... the same, but calls `before(argument)` once the caller is in the list
  // and the lock still held: releases whatever else must be.
  bool Wait(std::unique_lock<Spinlock>* guard, std::int64_t deadline_ns,
            void (*before)(void*), void* argument);

  // Wakes the one that has waited longest. False: there was none.
  bool WakeOne();

  void WakeAll();

 private:
  friend class Waiter;

  void PushBack(Waiter* waiter);
  void Remove(Waiter* waiter);

  Waiter* head_ = nullptr;
  Waiter* tail_ = nullptr;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WAIT_LIST_H_
