// Built twice: with the system's allocator, and with jemalloc
// (malloc_arena_jemalloc_test), where FLARE_EXPECT_JEMALLOC is set.
#include "flare/base/malloc_arena.h"

#include <cstddef>
#include <memory>
#include <thread>

#include "flare/base/jemalloc.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

#ifdef FLARE_EXPECT_JEMALLOC
constexpr bool kExpected = true;
#else
constexpr bool kExpected = false;
#endif

TEST(MallocArenaTest, ExistIfTheAllocatorHasThem) {
  if (kExpected) {
    EXPECT_TRUE(HasMallocArenas());
  }
  EXPECT_EQ(CreateMallocArena().has_value(), HasMallocArenas());
  EXPECT_EQ(CurrentMallocArena().has_value(), HasMallocArenas());
}

TEST(MallocArenaTest, WithoutThemNothingHappens) {
  if (HasMallocArenas()) GTEST_SKIP() << "there are arenas";
  EXPECT_FALSE(UseMallocArena(0));
  EXPECT_EQ(CurrentMallocArena(), std::nullopt);
}

TEST(MallocArenaTest, ThreadsAllocateFromTheirArena) {
  if (!HasMallocArenas()) GTEST_SKIP() << "no arenas";
  const auto arena = CreateMallocArena();
  const auto other = CreateMallocArena();
  ASSERT_TRUE(arena);
  ASSERT_TRUE(other);
  EXPECT_NE(*arena, *other);
  const auto before = CurrentMallocArena();
  std::thread([&] {
    EXPECT_NE(CurrentMallocArena(), arena);
    ASSERT_TRUE(UseMallocArena(*arena));
    EXPECT_EQ(CurrentMallocArena(), arena);
    // Where the allocator says that a piece comes from.
    const std::unique_ptr<char[]> piece(new char[100]);
    void* const address = piece.get();
    unsigned from = 0;
    std::size_t size = sizeof(from);
    ASSERT_EQ(mallctl("arenas.lookup", &from, &size,
                      const_cast<void**>(&address), sizeof(address)),
              0);
    EXPECT_EQ(from, *arena);
    EXPECT_TRUE(UseMallocArena(*other));
    EXPECT_EQ(CurrentMallocArena(), other);
  }).join();
  EXPECT_EQ(CurrentMallocArena(), before);
}

TEST(MallocArenaTest, RefusesArenasThatAreNotThere) {
  EXPECT_FALSE(UseMallocArena(1U << 30));
}

}  // namespace
}  // namespace flare
