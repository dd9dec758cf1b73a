// A readers-writer lock for fibers and plain threads, with the interface of
// std::shared_timed_mutex (so std::shared_lock, std::unique_lock and
// std::scoped_lock work), and stop tokens besides.
//
//   fiber::SharedMutex mutex;
//   { std::shared_lock reading(mutex); ... }
//   { std::scoped_lock writing(mutex); ... }
//
// Nobody starves: a waiting writer keeps new readers out, and when a writer
// ends, the readers that waited meanwhile go before the next writer. Hence a
// reader must not read-lock the same mutex again: with a writer in between it
// would wait for itself.
//
// A read lock that nobody contends costs one atomic exchange to take and one to
// give back, on a line that all readers share. Worth it where the sections are
// long or suspend; for short ones a Mutex, or a Spinlock, is as good.

#ifndef FLARE_FIBER_SHARED_MUTEX_H_
#define FLARE_FIBER_SHARED_MUTEX_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class FLARE_CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  // Blocks the fiber (or thread) while anybody else holds the mutex.
  void lock() FLARE_ACQUIRE() {
    if (!try_lock()) [[unlikely]] {
      LockSlow({});
    }
  }

  bool try_lock() FLARE_TRY_ACQUIRE(true) {
    std::uint32_t expected = 0;
    // acquire: pairs with the releases in unlock and unlock_shared [SM1].
    if (!state_.compare_exchange_strong(expected, kWriter,
                                        std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      return false;
    }
    NoteHolder();
    return true;
  }

  // lock() with limits. False: the deadline passed, or a stop was requested,
  // before it was its turn; it is not locked then. A free mutex is taken in any
  // case.
  [[nodiscard]] bool lock(const std::stop_token& stop) FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow({kNoDeadline, &stop});
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

  // Unlocks the mutex. Only the holder may call it. As for all unlocking here,
  // the next one to lock it may destroy it, even while this call is still
  // returning.
  void unlock() FLARE_RELEASE() {
    // relaxed: only to be shown [SM6].
    holder_.store(nullptr, std::memory_order_relaxed);
    std::uint32_t expected = kWriter;
    // release: pairs with the acquires in try_lock and try_lock_shared [SM1].
    if (!state_.compare_exchange_strong(expected, 0, std::memory_order_release,
                                        std::memory_order_relaxed))
        [[unlikely]] {
      UnlockSlow(kWriter);
    }
  }

  // Blocks the fiber (or thread) while a writer holds the mutex or waits.
  void lock_shared() FLARE_ACQUIRE_SHARED() {
    if (!try_lock_shared()) [[unlikely]] {
      LockSharedSlow({});
    }
  }

  bool try_lock_shared() FLARE_TRY_ACQUIRE_SHARED(true) {
    // relaxed: the exchange decides.
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & (kWriter | kWaiting)) == 0) {
      // acquire: pairs with the releases in unlock and UnlockSlow [SM1].
      if (state_.compare_exchange_weak(state, state + kReader,
                                       std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  // lock_shared() with limits, as those of lock().
  [[nodiscard]] bool lock_shared(const std::stop_token& stop)
      FLARE_TRY_ACQUIRE_SHARED(true) {
    return try_lock_shared() || LockSharedSlow({kNoDeadline, &stop});
  }
  template <class Clock, class Duration>
  bool try_lock_shared_until(std::chrono::time_point<Clock, Duration> at)
      FLARE_TRY_ACQUIRE_SHARED(true) {
    return try_lock_shared() || LockSharedSlow({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  bool try_lock_shared_until(const std::stop_token& stop,
                             std::chrono::time_point<Clock, Duration> at)
      FLARE_TRY_ACQUIRE_SHARED(true) {
    return try_lock_shared() || LockSharedSlow({ToSteadyNs(at), &stop});
  }
  template <class Rep, class Period>
  bool try_lock_shared_for(std::chrono::duration<Rep, Period> length)
      FLARE_TRY_ACQUIRE_SHARED(true) {
    return try_lock_shared() || LockSharedSlow({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  bool try_lock_shared_for(const std::stop_token& stop,
                           std::chrono::duration<Rep, Period> length)
      FLARE_TRY_ACQUIRE_SHARED(true) {
    return try_lock_shared() || LockSharedSlow({ToSteadyNs(length), &stop});
  }

  void unlock_shared() FLARE_RELEASE_SHARED() {
    // relaxed: the exchange decides.
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & kWaiting) == 0) {
      // release: pairs with the acquire in try_lock [SM1].
      if (state_.compare_exchange_weak(state, state - kReader,
                                       std::memory_order_release,
                                       std::memory_order_relaxed)) {
        return;
      }
    }
    UnlockSlow(kReader);
  }

 private:
  friend struct FiberInspector;  // debug_layout.cc

  // The names by which lists of fibers show its waiters, and know them.
  static constexpr char kToWrite[] = "SharedMutex, to write";
  static constexpr char kToRead[] = "SharedMutex, to read";

  // state_: the number of readers, and two flags.
  static constexpr std::uint32_t kReader = 1;
  static constexpr std::uint32_t kWriter = 1U << 31;   // One holds it.
  static constexpr std::uint32_t kWaiting = 1U << 30;  // Somebody waits [SM2].

  bool LockSlow(const WaitLimit& limit);
  bool LockSharedSlow(const WaitLimit& limit);
  // No analysis: the lock is made of it.
  void UnlockSlow(std::uint32_t held) FLARE_NO_THREAD_SAFETY_ANALYSIS;
  std::uint32_t TakeState() FLARE_REQUIRES(lock_);
  bool FinishWait(WaitResult result);
  void Grant(bool readers_first) FLARE_REQUIRES(lock_);
  // As in Mutex.
  void NoteHolder() {
    // relaxed: only to be shown [SM6].
    holder_.store(__builtin_frame_address(0), std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> state_{0};
  Spinlock lock_;
  std::atomic<const void*> holder_{nullptr};  // The writer's [SM6].
  WaitList readers_ FLARE_GUARDED_BY(lock_);
  WaitList writers_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SHARED_MUTEX_H_
