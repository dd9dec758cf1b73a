#include "flare/fiber/work_queue.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class WorkQueueTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(WorkQueueTest);

TEST_P(WorkQueueTest, RunsInOrderOneAtATime) {
  const auto check = [] {
    WorkQueue queue;
    std::vector<int> seen;  // Needs no lock.
    bool inside = false;
    for (int i = 0; i < 500; ++i) {
      EXPECT_TRUE(queue.Push([&, i] {
        EXPECT_FALSE(std::exchange(inside, true));
        if (i % 7 == 0) this_fiber::Yield();
        if (i % 100 == 0) this_fiber::SleepFor(std::chrono::microseconds(50));
        seen.push_back(i);
        inside = false;
      }));
    }
    queue.Stop();
    queue.Join();
    ASSERT_EQ(seen.size(), 500U);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(seen[i], i);
  };
  check();
  Fiber(check).join();
}

TEST_P(WorkQueueTest, ABlockedClosureHoldsBackOnlyItsQueue) {
  WorkQueue blocked;
  WorkQueue other;
  Event go;
  Event ran;
  std::atomic<bool> second{false};
  blocked.Push([&] { go.Wait(); });
  blocked.Push([&] { second = true; });
  other.Push([&] { ran.Set(); });
  ran.Wait();
  EXPECT_FALSE(second.load());
  go.Set();
  blocked.Stop();
  blocked.Join();
  EXPECT_TRUE(second.load());
}

TEST_P(WorkQueueTest, ClosuresPushAndStop) {
  WorkQueue queue;
  std::vector<int> seen;
  queue.Push([&] {
    seen.push_back(1);
    EXPECT_TRUE(queue.Push([&] {
      seen.push_back(3);
      queue.Stop();
      EXPECT_FALSE(queue.Push([&] { seen.push_back(4); }));
    }));
    seen.push_back(2);
  });
  queue.Join();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
  queue.Stop();  // Again.
  queue.Join();
}

TEST_P(WorkQueueTest, RefusedClosuresAreDestroyed) {
  const auto counted = std::make_shared<int>(1);
  std::array<char, 300> large{};
  WorkQueue queue;
  queue.Stop();
  queue.Join();  // Without closures.
  EXPECT_FALSE(queue.Push([counted] { ADD_FAILURE(); }));
  EXPECT_FALSE(queue.Push([counted, large] { ADD_FAILURE() << large[0]; }));
  EXPECT_EQ(counted.use_count(), 1);
}

TEST_P(WorkQueueTest, ClosuresAreDestroyedBeforeTheJoin) {
  const auto counted = std::make_shared<int>(1);
  std::array<char, 300> large{};
  large[7] = 'x';
  WorkQueue queue;
  queue.Push(
      [counted, moved = std::make_unique<int>(2)] { EXPECT_EQ(*moved, 2); });
  queue.Push([counted, large] { EXPECT_EQ(large[7], 'x'); });
  queue.Stop();
  queue.Join();
  EXPECT_EQ(counted.use_count(), 1);
}

TEST_P(WorkQueueTest, DestructorJoins) {
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    WorkQueue queue;
    for (int k = 0; k < i % 5; ++k) {
      queue.Push([&] {
        this_fiber::Yield();
        ran.fetch_add(1);
      });
    }
  }
  EXPECT_EQ(ran.load(), 200);
}

// No closure is lost, and each pusher's closures keep their order, while the
// queue keeps running empty.
TEST_P(WorkQueueTest, ManyPushers) {
  constexpr int kPushers = 6;
  constexpr int kEach = 2000;
  int next[kPushers + 1] = {};
  {
    WorkQueue queue;
    const auto push = [&](int id) {
      for (int i = 0; i < kEach; ++i) {
        queue.Push([&next, id, i] { EXPECT_EQ(next[id]++, i); });
        if (i % 50 == 0) this_fiber::Yield();
      }
    };
    TaskGroup pushers;
    for (int id = 0; id < kPushers; ++id) pushers.Spawn([&, id] { push(id); });
    std::thread plain([&] { push(kPushers); });
    EXPECT_TRUE(pushers.Wait().ok());
    plain.join();
  }
  for (const int n : next) EXPECT_EQ(n, kEach);
}

// Stop() against pushes: accepted closures run, refused ones don't.
TEST_P(WorkQueueTest, StoppingRacesWithPushing) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> taken{0};
    std::atomic<int> ran{0};
    WorkQueue queue;
    TaskGroup group;
    for (int p = 0; p < 3; ++p) {
      group.Spawn([&] {
        while (queue.Push([&] { ran.fetch_add(1); })) {
          taken.fetch_add(1);
          this_fiber::Yield();
        }
      });
    }
    group.Spawn([&, round] {
      for (int i = 0; i < round % 10; ++i) this_fiber::Yield();
      queue.Stop();
    });
    queue.Join();
    EXPECT_TRUE(group.Wait().ok());
    EXPECT_EQ(taken.load(), ran.load());
  }
}

}  // namespace
}  // namespace flare::fiber
