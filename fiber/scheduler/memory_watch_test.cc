// Built twice: with the system's allocator, and with jemalloc
// (memory_watch_jemalloc_test), where FLARE_EXPECT_JEMALLOC is set.
#include "flare/fiber/scheduler/memory_watch.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/free_memory.h"
#include "flare/base/malloc_arena.h"
#include "flare/base/sanitizer.h"
#include "flare/base/spinlock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

#ifdef FLARE_EXPECT_JEMALLOC
// Memory that has been free for longer is old.
extern "C" const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:300";
#endif

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr std::size_t kFibers = 64;
constexpr std::size_t kPieces = 1024;  // Pieces of each kind.
constexpr std::size_t kPieceBytes = 1024;
constexpr std::size_t kBurstBytes = kFibers * kPieces * kPieceBytes;

class MemoryWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef FLARE_EXPECT_JEMALLOC
    ASSERT_TRUE(HasMallocArenas());
#endif
    if (IsShuffleRequested()) GTEST_SKIP() << "memory is kept then";
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  static void Start(milliseconds stack_idle, milliseconds heap_idle) {
    RuntimeOptions options;
    options.concurrency = 4;
    options.stack_idle = stack_idle;
    options.heap_idle = heap_idle;
    ASSERT_TRUE(StartRuntime(options).ok());
  }

  // Fibers allocate, and free all but one piece each: the last, as glibc gives
  // back the end of a heap by itself.
  void BurstOfMemory() {
    Latch allocated(kFibers);
    Latch freed(kFibers);
    std::size_t most = 0;
    for (std::size_t i = 0; i < kFibers; ++i) {
      Spawn([&] {
        std::vector<std::unique_ptr<char[]>> pieces;
        for (std::size_t n = 0; n < kPieces; ++n) {
          pieces.push_back(std::make_unique<char[]>(kPieceBytes));
          std::memset(pieces.back().get(), 1, kPieceBytes);
        }
        allocated.arrive_and_wait();
        {
          ScopedLock guard(lock_);
          if (most == 0) most = ResidentBytes();
          in_use_.push_back(std::move(pieces.back()));
        }
        pieces.clear();
        freed.count_down();
      });
    }
    freed.wait();
    EXPECT_GE(most, kBurstBytes);
  }

 private:
  Spinlock lock_;
  std::vector<std::unique_ptr<char[]>> in_use_;
};

long PageTableKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPTE:")) return std::stol(line.substr(6));
  }
  return -1;
}

std::size_t MappedStacks() {
  std::size_t regions = 0;
  for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
    regions += GetGroup(i)->stacks()->regions();
  }
  return regions * StackAllocator::kStacksPerRegion;
}

TEST_F(MemoryWatchTest, ReturnsTheHeapOfABurst) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's allocator";
  Start(milliseconds(0), milliseconds(100));
  for (int round = 0; round < 3; ++round) {
    const std::size_t before = ResidentBytes();
    BurstOfMemory();
    EXPECT_TRUE(Eventually([&] {
      return ResidentBytes() < before + kBurstBytes / 4;
    })) << before
        << ", then " << ResidentBytes();
  }
}

// As in a server that is asked whether it lives.
TEST_F(MemoryWatchTest, ReturnsTheHeapWhileSomeTasksRun) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's allocator";
  Start(milliseconds(0), milliseconds(100));
  Event stop;
  Fiber pulse([&] {
    while (!stop.IsSet()) this_fiber::SleepFor(milliseconds(10));
  });
  const std::size_t before = ResidentBytes();
  BurstOfMemory();
  EXPECT_TRUE(Eventually([&] {
    return ResidentBytes() < before + kBurstBytes / 2;
  })) << before
      << ", then " << ResidentBytes();
  stop.Set();
  pulse.join();
}

TEST_F(MemoryWatchTest, ReturnsTheStacksOfABurstWithTheirPageTables) {
  constexpr std::ptrdiff_t kBlocked = 3000;
  Start(milliseconds(100), milliseconds(0));
  for (int round = 0; round < 2; ++round) {
    Event go;
    Latch blocked(kBlocked);
    Latch done(kBlocked);
    for (int i = 0; i < kBlocked; ++i) {
      Spawn([&] {
        blocked.count_down();
        go.Wait();
        done.count_down();
      });
    }
    blocked.wait();
    EXPECT_GE(MappedStacks(), static_cast<std::size_t>(kBlocked));
    const long most = PageTableKiB();
    go.Set();
    done.wait();
    // Two each of those that have started, and each may be in another region.
    EXPECT_TRUE(Eventually([&] {
      return MappedStacks() <=
             2 * (4 + GetRuntimeStatistics().reserve_workers) *
                 StackAllocator::kStacksPerRegion;
    })) << MappedStacks();
    if (!kSanitized) {
      // 64 stacks' tables take 16 KiB.
      EXPECT_TRUE(Eventually([&] { return PageTableKiB() <= most - 250; }))
          << most << " KiB, then " << PageTableKiB();
    }
  }
}

// Another watch than the runtime's own, whose workers poke it.
TEST_F(MemoryWatchTest, SleepsWhenNothingIsLeftAndNobodyRuns) {
  Start(milliseconds(0), milliseconds(0));
  std::vector<SchedulingGroup*> groups;
  for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
    groups.push_back(GetGroup(i));
  }
  MemoryWatch watch(groups,
                    {.stack_idle_ns = 20'000'000, .heap_idle_ns = 20'000'000});
  watch.Start();
  EXPECT_TRUE(Eventually([&] { return watch.asleep(); }));
  Event stop;
  Event running;
  Fiber fiber([&] {
    running.Set();
    while (!stop.IsSet()) this_fiber::Yield();
  });
  running.Wait();
  watch.thread()->Poke();
  EXPECT_FALSE(watch.asleep());  // That cleared it; and a worker runs.
  stop.Set();
  fiber.join();
  EXPECT_TRUE(Eventually([&] { return watch.asleep(); }));
  watch.Stop();
}

TEST_F(MemoryWatchTest, IsNotStartedIfNothingIsToReturn) {
  Start(milliseconds(0), milliseconds(0));
  MemoryWatch watch({GetGroup(0)}, {.stack_idle_ns = 0, .heap_idle_ns = 0});
  watch.Start();
  EXPECT_FALSE(watch.asleep());
  watch.thread()->Poke();
  watch.Stop();
}

}  // namespace
}  // namespace flare::fiber
