#include "flare/rpc/admission/admission_control.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/admission/priority.h"
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
  // So many calls come at once, and others after `period_ns`. Returns how many
  // were refused.
  int RunBurst(int calls, std::int64_t period_ns) {
    int refused = 0;
    for (int i = 0; i != calls; ++i) {
      const std::int64_t begins_ns = std::max(now_ns_, free_at_ns_);
      if (watch_.Sheds(begins_ns - now_ns_, begins_ns)) {
        ++refused;
      } else {
        free_at_ns_ = begins_ns + kMsOfQueue;
      }
    }
    now_ns_ += period_ns;
    return refused;
  }
  // The worker is busy with so many calls that came at once.
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
  EXPECT_TRUE(watch.Sheds(90 * kMsOfQueue, kOriginOfQueue + 1101 * kMsOfQueue));
  EXPECT_FALSE(
      watch.Sheds(10 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue));
  // Calls of a kind that is shed earlier.
  EXPECT_TRUE(
      watch.Sheds(10 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue, 0.8));
  EXPECT_FALSE(
      watch.Sheds(5 * kMsOfQueue, kOriginOfQueue + 1102 * kMsOfQueue, 0.1));
}

// At half the worker's capacity. An interval begins within the first one.
TEST(QueueWatch, BurstsAreServedThoughTheyAreLong) {
  SimulatedQueue queue;
  queue.RunBurst(1, 70 * kMsOfQueue);
  for (int i = 0; i != 20; ++i) {
    EXPECT_EQ(queue.RunBurst(75, 150 * kMsOfQueue), 0);
  }
}

TEST(QueueWatch, EndsWithTheOverloadThoughBurstsFollow) {
  SimulatedQueue queue;
  queue.Run(kMsOfQueue / 4, kOriginOfQueue + 2000 * kMsOfQueue);
  EXPECT_TRUE(queue.shedding());
  for (int i = 0; i != 2; ++i) queue.RunBurst(75, 150 * kMsOfQueue);
  for (int i = 0; i != 20; ++i) {
    EXPECT_EQ(queue.RunBurst(75, 150 * kMsOfQueue), 0);
  }
}

// A worker with a ring of its own may take a new call before older ones.
TEST(QueueWatch, ACallOutOfTurnDoesNotEndIt) {
  QueueWatch watch;
  watch.SetUp(5 * kMsOfQueue, 100 * kMsOfQueue);
  std::int64_t now_ns = kOriginOfQueue;
  const auto run = [&](int calls, int short_ones) {
    for (int i = 0; i != calls; ++i, now_ns += 5 * kMsOfQueue) {
      watch.Sheds((i < short_ones ? 1 : 8) * kMsOfQueue, now_ns);
    }
  };
  run(/*calls=*/41, /*short_ones=*/0);
  EXPECT_TRUE(watch.shedding());
  for (int i = 0; i != 10; ++i) {
    run(/*calls=*/20, /*short_ones=*/5);
    EXPECT_TRUE(watch.shedding());
  }
  run(/*calls=*/41, /*short_ones=*/41);
  EXPECT_FALSE(watch.shedding());
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
    control.Leave({.method = &method, .streaming = true});
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
  control.Leave({.method = &one});
  EXPECT_TRUE(control.Admit(call));
  EXPECT_FALSE(control.Admit(call));
  EXPECT_EQ(RefusedBy(control, AdmissionRule::kMethodLimit), 2u);
}

