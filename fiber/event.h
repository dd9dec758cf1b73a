// A one-bit gate: waiters block until it is set. Stays set until Reset().
// Usable from fibers and from plain threads, and safe to destroy as soon as a
// wait on it has returned true, although the setter may still be inside Set().
//
//   fiber::Event done;
//   fiber::Spawn([&] { Work(); done.Set(); });
//   done.Wait();

#ifndef FLARE_FIBER_EVENT_H_
#define FLARE_FIBER_EVENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Sets the event and wakes all waiters. Any thread. Does not block. Actions
  // before Set() are visible after a wait has returned, or IsSet() has returned
  // true.
  void Set();

  // Blocks the calling fiber (or thread) until the event is set.
  void Wait() { WaitLimited({}); }

  // Wait in the same way, with limits. False: the deadline passed, or a stop
  // was requested, before it was set. An event that is set already gives true
  // in any case.
  bool Wait(const std::stop_token& stop) {
    return WaitLimited({kNoDeadline, &stop});
  }
  bool WaitUntil(std::int64_t deadline_ns) {  // In NowNs() time.
    return WaitLimited({deadline_ns});
  }
  template <class Clock, class Duration>
  bool WaitUntil(std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  bool WaitUntil(const std::stop_token& stop,
                 std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited({ToSteadyNs(at), &stop});
  }
  template <class Rep, class Period>
  bool WaitFor(std::chrono::duration<Rep, Period> length) {
    return WaitLimited({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  bool WaitFor(const std::stop_token& stop,
               std::chrono::duration<Rep, Period> length) {
    return WaitLimited({ToSteadyNs(length), &stop});
  }

  bool IsSet() const noexcept {
    // acquire: pairs with the release in Set [EV1].
    return set_.load(std::memory_order_acquire);
  }

  // Clears the event. Must not be called while others wait or set.
  void Reset() noexcept {
    // relaxed: the caller excludes concurrent use.
    set_.store(false, std::memory_order_relaxed);
  }

 private:
  bool WaitLimited(const WaitLimit& limit);

  Spinlock lock_;
  std::atomic<bool> set_{false};
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_EVENT_H_
