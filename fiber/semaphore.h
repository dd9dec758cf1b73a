// A counting semaphore for fibers and plain threads, with the interface of
// std::counting_semaphore, and stop tokens besides. Waiters are served in the
// order they came. Safe to destroy once an acquire has returned true, although
// somebody may still be inside release().
//
//   fiber::Semaphore slots(100);
//   if (!slots.try_acquire_for(stop, 1s)) return Overloaded();

#ifndef FLARE_FIBER_SEMAPHORE_H_
#define FLARE_FIBER_SEMAPHORE_H_

#include <chrono>
#include <cstddef>
#include <limits>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class Semaphore {
 public:
  // `initial` >= 0.
  explicit Semaphore(std::ptrdiff_t initial);
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Blocks the fiber (or thread) until there is a unit to take.
  void acquire() { AcquireLimited({}); }
  bool try_acquire();

  // acquire() with limits. False: the deadline passed, or a stop was requested,
  // before there was one. A unit that is there is taken in any case.
  [[nodiscard]] bool acquire(const std::stop_token& stop) {
    return AcquireLimited({kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  bool try_acquire_for(std::chrono::duration<Rep, Period> length) {
    return AcquireLimited({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  bool try_acquire_for(const std::stop_token& stop,
                       std::chrono::duration<Rep, Period> length) {
    return AcquireLimited({ToSteadyNs(length), &stop});
  }
  template <class Clock, class Duration>
  bool try_acquire_until(std::chrono::time_point<Clock, Duration> at) {
    return AcquireLimited({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  bool try_acquire_until(const std::stop_token& stop,
                         std::chrono::time_point<Clock, Duration> at) {
    return AcquireLimited({ToSteadyNs(at), &stop});
  }

  // Gives `n` units back, `n` >= 0. Any thread; does not block.
  void release(std::ptrdiff_t n = 1);

 private:
  bool AcquireLimited(const WaitLimit& limit);

  Spinlock lock_;
  std::ptrdiff_t count_ FLARE_GUARDED_BY(lock_);
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

// The std-like spelling. The bound is a promise of the caller's, as in std.
template <std::ptrdiff_t kLeastMax = std::numeric_limits<std::ptrdiff_t>::max()>
class CountingSemaphore : public Semaphore {
 public:
  using Semaphore::Semaphore;
  static constexpr std::ptrdiff_t max() noexcept { return kLeastMax; }
};

using BinarySemaphore = CountingSemaphore<1>;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SEMAPHORE_H_
