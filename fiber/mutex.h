// A mutex for fibers and plain threads, with the interface of std::timed_mutex
// (so std::scoped_lock and std::unique_lock work), and stop tokens besides. A
// waiting fiber is suspended; its worker goes on with other tasks. A holder may
// suspend, too.
//
//   fiber::Mutex mutex;
//   std::scoped_lock guard(mutex);
//   if (mutex.try_lock_for(5ms)) ...
//   if (mutex.lock(stop)) ...           // false: the stop came first
//
// Where waits are given a std::stop_token, of a Mutex or of anything else, no
// std::stop_callback of it may suspend its fiber: neither lock a Mutex that may
// be held nor wait. It may set an Event, or Spawn() the code that waits.
// Callbacks of a request_stop() by a plain thread may do all that threads may.
//
// Nobody starves. A running fiber may overtake a waiter that is being woken,
// which saves a switch, but not for ever: a waiter that has been woken in vain
// 16 times, or has waited for a millisecond and is woken in vain once more, is
// handed the mutex by the next unlock().
//
// Not recursive, and there is no RecursiveMutex: the holder may be resumed on
// another thread, and code that wants one is better split into a public
// function that locks and a private one that doesn't. For a few dozen
// instructions that never suspend a Spinlock is cheaper.

#ifndef FLARE_FIBER_MUTEX_H_
#define FLARE_FIBER_MUTEX_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class FLARE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Blocks the fiber (or thread) while another one holds the mutex.
  void lock() FLARE_ACQUIRE() {
    if (!try_lock()) [[unlikely]] {
      LockSlow({});
    }
  }

  bool try_lock() FLARE_TRY_ACQUIRE(true) {
    std::uint32_t expected = kFree;
    // acquire: pairs with the release in unlock [MU1].
    if (!state_.compare_exchange_strong(expected, kHeld,
                                        std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      return false;
    }
    NoteHolder();
    return true;
  }

  // lock() with limits. False: the deadline passed, or a stop was requested,
  // while another one held the mutex; it is not locked then. A free mutex is
  // locked in any case.
  [[nodiscard]] bool lock(const std::stop_token& stop) FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({kNoDeadline, &stop});
  }
  bool try_lock_until(std::int64_t deadline_ns)  // In NowNs() time.
      FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({deadline_ns});
  }
  template <class Clock, class Duration>
  bool try_lock_until(std::chrono::time_point<Clock, Duration> at)
      FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  bool try_lock_until(const std::stop_token& stop,
                      std::chrono::time_point<Clock, Duration> at)
      FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({ToSteadyNs(at), &stop});
  }
  template <class Rep, class Period>
  bool try_lock_for(std::chrono::duration<Rep, Period> length)
      FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  bool try_lock_for(const std::stop_token& stop,
                    std::chrono::duration<Rep, Period> length)
      FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({ToSteadyNs(length), &stop});
  }

  // Unlocks the mutex. Only the holder may call it, though perhaps on another
  // worker by now. The next one to lock it may destroy it, even while this call
  // is still returning.
  void unlock() FLARE_RELEASE() {
    // relaxed: only to be shown [MU5].
    holder_.store(nullptr, std::memory_order_relaxed);
    std::uint32_t expected = kHeld;
    // release: pairs with the acquires in try_lock and LockSlow [MU1].
    if (!state_.compare_exchange_strong(
            expected, kFree, std::memory_order_release,
            std::memory_order_relaxed)) [[unlikely]] {
      UnlockSlow();
    }
  }

 private:
  friend struct FiberInspector;  // debug_layout.cc

  // The name by which lists of fibers show it, and know it.
  static constexpr char kName[] = "Mutex";

  // kContended: held, and there may be waiters to wake.
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kContended = 2;

  // No analysis: the lock is made of them.
  bool LockSlow(const WaitLimit& limit) FLARE_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockSlow() FLARE_NO_THREAD_SAFETY_ANALYSIS;
  void NoteTaken() FLARE_REQUIRES(lock_);
  // An address in the stack tells fibers and threads apart, and costs no look
  // at a thread-local.
  void NoteHolder() {
    // relaxed: only to be shown [MU5].
    holder_.store(__builtin_frame_address(0), std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{kFree};
  Spinlock lock_;
  std::atomic<const void*> holder_{nullptr};  // [MU5]
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
  WaitList starving_ FLARE_GUARDED_BY(lock_);  // To be handed the mutex [MU4].
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_MUTEX_H_
