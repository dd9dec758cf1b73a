// How often the watch looks, and that it helps. Its findings, and how soon they
// come, are the subject of ready_delay_test.cc.

#include "flare/fiber/scheduler/watch.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/thread_policy.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/thread_starts.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// The folder in /proc of the watch's thread, once it has taken its name.
std::filesystem::path FindWatch() {
  for (;;) {
    for (const auto& thread :
         std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(thread.path() / "comm");
      std::string name;
      if (std::getline(file, name) && name == "flare_watch") {
        return thread.path();
      }
    }
    std::this_thread::yield();
  }
}

// How often a thread has gone to sleep.
std::int64_t CountSleeps(const std::filesystem::path& thread) {
  std::ifstream file(thread / "status");
  for (std::string word; file >> word;) {
    std::int64_t count = 0;
    if (word == "voluntary_ctxt_switches:" && file >> count) return count;
  }
  return -1;
}

// One worker has short tasks all the time, the other one sleeps.
TEST(WatchTest, IsCalmWhereNobodyNeedsHelp) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.watch_period = std::chrono::microseconds(50);
  ASSERT_TRUE(StartRuntime(options).ok());
  struct Endless : Task {
    std::atomic<bool> stop{false};
    Event done;
  };
  Endless task;
  task.run = [](Task* self) {
    auto* const me = static_cast<Endless*>(self);
    if (me->stop.load()) return me->done.Set();
    Submit(me);
  };
  Submit(&task);

  const std::filesystem::path watch = FindWatch();
  // Once in 400 us is enough then. The one that runs may have to wait for its
  // CPU, and so seem to need help; hence the best of several windows.
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 100 && least > 300; ++i) {
    const std::int64_t before = CountSleeps(watch);
    ASSERT_GE(before, 0);
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    // As if the window had been of that length.
    const std::int64_t sleeps = (CountSleeps(watch) - before) *
                                std::chrono::milliseconds(100) /
                                (std::chrono::steady_clock::now() - start);
    // None at all: for want of a CPU.
    if (sleeps > 0) least = std::min(least, sleeps);
  }
  EXPECT_LE(least, 300);

  task.stop = true;
  task.done.Wait();
  TerminateRuntime();
}

// How often it looks in the first 10 ms of a task that blocks its thread, with
// nothing behind it and nobody else at work.
std::int64_t LooksBesideABlockedTask() {
  RuntimeOptions options;
  options.concurrency = 2;
  options.watch_period = std::chrono::microseconds(50);
  EXPECT_TRUE(StartRuntime(options).ok());
  const std::filesystem::path watch = FindWatch();
  struct Blocked : Task {
    std::atomic<bool> begun{false};
    std::atomic<bool> stop{false};
    Event done;
  };
  Blocked task;
  task.run = [](Task* self) {
    auto* const me = static_cast<Blocked*>(self);
    me->begun.store(true);
    me->begun.notify_one();
    me->stop.wait(false);
    me->done.Set();
  };
  Submit(&task);
  task.begun.wait(false);
  const std::int64_t before = CountSleeps(watch);
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::int64_t looks = (CountSleeps(watch) - before) *
                             std::chrono::milliseconds(10) /
                             (std::chrono::steady_clock::now() - start);
  task.stop.store(true);
  task.stop.notify_one();
  task.done.Wait();
  TerminateRuntime();
  return looks;
}

// Once in 200 us is enough. It would be calm only after 5 ms of looks every 50
// us otherwise, and those would be 150. The best of several attempts counts.
TEST(WatchTest, LooksLessOftenBesideATaskThatHoldsUpNobody) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 100 && least > 75; ++i) {
    const std::int64_t looks = LooksBesideABlockedTask();
    // None at all: for want of a CPU.
    if (looks > 0) least = std::min(least, looks);
  }
  EXPECT_LE(least, 75);
}

TEST(WatchTest, TakesNobodysCpu) {
  RuntimeOptions options;
  options.concurrency = 2;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto thread = static_cast<pid_t>(std::stoi(FindWatch().filename()));
  // It has a name first.
  while (sched_getscheduler(thread) != SCHED_BATCH) std::this_thread::yield();
  TerminateRuntime();
}

TEST(WatchTest, KeepsAPolicyThatWasChosen) {
  EXPECT_EQ(ThreadPolicy{}.GivingWay().policy, SCHED_BATCH);
  for (const int chosen : {SCHED_BATCH, SCHED_IDLE, SCHED_FIFO, SCHED_RR}) {
    ThreadPolicy policy{.policy = chosen};
    policy.parameters.sched_priority = 3;
    const ThreadPolicy same = policy.GivingWay();
    EXPECT_EQ(same.policy, chosen);
    EXPECT_EQ(same.parameters.sched_priority, 3);
  }
}

// The promise of the watch: tasks queued behind one that holds its thread run
// soon, on another worker. The asserted limit is far above the promised 100 us,
// and depends on the time of wake-ups, as these tests run on loaded machines;
// the point is that it is far below the time for which the thread is held.
TEST(WatchTest, HeldThreadDoesNotDelayOthers) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.optimize_for = "io-heavy";  // The laziest to wake.
  ASSERT_TRUE(StartRuntime(options).ok());
  ConcurrentHistogram delays;
  testing::ThreadStarts thread_starts;
  constexpr int kRounds = 30;
  constexpr int kQueued = 10;
  for (int round = 0; round < kRounds; ++round) {
    Latch queued_ran(kQueued);
    Latch holder_left(1);
    Spawn([&] {
      const std::int64_t start = NowNs();
      Spawn([&, start] {
        // Holds its thread until the others are through, however long it takes.
        const std::int64_t give_up = start + 30'000'000'000;
        while (!queued_ran.try_wait() && NowNs() < give_up) {
        }
        holder_left.count_down();
      });
      for (int i = 0; i < kQueued; ++i) {
        Spawn([&, start] {
          delays.Record(NowNs() - start);
          queued_ran.count_down();
        });
      }
    });
    thread_starts.Measure();
    queued_ran.wait();
    holder_left.wait();
  }
  const Histogram delay = delays.Snapshot();
  EXPECT_EQ(delay.count(), kQueued * kRounds);
  EXPECT_LT(delay.ValueAtQuantile(0.5),
            20'000'000 + 3 * thread_starts.MedianNs());
  EXPECT_LT(delay.max(), 15'000'000'000);
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
