#include "flare/base/spinlock.h"

#include <atomic>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/thread_annotations.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(Spinlock, TryLockTellsWhetherItIsHeld) {
  Spinlock lock;
  ASSERT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  ASSERT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(Spinlock, WorksWithStandardAndAnnotatedGuards) {
  Spinlock lock;
  {
    std::unique_lock guard(lock);
    EXPECT_FALSE(lock.try_lock());
  }
  {
    ScopedLock guard(lock);
    EXPECT_FALSE(lock.try_lock());
  }
  {
    std::scoped_lock guard(lock);
    EXPECT_FALSE(lock.try_lock());
  }
  ASSERT_TRUE(lock.try_lock());
  lock.unlock();
}

struct Guarded {
  Spinlock lock;
  // Plain on purpose: only the lock keeps them equal, and race-free for tsan.
  long first FLARE_GUARDED_BY(lock) = 0;
  long second FLARE_GUARDED_BY(lock) = 0;
};

TEST(Spinlock, ExcludesManyThreads) {
  constexpr int kThreads = 6;  // More than CPUs: holders get preempted.
  constexpr int kRounds = 20000;
  Guarded guarded;
  std::atomic<int> torn{0};
  std::atomic<long> entered{0};
  std::latch start(kThreads);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (int i = 0; i < kRounds; ++i) {
        if ((t + i) % 4 == 0) {
          if (!guarded.lock.try_lock()) continue;
        } else {
          guarded.lock.lock();
        }
        if (guarded.first++ != guarded.second++) ++torn;
        guarded.lock.unlock();
        ++entered;
      }
    });
  }
  threads.clear();  // Joins.
  EXPECT_EQ(torn, 0);
  ScopedLock guard(guarded.lock);
  EXPECT_EQ(guarded.first, entered);
  EXPECT_GE(entered, kThreads * kRounds * 3 / 4);
}

TEST(Spinlock, WaiterGetsInAfterALongHold) {
  Spinlock lock;
  std::atomic<bool> got_in{false};
  lock.lock();
  std::latch waiting(1);
  std::jthread waiter([&] {
    waiting.count_down();
    ScopedLock guard(lock);
    got_in = true;
  });
  waiting.wait();
  // Long enough for the waiter to go from spinning to yielding. On a busy
  // machine each of these may take many milliseconds.
  const std::int64_t enough = NowNs() + 500'000'000;
  for (int i = 0; i < 1000 && NowNs() < enough; ++i) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(got_in);
  lock.unlock();
  waiter.join();
  EXPECT_TRUE(got_in);
}

}  // namespace
}  // namespace flare
