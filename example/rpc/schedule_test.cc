#include "example/rpc/schedule.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace example {
namespace {

// When the next call is due, if there is one.
std::optional<std::int64_t> NextDue(Schedule* schedule, std::int64_t now) {
  const auto claim = schedule->Next(now);
  return claim ? std::optional(claim->due_ns) : std::nullopt;
}

TEST(Schedule, WithoutRateAndLimitCallsAreDueAtOnce) {
  Schedule schedule(0, 0, 1000);
  EXPECT_FALSE(schedule.paced());
  for (std::int64_t now : {5, 2000, 2000, 1 << 30}) {
    EXPECT_EQ(NextDue(&schedule, now), now);
  }
}

TEST(Schedule, LimitIsExact) {
  Schedule schedule(0, 3, 0);
  for (int i = 0; i != 3; ++i) EXPECT_EQ(NextDue(&schedule, i), i);
  EXPECT_EQ(NextDue(&schedule, 3), std::nullopt);
  EXPECT_EQ(NextDue(&schedule, 4), std::nullopt);
}

TEST(Schedule, RateDoesNotDependOnWhenItIsAsked) {
  Schedule schedule(1000, 0, 500);
  EXPECT_TRUE(schedule.paced());
  EXPECT_EQ(NextDue(&schedule, 0), 500);
  EXPECT_EQ(NextDue(&schedule, 0), 500 + 1'000'000);
  // A stall of a second: calls due in the meantime stay due then.
  EXPECT_EQ(NextDue(&schedule, 1'000'000'000), 500 + 2'000'000);
  EXPECT_EQ(NextDue(&schedule, 1'000'000'000), 500 + 3'000'000);
}

TEST(Schedule, RateDoesNotDrift) {
  Schedule schedule(3, 0, 0);  // A third of a second is no whole number of ns.
  std::int64_t last = 0;
  for (int i = 0; i <= 3'000'000; ++i) last = schedule.Next(0)->due_ns;
  EXPECT_NEAR(static_cast<double>(last), 1e15, 1000);
}

// Even later due times beyond the range of numbers cause none.
TEST(Schedule, TinyRatesAreNoFlood) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  for (double rate : {1e-4, 1e-9, 1e-12, 1e-300, 5e-324}) {
    Schedule schedule(rate, 0, 1000);
    EXPECT_TRUE(schedule.paced());
    EXPECT_EQ(NextDue(&schedule, 1000), 1000);
    std::int64_t last = 0;
    for (int i = 0; i != 100'000; ++i) {
      const std::int64_t due = *NextDue(&schedule, 1000);
      ASSERT_GE(due, std::max(last, kHour)) << rate;
      last = due;
    }
  }
}

TEST(Schedule, StartsWhenTold) {
  Schedule schedule(10, 2, 0);
  schedule.StartAt(1000);
  EXPECT_EQ(NextDue(&schedule, 0), 1000);
  EXPECT_EQ(NextDue(&schedule, 0), 1000 + 100'000'000);
  EXPECT_EQ(NextDue(&schedule, 0), std::nullopt);
}

TEST(Schedule, CountsWhatIsDueBefore) {
  const Schedule schedule(1000, 0, 500);
  EXPECT_EQ(schedule.DueBefore(0), 0u);
  EXPECT_EQ(schedule.DueBefore(500), 0u);
  EXPECT_EQ(schedule.DueBefore(501), 1u);
  EXPECT_EQ(schedule.DueBefore(1'000'500), 1u);
  EXPECT_EQ(schedule.DueBefore(1'000'501), 2u);

  const Schedule tiny(5e-324, 0, 0);
  EXPECT_EQ(tiny.DueBefore(1'000'000'000), 1u);
  const Schedule huge(1e300, 0, 0);  // More than 64 bits hold.
  EXPECT_EQ(huge.DueBefore(1'000'000'000),
            std::numeric_limits<std::uint64_t>::max());
}

TEST(Schedule, RateAndLimit) {
  Schedule schedule(10, 2, 0);
  EXPECT_EQ(NextDue(&schedule, 0), 0);
  EXPECT_EQ(NextDue(&schedule, 0), 100'000'000);
  EXPECT_EQ(NextDue(&schedule, 0), std::nullopt);
}

TEST(Schedule, ALaterLimitCountsFromThen) {
  Schedule schedule(0, 0, 0);
  std::vector<Schedule::Claim> claims;
  for (int i = 0; i != 10; ++i) claims.push_back(*schedule.Next(i));
  schedule.Limit(2, 10);
  for (int i = 0; i != 2; ++i) claims.push_back(*schedule.Next(10));
  EXPECT_FALSE(schedule.Next(10).has_value());
  for (const auto& claim : claims) EXPECT_FALSE(schedule.Revoked(claim));
}

// Callers that wait have claimed calls that are due then, and too many.
TEST(Schedule, ALaterLimitCountsWhatIsDueFromThen) {
  Schedule schedule(10, 0, 0);
  std::vector<Schedule::Claim> claims;
  for (int i = 0; i != 5; ++i) claims.push_back(*schedule.Next(0));
  schedule.Limit(2, 150'000'000);
  EXPECT_FALSE(schedule.Next(150'000'000).has_value());
  for (const auto& claim : claims) {
    EXPECT_EQ(schedule.Revoked(claim), claim.due_ns == 400'000'000);
  }
}

// Those that are late because the rate is beyond reach count, too.
TEST(Schedule, ALaterLimitDoesNotWaitForASchedule) {
  Schedule schedule(1e9, 0, 0);
  for (int i = 0; i != 5; ++i) EXPECT_TRUE(NextDue(&schedule, 1'000'000));
  schedule.Limit(2, 1'000'000);
  EXPECT_EQ(NextDue(&schedule, 1'000'000), 5);
  EXPECT_EQ(NextDue(&schedule, 1'000'000), 6);
  EXPECT_EQ(NextDue(&schedule, 1'000'000), std::nullopt);
}

TEST(Schedule, NothingIsDueAfterStop) {
  for (double rate : {0.0, 10.0}) {
    Schedule schedule(rate, 0, 0);
    EXPECT_FALSE(schedule.stopped());
    const auto claim = schedule.Next(1);
    ASSERT_TRUE(claim.has_value());
    EXPECT_FALSE(schedule.Revoked(*claim));
    schedule.Stop();
    EXPECT_TRUE(schedule.Revoked(*claim));
    EXPECT_TRUE(schedule.stopped());
    EXPECT_TRUE(schedule.over());
    EXPECT_EQ(NextDue(&schedule, 2), std::nullopt);
  }
}

TEST(Schedule, WhatIsDueAtTheEndIsStillToBeSent) {
  Schedule schedule(1000, 0, 0);
  const auto claim = schedule.Next(0);
  ASSERT_TRUE(claim.has_value());
  for (int i = 1; i != 5; ++i) ASSERT_TRUE(schedule.Next(0).has_value());
  // Eight are due by then.
  schedule.End(7'500'000);
  EXPECT_FALSE(schedule.stopped());
  EXPECT_FALSE(schedule.over());
  EXPECT_FALSE(schedule.Revoked(*claim));
  EXPECT_EQ(schedule.unsent(), 3u);
  EXPECT_EQ(NextDue(&schedule, 7'500'000), 5'000'000);
  EXPECT_EQ(schedule.unsent(), 2u);
  schedule.Stop();
  EXPECT_EQ(NextDue(&schedule, 7'500'000), std::nullopt);
  // One that was claimed and given up is one more.
  schedule.NoteUnsent(*claim);
  EXPECT_EQ(schedule.unsent(), 3u);
}

TEST(Schedule, WhatIsDueAfterTheEndIsNot) {
  Schedule schedule(1000, 0, 0);
  Schedule::Claim last;
  for (int i = 0; i != 10; ++i) last = *schedule.Next(0);
  schedule.End(7'500'000);
  EXPECT_TRUE(schedule.over());
  EXPECT_TRUE(schedule.Revoked(last));
  schedule.NoteUnsent(last);
  EXPECT_EQ(schedule.unsent(), 0u);
}

TEST(Schedule, TheEndDoesNotRaiseALimit) {
  Schedule schedule(1000, 3, 0);
  schedule.End(100'000'000);
  EXPECT_EQ(schedule.unsent(), 3u);
  Schedule free(0, 0, 0);
  free.End(100'000'000);
  EXPECT_TRUE(free.stopped());
  EXPECT_EQ(free.unsent(), 0u);
}

TEST(Schedule, IsOverOnceAllCallsAreClaimed) {
  for (double rate : {0.0, 10.0}) {
    Schedule schedule(rate, 0, 0);
    EXPECT_TRUE(schedule.Next(1).has_value());
    EXPECT_FALSE(schedule.over());
    schedule.Limit(2, 100'000'000);
    while (!schedule.over()) EXPECT_TRUE(schedule.Next(1).has_value());
    EXPECT_FALSE(schedule.Next(1).has_value());
  }
}

RecordedPace ThreeCalls() {
  return {.offsets_ns = {0, 10, 10}, .period_ns = 15};
}

TEST(Schedule, FollowsRecordedTimesAgainAndAgain) {
  Schedule schedule(0, 7, 1000);
  schedule.Follow(std::make_shared<const RecordedPace>(ThreeCalls()));
  EXPECT_TRUE(schedule.paced());
  std::vector<std::int64_t> due;
  // A stall changes nothing.
  while (const auto next = NextDue(&schedule, 1 << 20)) due.push_back(*next);
  EXPECT_EQ(due, (std::vector<std::int64_t>{1000, 1010, 1010, 1015, 1025, 1025,
                                            1030}));
}

TEST(Schedule, CountsWhatIsDueBeforeByRecordedTimes) {
  Schedule schedule(0, 0, 1000);
  schedule.Follow(std::make_shared<const RecordedPace>(ThreeCalls()));
  for (std::int64_t time = 900; time != 1100; ++time) {
    std::uint64_t due = 0;
    Schedule other(0, 100, 1000);
    other.Follow(std::make_shared<const RecordedPace>(ThreeCalls()));
    while (const auto next = NextDue(&other, 0)) due += *next < time ? 1 : 0;
    EXPECT_EQ(schedule.DueBefore(time), due) << time;
  }
}

TEST(Schedule, EndLeavesRecordedCallsThatAreDue) {
  Schedule schedule(0, 0, 0);
  schedule.Follow(std::make_shared<const RecordedPace>(ThreeCalls()));
  schedule.End(11);
  for (int i = 0; i != 3; ++i) EXPECT_TRUE(schedule.Next(0));
  EXPECT_FALSE(schedule.Next(0));
}

TEST(Schedule, NumbersCallsIfAskedTo) {
  Schedule schedule(0, 0, 0);
  schedule.NumberCalls();
  for (std::uint64_t i = 0; i != 3; ++i) {
    const auto claim = schedule.Next(500);
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->number, i);
    EXPECT_EQ(claim->due_ns, 500);
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
      while (const auto next = schedule.Next(0)) mine.push_back(next->due_ns);
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
