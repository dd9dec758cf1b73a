#include "flare/base/clock.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;
using namespace std::chrono_literals;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxSkewNs = 1000;

std::int64_t KernelNs() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Lets `ns` of real time pass without sleeping.
void Spin(std::int64_t ns) {
  const std::int64_t end = KernelNs() + ns;
  while (KernelNs() < end) {
  }
}

TEST(NowNs, NeverGoesBackWithinAThread) {
  // Many anchors: at least 20 ms of reading as fast as possible.
  const std::int64_t end = NowNs() + 20'000'000;
  std::int64_t last = NowNs();
  std::int64_t reads = 0;
  while (last < end) {
    const std::int64_t now = NowNs();
    ASSERT_GE(now, last) << "after " << reads << " reads";
    last = now;
    ++reads;
  }
  EXPECT_GT(reads, 0);
}

// The code behind it begins when all earlier loads are done: NowNs() may be
// read ahead of them, by more than the skew where threads fight for a cache
// line or the kernel's clock is not in the cache.
void WaitForLoads() {
#if defined(__x86_64__)
  __builtin_ia32_lfence();
#else
  asm volatile("dsb ld\n\tisb" ::: "memory");
#endif
}

// Brackets NowNs() between two readings of the kernel's clock: whatever the
// scheduler does, it must lie between them, give or take the skew.
void ExpectCloseToKernel(int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const std::int64_t before = KernelNs();
    WaitForLoads();
    const std::int64_t now = NowNs();
    const std::int64_t after = KernelNs();
    ASSERT_GE(now, before - kMaxSkewNs);
    ASSERT_LE(now, after + kMaxSkewNs);
  }
}

TEST(NowNs, StaysCloseToTheKernelsClock) {
  ExpectCloseToKernel(100'000);
  // At all ages of an anchor, just before it is replaced, too.
  for (int i = 0; i < 100; ++i) {
    Spin(i * 10'000);
    ExpectCloseToKernel(1);
  }
  Spin(10'000'000);  // Long expired.
  ExpectCloseToKernel(1);
}

TEST(NowNs, StaysCloseOnManyThreadsAtOnce) {
  constexpr int kThreads = 6;  // More than CPUs: they get preempted.
  std::vector<std::jthread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] { ExpectCloseToKernel(30'000); });
  }
}

TEST(NowNs, ThreadsDifferByAtMostTheSkew) {
  // Each thread publishes the latest time it has read; nobody may then read
  // one that is earlier by more than the skew, this way and that.
  constexpr int kThreads = 4;
  std::atomic<std::int64_t> latest{0};
  std::atomic<std::int64_t> worst{0};
  std::latch start(kThreads);
  {
    std::vector<std::jthread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        for (int i = 0; i < 200'000; ++i) {
          std::int64_t seen = latest.load(std::memory_order_acquire);
          WaitForLoads();
          const std::int64_t now = NowNs();
          std::int64_t bad = worst.load(std::memory_order_relaxed);
          while (seen - now > bad &&
                 !worst.compare_exchange_weak(bad, seen - now)) {
          }
          while (now > seen && !latest.compare_exchange_weak(
                                   seen, now, std::memory_order_release,
                                   std::memory_order_relaxed)) {
          }
        }
      });
    }
  }
  EXPECT_LE(worst, 2 * kMaxSkewNs);
}

TEST(NowNs, SharesItsEpochWithSteadyClock) {
  const auto before = steady_clock::now();
  const auto now = ReadSteadyClock();
  const auto after = steady_clock::now();
  EXPECT_GE(now, before - 1us);
  EXPECT_LE(now, after + 1us);
}

TEST(ReadCoarseSteadyClock, LagsByATickAtMost) {
  const auto before = steady_clock::now();
  const auto coarse = ReadCoarseSteadyClock();
  const auto after = steady_clock::now();
  EXPECT_LE(coarse, after);
  // 10 ms is a tick at CONFIG_HZ=100; a virtual CPU may miss some.
  EXPECT_GE(coarse, before - 1s);
}

TEST(ReadSystemClock, IsTheSystemClock) {
  const auto before = system_clock::now();
  const auto now = ReadSystemClock();
  EXPECT_GE(now, before);
  EXPECT_LE(now, system_clock::now());
}

