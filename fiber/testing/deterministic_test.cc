#include "flare/fiber/testing/deterministic.h"

#include <csignal>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// Something of everything; tells in which order it happened.
void Bustle(std::vector<int>* order) {
  Mutex mutex;
  CountingSemaphore<> tokens(2);
  std::vector<Fiber> fibers;
  for (int i = 0; i < 5; ++i) {
    fibers.emplace_back([&, i] {
      for (int k = 0; k < 4; ++k) {
        const bool got = tokens.try_acquire_for(milliseconds(i + 1));
        this_fiber::Yield();
        if (k == i) this_fiber::SleepFor(milliseconds(3));
        {
          std::scoped_lock guard(mutex);
          order->push_back(10 * i + k);
          PreemptionPoint();
        }
        if (got) tokens.release();
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

TEST(DeterministicTest, TheSameSeedGivesTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<int> order;
    const DeterministicRun first =
        RunDeterministic(seed, [&] { Bustle(&order); });
    EXPECT_EQ(order.size(), 20U);
    EXPECT_GT(first.decisions, 20U);
    std::vector<int> again;
    const DeterministicRun second =
        RunDeterministic(seed, [&] { Bustle(&again); });
    EXPECT_EQ(order, again) << "seed " << seed;
    EXPECT_EQ(first.decisions, second.decisions) << "seed " << seed;
    EXPECT_EQ(first.trace, second.trace) << "seed " << seed;
    EXPECT_EQ(first.virtual_ns, second.virtual_ns) << "seed " << seed;
  }
}

TEST(DeterministicTest, OtherSeedsGiveOtherRuns) {
  std::set<std::uint64_t> traces;
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<int> order;
    traces.insert(RunDeterministic(seed, [&] { Bustle(&order); }).trace);
    orders.insert(order);
  }
  EXPECT_EQ(traces.size(), 50U);
  EXPECT_GT(orders.size(), 45U);
}

// All orders in which three tasks can run are seen.
TEST(DeterministicTest, ReachesAllOrders) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::vector<int> order;
    RunDeterministic(seed, [&] {
      std::vector<Fiber> fibers;
      for (int i = 0; i < 3; ++i) {
        fibers.emplace_back([&, i] { order.push_back(i); });
      }
      for (auto& fiber : fibers) fiber.join();
    });
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6U);
}

// More than a run queue holds.
TEST(DeterministicTest, SeesThroughOverflows) {
  const auto storm = [] {
    CountingSemaphore<> ran(0);
    for (int i = 0; i < 2000; ++i) Spawn([&] { ran.release(); });
    for (int i = 0; i < 2000; ++i) ran.acquire();
  };
  EXPECT_EQ(RunDeterministic(1, storm).trace, RunDeterministic(1, storm).trace);
}

TEST(DeterministicTest, TimePassesWithoutWaiting) {
  const std::int64_t start = NowNs();
  const DeterministicRun run = RunDeterministic(1, [] {
    const std::int64_t before = NowNs();
    this_fiber::SleepFor(hours(100));
    EXPECT_GE(NowNs() - before, ToNs(hours(100)));
    EXPECT_LT(NowNs() - before, ToNs(hours(100)) + 1'000'000);
  });
  EXPECT_GE(run.virtual_ns, ToNs(hours(100)));
  EXPECT_LT(NowNs() - start, 60'000'000'000);
}

TEST(DeterministicTest, TimersFireInTheOrderOfTheirDeadlines) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<int> order;
    RunDeterministic(seed, [&] {
      std::vector<Fiber> fibers;
      for (int i = 0; i < 5; ++i) {
        fibers.emplace_back([&, i] {
          this_fiber::SleepUntil(ReadSteadyClock() + hours(5 - i));
          order.push_back(i);
        });
      }
      for (auto& fiber : fibers) fiber.join();
    });
    EXPECT_EQ(order, std::vector<int>({4, 3, 2, 1, 0}));
  }
}

// Waiting by yielding gets somewhere, too.
TEST(DeterministicTest, TimePassesWhileFibersYield) {
  RunDeterministic(3, [] {
    const std::int64_t end = NowNs() + 1'000'000;
    while (NowNs() < end) this_fiber::Yield();
  });
}

TEST(DeterministicTest, PreemptionPointsDoNothingElsewhere) {
  PreemptionPoint();
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  const std::uint64_t before = GetRuntimeStatistics().suspends;
  Fiber([] { PreemptionPoint(); }).join();
  EXPECT_EQ(GetRuntimeStatistics().suspends, before);
  TerminateRuntime();
}

// A toy event that forgets the one who is about to wait.
class ForgetfulEvent {
 public:
  explicit ForgetfulEvent(bool forgetful) : forgetful_(forgetful) {}

  bool WaitFor(std::chrono::nanoseconds length) {
    if (set_) return true;
    if (forgetful_) PreemptionPoint();  // Set() may come here.
    waiter_.emplace();
    return waiter_->WaitFor(length);
  }

  void Set() {
    set_ = true;
    if (waiter_) waiter_->Set();
  }

 private:
  const bool forgetful_;
  bool set_ = false;
  std::optional<Event> waiter_;
};

