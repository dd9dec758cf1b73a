// A group without free workers isn't left to itself while those of a neighbour
// sleep.
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "flare/base/topology.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/thread_starts.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kGiveUpNs = 20'000'000'000;
// Many periods of the watch.
constexpr std::int64_t kLongNs = 20'000'000;

// Two groups of one worker each, group 0's held by a task while others wait.
class HelpTest : public ::testing::Test {
 protected:
  HelpTest()
      : path_(::testing::TempDir() + "/help_test_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    options_.concurrency = 2;
    options_.group_size = 1;
  }
  ~HelpTest() override { std::filesystem::remove(path_); }

  // As if this machine had two nodes, each with a group.
  void OnTwoNodes() {
    const Topology here = Topology::FromSystem();
    // With a single CPU, the second node is on paper only.
    const int other = here.cpus().size() > 1 ? here.cpus()[1] : 65000;
    std::ofstream(path_) << here.cpus()[0] << "\n" << other << "\n";
    options_.topology_file = path_;
    options_.numa_aware = true;
  }

  void Start() {
    const Status status = StartRuntime(options_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(GetSchedulingGroupCount(), 2U);
    ASSERT_EQ(GetSchedulingGroupSize(), 1U);
  }

  // Holds group 0's worker from within, queues `tasks` behind that in its ring
  // and, from here, as many in its shared queue. Waits until all have run or,
  // if nobody is to help, for long enough. True: all have run while it was
  // held.
  bool RunsWhileHeld(int tasks, bool help_expected) {
    Latch ran(2 * tasks);
    Event held;
    Event let_go;
    bool all_ran = false;
    // Group 0, or 1 if that has come to help as soon as this.
    std::atomic<std::size_t> holder{0};
    const auto work = [&](std::int64_t since) {
      delays_.Record(NowNs() - since);
      (GetCurrentSchedulingGroupIndex() == holder ? own_ : helped_)
          .fetch_add(1);
      ran.count_down();
    };
    SpawnTo(0, [&] {
      holder = GetCurrentSchedulingGroupIndex();
      const std::int64_t start = NowNs();
      for (int i = 0; i < tasks; ++i) Spawn([&, start] { work(start); });
      held.Set();
      const std::int64_t give_up =
          start + (help_expected ? kGiveUpNs : kLongNs);
      while (!(all_ran = ran.try_wait()) && NowNs() < give_up) {
      }
      let_go.Set();
    });
    held.Wait();
    const std::int64_t start = NowNs();
    for (int i = 0; i < tasks; ++i) SpawnTo(0, [&, start] { work(start); });
    thread_starts_.Measure();
    let_go.Wait();
    ran.wait();
    return all_ran;
  }

  RuntimeOptions options_;
  const std::string path_;
  ConcurrentHistogram delays_;
  testing::ThreadStarts thread_starts_;  // At the same times.
  // Tasks that ran in the group that was held, and in the other one.
  std::atomic<int> own_{0};
  std::atomic<int> helped_{0};
};

TEST_F(HelpTest, ANeighbourOfTheSameNode) {
  Start();
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(RunsWhileHeld(10, true));
  }
  EXPECT_EQ(own_.load(), 0);
  EXPECT_EQ(helped_.load(), 400);
  const RuntimeStatistics counted = GetRuntimeStatistics();
  EXPECT_GT(counted.near_steals, 0U);
  EXPECT_EQ(counted.far_steals, 0U);
  EXPECT_GE(counted.steals, counted.near_steals);
  TerminateRuntime();
  const Histogram delay = delays_.Snapshot();
  RecordProperty("median_us",
                 static_cast<int>(delay.ValueAtQuantile(0.5) / 1000));
  RecordProperty("max_us", static_cast<int>(delay.max() / 1000));
  // It is some 100 us, and more on a busy machine.
  EXPECT_LT(delay.ValueAtQuantile(0.5),
            20'000'000 + 3 * thread_starts_.MedianNs());
}

TEST_F(HelpTest, NotIfTheRatioIsZero) {
  options_.work_stealing_ratio = 0;
  Start();
  EXPECT_FALSE(RunsWhileHeld(10, false));
  EXPECT_EQ(own_.load(), 20);
  EXPECT_EQ(helped_.load(), 0);
  EXPECT_EQ(GetRuntimeStatistics().near_steals, 0U);
  TerminateRuntime();
}

TEST_F(HelpTest, NotAcrossSets) {
  options_.group_sets = "front:0;batch:1";
  options_.work_stealing_ratio = 1;
  Start();
  EXPECT_EQ(*FindSchedulingGroups("batch"), std::vector<std::size_t>{1});
  EXPECT_EQ(*FindSchedulingGroups(""), (std::vector<std::size_t>{0, 1}));
  EXPECT_FALSE(FindSchedulingGroups("back"));
  EXPECT_FALSE(RunsWhileHeld(10, false));
  EXPECT_EQ(own_.load(), 20);
  EXPECT_EQ(helped_.load(), 0);
  TerminateRuntime();
}

