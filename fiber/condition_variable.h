// A condition variable for fibers and plain threads, with the interface of
// std::condition_variable, over fiber::Mutex. No spurious wake-ups, though the
// condition may have changed again by the time the waiter holds the mutex.

#ifndef FLARE_FIBER_CONDITION_VARIABLE_H_
#define FLARE_FIBER_CONDITION_VARIABLE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/wait_list.h"

namespace flare::fiber {

class ConditionVariable {
 public:
  ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;

  // With or without the mutex held. Do not block.
  void notify_one();
  void notify_all();

  // Releases the mutex, blocks the fiber (or thread) until notified, acquires
  // it again.
  void wait(std::unique_lock<Mutex>& lock) { WaitUntilNs(lock, kNoDeadline); }

  template <class Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate done) {
    while (!done()) wait(lock);
  }

  template <class Clock, class Duration>
  std::cv_status wait_until(std::unique_lock<Mutex>& lock,
                            std::chrono::time_point<Clock, Duration> at) {
    return WaitUntilNs(lock, ToSteadyNs(at)) ? std::cv_status::no_timeout
                                             : std::cv_status::timeout;
  }

  // What the predicate says at the end.
  template <class Clock, class Duration, class Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock,
                  std::chrono::time_point<Clock, Duration> at, Predicate done) {
    return WaitWith(lock, ToSteadyNs(at), std::move(done));
  }

  template <class Rep, class Period>
  std::cv_status wait_for(std::unique_lock<Mutex>& lock,
                          std::chrono::duration<Rep, Period> length) {
    return WaitUntilNs(lock, ToSteadyNs(length)) ? std::cv_status::no_timeout
                                                 : std::cv_status::timeout;
  }

  template <class Rep, class Period, class Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock,
                std::chrono::duration<Rep, Period> length, Predicate done) {
    return WaitWith(lock, ToSteadyNs(length), std::move(done));
  }

 private:
  // False: the deadline passed without a notification.
  bool WaitUntilNs(std::unique_lock<Mutex>& lock, std::int64_t deadline_ns);

  template <class Predicate>
  bool WaitWith(std::unique_lock<Mutex>& lock, std::int64_t deadline_ns,
                Predicate done) {
    while (!done()) {
      if (!WaitUntilNs(lock, deadline_ns)) return done();
    }
    return true;
  }

  Spinlock lock_;
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CONDITION_VARIABLE_H_
