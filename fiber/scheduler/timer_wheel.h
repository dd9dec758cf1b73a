// A hierarchical timing wheel: 7 levels of 64 slots, each level 64 times as
// coarse as the one below, the finest slot 2^14 ns (16.4 us), 2 years in all
// (later deadlines wait in the last slot and are put back). Arming and
// cancelling link and unlink a node: O(1), no allocation.
//
// Each worker has one, behind a lock that others take only to cancel a timer
// armed by it or to fire its timers while it is busy or asleep. The scheme is
// Varghese and Lauck's (1987), with per-level bit maps to find the next slot.

#ifndef FLARE_FIBER_TIMER_WHEEL_H_
#define FLARE_FIBER_TIMER_WHEEL_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/base/cpu.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/timer_node.h"

namespace flare::fiber {

class TimerWheel {
 public:
  static constexpr int kTickShift = 14;

  explicit TimerWheel(std::int64_t now_ns);
  ~TimerWheel() { End(); }

  TimerWheel(const TimerWheel&) = delete;
  TimerWheel& operator=(const TimerWheel&) = delete;

  // Any thread. See timer.h.
  void Arm(Timer* timer, std::int64_t deadline_ns);
  bool Cancel(Timer* timer);

  // Runs the callbacks of all timers due at `now_ns`, on the calling thread,
  // outside the lock. Any thread; one that finds another one at it returns at
  // once. Returns how many fired.
  std::size_t Fire(std::int64_t now_ns);

  // Nothing fires any more: forgets the timers that are still armed, so that
  // they may be cancelled, or destroyed, later.
  void End();

  // No timer here is due before this (kNoDeadline: none armed). A hint that may
  // be early; exact enough to sleep by, as arming only ever lowers it.
  std::int64_t next_deadline() const noexcept {
    // seq_cst: pairs with the store in Arm: a worker that sleeps by it has
    // armed the timers itself, or is woken by the thread that arms later
    // (scheduling_group.cc [P5]).
    return next_deadline_.load(std::memory_order_seq_cst);
  }

 private:
  static constexpr int kLevels = 7;
  static constexpr int kSlotBits = 6;
  static constexpr int kSlots = 1 << kSlotBits;
  static constexpr std::uint16_t kExpiredSlot = kLevels * kSlots;
  static constexpr std::uint16_t kDeferredSlot = kExpiredSlot + 1;

  struct Slot {
    int level = -1;             // -1: no timer armed.
    std::uint64_t at_tick = 0;  // When to look at the slot.
  };

  void Insert(Timer* timer) FLARE_REQUIRES(lock_);
  void Link(Timer* timer, std::uint16_t slot) FLARE_REQUIRES(lock_);
  void Unlink(Timer* timer) FLARE_REQUIRES(lock_);
  Slot NextSlot() const FLARE_REQUIRES(lock_);
  // Moves timers that are due at `now_tick` into the expired list.
  void Advance(std::uint64_t now_tick) FLARE_REQUIRES(lock_);
  bool IsFiredBy(pthread_t thread);
  void Empty(const Slot& slot) FLARE_REQUIRES(lock_);

  alignas(kCacheLine) Spinlock lock_;
  std::uint64_t elapsed_ FLARE_GUARDED_BY(lock_);  // Ticks done.
  bool firing_now_ FLARE_GUARDED_BY(lock_) = false;
  pthread_t firing_thread_ FLARE_GUARDED_BY(lock_) = {};  // If firing_now_.
  bool deferring_ FLARE_GUARDED_BY(lock_) = false;
  // The timer whose callback is running; written under the lock, waited for
  // without it.
  std::atomic<Timer*> running_{nullptr};
  std::uint64_t occupied_[kLevels] FLARE_GUARDED_BY(lock_) = {};
  Timer* slots_[kLevels * kSlots + 2] FLARE_GUARDED_BY(lock_) = {};
  // Read by all workers of the group, all the time, and seldom written: not
  // beside the members that each timer writes.
  alignas(kCacheLine) std::atomic<std::int64_t> next_deadline_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TIMER_WHEEL_H_
