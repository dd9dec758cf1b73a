// A downward counter that waiters wait to see at zero, with the interface of
// std::latch and deadlines besides. For fibers and plain threads. Safe to
// destroy once a wait on it has returned.

#ifndef FLARE_FIBER_LATCH_H_
#define FLARE_FIBER_LATCH_H_

#include <chrono>
#include <cstddef>
#include <mutex>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"

namespace flare::fiber {

class Latch {
 public:
  explicit Latch(std::ptrdiff_t expected) : count_(expected) {
    if (expected == 0) zero_.Set();
  }
  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  // `n` must not exceed what is left. Does not block.
  void count_down(std::ptrdiff_t n = 1) {
    std::scoped_lock guard(lock_);
    count_ -= n;
    if (count_ == 0) zero_.Set();
  }

  bool try_wait() const noexcept { return zero_.IsSet(); }

  void wait() {
    zero_.Wait();
    WaitForSetter();
  }

  template <class Clock, class Duration>
  bool wait_until(std::chrono::time_point<Clock, Duration> at) {
    return WaitUntilNs(ToSteadyNs(at));
  }
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> length) {
    return WaitUntilNs(ToSteadyNs(length));
  }

  void arrive_and_wait(std::ptrdiff_t n = 1) {
    count_down(n);
    wait();
  }

 private:
  bool WaitUntilNs(std::int64_t deadline_ns) {
    if (!zero_.WaitUntil(deadline_ns)) return false;
    WaitForSetter();
    return true;
  }

  // Whoever counted to zero may still hold the lock: after this it doesn't
  // touch the latch any more.
  void WaitForSetter() { std::scoped_lock guard(lock_); }

  Spinlock lock_;
  std::ptrdiff_t count_ FLARE_GUARDED_BY(lock_);
  Event zero_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_LATCH_H_
