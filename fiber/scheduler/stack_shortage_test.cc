// Running out of stacks: work that has started goes on, work that hasn't waits,
// nothing is lost. Each test is given few stacks by RuntimeOptions::max_stacks.

#include "flare/fiber/scheduler/stack_shortage.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using testing::Eventually;

using std::chrono::milliseconds;

class StackShortageTest : public ::testing::Test {
 protected:
  void Start(int workers, std::size_t stacks, int group_size = 0,
             int work_stealing_ratio = 0) {  // 0: each group keeps its tasks.
    RuntimeOptions options;
    options.concurrency = workers;
    options.group_size = group_size == 0 ? workers : group_size;
    options.max_stacks = stacks;
    options.work_stealing_ratio = work_stealing_ratio;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }
  // Nor stays so: the last one may be the runtime's own, that measures delays.
  static bool NoneIsAside() {
    return Eventually([] { return GetRuntimeStatistics().tasks_aside == 0; });
  }
};

TEST_F(StackShortageTest, FewerThanTwoPerWorkerAreRefused) {
  RuntimeOptions options;
  options.concurrency = 4;
  options.group_size = 2;
  options.max_stacks = 7;
  const Status status = StartRuntime(options);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("at least two per worker, 8"),
            std::string::npos)
      << status.message();
  EXPECT_FALSE(IsRuntimeRunning());
}

// No address space for the first stacks: an error, not the end.
TEST_F(StackShortageTest, NoMemoryAtTheStart) {
  RuntimeOptions options;
  options.concurrency = 1;
  options.stack_size = std::size_t{1} << 46;  // 256 of them don't fit.
  const Status status = StartRuntime(options);
  EXPECT_EQ(status.code(), ENOMEM) << status.message();
  EXPECT_FALSE(IsRuntimeRunning());
}

// As many as there are stacks block; the others start as those end. All of it
// on one worker, whose own stack is one of the eight.
TEST_F(StackShortageTest, MoreBlockingTasksThanStacks) {
  Start(1, 8);
  constexpr int kTasks = 1000;
  Semaphore go(0);
  Latch done(kTasks);
  std::atomic<int> started{0};
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  for (int i = 0; i < kTasks; ++i) {
    Spawn([&] {
      started.fetch_add(1);
      const int now = running.fetch_add(1) + 1;
      if (now > most.load()) most.store(now);
      go.acquire();
      running.fetch_sub(1);
      done.count_down();
    });
  }
  // One may be the runtime's own, that measures delays.
  ASSERT_TRUE(Eventually(
      [] { return GetRuntimeStatistics().tasks_aside >= kTasks - 7; }));
  EXPECT_EQ(started.load(), 7);  // And the eighth runs the loop.
  EXPECT_TRUE(ShortOfStacks());
  EXPECT_EQ(GetRuntimeStatistics().stacks, 8U);
  EXPECT_GE(GetRuntimeStatistics().stack_shortages, 1U);
  for (int i = 0; i < kTasks; ++i) go.release();
  done.wait();
  EXPECT_EQ(most.load(), 7);
  EXPECT_TRUE(NoneIsAside());
  EXPECT_EQ(GetRuntimeStatistics().stacks, 8U);
  EXPECT_TRUE(Eventually([] { return !ShortOfStacks(); }));
}

// A started task can suspend as often as it likes, with every stack in use.
TEST_F(StackShortageTest, StartedTasksAreNotHeldUp) {
  Start(1, 6);
  constexpr int kFibers = 5;
  constexpr int kRounds = 2000;
  Latch all_started(kFibers);
  Latch done(kFibers);
  std::atomic<bool> late_ran{false};
  std::atomic<bool> one_ended{false};
  std::atomic<int> rounds{0};
  for (int i = 0; i < kFibers; ++i) {
    Spawn([&] {
      all_started.count_down();
      all_started.wait();
      if (rounds.load() == 0) Spawn([&] { late_ran.store(true); });
      for (int round = 0; round < kRounds; ++round) {
        // A shuffled schedule may let one end before the others.
        EXPECT_TRUE(!late_ran.load() || one_ended.load());
        rounds.fetch_add(1);
        this_fiber::Yield();
      }
      one_ended.store(true);
      done.count_down();
    });
  }
  done.wait();
  EXPECT_EQ(rounds.load(), kFibers * kRounds);
  EXPECT_TRUE(Eventually([&] { return late_ran.load(); }));
}

