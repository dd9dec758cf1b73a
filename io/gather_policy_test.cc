#include "flare/io/gather_policy.h"

#include "gtest/gtest.h"

namespace flare::io {
namespace {

constexpr int kSends = 10'000;

// Counts the next sends before which it waits, each time for `ns` and `writes`.
int CountWaits(GatherPolicy* policy, std::size_t writes, std::int64_t ns) {
  int waits = 0;
  for (int i = 0; i < kSends; ++i) {
    if (!policy->ShouldWait()) continue;
    ++waits;
    policy->Waited(writes, ns);
  }
  return waits;
}

// Each offer is a system call.
TEST(GatherPolicyTest, HardlyEverForAThreadAlone) {
  GatherPolicy policy;
  EXPECT_LE(CountWaits(&policy, 0, 500), 15);
  EXPECT_LE(CountWaits(&policy, 0, 500), kSends / 1024 + 1);
}

TEST(GatherPolicyTest, NotAtTheFirstSends) {
  GatherPolicy policy;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(policy.ShouldWait());
}

TEST(GatherPolicyTest, AlwaysIfManyWriteMeanwhile) {
  GatherPolicy policy;
  EXPECT_GE(CountWaits(&policy, 10, 60'000), kSends - 20);
  // Each takes a while to run.
  GatherPolicy very_many;
  EXPECT_GE(CountWaits(&very_many, 250, 1'500'000), kSends - 20);
}

// Somebody else has the CPU, for a time slice.
TEST(GatherPolicyTest, NotIfItTakesLongForWhatItBrings) {
  GatherPolicy policy;
  EXPECT_LE(CountWaits(&policy, 10, 3'000'000), 15);
}

TEST(GatherPolicyTest, StopsSoonOnceItDoesNotPay) {
  GatherPolicy policy;
  CountWaits(&policy, 250, 1'000'000);
  EXPECT_LE(CountWaits(&policy, 10, 3'000'000), 25);
  CountWaits(&policy, 250, 1'000'000);
  EXPECT_LE(CountWaits(&policy, 0, 500), 60);
}

TEST(GatherPolicyTest, AgainOnceItPays) {
  GatherPolicy policy;
  CountWaits(&policy, 0, 500);
  EXPECT_GE(CountWaits(&policy, 10, 60'000), kSends - 1100);
}

TEST(GatherPolicyTest, BearsAWaitInVainNowAndThen) {
  GatherPolicy policy;
  int waits = 0;
  for (int i = 0; i < kSends; ++i) {
    if (!policy.ShouldWait()) continue;
    policy.Waited(++waits % 3 == 0 ? 0 : 10, 60'000);
  }
  EXPECT_GE(waits, kSends - 20);
}

}  // namespace
}  // namespace flare::io
