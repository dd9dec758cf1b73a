// A condition variable for fibers and plain threads, over fiber::Mutex, with
// the interface of std::condition_variable and the waits with stop tokens of
// std::condition_variable_any. No spurious wake-ups, though the condition may
// have changed again by the time the waiter holds the mutex.
//
//   std::unique_lock lock(mutex);
//   if (!not_empty.wait(lock, stop, [&] { return !queue.empty(); })) return;
//
// Must not be destroyed while notify_one() or notify_all() runs: notify with
// the mutex held if a waiter may destroy it.

#ifndef FLARE_FIBER_CONDITION_VARIABLE_H_
#define FLARE_FIBER_CONDITION_VARIABLE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

class ConditionVariable {
 public:
  ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;

  // Wake one waiter, or all. With or without the mutex held. Do not block.
  void notify_one();
  void notify_all();

  // Releases the mutex, blocks the fiber (or thread) until notified, acquires
  // it again.
  void wait(std::unique_lock<Mutex>& lock) { WaitLimited(lock, {}); }

  template <class Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate done) {
    WaitWith(lock, {}, done);
  }

  template <class Clock, class Duration>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock,
                            std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited(lock, {ToSteadyNs(at)}) ? std::cv_status::no_timeout
                                               : std::cv_status::timeout;
  }
  template <class Rep, class Period>
  std::cv_status wait_for(std::unique_lock<Mutex>& lock,
                          std::chrono::duration<Rep, Period> length) {
    return WaitLimited(lock, {ToSteadyNs(length)}) ? std::cv_status::no_timeout
                                                   : std::cv_status::timeout;
  }

  // Return the predicate's result at the end.
  template <class Clock, class Duration, class Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock,
                  std::chrono::time_point<Clock, Duration> at, Predicate done) {
    return WaitWith(lock, {ToSteadyNs(at)}, done);
  }
  template <class Rep, class Period, class Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock,
                std::chrono::duration<Rep, Period> length, Predicate done) {
    return WaitWith(lock, {ToSteadyNs(length)}, done);
  }

  // Wait in the same way, and don't wait any longer once a stop is requested of
  // the token. Whether it was tells stop.stop_requested().
  template <class Predicate>
  bool wait(std::unique_lock<Mutex>& lock, const std::stop_token& stop,
            Predicate done) {
    return WaitWith(lock, {kNoDeadline, &stop}, done);
  }
  template <class Clock, class Duration, class Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock, const std::stop_token& stop,
                  std::chrono::time_point<Clock, Duration> at, Predicate done) {
    return WaitWith(lock, {ToSteadyNs(at), &stop}, done);
  }
  template <class Rep, class Period, class Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock, const std::stop_token& stop,
                std::chrono::duration<Rep, Period> length, Predicate done) {
    return WaitWith(lock, {ToSteadyNs(length), &stop}, done);
  }

 private:
  // False: a limit was reached without a notification.
  bool WaitLimited(std::unique_lock<Mutex>& lock, const WaitLimit& limit);

  template <class Predicate>
  bool WaitWith(std::unique_lock<Mutex>& lock, const WaitLimit& limit,
                Predicate& done) {
    while (!done()) {
      if (!WaitLimited(lock, limit)) return done();
    }
    return true;
  }

  Spinlock lock_;
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CONDITION_VARIABLE_H_
