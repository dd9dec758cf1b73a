// A counting semaphore for fibers and plain threads, with the interface of
// std::counting_semaphore. Waiters are served in the order they came.

#ifndef FLARE_FIBER_SEMAPHORE_H_
#define FLARE_FIBER_SEMAPHORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/wait_list.h"

namespace flare::fiber {

class Semaphore {
 public:
  explicit Semaphore(std::ptrdiff_t initial) : count_(initial) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Blocks the fiber (or thread) until there is a unit to take.
  void acquire() { AcquireUntil(kNoDeadline); }
  bool try_acquire();

  template <class Rep, class Period>
  bool try_acquire_for(std::chrono::duration<Rep, Period> length) {
    return AcquireUntil(ToSteadyNs(length));
  }
  template <class Clock, class Duration>
  bool try_acquire_until(std::chrono::time_point<Clock, Duration> at) {
    return AcquireUntil(ToSteadyNs(at));
  }

  // Any thread; does not block.
  void release(std::ptrdiff_t n = 1);

 private:
  bool AcquireUntil(std::int64_t deadline_ns);

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