// As those with a body that can't be parsed.
TEST(AdmissionControl, CallsThatWereNotRunSayNothingOfTheTime) {
  AdmissionControl control(
      {.limit = Mode::kRefuse, .method_limits = Mode::kRefuse}, 1, 1000);
  MethodAdmission method;
  control.SetUp(&method);
  AdmissionControl::Call call{
      .now_ns = kOriginOfQueue, .under_way = 20, .method = &method};
  const auto run = [&](bool timed) {
    for (int i = 0; i != 1000; ++i) {
      for (int under_way = 0; under_way != 20; ++under_way) {
        EXPECT_TRUE(control.Admit(call));
      }
      for (int under_way = 0; under_way != 20; ++under_way) {
        control.Leave({.method = &method,
                       .timed = timed,
                       .received_ns = call.now_ns,
                       .dispatched_ns = call.now_ns,
                       .now_ns = call.now_ns + kMsOfQueue});
      }
      call.now_ns += kMsOfQueue;
    }
  };
  run(/*timed=*/false);
  EXPECT_EQ(control.statistics().limit, AdaptiveLimit::kFirst);
  EXPECT_EQ(method.limit.limit(), AdaptiveLimit::kFirst);
  EXPECT_EQ(method.running.load(), 0u);  // They have left.
  run(/*timed=*/true);
  EXPECT_NE(control.statistics().limit, AdaptiveLimit::kFirst);
  EXPECT_NE(method.limit.limit(), AdaptiveLimit::kFirst);
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

// Workers that each take 1 ms for a call, behind one queue for all calls, which
// are judged when a worker comes to them.
class SimulatedWorkers {
 public:
  // Answered calls in a second, and shares of each priority.
  struct Result {
    double goodput = 0;
    std::array<double, kPriorities> answered = {};
  };

  SimulatedWorkers(std::size_t workers, AdmissionControl* control)
      : control_(*control), free_(workers) {}

  // Calls come at random, `per_second` in the mean, for `seconds`, each with
  // one of `priorities`, which are as frequent as they are in the list.
  Result Run(double per_second, int seconds,
             const std::vector<std::size_t>& priorities) {
    std::array<double, kPriorities> offered = {}, answered = {};
    std::exponential_distribution<double> gap(per_second / 1e9);
    std::uniform_int_distribution<std::size_t> pick(0, priorities.size() - 1);
    double sum = 0;
    for (const std::int64_t end_ns = now_ns_ + seconds * kNsPerSecond;
         now_ns_ < end_ns;) {
      now_ns_ += static_cast<std::int64_t>(gap(random_)) + 1;
      RunUntil(now_ns_, &answered);
      queue_.push_back({now_ns_, priorities[pick(random_)]});
      ++offered[queue_.back().priority];
      RunUntil(now_ns_, &answered);
    }
    Result result;
    for (std::size_t i = 0; i != kPriorities; ++i) {
      sum += answered[i];
      if (offered[i] != 0) result.answered[i] = answered[i] / offered[i];
    }
    result.goodput = sum / seconds;
    return result;
  }

 private:
  struct Queued {
    std::int64_t received_ns;
    std::size_t priority;
  };
  struct Worker {
    std::int64_t at_ns = kOriginOfQueue;  // Free from then on.
    bool busy = false;
    AdmissionControl::Ended call;
  };

  void RunUntil(std::int64_t end_ns,
                std::array<double, kPriorities>* answered) {
    while (true) {
      Worker& next = *std::min_element(
          free_.begin(), free_.end(),
          [](const Worker& a, const Worker& b) { return a.at_ns < b.at_ns; });
      if (next.at_ns > end_ns) return;
      if (std::exchange(next.busy, false)) {
        next.call.now_ns = next.at_ns;
        control_.Leave(next.call);
      }
      if (queue_.empty()) {
        next.at_ns = end_ns + 1;  // Idle until then.
        continue;
      }
      Begin(&next, answered);
    }
  }

  void Begin(Worker* worker, std::array<double, kPriorities>* answered) {
    const Queued call = queue_.front();
    const std::size_t running =
        std::count_if(free_.begin(), free_.end(),
                      [](const Worker& each) { return each.busy; });
    const bool admitted =
        control_.Admit({.now_ns = worker->at_ns,
                        .waited_ns = worker->at_ns - call.received_ns,
                        .under_way = queue_.size() + running,
                        .priority = call.priority});
    queue_.pop_front();
    if (!admitted) return;
    ++(*answered)[call.priority];
    worker->busy = true;
    worker->call = {.received_ns = call.received_ns,
                    .dispatched_ns = worker->at_ns};
    worker->at_ns += kMsOfQueue;
  }

  AdmissionControl& control_;
  std::mt19937 random_{1};
  std::vector<Worker> free_;
  std::deque<Queued> queue_;
  std::int64_t now_ns_ = kOriginOfQueue;
};

TEST(AdmissionControl, TheLowestPrioritiesAreShedFirst) {
  // A tenth is critical, four are default, and five sheddable.
  const std::vector<std::size_t> mix = {9, 5, 5, 5, 5, 1, 1, 1, 1, 1};
  for (const AdmissionOptions& rules :
       {AdmissionOptions{.limit = Mode::kRefuse, .priority_key = "priority"},
        AdmissionOptions{.queue = Mode::kRefuse, .priority_key = "priority"}}) {
    SCOPED_TRACE(rules.limit == Mode::kRefuse ? "limit" : "queue");
    AdmissionControl control(rules, 1, 10'000);
    SimulatedWorkers workers(4, &control);
    // At twice the capacity sheddable calls are refused.
    workers.Run(8000, 10, mix);
    const auto twice = workers.Run(8000, 10, mix);
    EXPECT_GT(twice.goodput, 0.9 * 4000);
    EXPECT_GT(twice.answered[9], 0.9);
    EXPECT_GT(twice.answered[5], 0.7);
    EXPECT_LT(twice.answered[1], 0.4);
    // Five times: critical ones are a half of the capacity.
    workers.Run(20'000, 10, mix);
    const auto five = workers.Run(20'000, 10, mix);
    EXPECT_GT(five.goodput, 0.9 * 4000);
    EXPECT_GT(five.answered[9], 0.9);
    EXPECT_LT(five.answered[5], 0.4);
    EXPECT_LT(five.answered[1], five.answered[5] / 2);
  }
}

TEST(AdmissionControl, RefusedCallsAreCountedByPriority) {
  AdmissionControl control({.limit = Mode::kRefuse, .priority_key = "priority"},
                           1, 1000);
  AdmissionControl::Call call{.now_ns = kOriginOfQueue, .under_way = 13};
  for (const std::size_t priority : {0, 1, 5, 9}) {
    call.priority = priority;
    EXPECT_EQ(control.Admit(call), priority >= 5) << priority;
  }
  call.under_way = 21;
  for (const std::size_t priority : {1, 9}) {
    call.priority = priority;
    EXPECT_FALSE(control.Admit(call));
  }
  const AdmissionStatistics now = control.statistics();
  EXPECT_TRUE(now.has_priorities);
  EXPECT_EQ(now.refused_by_priority, (std::array<std::uint64_t, kPriorities>{
                                         1, 2, 0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST(Priority, HasNamesAndDigits) {
  EXPECT_EQ(PriorityOf("critical"), 9u);
  EXPECT_EQ(PriorityOf("default"), 5u);
  EXPECT_EQ(PriorityOf("sheddable"), 1u);
  EXPECT_EQ(PriorityOf("0"), 0u);
  EXPECT_EQ(PriorityOf("9"), 9u);
  for (const char* other : {"", "10", "-1", "Critical", "x"}) {
    EXPECT_EQ(PriorityOf(other), kDefaultPriority) << other;
  }
  EXPECT_DOUBLE_EQ(ShareOf(0), 0.55);
  EXPECT_DOUBLE_EQ(ShareOf(9), 1);
}

TEST(PriorityMix, HasTheSharesOfTheLatestCalls) {
  PriorityMix mix;
  EXPECT_EQ(mix.AtLeast(9), 1);
  std::int64_t now_ns = kOriginOfQueue;
  const auto count = [&](std::size_t priority, int calls) {
    for (int i = 0; i != calls; ++i) mix.Count(priority, now_ns);
  };
  count(5, 50);  // The first window ends with the fiftieth.
  EXPECT_EQ(mix.AtLeast(5), 1);
  EXPECT_EQ(mix.AtLeast(6), 0);
  count(9, 20);
  count(1, 79);
  EXPECT_EQ(mix.AtLeast(6), 0);
  now_ns += PriorityMix::kWindowNs;
  count(1, 1);
  EXPECT_DOUBLE_EQ(mix.AtLeast(9), 0.2);
  EXPECT_DOUBLE_EQ(mix.AtLeast(2), 0.2);
  EXPECT_DOUBLE_EQ(mix.AtLeast(1), 1);
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
