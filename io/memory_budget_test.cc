#include "flare/io/memory_budget.h"

#include <atomic>
#include <cstddef>
#include <random>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/io/back_pressure.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

constexpr std::size_t kStep = MemoryBudget::kStep;

class MemoryBudgetTest : public ::testing::Test {
 protected:
  std::atomic<int> alarms_{0};
  RefPtr<MemoryBudget> budget_ =
      MakeRefCounted<MemoryBudget>(10 * kStep, [this] { ++alarms_; });
};

TEST_F(MemoryBudgetTest, SmallPartsDoNotCount) {
  for (int i = 0; i != 100; ++i) budget_->Change(0, kStep - 1);
  EXPECT_EQ(budget_->held(), 0u);
  budget_->Change(kStep - 1, kStep);
  EXPECT_EQ(budget_->held(), kStep);
  budget_->Change(kStep, 0);
  EXPECT_EQ(budget_->held(), 0u);
}

TEST_F(MemoryBudgetTest, SaysWhenItIsTightAndOver) {
  budget_->Change(0, 5 * kStep);
  EXPECT_FALSE(budget_->tight());
  budget_->Change(5 * kStep, 10 * kStep);
  EXPECT_TRUE(budget_->tight());
  EXPECT_FALSE(budget_->over());
  EXPECT_EQ(alarms_, 0);
  budget_->Change(0, kStep);
  EXPECT_TRUE(budget_->over());
  EXPECT_EQ(alarms_, 1);
  budget_->Change(kStep, 2 * kStep);
  EXPECT_EQ(alarms_, 2);
  budget_->Snooze();
  budget_->Change(2 * kStep, kStep * 5 / 2);
  EXPECT_EQ(alarms_, 2);
  budget_->Change(kStep * 5 / 2, 4 * kStep);
  EXPECT_EQ(alarms_, 3);
  budget_->Change(4 * kStep, 0);
  budget_->Change(0, kStep);
  EXPECT_EQ(alarms_, 4);
}

// A queue's parts of it, as writers and the flusher change them.
TEST_F(MemoryBudgetTest, QueuesCountExactly) {
  {
    BackPressure queue(100 * kStep, budget_.Get());
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed != 4; ++seed) {
      threads.emplace_back([&queue, seed] {
        std::mt19937 random(seed);
        for (int i = 0; i != 20'000; ++i) {
          const std::size_t n = random() % (2 * kStep);
          queue.Add(n);
          static_cast<void>(queue.Release(n));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(budget_->held(), 0u);
    queue.Add(3 * kStep + 1);
    EXPECT_EQ(budget_->held(), 3 * kStep);
  }
  EXPECT_EQ(budget_->held(), 0u);  // As the rest was dropped.
}

TEST_F(MemoryBudgetTest, QueuesHaveLessRoomWhileItIsTight) {
  BackPressure queue(100 * kStep, budget_.Get());
  queue.Add(4 * kStep);
  EXPECT_TRUE(queue.HasRoom());
  budget_->Change(0, 4 * kStep);
  EXPECT_FALSE(queue.HasRoom());
  ASSERT_TRUE(queue.AskForRoom());
  EXPECT_FALSE(queue.Release(kStep));
  EXPECT_TRUE(queue.Release(3 * kStep));
  EXPECT_TRUE(queue.HasRoom());
}

// The peer of this queue takes nothing until its asker goes on.
TEST_F(MemoryBudgetTest, ThoseWhoWaitAreToldWhenOthersHoldLess) {
  BackPressure queue(100 * kStep, budget_.Get());
  queue.Add(4 * kStep);
  EXPECT_FALSE(queue.LookForRoom());
  budget_->Change(0, 4 * kStep);
  ASSERT_TRUE(queue.AskForRoom());
  std::thread waiter([&] {
    EXPECT_EQ(queue.Wait(NowNs() + 60 * kNsPerSecond), RoomResult::kRoom);
  });
  EXPECT_FALSE(queue.LookForRoom());
  EXPECT_FALSE(budget_->TakeWaiting());
  budget_->Change(4 * kStep, 0);
  EXPECT_TRUE(budget_->TakeWaiting());
  EXPECT_FALSE(budget_->TakeWaiting());
  EXPECT_TRUE(queue.LookForRoom());
  EXPECT_FALSE(queue.LookForRoom());
  waiter.join();
}

}  // namespace
}  // namespace flare::io
