#include "flare/rpc/server/method_counters.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// Answered by the service after `ns`, by the caller's clock.
void CountAnswered(MethodCounters* counters, std::int64_t ns,
                   bool failed = false) {
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  counters->Begin(worker);
  counters->End(worker, failed ? 99 : 0, NowNs() - ns, NowNs() - ns);
}

class MethodCountersTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(MethodCountersTest);

TEST_P(MethodCountersTest, TellsCallsByHowTheyEnd) {
  OnBoth([] {
    MethodCounters counters;
    counters.SetUp();
    const std::size_t worker = fiber::GetCurrentWorkerIndex();
    for (int i = 0; i < 7; ++i) counters.Begin(worker);
    counters.End(worker, /*status=*/0, NowNs(), NowNs());
    counters.End(worker, /*status=*/1234, NowNs(), NowNs());
    counters.Refuse(worker, /*status=*/5, /*overloaded=*/false);
    counters.Refuse(worker, /*status=*/11, /*overloaded=*/true);
    counters.Refuse(worker, /*status=*/11, /*overloaded=*/true);
    const Server::MethodStatistics s = counters.Read();
    EXPECT_EQ(s.calls, 7u);
    EXPECT_EQ(s.running, 2u);
    EXPECT_EQ(s.failed, 4u);
    EXPECT_EQ(s.overloaded, 2u);
    EXPECT_EQ(s.failures,
              (std::map<int, std::uint64_t>{{1234, 1}, {5, 1}, {11, 2}}));
    EXPECT_EQ(s.latencies_ns.count(), 2u);  // The service's.
  });
}

TEST_P(MethodCountersTest, SamplesHaveTheRatesOfTheLastSeconds) {
  OnBoth([] {
    MethodCounters counters;
    counters.SetUp();
    EXPECT_EQ(counters.Read().last_10s.seconds, 0);
    std::int64_t now_ns = kNsPerSecond;
    counters.Sample(now_ns);
    for (int i = 0; i != 6; ++i) CountAnswered(&counters, kNsPerMs, i % 2 == 0);
    counters.Refuse(fiber::GetCurrentWorkerIndex(), 11, /*overloaded=*/true);
    counters.Begin(fiber::GetCurrentWorkerIndex());  // Isn't answered yet.
    counters.Sample(now_ns += kNsPerSecond);
    counters.Sample(now_ns += kNsPerSecond);
    const Server::MethodStatistics s = counters.Read();
    EXPECT_EQ(s.last_10s.seconds, 2);
    EXPECT_EQ(s.last_10s.calls_per_second, 3.5);
    EXPECT_EQ(s.last_10s.failed_per_second, 2);
    EXPECT_GE(s.last_10s.p50_ns, kNsPerMs * 15 / 16);
    EXPECT_GE(s.last_10s.p99_ns, s.last_10s.p50_ns);
    EXPECT_EQ(s.last_minute.calls_per_second, 3.5);
  });
}

// As those of a service that nobody serves.
TEST_P(MethodCountersTest, CountWithoutSetUp) {
  OnBoth([] {
    MethodCounters counters;
    CountAnswered(&counters, 5);
    EXPECT_EQ(counters.Read().calls, 1u);
    EXPECT_EQ(counters.Read().running, 0u);
  });
}

TEST_P(MethodCountersTest, LosesNothing) {
  constexpr int kFibers = 50;
  constexpr int kThreads = 2;
  constexpr int kCalls = 1000;
  MethodCounters counters;
  counters.SetUp();
  const auto call = [&] {
    for (int i = 0; i < kCalls; ++i) {
      counters.Begin(fiber::GetCurrentWorkerIndex());
      if (i % 8 == 0) this_fiber::Yield();
      const std::size_t worker = fiber::GetCurrentWorkerIndex();
      if (i % 10 == 9) {
        counters.Refuse(worker, /*status=*/11, /*overloaded=*/true);
      } else {
        counters.End(worker, /*status=*/i % 10 == 8, NowNs(), NowNs());
      }
    }
  };
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::uint64_t before = 0;
    while (!done) {
      const Server::MethodStatistics s = counters.Read();
      EXPECT_GE(s.calls, before);
      before = s.calls;
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(call);
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) fibers.emplace_back(call);
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  done = true;
  reader.join();
  constexpr std::uint64_t kAll = kCalls * (kFibers + kThreads);
  const Server::MethodStatistics s = counters.Read();
  EXPECT_EQ(s.calls, kAll);
  EXPECT_EQ(s.running, 0u);
  EXPECT_EQ(s.overloaded, kAll / 10);
  EXPECT_EQ(s.failed, kAll / 5);
  // Where a worker had many, the last of them aren't measured yet.
  EXPECT_LE(s.latencies_ns.count(), kAll / 10 * 9);
  EXPECT_GT(s.latencies_ns.count(),
            kAll / 10 * 9 - fiber::GetWorkerCount() * MethodCounters::kPeriod);
}

