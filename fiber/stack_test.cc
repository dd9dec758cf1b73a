#include "flare/fiber/stack.h"

#include <unistd.h>

#include <cfenv>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "flare/fiber/context.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

TEST(StackTest, HandsOutDistinctWritableStacks) {
  StackAllocator::Options options;
  options.stack_size = 65536;
  StackAllocator stacks(options);
  std::set<void*> all;
  for (int i = 0; i < 600; ++i) {  // More than one region.
    char* const low = static_cast<char*>(stacks.Allocate());
    ASSERT_NE(low, nullptr);
    EXPECT_TRUE(all.insert(low).second);
    std::memset(low + stacks.stack_size() - 4096, 0xab, 4096);
    low[stacks.guard_size()] = 1;  // The lowest byte that is no guard.
  }
  EXPECT_EQ(stacks.allocated(), 600U);
  for (void* low : all) stacks.Free(low);
  EXPECT_EQ(stacks.allocated(), 0U);
}

TEST(StackTest, ReusesTheLatestFirst) {
  StackAllocator stacks({});
  void* const a = stacks.Allocate();
  void* const b = stacks.Allocate();
  stacks.Free(a);
  stacks.Free(b);
  EXPECT_EQ(stacks.Allocate(), b);
  EXPECT_EQ(stacks.Allocate(), a);
  stacks.Free(a);
  stacks.Free(b);
}

TEST(StackTest, GivesMemoryBackAboveTheHighWaterMark) {
  StackAllocator::Options options;
  options.high_water = 1;
  StackAllocator stacks(options);
  char* const a = static_cast<char*>(stacks.Allocate());
  char* const b = static_cast<char*>(stacks.Allocate());
  a[8192] = 1;
  b[8192] = 1;
  stacks.Free(a);
  stacks.Free(b);                   // One too many: its pages go.
  EXPECT_EQ(stacks.Allocate(), a);  // Those with memory first.
  EXPECT_EQ(stacks.Allocate(), b);
  EXPECT_EQ(a[8192], 1);
  EXPECT_EQ(b[8192], 0);
  stacks.Free(a);
  stacks.Free(b);
}

TEST(StackDeathTest, TheGuardFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  EXPECT_EQ(stacks.guard_size(), static_cast<std::size_t>(getpagesize()));
  EXPECT_DEATH(*static_cast<volatile char*>(low) = 1, "");
  EXPECT_DEATH(static_cast<volatile char*>(low)[stacks.guard_size() - 1] = 1,
               "");
  stacks.Free(low);
}

TEST(StackDeathTest, RefusesOddSizes) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  StackAllocator::Options options;
  options.stack_size = 70000;
  EXPECT_DEATH(StackAllocator{options}, "multiple of the page size");
  options.stack_size = 4096;
  EXPECT_DEATH(StackAllocator{options}, "too small");
}

TEST(StackTest, WithoutGuard) {
  StackAllocator::Options options;
  options.guard = false;
  StackAllocator stacks(options);
  char* const low = static_cast<char*>(stacks.Allocate());
  low[0] = 1;
  EXPECT_EQ(stacks.guard_size(), 0U);
  stacks.Free(low);
}

// The bare switch: values go both ways, callee-saved state survives.
struct PingPong {
  void* main_sp = nullptr;
  void* other_sp = nullptr;
  std::vector<std::uintptr_t> seen;
};

void Other(void* argument, void* value) {
  auto* const shared = static_cast<PingPong*>(argument);
  double kept = 0.5;
  for (std::uintptr_t i = 0;; ++i) {
    shared->seen.push_back(reinterpret_cast<std::uintptr_t>(value));
    kept *= 2;
    const double before = kept;
    value = flare_switch_context(&shared->other_sp, shared->main_sp,
                                 reinterpret_cast<void*>(i + 100));
    if (kept != before) return;  // Never returns while all is well.
  }
}

TEST(ContextTest, SwitchesBackAndForth) {
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  PingPong shared;
  shared.other_sp = MakeContext(low + stacks.stack_size(), &Other, &shared);
  for (std::uintptr_t i = 0; i < 5; ++i) {
    void* const back = flare_switch_context(&shared.main_sp, shared.other_sp,
                                            reinterpret_cast<void*>(i));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back), i + 100);
  }
  EXPECT_EQ(shared.seen, (std::vector<std::uintptr_t>{0, 1, 2, 3, 4}));
  stacks.Free(low);
}

// A new context computes with the default modes, whatever its maker does.
void RoundingOf(void* argument, void*) {
  auto* const shared = static_cast<PingPong*>(argument);
  shared->seen.push_back(static_cast<std::uintptr_t>(std::fegetround()));
  flare_switch_context(&shared->other_sp, shared->main_sp, nullptr);
}

TEST(ContextTest, FloatingPointModesBelongToTheContext) {
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  PingPong shared;
  std::fesetround(FE_UPWARD);
  shared.other_sp =
      MakeContext(low + stacks.stack_size(), &RoundingOf, &shared);
  flare_switch_context(&shared.main_sp, shared.other_sp, nullptr);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(shared.seen, std::vector<std::uintptr_t>{
                             static_cast<std::uintptr_t>(FE_TONEAREST)});
  stacks.Free(low);
}

}  // namespace
}  // namespace flare::fiber
