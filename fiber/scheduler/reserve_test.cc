// Tasks that block their threads: others run all the same.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/no_threads.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;

class ReserveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsShuffleRequested()) GTEST_SKIP() << "there is no reserve then";
  }
};

void StartWorkers(int workers, int reserve) {
  RuntimeOptions options;
  options.concurrency = workers;
  options.reserve_workers = reserve;
  const Status status = StartRuntime(options);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Tasks that block their threads until told to go on.
class Blockers {
 public:
  explicit Blockers(int count) : started_(count), ended_(count) {
    for (int i = 0; i < count; ++i) {
      Spawn([this] {
        started_.count_down();
        open_.wait();
        ended_.count_down();
      });
    }
  }
  // ... all at a time.
  void WaitUntilBlocked() { started_.wait(); }
  void Open() { open_.count_down(); }
  void WaitUntilEnded() { ended_.wait(); }

 private:
  std::latch started_;
  std::latch open_{1};
  std::latch ended_;
};

// Another task runs, which all workers that are blocked wait for.
TEST_F(ReserveTest, RunsWhatTheBlockedWaitFor) {
  StartWorkers(2, 1);
  Blockers blockers(2);
  blockers.WaitUntilBlocked();
  Spawn([&] { blockers.Open(); });
  blockers.WaitUntilEnded();
  const RuntimeStatistics counted = GetRuntimeStatistics();
  EXPECT_GE(counted.blocked_workers, 1U);
  EXPECT_EQ(counted.reserve_workers, 1U);
  TerminateRuntime();
}

// Unlike the watch's, whose thread starts them.
TEST_F(ReserveTest, IsScheduledLikeTheOthers) {
  StartWorkers(2, 1);
  Blockers blockers(2);
  blockers.WaitUntilBlocked();
  std::atomic<int> policy{-1};
  Spawn([&] {
    policy = sched_getscheduler(0);
    blockers.Open();
  });
  blockers.WaitUntilEnded();
  TerminateRuntime();
  EXPECT_EQ(policy, sched_getscheduler(0));
}

// With as many tasks blocked as there are workers, no other one is started.
void ExpectNothingRunsBeside(int workers, int reserve) {
  StartWorkers(workers, reserve);
  Blockers blockers(workers);
  blockers.WaitUntilBlocked();
  std::atomic<bool> ran{false};
  Spawn([&] { ran = true; });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(ran);
  blockers.Open();
  TerminateRuntime();
  EXPECT_TRUE(ran);
}

TEST_F(ReserveTest, OfNobodyRunsNothing) { ExpectNothingRunsBeside(2, 0); }

TEST_F(ReserveTest, IsNoneForASingleWorker) { ExpectNothingRunsBeside(1, 8); }

// As many as there are, and no more.
TEST_F(ReserveTest, EndsSomewhere) {
  StartWorkers(2, 3);
  Blockers blockers(5);
  blockers.WaitUntilBlocked();  // The last three by workers of the reserve.
  std::atomic<bool> ran{false};
  Spawn([&] { ran = true; });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(ran);
  EXPECT_EQ(GetRuntimeStatistics().reserve_workers, 3U);
  blockers.Open();
  blockers.WaitUntilEnded();
  TerminateRuntime();
  EXPECT_TRUE(ran);
}

// Tasks that the blocked ones keep from running run later; and when there are
// threads again the reserve is there.
TEST_F(ReserveTest, MissesNothingForWantOfThreads) {
  StartWorkers(2, 8);
  {
    const testing::NoThreads no_threads;
    Blockers blockers(2);
    blockers.WaitUntilBlocked();
    std::latch ran(1);
    Spawn([&] { ran.count_down(); });
    // The watch asks for a worker in the look in which it marks one.
    while (GetRuntimeStatistics().blocked_workers < 2) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_FALSE(ran.try_wait());
    while (GetRuntimeStatistics().reserve_workers != 0) {  // It is at it again.
      std::this_thread::yield();
    }
    blockers.Open();
    ran.wait();
    blockers.WaitUntilEnded();
  }
  Blockers blockers(2);
  blockers.WaitUntilBlocked();
  Spawn([&] { blockers.Open(); });
  blockers.WaitUntilEnded();
  EXPECT_GE(GetRuntimeStatistics().reserve_workers, 1U);
  TerminateRuntime();
}

TEST_F(ReserveTest, IsNotForTasksThatCompute) {
  StartWorkers(2, 8);
  std::atomic<int> started{0};
  std::atomic<bool> stop{false};
  for (int i = 0; i < 2; ++i) {
    Spawn([&] {
      ++started;
      while (!stop) {
      }
    });
  }
  while (started < 2) std::this_thread::yield();
  Event ran;
  Spawn([&] { ran.Set(); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(GetRuntimeStatistics().reserve_workers, 0U);
  stop = true;
  ran.Wait();
  TerminateRuntime();
}

// Short tasks all the time, and how many run at once.
class Load {
 public:
  explicit Load(int tasks) : running_tasks_(tasks) {
    for (int i = 0; i < tasks; ++i) {
      tasks_.push_back(std::make_unique<Each>());
      tasks_.back()->load = this;
      tasks_.back()->run = &Run;
      Submit(tasks_.back().get());
    }
  }
  void StopAndWait() {
    stop_ = true;
    running_tasks_.wait();
  }
  // The most at once within a while.
  int MostAtOnce() {
    most_ = 0;
    std::this_thread::sleep_for(milliseconds(20));
    return most_;
  }

 private:
  struct Each : Task {
    Load* load = nullptr;
  };
  static void Run(Task* task) {
    Load* const load = static_cast<Each*>(task)->load;
    const int now = ++load->at_once_;
    if (int most = load->most_; now > most) {
      load->most_.compare_exchange_strong(most, now);
    }
    const std::int64_t end = NowNs() + 20'000;
    while (NowNs() < end) {
    }
    --load->at_once_;
    if (load->stop_) {
      load->running_tasks_.count_down();
    } else {
      Submit(task);
    }
  }

  std::vector<std::unique_ptr<Each>> tasks_;
  std::atomic<int> at_once_{0};
  std::atomic<int> most_{0};
  std::atomic<bool> stop_{false};
  std::latch running_tasks_;
};

// Those that were blocked run again, so that others have to retire.
TEST_F(ReserveTest, RetiresAfterwards) {
  StartWorkers(2, 4);
  Blockers blockers(4);
  blockers.WaitUntilBlocked();
  ASSERT_GE(GetRuntimeStatistics().reserve_workers, 2U);
  Load load(100);
  blockers.Open();
  blockers.WaitUntilEnded();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int most = load.MostAtOnce();
  while (most != 2 && std::chrono::steady_clock::now() < deadline) {
    most = load.MostAtOnce();
  }
  EXPECT_EQ(most, 2);
  load.StopAndWait();
  TerminateRuntime();
}

TEST_F(ReserveTest, EndsWithTheRuntimeWhateverIsBlocked) {
  for (int i = 0; i < 20; ++i) {
    StartWorkers(2, 8);
    std::atomic<int> ended{0};
    for (int n = 0; n < 6; ++n) {
      Spawn([&] {
        std::this_thread::sleep_for(milliseconds(1));
        ++ended;
      });
    }
    TerminateRuntime();
    EXPECT_EQ(ended, 6);
  }
}

// Threads that queue tasks, some of which block their threads, or suspend.
TEST_F(ReserveTest, LosesNothing) {
  constexpr int kThreads = 3;
  constexpr int kTasks = 2000;
  StartWorkers(3, 8);
  std::latch ran(kThreads * kTasks);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int n = 0; n < kTasks; ++n) {
        Spawn([&, n] {
          if (n % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
          if (n % 50 == 25) this_fiber::SleepFor(milliseconds(1));
          Spawn([&] { ran.count_down(); });
        });
        if (n % 100 == t) std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ran.wait();
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
