#include "flare/fiber/scheduler/run_queue.h"

#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

std::vector<Task> MakeTasks(std::size_t n) { return std::vector<Task>(n); }

TEST(RunQueueTest, IsFifoAndBounded) {
  BasicRunQueue<4> queue;
  auto tasks = MakeTasks(5);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.Push(&tasks[i]));
  EXPECT_FALSE(queue.Push(&tasks[4]));
  EXPECT_EQ(queue.size(), 4U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(queue.Pop(), &tasks[i]);
  EXPECT_EQ(queue.Pop(), nullptr);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(RunQueueTest, StealTakesTheOlderHalf) {
  BasicRunQueue<8> victim;
  BasicRunQueue<8> thief;
  auto tasks = MakeTasks(5);
  for (auto& task : tasks) victim.Push(&task);
  // Three of five: one returned, two queued.
  EXPECT_EQ(victim.StealInto(&thief), &tasks[2]);
  EXPECT_EQ(thief.size(), 2U);
  EXPECT_EQ(thief.Pop(), &tasks[0]);
  EXPECT_EQ(thief.Pop(), &tasks[1]);
  EXPECT_EQ(victim.Pop(), &tasks[3]);
  EXPECT_EQ(victim.Pop(), &tasks[4]);
}

TEST(RunQueueTest, StealsTheOnlyOne) {
  BasicRunQueue<8> victim;
  BasicRunQueue<8> thief;
  EXPECT_EQ(victim.StealInto(&thief), nullptr);
  auto tasks = MakeTasks(1);
  victim.Push(&tasks[0]);
  EXPECT_EQ(victim.StealInto(&thief), &tasks[0]);
  EXPECT_EQ(thief.size(), 0U);
  EXPECT_EQ(victim.Pop(), nullptr);
}

TEST(RunQueueTest, TakeHalfMakesRoom) {
  BasicRunQueue<4> queue;
  auto tasks = MakeTasks(4);
  for (auto& task : tasks) queue.Push(&task);
  TaskList half = queue.TakeHalf();
  EXPECT_EQ(half.size(), 2U);
  EXPECT_EQ(half.PopFront(), &tasks[0]);
  EXPECT_EQ(half.PopFront(), &tasks[1]);
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_TRUE(queue.Push(&tasks[0]));
  EXPECT_EQ(queue.Pop(), &tasks[2]);
}

// Against a plain deque, long enough for the indices to pass the ring many
// times.
TEST(RunQueueTest, BehavesLikeADeque) {
  BasicRunQueue<8> queue;
  BasicRunQueue<8> thief;
  std::deque<Task*> model;
  auto tasks = MakeTasks(64);
  std::mt19937 random(7);
  std::size_t next = 0;
  for (int step = 0; step < 100000; ++step) {
    switch (random() % 4) {
      case 0:
      case 1: {
        Task* const task = &tasks[next++ % tasks.size()];
        const bool fits = model.size() < 8;
        ASSERT_EQ(queue.Push(task), fits);
        if (fits) model.push_back(task);
        break;
      }
      case 2: {
        Task* const expected = model.empty() ? nullptr : model.front();
        if (!model.empty()) model.pop_front();
        ASSERT_EQ(queue.Pop(), expected);
        break;
      }
      default: {
        const std::size_t n = model.size() - model.size() / 2;
        Task* const last = queue.StealInto(&thief);
        if (n == 0) {
          ASSERT_EQ(last, nullptr);
          break;
        }
        for (std::size_t i = 0; i + 1 < n; ++i) {
          ASSERT_EQ(thief.Pop(), model.front());
          model.pop_front();
        }
        ASSERT_EQ(last, model.front());
        model.pop_front();
        ASSERT_EQ(thief.Pop(), nullptr);
      }
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

TEST(RunQueueTest, ClaimedTasksStayInOrder) {
  BasicRunQueue<16> queue;
  queue.set_claim_limit(4);
  auto tasks = MakeTasks(10);
  for (auto& task : tasks) queue.Push(&task);
  EXPECT_EQ(queue.Pop(), &tasks[0]);
  EXPECT_EQ(queue.claimed(), 3U);
  EXPECT_EQ(queue.size(), 6U);
  EXPECT_EQ(queue.head(), 1U);  // The oldest that has not been taken.
  BasicRunQueue<16> thief;
  EXPECT_EQ(queue.StealInto(&thief), &tasks[6]);  // Claimed tasks stay.
  for (int i : {1, 2, 3, 7, 8, 9}) EXPECT_EQ(queue.Pop(), &tasks[i]);
  EXPECT_EQ(queue.Pop(), nullptr);
}

TEST(RunQueueTest, HalfIsLeftForThieves) {
  BasicRunQueue<16> queue;
  queue.set_claim_limit(8);
  auto tasks = MakeTasks(4);
  for (auto& task : tasks) queue.Push(&task);
  EXPECT_EQ(queue.Pop(), &tasks[0]);
  EXPECT_EQ(queue.claimed(), 1U);
  EXPECT_EQ(queue.size(), 2U);
}

TEST(RunQueueTest, RescueTakesWhatIsClaimed) {
  if (!MembarrierAvailable()) GTEST_SKIP() << "no membarrier";
  BasicRunQueue<16> queue;
  BasicRunQueue<16> thief;
  EXPECT_EQ(queue.RescueInto(&thief), nullptr);
  queue.set_claim_limit(4);
  auto tasks = MakeTasks(8);
  for (auto& task : tasks) queue.Push(&task);
  EXPECT_EQ(queue.Pop(), &tasks[0]);
  queue.AskForRescue();
  EXPECT_TRUE(queue.rescue_wanted());
  EXPECT_EQ(queue.RescueInto(&thief), &tasks[1]);
  EXPECT_FALSE(queue.rescue_wanted());
  EXPECT_EQ(thief.Pop(), &tasks[2]);
  EXPECT_EQ(thief.Pop(), &tasks[3]);
  EXPECT_EQ(queue.claimed(), 0U);
  for (int i = 4; i < 8; ++i) EXPECT_EQ(queue.Pop(), &tasks[i]);
}

struct Counted : Task {
  std::atomic<int> taken{0};
};

// One owner that pushes, pops and spills, several thieves: every task is taken
// exactly once. A ring of four makes the indices meet all the time.
TEST(RunQueueTest, StressEveryTaskIsTakenOnce) {
  constexpr std::size_t kTasks = 200000;
  constexpr int kThieves = 3;
  std::vector<Counted> tasks(kTasks);
  BasicRunQueue<4> queue;
  std::atomic<bool> done{false};
  std::atomic<std::size_t> taken{0};
  const auto take = [&](Task* task) {
    static_cast<Counted*>(task)->taken.fetch_add(1);
    taken.fetch_add(1);
  };
  std::vector<std::thread> thieves;
  for (int i = 0; i < kThieves; ++i) {
    thieves.emplace_back([&] {
      BasicRunQueue<4> mine;
      while (!done.load()) {
        if (Task* const task = queue.StealInto(&mine)) take(task);
        while (Task* const task = mine.Pop()) take(task);
        std::this_thread::yield();
      }
    });
  }
  std::mt19937 random(3);
  for (std::size_t i = 0; i < kTasks;) {
    if (queue.Push(&tasks[i])) {
      ++i;
    } else if (random() % 2 == 0) {
      TaskList half = queue.TakeHalf();
      while (Task* const task = half.PopFront()) take(task);
    }
    if (random() % 3 == 0) {
      if (Task* const task = queue.Pop()) take(task);
    }
  }
  while (Task* const task = queue.Pop()) take(task);
  while (taken.load() < kTasks) std::this_thread::yield();
  done.store(true);
  for (auto& thief : thieves) thief.join();
  for (auto& task : tasks) ASSERT_EQ(task.taken.load(), 1);
}

// The owner pops claimed tasks without a lock while others rescue and steal.
TEST(RunQueueTest, StressRescue) {
  if (!MembarrierAvailable()) GTEST_SKIP() << "no membarrier";
  constexpr std::size_t kTasks = 100000;
  std::vector<Counted> tasks(kTasks);
  BasicRunQueue<16> queue;
  queue.set_claim_limit(8);
  std::atomic<bool> done{false};
  std::atomic<std::size_t> taken{0};
  const auto take = [&](Task* task) {
    static_cast<Counted*>(task)->taken.fetch_add(1);
    taken.fetch_add(1);
  };
  std::vector<std::thread> thieves;
  for (int i = 0; i < 2; ++i) {
    thieves.emplace_back([&, i] {
      BasicRunQueue<16> mine;
      while (!done.load()) {
        if (Task* const task = queue.RescueInto(&mine)) take(task);
        while (Task* const task = mine.Pop()) take(task);
        if (i == 1) {
          if (Task* const task = queue.StealInto(&mine)) take(task);
          while (Task* const task = mine.Pop()) take(task);
        }
      }
    });
  }
  for (std::size_t i = 0; i < kTasks;) {
    while (i < kTasks && queue.Push(&tasks[i])) ++i;
    for (int k = 0; k < 12; ++k) {
      if (Task* const task = queue.Pop()) take(task);
    }
  }
  while (Task* const task = queue.Pop()) take(task);
  while (taken.load() < kTasks) std::this_thread::yield();
  done.store(true);
  for (auto& thief : thieves) thief.join();
  for (auto& task : tasks) ASSERT_EQ(task.taken.load(), 1);
}

}  // namespace
}  // namespace flare::fiber
