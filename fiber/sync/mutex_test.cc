#include "flare/fiber/mutex.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class MutexTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(MutexTest);

TEST_P(MutexTest, TryLockFailsWhileHeld) {
  Mutex mutex;
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock();
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

// Fibers that suspend while they hold it, and threads: the plain counter shows
// a broken exclusion, and under ThreadSanitizer a missing order.
TEST_P(MutexTest, ExcludesFibersAndThreads) {
  constexpr int kFibers = 50;
  constexpr int kThreads = 2;
  constexpr int kRounds = 200;
  Mutex mutex;
  int counter = 0;
  bool inside = false;
  const auto body = [&](int yield_every) {
    for (int i = 0; i < kRounds; ++i) {
      std::scoped_lock guard(mutex);
      ASSERT_FALSE(inside);
      inside = true;
      ++counter;
      if (i % yield_every == 0) this_fiber::Yield();
      inside = false;
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([&, i] { body(i % 10 + 1); });
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { body(7); });
  }
  for (auto& fiber : fibers) fiber.join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter, (kFibers + kThreads) * kRounds);
}

TEST_P(MutexTest, WaitsNoLongerThanTheDeadline) {
  Mutex mutex;
  mutex.lock();
  const auto check = [&] {
    const std::int64_t deadline = NowNs() + 2'000'000;
    EXPECT_FALSE(mutex.try_lock_until(deadline));
    EXPECT_GE(NowNs(), deadline - 1000);  // Clock tolerance, see clock.h.
  };
  check();              // A thread ...
  Fiber(check).join();  // ... and a fiber.
  mutex.unlock();
  Fiber([&] {
    EXPECT_TRUE(mutex.try_lock_until(NowNs() + 1'000'000'000));
    mutex.unlock();
  }).join();
}

// The last one to unlock destroys: nobody may come back to the mutex after its
// unlock let another one in.
TEST_P(MutexTest, DestroyedByTheLastOwner) {
  struct Shared {
    Mutex mutex;
    int users = 4;
  };
  for (int i = 0; i < 500; ++i) {
    auto* const shared = new Shared();
    std::vector<Fiber> fibers;
    for (int k = 0; k < 4; ++k) {
      fibers.emplace_back([shared] {
        bool last;
        {
          std::unique_lock lock(shared->mutex);
          last = --shared->users == 0;
        }
        if (last) delete shared;
      });
    }
    for (auto& fiber : fibers) fiber.join();
  }
}

// Waiters that give up leave no trace: the others still get their turn.
TEST_P(MutexTest, TimeoutsAmongWaiters) {
  Mutex mutex;
  std::atomic<int> acquired{0};
  std::atomic<int> gave_up{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < 60; ++i) {
    fibers.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) {
        if (i % 3 == 0) {
          if (!mutex.try_lock_until(NowNs() + 20'000)) {
            gave_up.fetch_add(1);
            continue;
          }
        } else {
          mutex.lock();
        }
        acquired.fetch_add(1);
        this_fiber::Yield();
        mutex.unlock();
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(acquired.load() + gave_up.load(), 60 * 20);
  EXPECT_GE(acquired.load(), 40 * 20);
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

// It is handed over again and again, to fibers and threads, of which some give
// up just then.
TEST_P(MutexTest, HandingOverMeetsTimeouts) {
  constexpr int kFibers = 8;
  constexpr int kRounds = 20;
  Mutex mutex;
  int counter = 0;
  std::atomic<int> acquired{0};
  const auto body = [&](int i) {
    for (int k = 0; k < kRounds; ++k) {
      if (i % 2 == 0) {
        mutex.lock();
      } else if (!mutex.try_lock_until(NowNs() + 1'000'000 + 100'000 * i)) {
        continue;
      }
      ++counter;
      acquired.fetch_add(1);
      this_fiber::SleepUntilNs(NowNs() + 200'000);
      mutex.unlock();
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) fibers.emplace_back([&, i] { body(i); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&, i] { body(i); });
  for (auto& fiber : fibers) fiber.join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter, acquired.load());
  EXPECT_GE(counter, (kFibers / 2 + 1) * kRounds);
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

}  // namespace
}  // namespace flare::fiber
