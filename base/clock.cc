// How NowNs() keeps its promises:
//
//  [CK1] An anchor is a pair (counter, CLOCK_MONOTONIC) read within half a
//        microsecond of each other, so it is off by a quarter at most. If the
//        thread is interrupted between the reads the pair is thrown away; after
//        a few failures the kernel's clock is returned as it is.
//  [CK2] An anchor is used for a millisecond of counter time. In that time the
//        measured rate (better than 100 ppm; where 50 ms don't yield that, the
//        kernel's clock is asked each time) and a slewed kernel clock (500 ppm
//        at most) add up to 0.6 us; with [CK1] and [CK5] that is below 1 us, or
//        a few tens of nanoseconds in the ordinary case.
//  [CK3] A new anchor may say a little less than the old one extrapolated to
//        the same moment. `floor_ns` is that extrapolation: nothing that was
//        returned before is greater, and nothing returned later is less.
//  [CK4] Thread-local state is touched only inside NowNs() and the functions it
//        calls, never inlined and never suspending: a fiber that moves between
//        two calls can't carry an address from one thread to another.
//  [CK5] A counter goes by steps, and anything read from it is off by as much.
//        Those of processors are 1 to 50 ns; where they are more than 100 (1 us
//        where QEMU translates AArch64) the kernel's clock is asked each time.
#include "flare/base/clock.h"

#include <time.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "flare/base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace flare {
namespace {

constexpr std::int64_t kAnchorLifeNs = 1'000'000;
constexpr std::int64_t kMaxReadNs = 500;
constexpr std::int64_t kMaxStepNs = 100;
constexpr int kRateShift = 32;

// Ticks of the counter in terms of nanoseconds.
struct Rate {
  double ticks_per_ns = 1;
  std::uint64_t ns_per_tick = 0;  // Times 2^kRateShift.
  std::uint64_t anchor_life = 0;  // Ticks; 0: don't use the counter.
  std::uint64_t max_read = 0;     // Ticks.
};

}  // namespace

namespace clock_internal {

struct alignas(kCacheLine) Anchor {
  std::uint64_t tsc = 0;
  std::uint64_t life = 0;  // Ticks; 0: not set, ask the kernel.
  std::uint64_t ns_per_tick = 0;
  std::int64_t ns = 0;
  std::int64_t floor_ns = 0;  // [CK3]
};

// initial-exec: no function call to find it, also in a shared library. It can't
// be in an unnamed namespace: gold, which Bazel links with where there is one,
// forgets the offset of such a variable in a shared library, and whatever comes
// first in its thread-local storage is overwritten.
[[gnu::tls_model("initial-exec")]] thread_local Anchor anchor;

}  // namespace clock_internal

namespace {

using clock_internal::Anchor;
using clock_internal::anchor;

std::int64_t KernelNs(clockid_t clock = CLOCK_MONOTONIC) {
  struct timespec now;
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

struct Sample {
  std::uint64_t tsc = 0;
  std::int64_t ns = 0;
  std::uint64_t width = 0;  // Ticks that reading took.
};

Sample ReadSample() {
  const std::uint64_t before = ReadTsc();
  const std::int64_t ns = KernelNs();
  const std::uint64_t after = ReadTsc();
  return {before + (after - before) / 2, ns, after - before};
}

Sample ReadBestSample() {
  Sample best = ReadSample();
  for (int i = 0; i < 10; ++i) {
    const Sample sample = ReadSample();
    if (sample.width < best.width) best = sample;
  }
  return best;
}

// Does the counter run at one rate, in step on all CPUs? The kernel checks that
// and takes another source for its own clock if not.
bool IsCounterTrustworthy() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx = 0;
  constexpr unsigned kInvariantTsc = 1u << 8;
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kInvariantTsc) == 0) {
    return false;
  }
  std::ifstream file(
      "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  if (!(file >> source)) return true;  // No sysfs here: the bit must do.
  return source == "tsc" || source == "hyperv_clocksource_tsc_page";
#else
  return true;  // AArch64: guaranteed by the architecture.
#endif
}

// The ticks that the counter goes at a time, or fewer than its reads are apart
// [CK5].
std::uint64_t MeasureStep() {
  constexpr int kReads = 1000;  // 10 us or more.
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  bool stood_still = false;
  std::uint64_t last = ReadTsc();
  for (int i = 0; i < kReads; ++i) {
    const std::uint64_t now = ReadTsc();
    if (now == last) {
      stood_still = true;
    } else {
      least = std::min(least, now - last);
    }
    last = now;
  }
  return stood_still ? least : 1;
}

struct Ratio {
  double ticks_per_ns = 1;
  bool exact = false;  // To 100 ppm [CK2].
};