TEST_F(HelpTest, NotAcrossNodesByDefault) {
  OnTwoNodes();
  options_.work_stealing_ratio = 1;
  Start();
  EXPECT_EQ(GetSchedulingGroupNode(0), 0);
  EXPECT_EQ(GetSchedulingGroupNode(1), 1);
  EXPECT_FALSE(RunsWhileHeld(10, false));
  EXPECT_EQ(own_.load(), 20);
  EXPECT_EQ(helped_.load(), 0);
  TerminateRuntime();
}

TEST_F(HelpTest, AcrossNodesByFlag) {
  OnTwoNodes();
  options_.cross_numa_work_stealing_ratio = 4;
  Start();
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(RunsWhileHeld(10, true));
  }
  EXPECT_EQ(own_.load(), 0);
  EXPECT_EQ(helped_.load(), 100);
  const RuntimeStatistics counted = GetRuntimeStatistics();
  EXPECT_EQ(counted.near_steals, 0U);
  EXPECT_GT(counted.far_steals, 0U);
  TerminateRuntime();
}

// The watch finds both short of workers at once, mostly.
TEST_F(HelpTest, OfTwoGroupsNotAlwaysTheSameFirst) {
  options_.concurrency = 3;
  options_.numa_aware = false;
  options_.work_stealing_ratio = 1 << 30;  // Nobody looks without invitation.
  ASSERT_TRUE(StartRuntime(options_).ok());
  ASSERT_EQ(GetSchedulingGroupCount(), 3U);
  std::atomic<bool> let_go{false};
  Latch ended(2);
  for (std::size_t group = 0; group < 2;) {
    Event started;
    bool in_group = false;
    SpawnTo(group, [&, group] {
      const bool holds = GetCurrentSchedulingGroupIndex() == group;
      in_group = holds;
      started.Set();
      if (!holds) return;
      let_go.wait(false);
      ended.count_down();
    });
    started.Wait();
    if (in_group) ++group;
  }
  constexpr int kRounds = 200;
  std::array<std::atomic<int>, 2> first{};
  std::mt19937 random(5);
  for (int round = 0; round < kRounds; ++round) {
    // At any time since the last look.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    std::atomic<bool> any{false};
    Latch ran(2);
    for (std::size_t group = 0; group < 2; ++group) {
      SpawnTo(group, [&, group] {
        if (!any.exchange(true)) first[group].fetch_add(1);
        ran.count_down();
      });
    }
    ran.wait();
  }
  // Every third time or so.
  EXPECT_GT(first[0].load(), kRounds / 7);
  EXPECT_GT(first[1].load(), kRounds / 7);
  let_go.store(true);
  let_go.notify_all();
  ended.wait();
  TerminateRuntime();
}

// Timers that the held worker ought to fire.
TEST_F(HelpTest, TimersOfAHeldWorker) {
  Start();
  Event fired;
  Event let_go;
  std::atomic<bool> in_time{false};
  SpawnTo(0, [&] {
    SetDetachedTimer(
        std::chrono::steady_clock::now() + std::chrono::microseconds(300),
        [&] { fired.Set(); });
    const std::int64_t give_up = NowNs() + kGiveUpNs;
    while (!in_time.load() && NowNs() < give_up) {
    }
    EXPECT_TRUE(in_time.load());
    let_go.Set();
  });
  fired.Wait();
  in_time.store(true);
  let_go.Wait();
  TerminateRuntime();
}

// While a callback of a neighbour's timer takes its time, the helper's group
// goes on: nobody takes the helper for one who looks for work.
TEST_F(HelpTest, LongCallbacksOfANeighbourHoldUpNobody) {
  options_.concurrency = 4;
  options_.group_size = 2;
  ASSERT_TRUE(StartRuntime(options_).ok());
  ASSERT_EQ(GetSchedulingGroupCount(), 2U);
  static std::atomic<bool> firing;
  static std::atomic<bool> went_on;
  firing.store(false);
  went_on.store(false);
  Timer timer([](Timer*) {
    EXPECT_EQ(GetCurrentSchedulingGroupIndex(), 1U);
    firing.store(true);
    firing.notify_one();
    const std::int64_t give_up = NowNs() + kGiveUpNs;
    while (!went_on.load() && NowNs() < give_up) {
    }
    EXPECT_TRUE(went_on.load());
  });
  Latch ended(2);
  for (int held = 0; held < 2;) {
    Event started;
    bool in_group = false;  // False if it was helped already.
    SpawnTo(0, [&, held] {
      const bool holds = GetCurrentSchedulingGroupIndex() == 0;
      in_group = holds;
      started.Set();
      if (!holds) return;
      // Once both workers are held, or one of them would fire it.
      if (held == 1) ArmTimer(&timer, NowNs() + 300'000);
      const std::int64_t give_up = NowNs() + kGiveUpNs;
      while (!went_on.load() && NowNs() < give_up) {
      }
      ended.count_down();
    });
    started.Wait();
    if (in_group) ++held;
  }
  firing.wait(false);
  SpawnTo(1, [] { went_on.store(true); });
  ended.wait();
  TerminateRuntime();
}

// Tasks that end only once as many run at a time as there are workers in all
// groups: all must come to help.
TEST_F(HelpTest, AllNeighboursAtOnce) {
  options_.concurrency = 6;
  options_.group_size = 2;
  ASSERT_TRUE(StartRuntime(options_).ok());
  const int workers =
      static_cast<int>(GetSchedulingGroupCount() * GetSchedulingGroupSize());
  ASSERT_EQ(workers, 6);
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> here{0};
    std::atomic<int> met{0};
    Latch done(workers);
    for (int i = 0; i < workers; ++i) {
      SpawnTo(0, [&] {
        here.fetch_add(1);
        const std::int64_t give_up = NowNs() + kGiveUpNs;
        while (here.load() < workers && NowNs() < give_up) {
          std::this_thread::yield();
        }
        if (here.load() == workers) met.fetch_add(1);
        done.count_down();
      });
    }
    done.wait();
    EXPECT_EQ(met.load(), workers);
  }
  TerminateRuntime();
}

