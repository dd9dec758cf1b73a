// Stacks that are not needed any more: spare ones of workers, and their memory.
// Shortages of stacks are the subject of stack_shortage_test.cc.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "flare/base/clock.h"
#include "flare/base/sanitizer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using testing::Eventually;

constexpr int kFibers = 300;
constexpr std::size_t kUsed = 40960;  // Bytes of each one's stack.

[[gnu::noinline]] void UseStack() {
  char used[kUsed];
  std::memset(used, 1, kUsed);
  asm volatile("" : : "r"(used) : "memory");  // As if somebody read it.
}

std::size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(getpagesize());
}

// Returns how much memory was resident while all were blocked.
std::size_t BlockMany() {
  Event go;
  Latch blocked(kFibers);
  Latch done(kFibers);
  for (int i = 0; i < kFibers; ++i) {
    Spawn([&] {
      UseStack();
      blocked.count_down();
      go.Wait();
      done.count_down();
    });
  }
  blocked.wait();
  EXPECT_GE(GetRuntimeStatistics().stacks, static_cast<std::size_t>(kFibers));
  const std::size_t resident = ResidentBytes();
  go.Set();
  done.wait();
  return resident;
}

std::size_t WarmStacks() {
  std::size_t warm = 0;
  for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
    warm += GetGroup(i)->stacks()->warm();
  }
  return warm;
}

void Start(int workers, std::chrono::nanoseconds idle) {
  RuntimeOptions options;
  options.concurrency = workers;
  options.stack_idle = idle;
  ASSERT_TRUE(StartRuntime(options).ok());
}

// All workers sleep: they wake for it, and no more once it is done.
TEST(WorkerStacksTest, SleepingWorkersGiveTheirsUp) {
  if (IsShuffleRequested()) GTEST_SKIP() << "stacks are kept then";
  for (const int workers : {1, 4}) {
    Start(workers, std::chrono::milliseconds(20));
    for (int round = 0; round < 2; ++round) {
      const std::size_t most = BlockMany();
      // One to run on and one spare, of each.
      EXPECT_TRUE(Eventually([&] {
        const RuntimeStatistics now = GetRuntimeStatistics();
        return WarmStacks() == 0 &&
               now.stacks == 2 * (static_cast<std::size_t>(workers) +
                                  now.reserve_workers);
      })) << WarmStacks()
          << " warm, " << GetRuntimeStatistics().stacks;
#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)
      // The last stacks aren't warm any more before their memory is gone.
      EXPECT_TRUE(Eventually(
          [&] { return ResidentBytes() + kFibers * kUsed / 2 < most; }));
#else
      EXPECT_GT(most, 0U);
#endif
    }
    TerminateRuntime();
  }
}

// The workers that are busy with something else give theirs up, too.
TEST(WorkerStacksTest, BusyWorkersGiveTheirsUp) {
  if (IsShuffleRequested()) GTEST_SKIP() << "stacks are kept then";
  Start(1, std::chrono::milliseconds(20));
  BlockMany();
  struct Again : Task {
    std::atomic<bool> stop{false};
    Latch ended{1};
  } again;
  again.run = [](Task* self) {
    auto* const task = static_cast<Again*>(self);
    if (task->stop.load()) {
      task->ended.count_down();
    } else {
      Submit(task);
    }
  };
  Submit(&again);
  EXPECT_TRUE(Eventually(
      [] { return WarmStacks() == 0 && GetRuntimeStatistics().stacks == 2; }));
  again.stop.store(true);
  again.ended.wait();
  TerminateRuntime();
}

// By 0, or by more than the clock can count.
TEST(WorkerStacksTest, NeverIfSoAsked) {
  for (const auto idle :
       {std::chrono::nanoseconds(0), std::chrono::nanoseconds::max()}) {
    Start(1, idle);
    BlockMany();
    const std::size_t kept = GetRuntimeStatistics().stacks + WarmStacks();
    EXPECT_GE(kept, static_cast<std::size_t>(kFibers));
    Latch done(1000);
    for (int i = 0; i < 1000; ++i) {
      Spawn([&] { done.count_down(); });
    }
    done.wait();
    EXPECT_EQ(GetRuntimeStatistics().stacks + WarmStacks(), kept);
    TerminateRuntime();
  }
}

}  // namespace
}  // namespace flare::fiber
