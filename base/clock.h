// Clocks. Times are nanoseconds of CLOCK_MONOTONIC in an int64: the same epoch
// as std::chrono::steady_clock, so both can be mixed freely.
//
//   const std::int64_t deadline = NowNs() + 5'000'000;  // In 5 ms.
//
// NowNs() costs a read of the time-stamp counter and a few instructions, about
// 10 ns where clock_gettime costs 16 to 25. Each thread keeps an anchor (one
// counter value and the CLOCK_MONOTONIC time at it) and interpolates from it
// for at most a millisecond; then it takes a new one. If the counter can't be
// trusted (not invariant, or the kernel itself doesn't use it, or it goes by
// steps of more than 100 ns) every call is a clock_gettime.
//
// Promises:
//  * Within one thread NowNs() never goes back.
//  * It is within 1 us of CLOCK_MONOTONIC (in fact mostly within 100 ns); this
//    includes the kernel slewing its clock by up to 500 ppm.
//  * Hence between threads, and for a fiber that has moved to another worker,
//    it may go back by up to 2 us (mostly 100 ns): a later event on another
//    thread may carry a time up to that much smaller.
//  * The counter is read out of order: the time may be from before an earlier
//    load was done. Where threads fight for a cache line that load takes 1 us
//    and more, and a time that came through it may be ahead of one's own by as
//    much. Subtract with care where a negative result would hurt.
//  * A virtual machine that is paused and resumed elsewhere may break the
//    second rule for up to a millisecond of counter time.
//
// All functions here are thread-safe and don't block; none is for signal
// handlers. The first call in a process takes 2 ms to learn the counter's rate,
// up to 50 where its reads are interrupted all the time.

#ifndef FLARE_BASE_CLOCK_H_
#define FLARE_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <ratio>
#include <type_traits>

namespace flare {

std::int64_t NowNs();

// The processor's counter: constant rate, not ordered with the instructions
// around it. For measuring short stretches; see CycleClock for its rate.
inline std::uint64_t ReadTsc() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();  // <x86intrin.h> is 30,000 lines.
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
#error "flare runs on x86-64 and AArch64 only"
#endif
}

// Converts differences of ReadTsc(). The rate is measured once, to better than
// 200 ppm.
class CycleClock {
 public:
  static double TicksPerNs();
  static std::int64_t ToNs(std::uint64_t ticks);
};

// For tests that must be the same each time: from here on NowNs() is `now_ns`
// on the calling thread, until it is set anew. Costs NowNs() nothing while
// unused. Clocks other than NowNs() and those made of it stay as they are.
void SetVirtualNow(std::int64_t now_ns);
// Back to real time, which may be less.
void EndVirtualNow();

// For times that are given in other units.
inline constexpr std::int64_t kNsPerMs = 1'000'000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

constexpr double ToSeconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

// A time such as NowNs() returns as a time point.
constexpr std::chrono::steady_clock::time_point ToTimePoint(std::int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}
inline std::chrono::steady_clock::time_point ReadSteadyClock() {
  return ToTimePoint(NowNs());
}

// The time of the last kernel tick: up to 4 ms (10 with CONFIG_HZ=100) behind,
// for 5 ns a call.
std::chrono::steady_clock::time_point ReadCoarseSteadyClock();

// Wall-clock time. May jump when somebody sets the clock.
inline std::chrono::system_clock::time_point ReadSystemClock() {
  return std::chrono::system_clock::now();
}

// `duration`, of any integral or floating-point type and any period, in
// nanoseconds, rounded up, and limited to the range of an int64.
template <class Rep, class Period>
constexpr std::int64_t ToNs(std::chrono::duration<Rep, Period> duration) {
  using Duration = std::chrono::duration<Rep, Period>;
  using Ns = std::chrono::duration<std::int64_t, std::nano>;
  if constexpr (std::is_same_v<Duration, Ns>) {
    return duration.count();
  } else if constexpr (std::is_integral_v<Rep>) {
    // Wide enough for a count of 64 bits, signed or not, times one of 63.
    using Scale = std::ratio_divide<Period, std::nano>;
    // Users' -Wpedantic mentions that it isn't ISO's.
    __extension__ typedef __int128 Wide;
    const Wide scaled = static_cast<Wide>(duration.count()) * Scale::num;
    const Wide whole = scaled / Scale::den + (scaled % Scale::den > 0 ? 1 : 0);
    if (whole > Ns::max().count()) return Ns::max().count();
    if (whole < Ns::min().count()) return Ns::min().count();
    return static_cast<std::int64_t>(whole);
  } else {
    const long double wide =
        std::chrono::duration<long double, std::nano>(duration).count();
    if (wide != wide) return 0;  // No number.
    if (wide >= static_cast<long double>(Ns::max().count())) {
      return Ns::max().count();
    }
    if (wide <= static_cast<long double>(Ns::min().count())) {
      return Ns::min().count();
    }
    const auto whole = static_cast<std::int64_t>(wide);
    return whole + (static_cast<long double>(whole) < wide ? 1 : 0);
  }
}

// Stands for never where a time such as NowNs() returns is asked for.
inline constexpr std::int64_t kNoDeadline =
    std::numeric_limits<std::int64_t>::max();

// a + b, limited to the range of an int64: never, and more, is never.
constexpr std::int64_t SaturatingAdd(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? std::numeric_limits<std::int64_t>::max()
               : std::numeric_limits<std::int64_t>::min();
}

// Deadlines, as NowNs() counts: that far from now ...
template <class Rep, class Period>
std::int64_t ToSteadyNs(std::chrono::duration<Rep, Period> from_now) {
  return SaturatingAdd(NowNs(), ToNs(from_now));
}

// ... or at that time. Times of other clocks are converted by how far from now
// they are, as seen by that clock at this moment.
template <class Clock, class Duration>
std::int64_t ToSteadyNs(std::chrono::time_point<Clock, Duration> when) {
  if constexpr (std::is_same_v<Clock, std::chrono::steady_clock>) {
    return ToNs(when.time_since_epoch());
  } else {
    const std::int64_t then = ToNs(when.time_since_epoch());
    const std::int64_t now = ToNs(Clock::now().time_since_epoch());
    if (then == kNoDeadline) return then;
    return SaturatingAdd(NowNs(), SaturatingAdd(then, -now));
  }
}

}  // namespace flare

#endif  // FLARE_BASE_CLOCK_H_