TEST_F(StackShortageTest, SleepersAndTimersGoOn) {
  Start(2, 8);
  constexpr int kTasks = 200;
  Latch done(kTasks);
  for (int i = 0; i < kTasks; ++i) {
    Spawn([&] {
      this_fiber::SleepFor(milliseconds(1));
      done.count_down();
    });
  }
  done.wait();
  EXPECT_GE(GetRuntimeStatistics().stack_shortages, 1U);
  EXPECT_TRUE(NoneIsAside());
}

TEST_F(StackShortageTest, TrySpawnRefusesAndCounts) {
  Start(1, 4);
  EXPECT_FALSE(ShortOfStacks());
  Event go;
  Latch done(4);
  for (int i = 0; i < 4; ++i) {
    Spawn([&] {
      go.Wait();
      done.count_down();
    });
  }
  ASSERT_TRUE(Eventually([] { return ShortOfStacks(); }));
  auto token = std::make_unique<int>(42);
  std::atomic<int> ran{0};
  auto task = [&ran, token = std::move(token)] { ran.fetch_add(*token); };
  EXPECT_FALSE(TrySpawn(std::move(task)));
  EXPECT_FALSE(TrySpawn(std::move(task)));  // It was not moved from.
  EXPECT_EQ(GetRuntimeStatistics().rejected_tasks, 2U);
  go.Set();
  done.wait();
  ASSERT_TRUE(Eventually([] { return !ShortOfStacks(); }));
  EXPECT_TRUE(TrySpawn(std::move(task)));
  EXPECT_TRUE(Eventually([&] { return ran.load() == 42; }));
  EXPECT_EQ(GetRuntimeStatistics().rejected_tasks, 2U);
}

// A worker that has stacks to spare takes the task that one without put aside,
// also if it sleeps.
TEST_F(StackShortageTest, OtherWorkersTakeWhatWasPutAside) {
  Start(4, 12);
  for (int round = 0; round < 200; ++round) {
    constexpr int kBlocked = 8;
    constexpr int kQuick = 50;
    Event go;
    Latch blocked_done(kBlocked);
    Latch quick_done(kQuick);
    for (int i = 0; i < kBlocked; ++i) {
      Spawn([&] {
        go.Wait();
        blocked_done.count_down();
      });
    }
    // 12 stacks, 4 loops, 7 or 8 blocked: a stack is left for these, or one
    // that is aside must be freed by the event.
    for (int i = 0; i < kQuick; ++i) {
      Spawn([&] { quick_done.count_down(); });
    }
    if (round % 2 == 0) {
      go.Set();
      quick_done.wait();
    } else {
      this_fiber::Yield();
      go.Set();
      quick_done.wait();
    }
    blocked_done.wait();
  }
  EXPECT_TRUE(NoneIsAside());
}

// Fiber-local values, whose destructors block, and joins.
TEST_F(StackShortageTest, EndsOfFibersMayBlockToo) {
  Start(2, 6);
  struct Blocks {
    ~Blocks() { this_fiber::SleepFor(std::chrono::microseconds(10)); }
    int value = 0;
  };
  static FiberLocal<Blocks> local;
  std::atomic<int> ran{0};
  Latch done(100);
  for (int i = 0; i < 100; ++i) {
    Spawn([&] {
      local->value = 1;
      this_fiber::Yield();
      ran.fetch_add(local->value);
      done.count_down();
    });
  }
  done.wait();
  EXPECT_EQ(ran.load(), 100);
}

// Groups have their own shares.
TEST_F(StackShortageTest, AnotherGroupIsNotAffected) {
  Start(2, 8, /*group_size=*/1);
  ASSERT_EQ(GetSchedulingGroupCount(), 2U);
  Event go;
  Latch done(10);
  for (int i = 0; i < 10; ++i) {
    SpawnTo(0, [&] {
      go.Wait();
      done.count_down();
    });
  }
  ASSERT_TRUE(
      Eventually([] { return GetRuntimeStatistics().tasks_aside >= 7; }));
  std::atomic<bool> other_short{true};
  Latch asked(1);
  SpawnTo(1, [&] {
    other_short.store(ShortOfStacks());
    this_fiber::Yield();
    asked.count_down();
  });
  asked.wait();
  EXPECT_FALSE(other_short.load());
  go.Set();
  done.wait();
}

// A worker that sleeps without a spare learns that there are stacks again:
// else servers would refuse calls for as long as nobody needs it.
TEST_F(StackShortageTest, AWorkerThatSleepsIsNotShortForGood) {
  Start(2, 6);
  constexpr int kBlocked = 4;  // And two loops: no spares.
  std::vector<Event> go(kBlocked);
  std::atomic<int> started{0};
  std::atomic<int> ended{0};
  for (Event& each : go) {
    Spawn([&] {
      started.fetch_add(1);
      each.Wait();
      ended.fetch_add(1);
    });
  }
  ASSERT_TRUE(Eventually([&] {
    return started.load() == kBlocked && ShortOfStacks() &&
           GetRuntimeStatistics().suspends == kBlocked;
  }));
  // One after the other, so that one worker runs them all.
  for (int i = 0; i < kBlocked; ++i) {
    go[static_cast<std::size_t>(i)].Set();
    ASSERT_TRUE(Eventually([&] { return ended.load() == i + 1; }));
  }
  EXPECT_TRUE(Eventually([] { return !ShortOfStacks(); }));
}

