#include "flare/fiber/semaphore.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;

class SemaphoreTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(SemaphoreTest);

TEST_P(SemaphoreTest, Counts) {
  CountingSemaphore<10> semaphore(2);
  EXPECT_TRUE(semaphore.try_acquire());
  semaphore.acquire();
  EXPECT_FALSE(semaphore.try_acquire());
  semaphore.release(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(semaphore.try_acquire());
  EXPECT_FALSE(semaphore.try_acquire_for(milliseconds(1)));
  static_assert(CountingSemaphore<10>::max() == 10);
}

TEST_P(SemaphoreTest, LimitsHowManyAreInside) {
  constexpr int kLimit = 3;
  Semaphore semaphore(kLimit);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  const auto body = [&] {
    for (int i = 0; i < 100; ++i) {
      semaphore.acquire();
      const int now = inside.fetch_add(1) + 1;
      int seen = most.load();
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      this_fiber::Yield();
      inside.fetch_sub(1);
      semaphore.release();
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i < 20; ++i) fibers.emplace_back(body);
  std::thread thread(body);
  for (auto& fiber : fibers) fiber.join();
  thread.join();
  EXPECT_LE(most.load(), kLimit);
  EXPECT_GE(most.load(), 1);
}

// Units that time out are not lost, and none is handed out twice.
TEST_P(SemaphoreTest, TimeoutsLoseNoUnits) {
  Semaphore semaphore(0);
  std::atomic<int> got{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < 50; ++i) {
    fibers.emplace_back([&, i] {
      if (semaphore.try_acquire_for(std::chrono::microseconds(20 * i))) {
        got.fetch_add(1);
      }
    });
  }
  std::thread releaser([&] {
    for (int i = 0; i < 30; ++i) {
      semaphore.release();
      std::this_thread::yield();
    }
  });
  for (auto& fiber : fibers) fiber.join();
  releaser.join();
  int left = 0;
  while (semaphore.try_acquire()) ++left;
  EXPECT_EQ(got.load() + left, 30);
}

TEST(CountsDeathTest, LessThanNothing) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(Semaphore(-1), "can't begin with less than nothing");
  EXPECT_DEATH(Semaphore(1).release(-1), "takes no units back");
  EXPECT_DEATH(Latch(-1), "can't expect less than nothing");
  EXPECT_DEATH(Latch(1).count_down(-1), "is counted down only");
}

class LatchTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(LatchTest);

TEST_P(LatchTest, OpensAtZero) {
  Latch open(0);
  EXPECT_TRUE(open.try_wait());
  open.wait();
  Latch latch(3);
  latch.count_down(2);
  EXPECT_FALSE(latch.try_wait());
  EXPECT_FALSE(latch.wait_for(milliseconds(1)));
  latch.count_down();
  EXPECT_TRUE(latch.try_wait());
  EXPECT_TRUE(latch.wait_for(milliseconds(1)));
  EXPECT_TRUE(latch.wait_until(std::chrono::steady_clock::now()));
}

TEST_P(LatchTest, ArriveAndWaitIsARendezvous) {
  constexpr int kParties = 30;
  Latch latch(kParties);
  std::atomic<int> arrived{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < kParties; ++i) {
    fibers.emplace_back([&] {
      arrived.fetch_add(1);
      latch.arrive_and_wait();
      EXPECT_EQ(arrived.load(), kParties);
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

// A latch on the waiter's stack ends as soon as the wait returns, while the one
// who counted to zero may still be leaving count_down().
TEST_P(LatchTest, MayBeDestroyedAfterTheWait) {
  for (int i = 0; i < 2000; ++i) {
    Latch latch(2);
    Spawn([&] { latch.count_down(); });
    Spawn([&] { latch.count_down(); });
    latch.wait();
  }
}

class EventTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(EventTest);

TEST_P(EventTest, StaysSetUntilReset) {
  Event event;
  EXPECT_FALSE(event.IsSet());
  EXPECT_FALSE(event.WaitUntil(NowNs() + 100'000));
  event.Set();
  event.Set();
  EXPECT_TRUE(event.IsSet());
  event.Wait();
  EXPECT_TRUE(event.WaitUntil(NowNs() - 1));
  event.Reset();
  EXPECT_FALSE(event.IsSet());
}

TEST_P(EventTest, WakesFibersAndThreads) {
  Event event;
  int value = 0;  // Ordered by the event alone.
  std::vector<Fiber> fibers;
  for (int i = 0; i < 20; ++i) {
    fibers.emplace_back([&] {
      event.Wait();
      EXPECT_EQ(value, 7);
    });
  }
  std::thread thread([&] {
    EXPECT_TRUE(event.WaitUntil(NowNs() + 60'000'000'000));
    EXPECT_EQ(value, 7);
  });
  value = 7;
  event.Set();
  for (auto& fiber : fibers) fiber.join();
  thread.join();
}

// Set() racing with the deadline: in either case the waiter leaves once and the
// event may go.
TEST_P(EventTest, SetAgainstDeadline) {
  int set = 0;
  for (int i = 0; i < 1000; ++i) {
    auto event = std::make_unique<Event>();
    Latch setter(1);
    Spawn([&] {
      event->Set();
      setter.count_down();
    });
    Fiber([&] {
      set += event->WaitUntil(NowNs() + i % 50 * 1000) ? 1 : 0;
    }).join();
    setter.wait();
    event.reset();
  }
  EXPECT_LE(set, 1000);
}

}  // namespace
}  // namespace flare::fiber
