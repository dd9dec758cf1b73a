// Each allocation of a contention profile in turn fails: none is left on, and
// another one goes on.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "flare/base/backtrace.h"
#include "flare/base/testing/replaced_new.h"
#include "flare/fiber/contention_profile.h"
#include "flare/fiber/sync/lock_wait.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// How many allocations of this thread succeed before one fails; negative: all.
thread_local int before_failure = -1;

}  // namespace
}  // namespace flare::fiber

void flare::testing::OnAllocation(std::size_t) {
  using fiber::before_failure;
  if (before_failure >= 0 && before_failure-- == 0) throw std::bad_alloc();
}

namespace flare::fiber {
namespace {

class ContentionNoMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { PrepareBacktraces(); }
  void TearDown() override { before_failure = -1; }

  // With a place, so that a report needs memory.
  static std::unique_ptr<ContentionProfile> StartWithAPlace() {
    auto profile = ContentionProfile::Start();
    EXPECT_TRUE(profile);
    { const LockWait wait("Mutex"); }
    return *std::move(profile);
  }
};

TEST_F(ContentionNoMemoryTest, AStartThatFailsLeavesNoneOn) {
  for (int i = 0;; ++i) {
    before_failure = i;
    try {
      const auto profile = ContentionProfile::Start();
      before_failure = -1;
      EXPECT_GE(i, 3) << "There is less to allocate than expected.";
      EXPECT_TRUE(profile);
      return;
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(LockWait::IsRecording()) << "allocation " << i;
    }
  }
}

TEST_F(ContentionNoMemoryTest, AnEndThatFailsEndsIt) {
  auto profile = StartWithAPlace();
  before_failure = 0;
  EXPECT_THROW(profile->Finish(), std::bad_alloc);
  EXPECT_FALSE(LockWait::IsRecording());
  const auto another = StartWithAPlace();
  profile.reset();  // Doesn't end the other.
  EXPECT_TRUE(LockWait::IsRecording());
  EXPECT_EQ(another->Finish().places.size(), 1u);
}

TEST_F(ContentionNoMemoryTest, OneIsThrownAwayWithoutMemory) {
  auto profile = StartWithAPlace();
  before_failure = 0;
  profile.reset();
  EXPECT_EQ(before_failure, 0);
  EXPECT_FALSE(LockWait::IsRecording());
}

}  // namespace
}  // namespace flare::fiber

#endif
