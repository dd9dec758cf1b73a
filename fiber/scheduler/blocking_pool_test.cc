#include "flare/fiber/scheduler/blocking_pool.h"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/testing/no_threads.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class BlockingPoolTest : public ::testing::Test {
 protected:
  static void Start(std::size_t limit, std::chrono::nanoseconds idle,
                    int workers = 2) {
    RuntimeOptions options;
    options.concurrency = workers;
    options.group_size = workers;
    options.max_blocking_threads = limit;
    options.blocking_thread_idle = idle;
    ASSERT_TRUE(StartRuntime(options).ok());
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }
};

TEST_F(BlockingPoolTest, RegionsBeyondTheLimitWait) {
  constexpr int kLimit = 3;
  Start(kLimit, std::chrono::seconds(10));
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < 200; ++i) {
    fibers.emplace_back([&] {
      const BlockingRegion region;
      const int now = ++inside;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      sched_yield();
      --inside;
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_LE(most, kLimit);
  EXPECT_LE(GetRuntimeStatistics().blocking_threads, kLimit);
  EXPECT_GE(GetRuntimeStatistics().blocking_threads, 1U);
}

TEST_F(BlockingPoolTest, FirstComeFirstServed) {
  if (IsShuffleRequested()) GTEST_SKIP() << "they come in any order";
  Start(1, std::chrono::seconds(10), 1);
  std::latch go(1);
  Event first_inside;
  Fiber first([&] {
    const BlockingRegion region;
    first_inside.Set();
    go.wait();  // Blocks the thread.
  });
  first_inside.Wait();
  std::vector<int> order;  // By the one thread.
  std::vector<Fiber> fibers;
  for (int i = 0; i < 10; ++i) {
    fibers.emplace_back([&order, i] {
      const BlockingRegion region;
      order.push_back(i);
    });
    // The one worker ran this one after it had queued the region.
    Fiber([] {}).join();
  }
  EXPECT_TRUE(order.empty());
  go.count_down();
  first.join();
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_EQ(order, std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 1U);
}

TEST_F(BlockingPoolTest, WithoutThreadsItStaysOnTheWorker) {
  Start(10, std::chrono::seconds(10));
  {
    const testing::NoThreads no_threads;
    Fiber([] {
      for (int i = 0; i < 5; ++i) {
        SetLastError(EXDEV);
        EXPECT_TRUE(RunBlocking([] { return IsFiberWorker(); }));
        EXPECT_EQ(GetLastError(), EXDEV);
      }
    }).join();
    EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 0U);
  }
  Fiber([] {
    EXPECT_FALSE(RunBlocking([] { return IsFiberWorker(); }));
    const testing::NoThreads no_threads;  // But one there is, and it is enough.
    std::vector<Fiber> fibers;
    for (int i = 0; i < 20; ++i) {
      fibers.emplace_back(
          [] { EXPECT_FALSE(RunBlocking([] { return IsFiberWorker(); })); });
    }
    for (Fiber& fiber : fibers) fiber.join();
  }).join();
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 1U);
}

TEST_F(BlockingPoolTest, IdleThreadsEnd) {
  Start(64, std::chrono::milliseconds(1));
  for (int round = 0; round < 20; ++round) {
    std::vector<Fiber> fibers;
    for (int i = 0; i < 10; ++i) {
      fibers.emplace_back([] { RunBlocking([] { sched_yield(); }); });
    }
    for (Fiber& fiber : fibers) fiber.join();
    const std::int64_t deadline = NowNs() + 30'000'000'000;
    while (round % 2 == 0 && GetRuntimeStatistics().blocking_threads != 0) {
      ASSERT_LT(NowNs(), deadline);
      std::this_thread::yield();
    }
  }
}

// Regions that come while the only thread that may be is about to end: else
// this hangs.
TEST_F(BlockingPoolTest, NoRegionIsLeftToAThreadThatEnds) {
  Start(1, std::chrono::microseconds(1));
  for (int round = 0; round < 500; ++round) {
    std::vector<Fiber> fibers;
    for (int i = 0; i < 3; ++i) {
      fibers.emplace_back([] {
        RunBlocking([] {});
        RunBlocking([] {});
      });
    }
    for (Fiber& fiber : fibers) fiber.join();
  }
}

TEST_F(BlockingPoolTest, NeedsOneThreadAtLeast) {
  RuntimeOptions options;
  options.max_blocking_threads = 0;
  const Status status = StartRuntime(options);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("flare_fiber_max_blocking_threads"),
            std::string::npos);
}

}  // namespace
}  // namespace flare::fiber
