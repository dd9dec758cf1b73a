// Functions of a fiber on itself. All of them work on plain threads as well,
// where they concern the thread.

#ifndef FLARE_FIBER_THIS_FIBER_H_
#define FLARE_FIBER_THIS_FIBER_H_

#include <chrono>
#include <cstdint>
#include <stop_token>

#include "flare/base/clock.h"

namespace flare::this_fiber {

// Lets the other ready tasks of this worker run first.
void Yield();

// Suspends the fiber until NowNs() >= deadline_ns.
void SleepUntilNs(std::int64_t deadline_ns);

template <class Rep, class Period>
void SleepFor(std::chrono::duration<Rep, Period> length) {
  SleepUntilNs(ToSteadyNs(length));
}

template <class Clock, class Duration>
void SleepUntil(std::chrono::time_point<Clock, Duration> at) {
  SleepUntilNs(ToSteadyNs(at));
}

// Sleeps in the same way, or until a stop is requested. False: it was, before
// that time.
[[nodiscard]] bool SleepUntilNs(const std::stop_token& stop,
                                std::int64_t deadline_ns);

template <class Rep, class Period>
[[nodiscard]] bool SleepFor(const std::stop_token& stop,
                            std::chrono::duration<Rep, Period> length) {
  return SleepUntilNs(stop, ToSteadyNs(length));
}

template <class Clock, class Duration>
[[nodiscard]] bool SleepUntil(const std::stop_token& stop,
                              std::chrono::time_point<Clock, Duration> at) {
  return SleepUntilNs(stop, ToSteadyNs(at));
}

// Returns a number that no other fiber of this process has or had; 0 on plain
// threads.
std::uint64_t GetId();

// Names the fiber in fiber lists and debuggers, until it ends. `name` is a
// literal, or lives as long as the fiber. Ignored on plain threads.
void SetName(const char* name);

}  // namespace flare::this_fiber

namespace flare::fiber {

// errno. It goes with the fiber when that moves to another worker, but
// compilers may keep its *address* for the rest of a function, since libc
// declares it constant: a function that uses `errno` both before and after
// something that may suspend reads the wrong thread's. These never do.
int GetLastError();
void SetLastError(int error);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THIS_FIBER_H_