TEST_P(MethodCountersTest, MeasuresAllOfThoseThatAreFew) {
  constexpr int kCalls = 1000;
  MethodCounters counters;
  counters.SetUp();
  Fiber([&] {
    for (int i = 0; i < kCalls; ++i) {
      // The last time is far away from any other.
      SetVirtualNow(std::int64_t{1} << 50 | std::int64_t{i} * 1'100'000);
      CountAnswered(&counters, i == kCalls - 1 ? 1'000'000 : 200);
    }
    EndVirtualNow();
  }).join();
  const Histogram latencies = counters.Read().latencies_ns;
  EXPECT_EQ(latencies.count(), std::uint64_t{kCalls});
  EXPECT_EQ(latencies.ValueAtQuantile(0.999), 200);
  EXPECT_EQ(latencies.max(), 1'000'000);
}

TEST_P(MethodCountersTest, MeasuresASampleWhereThereAreMany) {
  constexpr auto kPeriod = static_cast<int>(MethodCounters::kPeriod);
  MethodCounters counters;
  counters.SetUp();
  Fiber([&] {
    constexpr std::int64_t kNow = std::int64_t{1} << 50;
    SetVirtualNow(kNow);
    // These show that there are many.
    for (int i = 0; i <= kPeriod; ++i) CountAnswered(&counters, 100);
    // The last of these is measured, and counts for all.
    for (int i = 1; i < kPeriod; ++i) CountAnswered(&counters, 7);
    CountAnswered(&counters, 200);
    for (int i = 1; i < kPeriod; ++i) CountAnswered(&counters, 8);
    // As there are few now, those that come then are all measured.
    SetVirtualNow(kNow + kNsPerSecond);
    CountAnswered(&counters, 300);
    CountAnswered(&counters, 9);
    EndVirtualNow();
  }).join();
  std::vector<std::uint64_t> found;
  counters.Read().latencies_ns.ForEachBucket(
      [&](const Histogram::Bucket& bucket) {
        found.push_back(static_cast<std::uint64_t>(bucket.lower));
        found.push_back(bucket.count);
      });
  constexpr std::uint64_t kTimes = MethodCounters::kPeriod;
  // 300 is counted by twos.
  EXPECT_EQ(found, (std::vector<std::uint64_t>{9, 1, 100, kTimes + 1, 200,
                                               kTimes, 300, kTimes}));
  EXPECT_EQ(counters.Read().calls, 3 * kTimes + 2);
}

// By no runtime, or another one: as from plain threads.
TEST(MethodCountersAfterwards, CallsMayEndInALaterRuntime) {
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  MethodCounters counters;
  counters.SetUp();
  const auto begin = [&] { counters.Begin(fiber::GetCurrentWorkerIndex()); };
  const auto end = [&] {
    counters.End(fiber::GetCurrentWorkerIndex(), 0, NowNs(), NowNs());
  };
  Fiber([&] {
    for (int i = 0; i < 100; ++i) begin();
  }).join();
  fiber::TerminateRuntime();
  end();
  options.concurrency = 4;
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  std::vector<Fiber> fibers;
  for (int i = 0; i < 98; ++i) fibers.emplace_back(end);
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_EQ(counters.Read().running, 1u);
  fiber::TerminateRuntime();
}

}  // namespace
}  // namespace flare::rpc