// Takes 2 ms; longer if reads are interrupted all the time, as on a machine
// that others keep busy.
Ratio MeasureRatio(std::uint64_t step) {
  constexpr std::int64_t kMeasureNs = 2'000'000;
  constexpr std::int64_t kLongestNs = 50'000'000;
  constexpr double kError = 1e-4;
  const Sample start = ReadBestSample();
  Sample end;
  Ratio ratio;
  do {
    const std::int64_t until = KernelNs() + kMeasureNs;
    while (KernelNs() < until) {
    }
    end = ReadBestSample();
    const auto ticks = static_cast<double>(end.tsc - start.tsc);
    ratio.ticks_per_ns = ticks / static_cast<double>(end.ns - start.ns);
    // Each read is off by half of its duration at most, and both by a step.
    const auto off = static_cast<double>((start.width + end.width) / 2 + step);
    ratio.exact = off <= kError * ticks;
  } while (!ratio.exact && end.ns - start.ns < kLongestNs);
  return ratio;
}

Rate LearnRate() {
  Rate rate;
  const std::uint64_t step = MeasureStep();
  const Ratio ratio = MeasureRatio(step);
  rate.ticks_per_ns = ratio.ticks_per_ns;
  rate.ns_per_tick = static_cast<std::uint64_t>(
      static_cast<double>(std::uint64_t{1} << kRateShift) / rate.ticks_per_ns);
  // [CK5]
  const bool fine =
      static_cast<double>(step) <= kMaxStepNs * ratio.ticks_per_ns;
  if (ratio.exact && fine && IsCounterTrustworthy()) {
    rate.anchor_life =
        static_cast<std::uint64_t>(kAnchorLifeNs * rate.ticks_per_ns);
    rate.max_read = static_cast<std::uint64_t>(kMaxReadNs * rate.ticks_per_ns);
  }
  return rate;
}

const Rate& GetRate() {
  static const Rate rate = LearnRate();
  return rate;
}

// Nanoseconds in `ticks`, which is at most a few anchor lives: the product
// can't overflow.
inline std::int64_t Scale(std::uint64_t ticks, std::uint64_t ns_per_tick) {
  return static_cast<std::int64_t>((ticks * ns_per_tick) >> kRateShift);
}

[[gnu::noinline]] std::int64_t TakeAnchor() {
  const Rate& rate = GetRate();
  Anchor& mine = anchor;
  for (int tries = 0; tries < 3 && rate.anchor_life != 0; ++tries) {
    const Sample sample = ReadSample();
    if (sample.width > rate.max_read) continue;  // [CK1]
    if (mine.life != 0) {                        // [CK3]
      // The promise of the old anchor lies within its life.
      const std::uint64_t age = std::min(sample.tsc - mine.tsc, mine.life);
      mine.floor_ns =
          std::max(mine.floor_ns, mine.ns + Scale(age, mine.ns_per_tick));
    }
    mine.tsc = sample.tsc;
    mine.ns = sample.ns;
    mine.life = rate.anchor_life;
    mine.ns_per_tick = rate.ns_per_tick;
    return std::max(mine.floor_ns, mine.ns);
  }
  // The next call tries again: the old anchor has expired.
  mine.floor_ns = std::max(mine.floor_ns, KernelNs());
  return mine.floor_ns;
}

}  // namespace

[[gnu::noinline]] std::int64_t NowNs() {  // [CK4]
  const Anchor& mine = anchor;
  const std::uint64_t age = ReadTsc() - mine.tsc;
  // Also for a counter that went backwards: then age is huge.
  if (age >= mine.life) [[unlikely]] {
    return TakeAnchor();
  }
  return std::max(mine.floor_ns, mine.ns + Scale(age, mine.ns_per_tick));
}

// An anchor that never expires, for a counter that makes no progress.
[[gnu::noinline]] void SetVirtualNow(std::int64_t now_ns) {  // [CK4]
  anchor = {.tsc = 0,
            .life = std::numeric_limits<std::uint64_t>::max(),
            .ns_per_tick = 0,
            .ns = now_ns,
            .floor_ns = now_ns};
}

[[gnu::noinline]] void EndVirtualNow() { anchor = Anchor(); }  // [CK4]

std::chrono::steady_clock::time_point ReadCoarseSteadyClock() {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(KernelNs(CLOCK_MONOTONIC_COARSE)));
}

double CycleClock::TicksPerNs() { return GetRate().ticks_per_ns; }

std::int64_t CycleClock::ToNs(std::uint64_t ticks) {
  return static_cast<std::int64_t>(static_cast<double>(ticks) / TicksPerNs());
}

}  // namespace flare
