#include "flare/rpc/log_throttle.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(LogThrottle, OnePerIntervalAndTellsHowManyWereLeftOut) {
  LogThrottle throttle(100);
  EXPECT_EQ(throttle.AdmitAt(1000), 0u);
  EXPECT_EQ(throttle.AdmitAt(1000), std::nullopt);
  EXPECT_EQ(throttle.AdmitAt(1099), std::nullopt);
  EXPECT_EQ(throttle.AdmitAt(1100), 2u);
  EXPECT_EQ(throttle.AdmitAt(1199), std::nullopt);
  EXPECT_EQ(throttle.AdmitAt(5000), 1u);
  EXPECT_EQ(throttle.AdmitAt(5100), 0u);
}

TEST(LogThrottle, FirstIsAlwaysAdmitted) {
  for (std::int64_t now : {INT64_MIN / 2, std::int64_t{-1}, std::int64_t{0}}) {
    LogThrottle throttle;
    EXPECT_EQ(throttle.AdmitAt(now), 0u) << now;
  }
  LogThrottle throttle(3'600'000'000'000);
  EXPECT_TRUE(throttle.Admit());
  EXPECT_FALSE(throttle.Admit());
}

TEST(LogThrottle, Note) {
  EXPECT_EQ(LogThrottle::Note(0), "");
  EXPECT_EQ(LogThrottle::Note(3), " (and 3 more like it)");
  EXPECT_EQ(LogThrottle::NoteOthers(0), "");
  EXPECT_EQ(LogThrottle::NoteOthers(1), " (and 1 other)");
  EXPECT_EQ(LogThrottle::NoteOthers(3), " (and 3 others)");
}

// Nothing is lost or counted twice.
TEST(LogThrottle, CountsAddUpFromManyThreads) {
  LogThrottle throttle(10);
  constexpr int kThreads = 4;
  constexpr int kTimes = 20'000;
  std::atomic<std::uint64_t> admitted{0}, left_out{0};
  std::vector<std::thread> threads;
  for (int t = 0; t != kThreads; ++t) {
    threads.emplace_back([&] {
      for (int now = 0; now != kTimes; ++now) {
        if (const auto n = throttle.AdmitAt(now)) {
          ++admitted;
          left_out += *n;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  left_out += *throttle.AdmitAt(INT64_MAX / 2);
  EXPECT_EQ(admitted + left_out, std::uint64_t{kThreads} * kTimes);
  EXPECT_LE(admitted, std::uint64_t{kTimes} / 10);
}

}  // namespace
}  // namespace flare::rpc
