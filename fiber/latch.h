// A downward counter that waiters wait to see at zero, with the interface of
// std::latch, and deadlines and stop tokens besides. For fibers and plain
// threads. Safe to destroy once a wait on it has returned true (not so
// try_wait()), although somebody may still be inside count_down().
//
//   fiber::Latch done(jobs.size());
//   for (auto& job : jobs) fiber::Spawn([&] { job.Run(); done.count_down(); });
//   done.wait();

#ifndef FLARE_FIBER_LATCH_H_
#define FLARE_FIBER_LATCH_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class Latch {
 public:
  // `expected` >= 0; 0: open from the start.
  explicit Latch(std::ptrdiff_t expected);
  Latch(const Latch&) = delete;
  Latch& operator=(const Latch&) = delete;

  // Counts down by `n`, which is >= 0 and at most the count that is left. Any
  // thread; does not block. Actions before it are visible to all that have seen
  // the count at zero.
  void count_down(std::ptrdiff_t n = 1);

  // Is the count at zero?
  bool try_wait() const noexcept {
    // acquire: pairs with the release in count_down [LA1].
    return count_.load(std::memory_order_acquire) == 0;
  }

  // Blocks the fiber (or thread) until the count is zero.
  void wait() { WaitLimited({}); }

  // Waits in the same way, with limits. False: the deadline passed, or a stop
  // was requested, before that.
  bool wait(const std::stop_token& stop) {
    return WaitLimited({kNoDeadline, &stop});
  }
  template <class Clock, class Duration>
  bool wait_until(std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  bool wait_until(const std::stop_token& stop,
                  std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited({ToSteadyNs(at), &stop});
  }
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> length) {
    return WaitLimited({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  bool wait_for(const std::stop_token& stop,
                std::chrono::duration<Rep, Period> length) {
    return WaitLimited({ToSteadyNs(length), &stop});
  }

  void arrive_and_wait(std::ptrdiff_t n = 1) {
    count_down(n);
    wait();
  }

 private:
  bool WaitLimited(const WaitLimit& limit);

  Spinlock lock_;
  std::atomic<std::ptrdiff_t> count_;  // Written under lock_.
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_LATCH_H_
