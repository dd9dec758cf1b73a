#include "flare/fiber/condition_variable.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;

class ConditionVariableTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ConditionVariableTest);

// A bounded queue between fibers and threads on both sides.
TEST_P(ConditionVariableTest, BoundedQueue) {
  constexpr int kProducers = 4;
  constexpr int kEach = 1000;
  constexpr std::size_t kBound = 3;
  Mutex mutex;
  ConditionVariable not_full;
  ConditionVariable not_empty;
  std::deque<int> queue;
  std::atomic<std::int64_t> sum{0};
  const auto produce = [&] {
    for (int i = 1; i <= kEach; ++i) {
      std::unique_lock lock(mutex);
      not_full.wait(lock, [&] { return queue.size() < kBound; });
      queue.push_back(i);
      not_empty.notify_one();
    }
  };
  const auto consume = [&] {
    for (int i = 0; i < kEach; ++i) {
      std::unique_lock lock(mutex);
      not_empty.wait(lock, [&] { return !queue.empty(); });
      sum.fetch_add(queue.front());
      queue.pop_front();
      not_full.notify_one();
    }
  };
  std::vector<Fiber> fibers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kProducers; ++i) {
    if (i % 2 == 0) {
      fibers.emplace_back(produce);
      threads.emplace_back(consume);
    } else {
      threads.emplace_back(produce);
      fibers.emplace_back(consume);
    }
  }
  for (auto& fiber : fibers) fiber.join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum.load(), kProducers * (kEach * (kEach + 1LL) / 2));
  EXPECT_TRUE(queue.empty());
}

TEST_P(ConditionVariableTest, NotifyAllWakesAll) {
  Mutex mutex;
  ConditionVariable changed;
  ConditionVariable arrived;
  bool go = false;
  int waiting = 0;
  std::atomic<int> through{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < 100; ++i) {
    fibers.emplace_back([&] {
      std::unique_lock lock(mutex);
      ++waiting;
      arrived.notify_one();
      changed.wait(lock, [&] { return go; });
      through.fetch_add(1);
    });
  }
  {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return waiting == 100; });
    EXPECT_EQ(through.load(), 0);
    go = true;
  }
  changed.notify_all();
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(through.load(), 100);
}

TEST_P(ConditionVariableTest, TimesOut) {
  Mutex mutex;
  ConditionVariable never;
  const auto check = [&] {
    std::unique_lock lock(mutex);
    const std::int64_t start = NowNs();
    EXPECT_EQ(never.wait_for(lock, milliseconds(2)), std::cv_status::timeout);
    EXPECT_GE(NowNs() - start, 2'000'000 - 1000);
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_FALSE(never.wait_for(lock, milliseconds(1), [] { return false; }));
    EXPECT_TRUE(never.wait_for(lock, milliseconds(1), [] { return true; }));
    EXPECT_FALSE(never.wait_until(
        lock, std::chrono::system_clock::now() + milliseconds(1),
        [] { return false; }));
  };
  check();
  Fiber(check).join();
}

// A deadline beyond the range of nanoseconds means none.
TEST_P(ConditionVariableTest, FarDeadline) {
  Mutex mutex;
  ConditionVariable changed;
  bool set = false;
  Fiber waiter([&] {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(
        changed.wait_for(lock, std::chrono::hours::max(), [&] { return set; }));
  });
  {
    std::scoped_lock lock(mutex);
    set = true;
  }
  changed.notify_one();
  waiter.join();
}

}  // namespace
}  // namespace flare::fiber