// Fibers of one group that go on suspending while others help to run them.
TEST_F(HelpTest, StolenFibersAreResumed) {
  options_.concurrency = 4;
  options_.work_stealing_ratio = 1;
  ASSERT_TRUE(StartRuntime(options_).ok());
  std::atomic<int> sum{0};
  std::vector<Fiber> fibers;
  Attributes attributes;
  attributes.scheduling_group = 0;
  for (int i = 0; i < 200; ++i) {
    fibers.emplace_back(attributes, [&] {
      for (int k = 0; k < 20; ++k) {
        if (k % 5 == 0) {
          this_fiber::SleepFor(std::chrono::microseconds(50));
        } else {
          this_fiber::Yield();
        }
      }
      sum.fetch_add(1);
    });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(sum.load(), 200);
  TerminateRuntime();
}

// Nothing is lost and nothing runs twice, whichever group helps.
TEST_F(HelpTest, ManyGroupsUnderRandomLoad) {
  OnTwoNodes();
  options_.concurrency = 8;
  options_.work_stealing_ratio = 2;
  options_.cross_numa_work_stealing_ratio = 3;
  options_.run_queue_size = 8;
  ASSERT_TRUE(StartRuntime(options_).ok());
  ASSERT_EQ(GetSchedulingGroupCount(), 8U);
  constexpr int kThreads = 2;
  constexpr int kEach = 3000;
  std::vector<std::atomic<int>> runs(2 * kThreads * kEach);
  Latch all(2 * kThreads * kEach);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int n = 2 * (t * kEach + i);
        SpawnTo(static_cast<std::size_t>(i) % 3, [&, n] {
          Spawn([&, n] {
            runs[static_cast<std::size_t>(n) + 1].fetch_add(1);
            all.count_down();
          });
          if (n % 64 == 0) {  // Holds it up.
            const std::int64_t until = NowNs() + 200'000;
            while (NowNs() < until) {
            }
          }
          runs[static_cast<std::size_t>(n)].fetch_add(1);
          all.count_down();
        });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  all.wait();
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  TerminateRuntime();
}

TEST_F(HelpTest, WithoutItGroupsAreExactlyThoseAskedFor) {
  options_.work_stealing_ratio = 0;
  Start();
  for (int i = 0; i < 200; ++i) {
    const auto group = static_cast<std::size_t>(i) % 2;
    Event done;
    SpawnTo(group, [&] {
      EXPECT_EQ(GetCurrentSchedulingGroupIndex(), group);
      done.Set();
    });
    done.Wait();
  }
  TerminateRuntime();
}

// A task that waits for a group's events, such as the sending of replies,
// doesn't wait for a task that blocks all of the group.
TEST(NeighboursOfABlockedGroupTest, TakeWhatWaitsForItsEvents) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.group_size = 1;
  options.numa_aware = false;
  options.work_stealing_ratio = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  ASSERT_EQ(GetSchedulingGroupCount(), 2U);
  struct Flagging : Task {
    Event* ran = nullptr;
  };
  for (int i = 0; i < 10; ++i) {
    Event ran;
    Event blocked;
    std::atomic<bool> in_time = true;
    Flagging deferred;
    deferred.ran = &ran;
    deferred.run = [](Task* self) { static_cast<Flagging*>(self)->ran->Set(); };
    SpawnTo(0, [&] {
      Spawn([&] {
        const std::int64_t end = NowNs() + 20'000'000'000;
        while (!ran.IsSet() && NowNs() < end) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        in_time = ran.IsSet();
        blocked.Set();
      });
      // Enough to be waited for.
      for (int j = 0; j < 20; ++j) Spawn([] {});
      if (!SubmitBehindEvents(&deferred)) Submit(&deferred);
    });
    blocked.Wait();
    ran.Wait();
    EXPECT_TRUE(in_time);
    if (HasFailure()) break;
  }
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
