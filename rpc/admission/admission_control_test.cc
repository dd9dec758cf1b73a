#include "flare/rpc/admission/admission_control.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/admission/queue_watch.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Mode = AdmissionOptions::Mode;

constexpr std::int64_t kMsOfQueue = kNsPerMs;
constexpr std::int64_t kOriginOfQueue = 1000 * kNsPerSecond;

// A worker that takes 1 ms for a call, with a queue before it.
class SimulatedQueue {
 public:
  SimulatedQueue() { watch_.SetUp(5 * kMsOfQueue, 100 * kMsOfQueue); }

  // Calls come at this interval until `end_ns`. Returns the shares of them
  // that were refused.
  double Run(std::int64_t interval_ns, std::int64_t end_ns) {
    int calls = 0, refused = 0;
    for (; now_ns_ < end_ns; now_ns_ += interval_ns, ++calls) {
      const std::int64_t begins_ns = std::max(now_ns_, free_at_ns_);
      longest_ns_ = std::max(longest_ns_, begins_ns - now_ns_);
      if (watch_.Sheds(begins_ns - now_ns_, begins_ns)) {
        ++refused;
      } else {
        free_at_ns_ = begins_ns + kMsOfQueue;
      }
    }
    return static_cast<double>(refused) / calls;
  }
  // So many calls come at once.
  void Burst(int calls) { free_at_ns_ = now_ns_ + calls * kMsOfQueue; }

  std::int64_t TakeLongestWait() { return std::exchange(longest_ns_, 0); }
  bool shedding() const { return watch_.shedding(); }

 private:
  QueueWatch watch_;
  std::int64_t now_ns_ = kOriginOfQueue;
  std::int64_t free_at_ns_ = kOriginOfQueue;
  std::int64_t longest_ns_ = 0;
};

