// Built twice: with the system's allocator, and with jemalloc
// (free_memory_jemalloc_test), where FLARE_EXPECT_JEMALLOC is set.
#include "flare/base/free_memory.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/malloc_arena.h"
#include "flare/base/sanitizer.h"
#include "gtest/gtest.h"

#ifdef FLARE_EXPECT_JEMALLOC
// Memory that has been free for longer is old.
extern "C" const char* malloc_conf;
const char* malloc_conf = "dirty_decay_ms:300";
#endif

namespace flare {
namespace {

constexpr std::size_t kPieces = 65536;
constexpr std::size_t kPieceBytes = 1024;
constexpr std::size_t kBytes = kPieces * kPieceBytes;

class FreeMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
    GTEST_SKIP() << "the sanitizer's allocator";
#endif
    ReturnAllFreeMemory();
    before_ = ResidentBytes();
    ASSERT_NE(before_, 0U);
  }

  // Leaves much free memory below a piece that is in use.
  void MakeFreeMemory() {
    std::vector<std::unique_ptr<char[]>> pieces;
    for (std::size_t i = 0; i < kPieces; ++i) {
      pieces.push_back(std::make_unique<char[]>(kPieceBytes));
      std::memset(pieces.back().get(), 1, kPieceBytes);
    }
    // Nearly: other memory may have been returned meanwhile.
    EXPECT_GE(ResidentBytes(), before_ + kBytes - kBytes / 8);
    in_use_.push_back(std::move(pieces.back()));
  }

  // At least three quarters of the free memory have been returned.
  bool IsReturned() const { return ResidentBytes() < before_ + kBytes / 4; }

  bool IsReturnedEventually(bool (*ask)()) const {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!IsReturned()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (ask != nullptr) ask();
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::size_t before_ = 0;
  std::vector<std::unique_ptr<char[]>> in_use_;
};

TEST_F(FreeMemoryTest, AllOfItReturnsAtOnce) {
  // Again if it grew old before this thread had a look.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    MakeFreeMemory();
  } while (IsReturned() && std::chrono::steady_clock::now() < end);
  EXPECT_FALSE(IsReturned());
  ReturnAllFreeMemory();
  EXPECT_TRUE(IsReturned());
}

TEST_F(FreeMemoryTest, OfAThreadThatIsGone) {
  std::thread([&] { MakeFreeMemory(); }).join();
  ReturnAllFreeMemory();
  EXPECT_TRUE(IsReturned());
}

TEST_F(FreeMemoryTest, OldMemoryReturnsIfTheAllocatorKnowsHowOldItIs) {
  MakeFreeMemory();
  EXPECT_EQ(ReturnOldFreeMemory(), HasMallocArenas());
  if (HasMallocArenas()) {
    EXPECT_TRUE(IsReturnedEventually(&ReturnOldFreeMemory));
  }
}

// Last, as it concerns the process.
TEST_F(FreeMemoryTest, ReturnsByItselfIfTheAllocatorCan) {
  EXPECT_EQ(KeepReturningFreeMemory(), HasMallocArenas());
  if (!HasMallocArenas()) return;
  MakeFreeMemory();
  EXPECT_TRUE(IsReturnedEventually(nullptr));
}

}  // namespace
}  // namespace flare
