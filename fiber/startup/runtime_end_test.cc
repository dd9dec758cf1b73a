// Things that the runtime's end leaves behind: fibers that are suspended,
// timers that are armed or have fired, and their later users.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/base/sanitizer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"
#ifdef FLARE_ASAN
#include <sanitizer/lsan_interface.h>
#endif

namespace flare::fiber {
namespace {

using testing::Eventually;

// Allocations while it exists are left behind on purpose.
class LeftBehind {
 public:
#ifdef FLARE_ASAN
  LeftBehind() { __lsan_disable(); }
  ~LeftBehind() { __lsan_enable(); }
#else
  LeftBehind() = default;
  ~LeftBehind() = default;
#endif
  LeftBehind(const LeftBehind&) = delete;
  LeftBehind& operator=(const LeftBehind&) = delete;
};

// A fiber that the other group has taken sleeps on a stack of its first group,
// and so does its timer, which is on a wheel of the other group.
TEST(RuntimeEndTest, SleepersAreFarFromTheStacksOfTheirGroup) {
  static std::atomic<int> asleep;
  static std::atomic<int> strangers;
  strangers.store(0);
  // In most rounds one is taken.
  for (int round = 0; round < 100 && strangers.load() == 0; ++round) {
    RuntimeOptions options;
    options.concurrency = 2;
    options.group_size = 1;
    options.work_stealing_ratio = 1;
    options.reserve_workers = 0;
    ASSERT_TRUE(StartRuntime(options).ok());
    ASSERT_EQ(GetSchedulingGroupCount(), 2U);
    asleep.store(0);
    constexpr int kFibers = 200;
    {
      [[maybe_unused]] const LeftBehind scope;
      for (int i = 0; i < kFibers; ++i) {
        SpawnTo(0, [] {
          const std::size_t home = GetCurrentSchedulingGroupIndex();
          for (int turns = 0; turns < 10; ++turns) {
            const std::int64_t until_ns = NowNs() + 20'000;
            while (NowNs() < until_ns) {
            }
            this_fiber::Yield();
          }
          if (GetCurrentSchedulingGroupIndex() != home) ++strangers;
          ++asleep;
          this_fiber::SleepFor(std::chrono::hours(1));
        });
      }
    }
    EXPECT_TRUE(Eventually([] { return asleep.load() == kFibers; }));
    TerminateRuntime();
  }
  EXPECT_GT(strangers.load(), 0);
}

// Its timer has fired, but its closure never runs because no stack is left. The
// wheel is gone by the time that it is killed.
TEST(RuntimeEndTest, ATimerThatFoundNoStackIsKilledLater) {
  RuntimeOptions options;
  options.concurrency = 1;
  options.max_stacks = 2;
  ASSERT_TRUE(StartRuntime(options).ok());
  TimerId id;
  {
    [[maybe_unused]] const LeftBehind scope;
    auto* const never = new Event();  // Those who are abandoned stay in it.
    for (int i = 0; i < 10; ++i) {
      Spawn([never] { never->Wait(); });
    }
    ASSERT_TRUE(
        Eventually([] { return GetRuntimeStatistics().tasks_aside >= 9; }));
    id = SetTimer(std::chrono::steady_clock::now(), [] { ADD_FAILURE(); });
  }
  EXPECT_TRUE(
      Eventually([] { return GetRuntimeStatistics().tasks_aside >= 10; }));
  TerminateRuntime();
  KillTimer(id);
}

}  // namespace
}  // namespace flare::fiber