TEST(QueueWatch, KeepsTheQueueShortUnderOverload) {
  SimulatedQueue queue;
  EXPECT_EQ(queue.Run(kMsOfQueue, kOriginOfQueue + 1000 * kMsOfQueue), 0);
  queue.Run(kMsOfQueue / 4,
            kOriginOfQueue + 2000 * kMsOfQueue);  // Four times its capacity.
  queue.TakeLongestWait();
  EXPECT_NEAR(queue.Run(kMsOfQueue / 4, kOriginOfQueue + 10'000 * kMsOfQueue),
              0.75, 0.02);
  EXPECT_TRUE(queue.shedding());
  // Never longer than calls that are begun may have waited.
  EXPECT_LE(queue.TakeLongestWait(), 12 * kMsOfQueue);
  // It ends with the overload.
  queue.Run(2 * kMsOfQueue, kOriginOfQueue + 11'000 * kMsOfQueue);
  EXPECT_FALSE(queue.shedding());
  EXPECT_EQ(queue.Run(2 * kMsOfQueue, kOriginOfQueue + 12'000 * kMsOfQueue), 0);
}

TEST(QueueWatch, ABurstIsServed) {
  SimulatedQueue queue;
  for (int i = 1; i != 10; ++i) {
    // The queue gets shorter by half a call in a millisecond, and has been
    // short before: within two intervals it is short again.
    queue.Burst(45);
    EXPECT_EQ(queue.Run(2 * kMsOfQueue, kOriginOfQueue + i * 1000 * kMsOfQueue),
              0);
    EXPECT_GE(queue.TakeLongestWait(), 40 * kMsOfQueue);
  }
}

TEST(QueueWatch, KnowsNothingAfterAPause) {
  QueueWatch watch;
  watch.SetUp(5 * kMsOfQueue, 100 * kMsOfQueue);
  EXPECT_FALSE(watch.Sheds(50 * kMsOfQueue, kOriginOfQueue));
  EXPECT_FALSE(
      watch.Sheds(50 * kMsOfQueue, kOriginOfQueue + 1000 * kMsOfQueue));
  EXPECT_TRUE(watch.Sheds(50 * kMsOfQueue, kOriginOfQueue + 1101 * kMsOfQueue));
  EXPECT_FALSE(
      watch.Sheds(10 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue));
  // Of a kind that is shed earlier.
  EXPECT_TRUE(
      watch.Sheds(10 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue, 0.8));
  EXPECT_FALSE(
      watch.Sheds(5 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue, 0.1));
}

std::uint64_t RefusedBy(const AdmissionControl& control, AdmissionRule rule) {
  return control.statistics().refused[static_cast<std::size_t>(rule)];
}

std::uint64_t WouldRefuseBy(const AdmissionControl& control,
                            AdmissionRule rule) {
  return control.statistics().would_refuse[static_cast<std::size_t>(rule)];
}

TEST(AdmissionControl, RefusesCallsThatCannotBeAnsweredInTime) {
  AdmissionControl control({.late = Mode::kRefuse}, 1, 1000);
  MethodAdmission method;
  AdmissionControl::Call call{.now_ns = kOriginOfQueue,
                              .waited_ns = 10 * kMsOfQueue,
                              .timeout_ns = 50 * kMsOfQueue,
                              .usual_ns = 40 * kMsOfQueue,
                              .method = &method};
  EXPECT_TRUE(control.Admit(call));
  call.usual_ns = 41 * kMsOfQueue;
  // Now and then one is tried.
  EXPECT_TRUE(control.Admit(call));
  EXPECT_FALSE(control.Admit(call));
  call.now_ns += 99 * kMsOfQueue;
  EXPECT_FALSE(control.Admit(call));
  call.now_ns += kMsOfQueue;
  EXPECT_TRUE(control.Admit(call));
  EXPECT_FALSE(control.Admit(call));
  EXPECT_EQ(RefusedBy(control, AdmissionRule::kLate), 3u);
  // Nothing is known of these.
  call.timeout_ns = 0;
  EXPECT_TRUE(control.Admit(call));
  call.timeout_ns = 50 * kMsOfQueue;
  call.usual_ns = 0;
  EXPECT_TRUE(control.Admit(call));
  call.usual_ns = 41 * kMsOfQueue;
  call.streaming = true;
  EXPECT_TRUE(control.Admit(call));
  call.streaming = false;
  call.method = nullptr;
  EXPECT_TRUE(control.Admit(call));
}

TEST(AdmissionControl, LimitsCallsUnderWay) {
  AdmissionControl control({.limit = Mode::kRefuse}, 1, 1000);
  AdmissionControl::Call call{.now_ns = kOriginOfQueue, .under_way = 20};
  EXPECT_TRUE(control.Admit(call));
  call.under_way = 21;
  EXPECT_FALSE(control.Admit(call));
  EXPECT_EQ(RefusedBy(control, AdmissionRule::kLimit), 1u);
  EXPECT_EQ(control.statistics().limit, AdaptiveLimit::kFirst);
}

TEST(AdmissionControl, StreamsAreNotCounted) {
  AdmissionControl control({.limit = Mode::kRefuse}, 1, 1000);
  MethodAdmission method;
  AdmissionControl::Call stream{
      .now_ns = kOriginOfQueue, .method = &method, .streaming = true};
  for (int i = 1; i != 31; ++i) {
    stream.under_way = i;
    EXPECT_TRUE(control.Admit(stream));
  }
  AdmissionControl::Call call{.now_ns = kOriginOfQueue, .under_way = 50};
  EXPECT_TRUE(control.Admit(call));
  call.under_way = 51;
  EXPECT_FALSE(control.Admit(call));
  for (int i = 1; i != 31; ++i)
    control.Leave(&method, true, kOriginOfQueue, kOriginOfQueue);
  call.under_way = 21;
  EXPECT_FALSE(control.Admit(call));
}

TEST(AdmissionControl, EachMethodHasALimit) {
  AdmissionControl control({.method_limits = Mode::kRefuse}, 1, 1000);
  MethodAdmission one, other;
  control.SetUp(&one);
  control.SetUp(&other);
  AdmissionControl::Call call{.now_ns = kOriginOfQueue, .under_way = 1000};
  call.method = &one;
  for (int i = 0; i != 20; ++i) EXPECT_TRUE(control.Admit(call));
  EXPECT_FALSE(control.Admit(call));
  call.method = &other;
  EXPECT_TRUE(control.Admit(call));
  call.method = nullptr;  // A page.
  EXPECT_TRUE(control.Admit(call));
  call.method = &one;
  control.Leave(&one, false, kOriginOfQueue, kOriginOfQueue);
  EXPECT_TRUE(control.Admit(call));
  EXPECT_FALSE(control.Admit(call));
  EXPECT_EQ(RefusedBy(control, AdmissionRule::kMethodLimit), 2u);
}

TEST(AdmissionControl, RulesThatOnlyCountRefuseNothing) {
  AdmissionControl control({.limit = Mode::kCount,
                            .method_limits = Mode::kCount,
                            .queue = Mode::kCount,
                            .late = Mode::kCount},
                           1, 1000);
  MethodAdmission method;
  control.SetUp(&method);
  AdmissionControl::Call call{.now_ns = kOriginOfQueue,
                              .waited_ns = 10 * kMsOfQueue,
                              .timeout_ns = 50 * kMsOfQueue,
                              .usual_ns = 50 * kMsOfQueue,
                              .method = &method};
  constexpr int kCalls = 200;
  for (int i = 1; i <= kCalls; ++i) {
    call.now_ns += kMsOfQueue;
    call.waited_ns = 11 * kMsOfQueue;
    call.under_way = i;
    ASSERT_TRUE(control.Admit(call));
  }
  EXPECT_EQ(control.statistics().refused,
            decltype(AdmissionStatistics::refused){});
  EXPECT_EQ(WouldRefuseBy(control, AdmissionRule::kLimit), kCalls - 20u);
  EXPECT_EQ(WouldRefuseBy(control, AdmissionRule::kMethodLimit), kCalls - 20u);
  EXPECT_GT(WouldRefuseBy(control, AdmissionRule::kLate), kCalls - 5u);
  // From the second interval on.
  EXPECT_GE(WouldRefuseBy(control, AdmissionRule::kQueue), 95u);
}

TEST(AdmissionOptions, ModesHaveNames) {
  EXPECT_EQ(ParseAdmissionMode("off"), Mode::kOff);
  EXPECT_EQ(ParseAdmissionMode("count"), Mode::kCount);
  EXPECT_EQ(ParseAdmissionMode("refuse"), Mode::kRefuse);
  EXPECT_EQ(ParseAdmissionMode(""), std::nullopt);
  EXPECT_EQ(ParseAdmissionMode("on"), std::nullopt);
}

}  // namespace
}  // namespace flare::rpc
