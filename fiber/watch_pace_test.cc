#include "flare/fiber/watch_pace.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kPeriod = 50'000;
constexpr LookResult kCalm{.partly_idle = true};
constexpr LookResult kCalmBusy{};
constexpr LookResult kNeed{.need = true, .partly_idle = true};
constexpr LookResult kLate{.partly_idle = true,
                           .late_ns = WatchPace::kCrowdedNs + 1};

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

TEST(WatchPaceTest, IsLongWhileThereIsNoCpuToHelpBy) {
  WatchPace pace(kPeriod);
  EXPECT_EQ(pace.After(kLate), WatchPace::kMostStretchedBusy * kPeriod);
  EXPECT_EQ(pace.After(kLate), WatchPace::kMostStretchedBusy * kPeriod);
  // Then as if it had been calm for long.
  EXPECT_EQ(pace.After(kCalm), WatchPace::kMostStretched * kPeriod);
  EXPECT_EQ(pace.After(kNeed), kPeriod);
}

TEST(WatchPaceTest, LooksAfterWhoNeedsHelpHoweverLateItIs) {
  WatchPace pace(kPeriod);
  LookResult both = kNeed;
  both.late_ns = kLate.late_ns;
  EXPECT_EQ(pace.After(both), kPeriod);
}

TEST(WatchPaceTest, IsntDisturbedByALittleDelay) {
  WatchPace pace(kPeriod);
  LookResult little = kCalm;
  little.late_ns = WatchPace::kCrowdedNs;
  EXPECT_EQ(pace.After(little), kPeriod);
}

}  // namespace
}  // namespace flare::fiber