// False: the wake-up was lost.
bool WakesUp(std::uint64_t seed, bool forgetful, std::uint64_t* trace) {
  bool woken = false;
  *trace = RunDeterministic(seed, [&] {
             ForgetfulEvent event(forgetful);
             Fiber setter([&] { event.Set(); });
             woken = event.WaitFor(hours(1));
             setter.join();
           }).trace;
  return woken;
}

// A wait that gives up just as it is granted, by code that takes a time-out for
// proof that nothing was granted.
bool AgreesWithTimeout(std::uint64_t seed, std::uint64_t* trace) {
  bool timed_out = false;
  bool granted = false;
  *trace = RunDeterministic(seed, [&] {
             Event event;
             Fiber granter([&] {
               this_fiber::SleepFor(milliseconds(5));
               granted = true;
               this_fiber::Yield();  // As a call to somebody else might.
               event.Set();
             });
             timed_out = !event.WaitFor(milliseconds(10));
             timed_out = timed_out && granted;
             granter.join();
           }).trace;
  return !timed_out;
}

// Some seed finds the bug, and finds it each time.
void ExpectFoundAndReplayed(
    const std::function<bool(std::uint64_t, std::uint64_t*)>& holds) {
  std::uint64_t seed = 1;
  std::uint64_t trace = 0;
  while (seed <= 500 && holds(seed, &trace)) ++seed;
  ASSERT_LE(seed, 500U) << "no seed found it";
  for (int i = 0; i < 5; ++i) {
    std::uint64_t again = 0;
    EXPECT_FALSE(holds(seed, &again));
    EXPECT_EQ(again, trace);
  }
}

TEST(DeterministicTest, FindsALostWakeUp) {
  ExpectFoundAndReplayed([](std::uint64_t seed, std::uint64_t* trace) {
    return WakesUp(seed, /*forgetful=*/true, trace);
  });
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    std::uint64_t trace = 0;
    ASSERT_TRUE(WakesUp(seed, /*forgetful=*/false, &trace)) << seed;
  }
}

TEST(DeterministicTest, FindsATimeOutThatMeetsItsEvent) {
  ExpectFoundAndReplayed(&AgreesWithTimeout);
}

class DeterministicDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    unsetenv("FLARE_STRESS_SECONDS");
  }
  void TearDown() override { unsetenv("FLARE_SEED"); }
};

void LockInBothOrders() {
  Mutex a;
  Mutex b;
  const auto lock = [](Mutex* first, Mutex* second) {
    std::scoped_lock outer(*first);
    this_fiber::Yield();
    std::scoped_lock inner(*second);
  };
  Fiber other(lock, &b, &a);
  lock(&a, &b);
  other.join();
}

TEST_F(DeterministicDeathTest, DeadlocksAreReportedWithWhoWaitsForWhat) {
  EXPECT_DEATH(ExploreSchedules(100, &LockInBothOrders),
               "deadlock: no fiber can run and no timer is armed.*"
               "1 suspended: Mutex.*1 suspended: Mutex.*replay with "
               "FLARE_SEED=[0-9]+ and "
               "--gtest_filter=DeterministicDeathTest.DeadlocksAre");
}

TEST_F(DeterministicDeathTest, FailuresEndTheSearchAndTellTheSeed) {
  const auto explore = [] {
    int runs = 0;
    const int ended = ExploreSchedules(100, [&] { EXPECT_LT(++runs, 7); });
    std::exit(ended == 7 && runs == 7 ? 17 : 1);
  };
  EXPECT_EXIT(explore(), ::testing::ExitedWithCode(17),
              "replay with FLARE_SEED=7 ");
}

TEST_F(DeterministicDeathTest, ChecksAndSignalsTellTheSeed) {
  EXPECT_DEATH(RunDeterministic(11, [] { CHECK(false) << "broken"; }),
               "broken.*replay with FLARE_SEED=11 ");
  EXPECT_EXIT(RunDeterministic(12, [] { std::raise(SIGTERM); }),
              ::testing::KilledBySignal(SIGTERM), "replay with FLARE_SEED=12 ");
}

TEST_F(DeterministicDeathTest, SeedsOfTheEnvironmentMustBeNumbers) {
  for (const char* const seed :
       {"x", "0", "-1", "1x", "99999999999999999999"}) {
    setenv("FLARE_SEED", seed, 1);
    EXPECT_DEATH(ExploreSchedules(1, [] {}), "must be a positive number");
  }
}

TEST_F(DeterministicDeathTest, SeedsOfTheEnvironmentAreReplayed) {
  std::vector<int> expected;
  RunDeterministic(33, [&] { Bustle(&expected); });
  setenv("FLARE_SEED", "33", 1);
  std::vector<int> order;
  EXPECT_EQ(ExploreSchedules(100, [&] { Bustle(&order); }), 1);
  EXPECT_EQ(order, expected);
}

TEST_F(DeterministicDeathTest, AllSeedsAreTried) {
  int runs = 0;
  EXPECT_EQ(ExploreSchedules(9, [&] { ++runs; }), 9);
  EXPECT_EQ(runs, 9);
  // An empty variable is none.
  setenv("FLARE_SEED", "", 1);
  EXPECT_EQ(ExploreSchedules(4, [] {}), 4);
}

}  // namespace
}  // namespace flare::fiber::testing
