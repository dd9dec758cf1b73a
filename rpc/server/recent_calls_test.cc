#include "flare/rpc/server/recent_calls.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::chrono::seconds;

class RecentCallsTest : public ::testing::Test {
 protected:
  RecentCallsTest() { Sample(0); }

  // So many calls of `ns`, `failed` of them failures.
  void Call(std::uint64_t calls, std::int64_t ns, std::uint64_t failed = 0) {
    totals_.ended += calls;
    totals_.failed += failed;
    latencies_.RecordMany(ns, calls);
  }
  void Sample(std::int64_t after_ns = kNsPerSecond) {
    now_ns_ += after_ns;
    recent_.Sample(now_ns_, totals_, latencies_);
  }

  RecentCalls recent_;

 private:
  std::int64_t now_ns_ = 1'000'000;
  RecentCalls::Totals totals_;
  ConcurrentHistogram latencies_;
};

TEST_F(RecentCallsTest, NothingIsKnownBeforeTheSecondSample) {
  Call(5, 1000);
  EXPECT_EQ(recent_.Over(seconds(10)).seconds, 0);
  Sample();
  EXPECT_EQ(recent_.Over(seconds(10)).seconds, 1);
  EXPECT_EQ(recent_.Over(seconds(10)).calls_per_second, 5);
}

TEST_F(RecentCallsTest, AMethodThatIsNotCalledHasRatesOfZero) {
  for (int i = 0; i != 30; ++i) Sample();
  const RecentCallStatistics quiet = recent_.Over(seconds(10));
  EXPECT_EQ(quiet.seconds, 10);
  EXPECT_EQ(quiet.calls_per_second, 0);
  EXPECT_EQ(quiet.p99_ns, 0);
  // Its first calls count for all of the time.
  Call(20, 1000);
  Sample();
  EXPECT_EQ(recent_.Over(seconds(10)).calls_per_second, 2);
}

TEST_F(RecentCallsTest, WindowsEndAtTheNewestSample) {
  for (int i = 0; i != 100; ++i) {
    Call(i < 90 ? 100 : 10, i < 90 ? kNsPerMs : 8 * kNsPerMs, 5);
    Sample();
  }
  const RecentCallStatistics last = recent_.Over(seconds(10));
  EXPECT_DOUBLE_EQ(last.seconds, 10);
  EXPECT_DOUBLE_EQ(last.calls_per_second, 10);
  EXPECT_DOUBLE_EQ(last.failed_per_second, 5);
  EXPECT_NEAR(static_cast<double>(last.p50_ns), 8e6, 8e6 / 16);
  const RecentCallStatistics minute = recent_.Over(seconds(60));
  EXPECT_DOUBLE_EQ(minute.seconds, 60);
  EXPECT_DOUBLE_EQ(minute.calls_per_second, (50 * 100 + 10 * 10) / 60.0);
  EXPECT_NEAR(static_cast<double>(minute.p50_ns), 1e6, 1e6 / 16);
  EXPECT_NEAR(static_cast<double>(minute.p90_ns), 1e6, 1e6 / 16);
  EXPECT_NEAR(static_cast<double>(minute.p99_ns), 8e6, 8e6 / 16);
  // There are no more samples than of a minute.
  EXPECT_DOUBLE_EQ(recent_.Over(seconds(3600)).seconds, 60);
}

TEST_F(RecentCallsTest, ALateSampleStandsForItsTime) {
  Call(100, 1000);
  Sample(20 * kNsPerSecond);
  EXPECT_DOUBLE_EQ(recent_.Over(seconds(10)).seconds, 20);
  EXPECT_DOUBLE_EQ(recent_.Over(seconds(10)).calls_per_second, 5);
  Call(7, 1000);
  Sample();
  // The late one begins long before the window, but half of it is not inside.
  EXPECT_DOUBLE_EQ(recent_.Over(seconds(5)).seconds, 1);
  EXPECT_DOUBLE_EQ(recent_.Over(seconds(5)).calls_per_second, 7);
}

TEST_F(RecentCallsTest, OneAtTheSameTimeIsLeftOut) {
  Call(5, 1000);
  Sample();
  Call(5, 1000);
  Sample(0);
  EXPECT_EQ(recent_.Over(seconds(10)).calls_per_second, 5);
  Sample();
  EXPECT_EQ(recent_.Over(seconds(10)).calls_per_second, 5);
}

}  // namespace
}  // namespace flare::rpc
