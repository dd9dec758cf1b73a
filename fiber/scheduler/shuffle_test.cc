#include "flare/fiber/scheduler/shuffle.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// The tests may themselves be run with the variable set.
class ShuffleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* const value = std::getenv(kVariable)) former_ = value;
    unsetenv(kVariable);
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
    unsetenv(kVariable);
    if (former_) setenv(kVariable, former_->c_str(), 1);
  }

  static constexpr const char* kVariable = "FLARE_SHUFFLE_SEED";

  static void Start(std::shared_ptr<Schedule> schedule, int workers) {
    RuntimeOptions options;
    options.concurrency = workers;
    options.schedule = std::move(schedule);
    ASSERT_TRUE(StartRuntime(options).ok());
  }

  // The order in which twenty tasks run that one fiber has spawned.
  static std::vector<int> OrderOfTasks() {
    std::vector<int> order;
    Mutex mutex;
    Latch ran(20);
    Fiber([&] {
      for (int i = 0; i < 20; ++i) {
        Spawn([&, i] {
          {
            std::scoped_lock guard(mutex);
            order.push_back(i);
          }
          ran.count_down();
        });
      }
    }).join();
    ran.wait();
    return order;
  }

 private:
  std::optional<std::string> former_;
};

TEST_F(ShuffleTest, IsOffUnlessAskedFor) {
  EXPECT_FALSE(IsShuffleRequested());
  EXPECT_EQ(*ScheduleFromEnvironment(), nullptr);
  setenv(kVariable, "", 1);
  EXPECT_FALSE(IsShuffleRequested());
  EXPECT_EQ(*ScheduleFromEnvironment(), nullptr);
}

TEST_F(ShuffleTest, SeedsAreNumbersOrRandom) {
  for (const char* const good : {"0", "1", "18446744073709551615", "random"}) {
    setenv(kVariable, good, 1);
    EXPECT_TRUE(IsShuffleRequested());
    const auto schedule = ScheduleFromEnvironment();
    ASSERT_TRUE(schedule) << good;
    EXPECT_NE(*schedule, nullptr);
    EXPECT_FALSE((*schedule)->deterministic());
  }
  for (const char* const bad :
       {"-1", "1 ", "x", "Random", "0x1", "18446744073709551616"}) {
    setenv(kVariable, bad, 1);
    RuntimeOptions options;
    const Status status = StartRuntime(options);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_NE(status.message().find("FLARE_SHUFFLE_SEED"), std::string::npos);
    EXPECT_NE(status.message().find(bad), std::string::npos);
  }
}

// One worker has the seed's order, and only that.
TEST_F(ShuffleTest, TasksRunInAnyOrder) {
  std::vector<int> sorted(20);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Start(std::make_shared<ShuffledSchedule>(seed), 1);
    std::vector<int> order = OrderOfTasks();
    TerminateRuntime();
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, sorted);
  }
  EXPECT_EQ(orders.size(), 20U);
  EXPECT_EQ(orders.count(sorted), 0U);

  Start(nullptr, 1);
  EXPECT_EQ(OrderOfTasks(), sorted);  // In order as ever.
}

TEST_F(ShuffleTest, TheVariableShuffles) {
  setenv(kVariable, "1", 1);
  std::vector<int> sorted(20);
  std::iota(sorted.begin(), sorted.end(), 0);
  Start(nullptr, 1);
  EXPECT_NE(OrderOfTasks(), sorted);
}

// A task that a worker gives away is run by its sibling, even while the worker
// itself has nothing else to do than wait for that.
TEST_F(ShuffleTest, WorkersGiveTasksAway) {
  class Generous : public Schedule {
   public:
    void BeforeTask(std::int64_t) override {}
    std::size_t ChooseTask(std::size_t) override { return 0; }
    bool GiveAway() override { return ++asked_ % 2 == 0; }
    bool OnIdle(std::int64_t) override { return false; }

   private:
    std::atomic<int> asked_{0};
  };
  Start(std::make_shared<Generous>(), 2);
  std::set<std::thread::id> threads;
  Mutex mutex;
  const auto two_ran_them = [&] {
    std::vector<Fiber> fibers;
    for (int i = 0; i < 10; ++i) {
      fibers.emplace_back([&] {
        this_fiber::Yield();
        std::scoped_lock guard(mutex);
        threads.insert(std::this_thread::get_id());
      });
    }
    for (auto& fiber : fibers) fiber.join();
    return threads.size() == 2;
  };
  EXPECT_TRUE(testing::Eventually(two_ran_them));
}

// Nothing is lost or run twice, with overflows, yields and several groups.
TEST_F(ShuffleTest, EverythingRunsOnce) {
  for (const int group_size : {1, 2, 4}) {
    RuntimeOptions options;
    options.concurrency = 4;
    options.group_size = group_size;
    options.work_stealing_ratio = 1;
    options.schedule = std::make_shared<ShuffledSchedule>(group_size);
    ASSERT_TRUE(StartRuntime(options).ok());
    constexpr int kTasks = 3000;
    std::vector<std::atomic<int>> ran(kTasks);
    Latch done(kTasks);
    Fiber([&] {
      for (int i = 0; i < kTasks; ++i) {
        Spawn([&, i] {
          if (i % 3 == 0) this_fiber::Yield();
          ran[i].fetch_add(1);
          done.count_down();
        });
      }
    }).join();
    done.wait();
    TerminateRuntime();
    for (const auto& count : ran) ASSERT_EQ(count.load(), 1);
  }
}

}  // namespace
}  // namespace flare::fiber