TEST(CycleClock, MeasuresTime) {
  const std::int64_t outer_start = KernelNs();
  const std::uint64_t start = ReadTsc();
  const std::int64_t inner_start = KernelNs();
  Spin(20'000'000);
  const std::int64_t kernel_inner = KernelNs() - inner_start;
  const std::uint64_t ticks = ReadTsc() - start;
  const std::int64_t kernel_outer = KernelNs() - outer_start;
  // Between the time inside and, however long we were kept from running around
  // the readings, outside of them; the rate is good to 200 ppm.
  const std::int64_t measured = CycleClock::ToNs(ticks);
  EXPECT_GE(measured, kernel_inner - kernel_inner / 1000 - 1000);
  EXPECT_LE(measured, kernel_outer + kernel_outer / 1000 + 5000);
}

TEST(CycleClock, ConvertsToNanoseconds) {
  EXPECT_GT(CycleClock::TicksPerNs(), 0.001);
  EXPECT_LT(CycleClock::TicksPerNs(), 10);
  EXPECT_EQ(CycleClock::ToNs(0), 0);
  for (const std::int64_t ns :
       {1'000'000LL, 123'456'789LL, 3'600'000'000'000LL}) {
    const double ticks = static_cast<double>(ns) * CycleClock::TicksPerNs();
    EXPECT_NEAR(static_cast<double>(
                    CycleClock::ToNs(static_cast<std::uint64_t>(ticks))),
                static_cast<double>(ns), 1000);
  }
}

