#include "flare/fiber/scheduler/watch_pace.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kPeriod = 50'000;
constexpr LookResult kCalm{
    .partly_idle = true, .unsettled = true, .unguarded = true};
constexpr LookResult kCalmBusy{.unsettled = true, .unguarded = true};
constexpr LookResult kSettled{.partly_idle = true, .unguarded = true};
constexpr LookResult kNeed{
    .need = true, .partly_idle = true, .unsettled = true, .unguarded = true};
constexpr LookResult kGuarded{.partly_idle = true, .unsettled = true};
constexpr LookResult kLate{.partly_idle = true,
                           .unsettled = true,
                           .unguarded = true,
                           .late_ns = 2 * WatchPace::kCrowdedNs};

// The pace after `n` more looks like that.
std::int64_t AfterMany(int n, const LookResult& look, WatchPace* pace) {
  std::int64_t last = 0;
  for (int i = 0; i < n; ++i) last = pace->After(look);
  return last;
}

TEST(WatchPaceTest, DoublesWhileNobodyNeedsHelp) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(AfterMany(WatchPace::kCalmLooks - 1, kCalm, &pace), kPeriod);
  EXPECT_EQ(pace.After(kCalm), 2 * kPeriod);
  EXPECT_EQ(AfterMany(WatchPace::kCalmLooks, kCalm, &pace), 4 * kPeriod);
  EXPECT_EQ(AfterMany(10 * WatchPace::kCalmLooks, kCalm, &pace),
            WatchPace::kMostStretched * kPeriod);
}

TEST(WatchPaceTest, NeverComesForEndlessPeriods) {
  constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kYear = std::int64_t{365} * 86'400 * 1'000'000'000;
  for (const LookResult& look : {kCalm, kCalmBusy, kSettled, kNeed, kGuarded}) {
    WatchPace pace(kEndless);
    EXPECT_GE(pace.After(look), kYear);
    const std::int64_t last =
        AfterMany(10 * WatchPace::kCalmLooks, look, &pace);
    EXPECT_GE(last, kYear);
    EXPECT_LE(last, kEndless - kYear);  // Room for the time it is now.
  }
}

TEST(WatchPaceTest, GoesFurtherWhereAllRun) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(AfterMany(10 * WatchPace::kCalmLooks, kCalmBusy, &pace),
            WatchPace::kMostStretchedBusy * kPeriod);
  EXPECT_EQ(pace.After(kCalm), WatchPace::kMostStretched * kPeriod);
}

TEST(WatchPaceTest, IsShortAfterANeed) {
  WatchPace pace(kPeriod);
  AfterMany(10 * WatchPace::kCalmLooks, kCalm, &pace);
  EXPECT_EQ(pace.After(kNeed), kPeriod);
  EXPECT_EQ(AfterMany(WatchPace::kCalmLooks - 1, kCalm, &pace), kPeriod);
  EXPECT_EQ(pace.After(kCalm), 2 * kPeriod);
}

TEST(WatchPaceTest, IsLongerWhileAllIsSettled) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(pace.After(kSettled), WatchPace::kWhileSettled * kPeriod);
  EXPECT_EQ(pace.After(kCalm), kPeriod);
  EXPECT_EQ(pace.After(kNeed), kPeriod);
  // As calm as others are.
  EXPECT_EQ(AfterMany(10 * WatchPace::kCalmLooks, kSettled, &pace),
            WatchPace::kMostStretched * kPeriod);
  // Nobody runs: it will soon sleep.
  EXPECT_EQ(WatchPace(kPeriod).After({.unguarded = true}), kPeriod);
}

TEST(WatchPaceTest, IsLongWhereSomebodyStandsBy) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(pace.After(kNeed), kPeriod);
  EXPECT_EQ(pace.After(kGuarded), WatchPace::kGuarded * kPeriod);
  LookResult exposed = kGuarded;
  exposed.exposed = true;
  EXPECT_EQ(pace.After(exposed), kPeriod);
  LookResult need = kGuarded;
  need.need = true;
  EXPECT_EQ(pace.After(need), kPeriod);
  // Even when calm: earlier needs don't matter.
  EXPECT_EQ(pace.After(kGuarded), WatchPace::kGuarded * kPeriod);
  // One group where somebody does is not enough.
  EXPECT_EQ(pace.After(kNeed), kPeriod);
  exposed.unguarded = true;
  EXPECT_EQ(pace.After(exposed), kPeriod);
}

TEST(WatchPaceTest, IsLongWhileThereIsNoCpuToHelpBy) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(pace.After(kLate), kPeriod);  // One says nothing.
  const std::int64_t steady = WatchPace::kTimesTheDelay * kLate.late_ns;
  const std::int64_t last = AfterMany(500, kLate, &pace);
  EXPECT_GT(last, steady * 95 / 100);
  EXPECT_LE(last, steady);
  // Others may only seem to need help.
  LookResult both = kNeed;
  both.late_ns = kLate.late_ns;
  EXPECT_GT(pace.After(both), steady * 95 / 100);
}

TEST(WatchPaceTest, IsShortAgainOnceLooksComeInTime) {
  WatchPace pace(kPeriod);
  AfterMany(500, kLate, &pace);
  AfterMany(50, kCalm, &pace);
  EXPECT_EQ(pace.After(kNeed), kPeriod);
}

TEST(WatchPaceTest, LooksThatComeVeryLateCountAsLateOnes) {
  WatchPace pace(kPeriod);
  LookResult very_late = kCalm;
  very_late.late_ns = 1'000'000'000;
  EXPECT_LE(AfterMany(500, very_late, &pace),
            WatchPace::kTimesTheDelay * WatchPace::kMostLateNs);
}

// A long task has the CPU where the watch is, again and again: three looks in a
// row wait for that CPU's next tick, the others come in time.
TEST(WatchPaceTest, AFewLooksThatWaitForATickAreNoCrowd) {
  WatchPace pace(kPeriod);
  LookResult in_time = kNeed;
  in_time.late_ns = 35'000;
  LookResult after_a_tick = kNeed;
  after_a_tick.late_ns = 4'000'000;
  for (int task = 0; task < 100; ++task) {
    ASSERT_EQ(AfterMany(70, in_time, &pace), kPeriod);
    ASSERT_EQ(AfterMany(3, after_a_tick, &pace), kPeriod);
  }
}

TEST(WatchPaceTest, IsntDisturbedByALittleDelayNorByOneLargeOne) {
  WatchPace pace(kPeriod);
  LookResult little = kNeed;
  little.late_ns = WatchPace::kCrowdedNs;
  EXPECT_EQ(AfterMany(500, little, &pace), kPeriod);
  WatchPace other(kPeriod);
  LookResult large = kNeed;
  large.late_ns = 1'000'000'000;
  EXPECT_EQ(other.After(large), kPeriod);
}

}  // namespace
}  // namespace flare::fiber
