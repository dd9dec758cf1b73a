// A service is simulated in a time of its own: workers that each take a while
// for a call, a queue before them, and callers that don't wait for each other.
#include "flare/rpc/admission/adaptive_limit.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kMilli = kNsPerMs;
constexpr std::int64_t kOrigin = 1000 * kNsPerSecond;

class Simulation {
 public:
  struct Result {
    double goodput = 0;  // Answered calls per second.
    double p99_ms = 0;   // The p99 of these.
    double refused = 0;  // A share.
    double limit = 0;    // At the end.
  };

  explicit Simulation(std::size_t workers) {
    for (std::size_t i = 0; i != workers; ++i) free_at_ns_.push(kOrigin);
    limit_.SetUp(10'000);
  }

  AdaptiveLimit& limit() { return limit_; }
  // How long a worker takes for a call, in the mean.
  void set_service_ns(std::int64_t ns) { service_ns_ = ns; }

  // No calls come.
  void Pause(std::int64_t duration_ns) { now_ns_ += duration_ns; }

  // Offers so many calls per second for a while; counts those of the latter
  // half.
  Result Run(double per_second, std::int64_t duration_ns) {
    latencies_.clear();
    std::uint64_t offered = 0, refused = 0;
    const std::int64_t end_ns = now_ns_ + duration_ns;
    counted_from_ns_ = now_ns_ + duration_ns / 2;
    std::exponential_distribution<double> gap(per_second / 1e9);
    while (true) {
      now_ns_ += static_cast<std::int64_t>(gap(random_)) + 1;
      if (now_ns_ >= end_ns) break;
      const bool counted = now_ns_ >= counted_from_ns_;
      if (counted) ++offered;
      if (!Offer()) refused += counted;
    }
    std::sort(latencies_.begin(), latencies_.end());
    Result result{
        .goodput = static_cast<double>(latencies_.size()) /
                   (static_cast<double>(duration_ns) / 2e9),
        .refused = static_cast<double>(refused) /
                   static_cast<double>(std::max<std::uint64_t>(offered, 1)),
        .limit = static_cast<double>(limit_.limit())};
    if (!latencies_.empty()) {
      result.p99_ms =
          static_cast<double>(latencies_[latencies_.size() * 99 / 100]) / 1e6;
    }
    return result;
  }

 private:
  struct Ended {
    std::int64_t at_ns;
    std::int64_t took_ns;
    bool operator>(const Ended& other) const { return at_ns > other.at_ns; }
  };

  // A call comes now. False: it is refused.
  bool Offer() {
    while (!under_way_.empty() && under_way_.top().at_ns <= now_ns_) {
      const Ended ended = under_way_.top();
      under_way_.pop();
      limit_.Record(ended.took_ns, ended.at_ns);
      if (ended.at_ns >= counted_from_ns_) latencies_.push_back(ended.took_ns);
    }
    if (!limit_.Admits(under_way_.size() + 1)) return false;
    std::uniform_int_distribution<std::int64_t> service(service_ns_ / 2,
                                                        service_ns_ * 3 / 2);
    const std::int64_t end_ns =
        std::max(free_at_ns_.top(), now_ns_) + service(random_);
    free_at_ns_.pop();
    free_at_ns_.push(end_ns);
    under_way_.push({.at_ns = end_ns, .took_ns = end_ns - now_ns_});
    return true;
  }

  AdaptiveLimit limit_;
  std::mt19937 random_{1};
  // When each worker is free.
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>>
      free_at_ns_;
  std::priority_queue<Ended, std::vector<Ended>, std::greater<>> under_way_;
  std::vector<std::int64_t> latencies_;
  std::int64_t service_ns_ = kMilli;
  std::int64_t now_ns_ = kOrigin;
  std::int64_t counted_from_ns_ = 0;
};

TEST(AdaptiveLimit, GoodputStaysWhateverIsOffered) {
  for (const std::size_t workers : {2, 10}) {
    SCOPED_TRACE(workers);
    const double capacity = static_cast<double>(workers) * 1000;
    Simulation simulation(workers);
    const auto at_capacity = simulation.Run(capacity, 10 * kNsPerSecond);
    EXPECT_GT(at_capacity.goodput, 0.85 * capacity);
    for (const double times : {2, 5, 10}) {
      SCOPED_TRACE(times);
      const auto result = simulation.Run(times * capacity, 5 * kNsPerSecond);
      EXPECT_GT(result.goodput, 0.9 * at_capacity.goodput);
      EXPECT_LT(result.p99_ms, 2 * std::max(at_capacity.p99_ms, 3.0));
      EXPECT_NEAR(result.refused, 1 - 1 / times, 0.1);
    }
    // It doesn't refuse once there is room again.
    const auto after = simulation.Run(0.5 * capacity, 20 * kNsPerSecond);
    EXPECT_EQ(after.refused, 0);
  }
}

TEST(AdaptiveLimit, FindsTheShortTimeEvenIfItStartsUnderLoad) {
  Simulation simulation(4);
  const auto result = simulation.Run(20'000, 30 * kNsPerSecond);
  EXPECT_GT(result.goodput, 0.9 * 4000);
  EXPECT_LT(result.p99_ms, 10);
  EXPECT_LT(result.limit, 40);
}

TEST(AdaptiveLimit, DoesNotTakeASlowServiceForAQueue) {
  // With 100 workers and calls that take 1 ms, then 20.
  Simulation simulation(100);
  EXPECT_EQ(simulation.Run(2000, 20 * kNsPerSecond).refused, 0);
  simulation.set_service_ns(20 * kMilli);
  // 80 calls at a time.
  const auto slow = simulation.Run(4000, 40 * kNsPerSecond);
  EXPECT_GT(slow.goodput, 0.9 * 4000);
  EXPECT_LT(slow.refused, 0.1);
  simulation.set_service_ns(kMilli);
  EXPECT_EQ(simulation.Run(2000, 20 * kNsPerSecond).refused, 0);
}

// 50 calls take longer than ten seconds.
TEST(AdaptiveLimit, AdaptsWhereFewCallsEnd) {
  Simulation simulation(4);
  simulation.set_service_ns(2 * kNsPerSecond);
  EXPECT_EQ(simulation.Run(0.5, 3600 * kNsPerSecond).refused, 0);
  const auto result = simulation.Run(6, 3600 * kNsPerSecond);
  EXPECT_GT(result.goodput, 0.9 * 2);
  EXPECT_LT(result.limit, 12);
  EXPECT_LT(result.p99_ms, 8000);
}

TEST(AdaptiveLimit, StaysAsItIsWhileItIsNotUsed) {
  Simulation simulation(100);
  const auto result = simulation.Run(1000, 20 * kNsPerSecond);
  EXPECT_EQ(result.refused, 0);
  EXPECT_EQ(result.limit, AdaptiveLimit::kFirst);
}

// A probe of a second sees few calls, or none.
TEST(AdaptiveLimit, KeepsLowWhereFewCallsEnd) {
  for (const std::size_t workers : {5, 10, 20}) {
    SCOPED_TRACE(workers);
    const double capacity = static_cast<double>(workers) * 2;
    Simulation simulation(workers);
    simulation.set_service_ns(500 * kMilli);
    const auto result = simulation.Run(3 * capacity, 1000 * kNsPerSecond);
    EXPECT_GT(result.goodput, 0.8 * capacity);
    EXPECT_LT(result.p99_ms, 5000);
    EXPECT_LT(result.limit, 100);
  }
}

// An hour without calls doesn't make a probe of six minutes.
TEST(AdaptiveLimit, APauseDoesNotMakeAProbeLong) {
  constexpr int kStepSeconds = 5;
  Simulation simulation(40);
  simulation.set_service_ns(30 * kNsPerSecond);
  const double height = simulation.Run(4, 3000 * kNsPerSecond).limit;
  simulation.Pause(3600 * kNsPerSecond);
  int low_seconds = 0;
  for (int i = 0; i != 600; i += kStepSeconds) {
    const auto result = simulation.Run(4, kStepSeconds * kNsPerSecond);
    if (result.limit < height / 2) low_seconds += kStepSeconds;
  }
  EXPECT_GT(low_seconds, 0);
  EXPECT_LT(low_seconds, 90);
}

TEST(AdaptiveLimit, GrowsWithItsUse) {
  Simulation simulation(400);
  simulation.set_service_ns(10 * kMilli);
  // 200 calls at a time.
  const auto result = simulation.Run(20'000, 20 * kNsPerSecond);
  EXPECT_LT(result.refused, 0.01);
  EXPECT_GT(result.limit, 200);
}

TEST(AdaptiveLimit, KeepsToItsBounds) {
  AdaptiveLimit limit;
  limit.SetUp(1);
  EXPECT_EQ(limit.limit(), AdaptiveLimit::kFewest);
  limit.SetUp(6);
  EXPECT_EQ(limit.limit(), 6u);
  std::int64_t now_ns = kOrigin;
  for (int i = 0; i != 10'000; ++i) {  // As quick as ever, all of it used.
    EXPECT_FALSE(limit.Admits(7));
    limit.Record(kMilli, now_ns += kMilli);
    ASSERT_LE(limit.limit(), 6u);
  }
  for (int i = 0; i != 10'000; ++i) {  // Ever slower.
    limit.Admits(7);
    limit.Record(kMilli * (1 + i), now_ns += kMilli);
    ASSERT_GE(limit.limit(), AdaptiveLimit::kFewest);
  }
}

TEST(AdaptiveLimit, AKindWithAShareIsRefusedEarlier) {
  AdaptiveLimit limit;
  limit.SetUp(1000);
  EXPECT_TRUE(limit.Admits(10, 0.5));
  EXPECT_FALSE(limit.Admits(11, 0.5));
  EXPECT_TRUE(limit.Admits(20));
  EXPECT_FALSE(limit.Admits(21));
}

}  // namespace
}  // namespace flare::rpc