TEST(ToNs, RoundsUpAndSaturates) {
  using Picoseconds = std::chrono::duration<std::int64_t, std::pico>;
  EXPECT_EQ(ToNs(5ns), 5);
  EXPECT_EQ(ToNs(-5ns), -5);
  EXPECT_EQ(ToNs(3us), 3000);
  EXPECT_EQ(ToNs(std::chrono::duration<int>(2)), 2'000'000'000);
  EXPECT_EQ(ToNs(Picoseconds(1)), 1);
  EXPECT_EQ(ToNs(Picoseconds(1001)), 2);
  EXPECT_EQ(ToNs(Picoseconds(-1001)), -1);
  EXPECT_EQ(ToNs(std::chrono::duration<double>(0.5)), 500'000'000);
  EXPECT_EQ(ToNs(std::chrono::duration<double, std::nano>(0.25)), 1);
  EXPECT_EQ(ToNs(std::chrono::nanoseconds::max()), kMax);
  EXPECT_EQ(ToNs(std::chrono::hours::max()), kMax);
  EXPECT_EQ(ToNs(std::chrono::hours::min()), kMin);
  EXPECT_EQ(ToNs(std::chrono::milliseconds::max()), kMax);
  EXPECT_EQ(ToNs(std::chrono::duration<double>(1e30)), kMax);
  EXPECT_EQ(ToNs(std::chrono::duration<double>(-1e30)), kMin);
  EXPECT_EQ(ToNs(std::chrono::duration<double>(
                std::numeric_limits<double>::quiet_NaN())),
            0);
  // The last that fits, and the first that doesn't.
  EXPECT_EQ(ToNs(std::chrono::seconds(9'223'372'036)),
            9'223'372'036'000'000'000);
  EXPECT_EQ(ToNs(std::chrono::seconds(9'223'372'037)), kMax);
  static_assert(ToNs(1ms) == 1'000'000);
}

TEST(ToNs, TakesUnsignedDurations) {
  using Unsigned = std::uint64_t;
  constexpr auto kMost = std::numeric_limits<Unsigned>::max();
  EXPECT_EQ(ToNs(std::chrono::duration<Unsigned>(2)), 2'000'000'000);
  EXPECT_EQ(ToNs(std::chrono::duration<unsigned, std::milli>(5)), 5'000'000);
  EXPECT_EQ(ToNs(std::chrono::duration<std::uint8_t, std::micro>(255)),
            255'000);
  EXPECT_EQ(ToNs(std::chrono::duration<Unsigned, std::nano>(7)), 7);
  EXPECT_EQ(ToNs(std::chrono::duration<Unsigned, std::nano>(kMost)), kMax);
  EXPECT_EQ(ToNs(std::chrono::duration<Unsigned, std::ratio<86400>>(kMost)),
            kMax);
  EXPECT_EQ(ToNs(std::chrono::duration<Unsigned, std::pico>(kMost)),
            18'446'744'073'709'552);
}

// Neither a part nor a multiple of a nanosecond.
TEST(ToNs, TakesPeriodsOfAnyLength) {
  using Frames = std::chrono::duration<std::int64_t, std::ratio<1, 60>>;
  EXPECT_EQ(ToNs(Frames(60)), 1'000'000'000);
  EXPECT_EQ(ToNs(Frames(1)), 16'666'667);
  EXPECT_EQ(ToNs(Frames(-1)), -16'666'666);
  EXPECT_EQ(ToNs(Frames::max()), kMax);
  EXPECT_EQ(ToNs(Frames::min()), kMin);
  EXPECT_EQ(ToNs(std::chrono::duration<unsigned, std::ratio<1, 3>>(2)),
            666'666'667);
  EXPECT_EQ(ToNs(std::chrono::duration<float, std::ratio<1, 4>>(2)),
            500'000'000);
  EXPECT_EQ(ToNs(std::chrono::duration<int, std::ratio<7, 3>>(3)),
            7'000'000'000);
}

TEST(SaturatingAdd, StopsAtBothEnds) {
  EXPECT_EQ(SaturatingAdd(1, 2), 3);
  EXPECT_EQ(SaturatingAdd(kMax, 1), kMax);
  EXPECT_EQ(SaturatingAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(SaturatingAdd(kMin, -1), kMin);
  EXPECT_EQ(SaturatingAdd(kMin, kMax), -1);
  EXPECT_EQ(SaturatingAdd(1, kMax), kMax);
}

TEST(ToSteadyNs, DeadlinesFromDurations) {
  const std::int64_t before = NowNs();
  const std::int64_t deadline = ToSteadyNs(5ms);
  EXPECT_GE(deadline, before + 5'000'000);
  EXPECT_LE(deadline, NowNs() + 5'000'000);
  EXPECT_EQ(ToSteadyNs(std::chrono::hours::max()), kMax);
  EXPECT_LT(ToSteadyNs(-1s), NowNs());
  const std::int64_t still_before = NowNs();
  EXPECT_GE(ToSteadyNs(std::chrono::duration<unsigned, std::milli>(5)),
            still_before + 5'000'000);
}

TEST(ToSteadyNs, DeadlinesFromTimePoints) {
  const steady_clock::time_point steady(std::chrono::nanoseconds(123456));
  EXPECT_EQ(ToSteadyNs(steady), 123456);
  EXPECT_EQ(ToSteadyNs(steady_clock::time_point::max()), kMax);
  EXPECT_EQ(ToSteadyNs(system_clock::time_point::max()), kMax);

  // A system time an hour from now is a steady time an hour from now; loosely,
  // since both clocks are read at different moments.
  const std::int64_t hour = ToNs(1h);
  const std::int64_t before = NowNs();
  const std::int64_t deadline = ToSteadyNs(system_clock::now() + 1h);
  EXPECT_GE(deadline, before + hour - 1'000'000'000);
  EXPECT_LE(deadline, NowNs() + hour + 1'000'000'000);
}

TEST(VirtualNowTest, StandsStillUntilSetAnew) {
  const std::int64_t real = NowNs();
  SetVirtualNow(1'000);
  EXPECT_EQ(NowNs(), 1'000);
  EXPECT_EQ(ToSteadyNs(std::chrono::nanoseconds(5)), 1'005);
  EXPECT_EQ(ReadSteadyClock().time_since_epoch().count(), 1'000);
  // Far away, and back again.
  SetVirtualNow(std::int64_t{1} << 62);
  EXPECT_EQ(NowNs(), std::int64_t{1} << 62);
  SetVirtualNow(7);
  EXPECT_EQ(NowNs(), 7);
  EndVirtualNow();
  const std::int64_t again = NowNs();
  EXPECT_GE(again, real);
  EXPECT_LT(again, real + 60'000'000'000);
}

TEST(VirtualNowTest, IsTheThreadsOwn) {
  SetVirtualNow(1);
  std::int64_t other = 0;
  std::thread([&] { other = NowNs(); }).join();
  EXPECT_GT(other, 1);
  EXPECT_EQ(NowNs(), 1);
  EndVirtualNow();
  EXPECT_GE(NowNs(), other);
}

}  // namespace
}  // namespace flare
