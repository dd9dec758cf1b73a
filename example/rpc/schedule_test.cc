#include "example/rpc/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace example {
namespace {

TEST(Schedule, WithoutRateAndLimitCallsAreDueAtOnce) {
  Schedule schedule(0, 0, 1000);
  EXPECT_FALSE(schedule.paced());
  for (std::int64_t now : {5, 2000, 2000, 1 << 30}) {
    EXPECT_EQ(schedule.Next(now), now);
  }
}

TEST(Schedule, LimitIsExact) {
  Schedule schedule(0, 3, 0);
  for (int i = 0; i != 3; ++i) EXPECT_EQ(schedule.Next(i), i);
  EXPECT_EQ(schedule.Next(3), std::nullopt);
  EXPECT_EQ(schedule.Next(4), std::nullopt);
}

TEST(Schedule, RateDoesNotDependOnWhenItIsAsked) {
  Schedule schedule(1000, 0, 500);
  EXPECT_TRUE(schedule.paced());
  EXPECT_EQ(schedule.Next(0), 500);
  EXPECT_EQ(schedule.Next(0), 500 + 1'000'000);
  // A stall of a second: what was due in the meantime stays due then.
  EXPECT_EQ(schedule.Next(1'000'000'000), 500 + 2'000'000);
  EXPECT_EQ(schedule.Next(1'000'000'000), 500 + 3'000'000);
}

TEST(Schedule, RateDoesNotDrift) {
  Schedule schedule(3, 0, 0);  // A third of a second is no whole number of ns.
  std::int64_t last = 0;
  for (int i = 0; i <= 3'000'000; ++i) last = *schedule.Next(0);
  EXPECT_NEAR(static_cast<double>(last), 1e15, 1000);
}

TEST(Schedule, RateAndLimit) {
  Schedule schedule(10, 2, 0);
  EXPECT_EQ(schedule.Next(0), 0);
  EXPECT_EQ(schedule.Next(0), 100'000'000);
  EXPECT_EQ(schedule.Next(0), std::nullopt);
}

TEST(Schedule, NothingIsDueAfterStop) {
  for (double rate : {0.0, 10.0}) {
    Schedule schedule(rate, 0, 0);
    EXPECT_FALSE(schedule.stopped());
    EXPECT_TRUE(schedule.Next(1).has_value());
    schedule.Stop();
    EXPECT_TRUE(schedule.stopped());
    EXPECT_EQ(schedule.Next(2), std::nullopt);
  }
}

TEST(Schedule, ThreadsShareTheCallsAmongThem) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 100'000;
  Schedule schedule(1e9, kCalls, 0);  // The k-th is due at k ns.
  std::vector<std::vector<std::int64_t>> due(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : due) {
    threads.emplace_back([&schedule, &mine] {
      while (const auto next = schedule.Next(0)) mine.push_back(*next);
    });
  }
  for (auto& thread : threads) thread.join();

  std::vector<std::int64_t> all;
  for (const auto& mine : due) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), kCalls);
  for (int i = 0; i != kCalls; ++i) ASSERT_EQ(all[i], i);
}

}  // namespace
}  // namespace example