// A stolen fiber takes its stack along. If that was the last one of its group,
// the group that has it now runs the waiting tasks.
TEST_F(StackShortageTest, ANeighbourRunsWhatAGroupHasNoStacksFor) {
  Start(2, 4, /*group_size=*/1, /*work_stealing_ratio=*/1);
  ASSERT_EQ(GetSchedulingGroupCount(), 2U);
  static Event* go;
  static std::atomic<bool> moved;
  Event waited;
  go = &waited;
  moved.store(false);
  // Holds the fiber's worker, with the fiber in its queue, until the other
  // group has stolen that.
  Timer timer([](Timer*) {
    go->Set();
    EXPECT_TRUE(Eventually([] { return moved.load(); }));
  });
  std::atomic<std::size_t> home{0};  // Group 1 may have come to help already.
  SpawnTo(0, [&] {
    home.store(GetCurrentSchedulingGroupIndex());
    ArmTimer(&timer, NowNs() + 1'000'000);
    waited.Wait();
    moved.store(true);
  });
  ASSERT_TRUE(Eventually([] { return moved.load(); }));
  Latch ran(20);
  for (int i = 0; i < 20; ++i) {
    SpawnTo(home.load(), [&] { ran.count_down(); });
  }
  EXPECT_TRUE(ran.wait_for(std::chrono::seconds(60)));
  CancelTimer(&timer);  // Its callback may still be on its way out.
}

// At the end everything queued is run, those that wait for a stack included.
TEST_F(StackShortageTest, TheEndWaitsForTasksPutAside) {
  for (int round = 0; round < 20; ++round) {
    Start(2, 5);
    std::atomic<int> ran{0};
    Event go;
    for (int i = 0; i < 300; ++i) {
      Spawn([&] {
        go.Wait();
        ran.fetch_add(1);
      });
    }
    go.Set();
    TerminateRuntime();
    EXPECT_EQ(ran.load(), 300);
  }
}

// Fibers that wait for tasks that can't start are abandoned at the end, as all
// suspended ones are, rather than waited for.
TEST_F(StackShortageTest, TheEndDoesNotWaitForADeadlock) {
#ifdef FLARE_ASAN
  GTEST_SKIP() << "what is abandoned is a leak";
#endif
  Start(1, 4);
  auto* const never = new Event();  // Those who are abandoned stay in it.
  for (int i = 0; i < 10; ++i) {
    Spawn([never] { never->Wait(); });
  }
  ASSERT_TRUE(
      Eventually([] { return GetRuntimeStatistics().tasks_aside >= 7; }));
  TerminateRuntime();
}

// Everything at once: chains of fibers that spawn, yield, sleep and hand over.
// The sum says that each task has run once.
TEST_F(StackShortageTest, Stress) {
  const std::int64_t length = testing::StressNs(300'000'000);
  for (const int workers : {1, 2, 4}) {
    Start(workers, static_cast<std::size_t>(2 * workers + 3));
    const std::int64_t end = NowNs() + length;
    std::uint64_t waves = 0;
    while (NowNs() < end) {
      constexpr int kTasks = 400;
      Semaphore permits(2);
      Latch done(2 * kTasks);
      std::atomic<int> sum{0};
      for (int i = 0; i < kTasks; ++i) {
        Spawn([&, i] {
          Spawn([&, i] {
            sum.fetch_add(i);
            done.count_down();
          });
          if (i % 3 == 0) this_fiber::Yield();
          permits.acquire();
          if (i % 5 == 0) this_fiber::SleepFor(std::chrono::microseconds(5));
          permits.release();
          sum.fetch_add(i);
          done.count_down();
        });
      }
      done.wait();
      ASSERT_EQ(sum.load(), kTasks * (kTasks - 1));
      ++waves;
    }
    EXPECT_GT(waves, 0U);
    const RuntimeStatistics statistics = GetRuntimeStatistics();
    EXPECT_LE(statistics.stacks, static_cast<std::size_t>(2 * workers + 3));
    EXPECT_TRUE(NoneIsAside());
    TerminateRuntime();
  }
}

}  // namespace
}  // namespace flare::fiber
