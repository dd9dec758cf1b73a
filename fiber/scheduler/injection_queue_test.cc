#include "flare/fiber/scheduler/injection_queue.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/testing/stress.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class InjectionQueueTest : public ::testing::Test {
 protected:
  // By their indices in tasks_.
  std::vector<std::size_t> Take(std::size_t max) {
    TaskList taken = queue_.Take(max);
    std::vector<std::size_t> indices;
    const std::size_t size = taken.size();
    while (Task* const task = taken.PopFront()) {
      indices.push_back(static_cast<std::size_t>(task - tasks_.data()));
    }
    EXPECT_EQ(indices.size(), size);
    return indices;
  }

  std::vector<Task> tasks_ = std::vector<Task>(10);
  InjectionQueue queue_;
};

using Indices = std::vector<std::size_t>;

TEST_F(InjectionQueueTest, TakesTheOldest) {
  EXPECT_EQ(Take(5), Indices());
  for (std::size_t i = 0; i < 5; ++i) queue_.Push(&tasks_[i]);
  EXPECT_EQ(Take(0), Indices());
  EXPECT_EQ(Take(2), (Indices{0, 1}));
  EXPECT_EQ(queue_.size(), 3U);
  queue_.Push(&tasks_[5]);
  EXPECT_EQ(Take(3), (Indices{2, 3, 4}));
  EXPECT_EQ(Take(3), (Indices{5}));
  EXPECT_TRUE(queue_.empty());
}

// However many are asked for; and the queue goes on.
TEST_F(InjectionQueueTest, TakesAllThereAre) {
  for (const std::size_t max : {4, 5, 100}) {
    TaskList list;
    for (std::size_t i = 0; i < 3; ++i) list.PushBack(&tasks_[i]);
    queue_.PushAll(std::move(list));
    queue_.Push(&tasks_[3]);
    EXPECT_EQ(Take(max), (Indices{0, 1, 2, 3}));
    EXPECT_TRUE(queue_.empty());
    EXPECT_EQ(Take(max), Indices());
  }
}

TEST_F(InjectionQueueTest, WhatIsReturnedIsOlder) {
  for (std::size_t i = 0; i < 4; ++i) queue_.Push(&tasks_[i]);
  TaskList taken = queue_.Take(2);
  queue_.Push(&tasks_[4]);
  queue_.Return(std::move(taken));
  EXPECT_EQ(Take(5), (Indices{0, 1, 2, 3, 4}));
}

TEST_F(InjectionQueueTest, WhatIsMovedComesLast) {
  InjectionQueue other;
  EXPECT_EQ(other.MoveAllTo(&queue_), 0U);
  queue_.Push(&tasks_[0]);
  for (std::size_t i = 1; i < 4; ++i) other.Push(&tasks_[i]);
  EXPECT_EQ(other.MoveAllTo(&queue_), 3U);
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(queue_.size(), 4U);
  queue_.Push(&tasks_[4]);
  EXPECT_EQ(Take(5), (Indices{0, 1, 2, 3, 4}));
  EXPECT_EQ(other.MoveAllTo(&queue_), 0U);
  EXPECT_TRUE(queue_.empty());
}

// A reader of both, such as the shutdown, sees them.
TEST_F(InjectionQueueTest, WhatIsMovedIsSeenAllTheTime) {
  InjectionQueue from;
  from.Push(&tasks_[0]);
  std::atomic<int> returns{0};  // Odd: the task is being moved back.
  std::atomic<bool> stop{false};
  std::thread mover([&] {
    while (!stop.load()) {
      from.MoveAllTo(&queue_);
      returns.fetch_add(1);
      from.PushAll(queue_.Take(1));
      returns.fetch_add(1);
    }
  });
  int unseen = 0;
  const std::int64_t end_ns = NowNs() + testing::StressNs(200'000'000);
  while (NowNs() < end_ns) {
    for (int i = 0; i < 1000; ++i) {
      const int before = returns.load();
      const bool none = from.empty() && queue_.empty();
      if (none && before % 2 == 0 && returns.load() == before) ++unseen;
    }
  }
  stop.store(true);
  mover.join();
  EXPECT_EQ(unseen, 0);
  EXPECT_EQ(from.MoveAllTo(&queue_), 1U);
  EXPECT_EQ(Take(5), (Indices{0}));
}

}  // namespace
}  // namespace flare::fiber
