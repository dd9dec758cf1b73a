#include "flare/io/spin_policy.h"

#include <limits>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLimitNs = 1'000'000;

// Of the next `n` sleeps, before how many it would look around.
template <class Outcome>
int CountSpins(SpinPolicy* policy, int n, Outcome&& outcome) {
  int spins = 0;
  for (int i = 0; i < n; ++i) {
    if (!policy->ShouldSpin()) continue;
    ++spins;
    outcome(policy);
  }
  return spins;
}
int CountMisses(SpinPolicy* policy, int n) {
  return CountSpins(policy, n, [](SpinPolicy* p) { p->Missed(); });
}
int CountFinds(SpinPolicy* policy, int n) {
  return CountSpins(policy, n, [](SpinPolicy* p) { p->Found(); });
}

TEST(SpinPolicyTest, NeverWithoutALimit) {
  SpinPolicy policy(0);
  EXPECT_EQ(CountFinds(&policy, 100), 0);
}

// But for a sample of sleeps.
TEST(SpinPolicyTest, AlmostAlwaysWhileItFindsSomething) {
  SpinPolicy policy(kLimitNs);
  EXPECT_EQ(CountFinds(&policy, 6400), 6300);
}

TEST(SpinPolicyTest, HardlyEverWhenItIsInVain) {
  SpinPolicy policy(kLimitNs);
  EXPECT_LE(CountMisses(&policy, 1500), 7);
  EXPECT_LE(CountMisses(&policy, 1'000'000), 1'000'000 / 1024 + 1);
}

TEST(SpinPolicyTest, AgainOnceItPays) {
  SpinPolicy policy(kLimitNs);
  CountMisses(&policy, 100'000);
  // The one that is tried finds something, and so do the following.
  EXPECT_GE(CountFinds(&policy, 3000), 1900);
  EXPECT_EQ(CountFinds(&policy, 6400), 6300);
}

TEST(SpinPolicyTest, NotWhileSleepsBringSeveralEvents) {
  SpinPolicy policy(kLimitNs);
  for (int i = 0; i < 20; ++i) policy.Slept(2);
  EXPECT_EQ(CountFinds(&policy, 1000), 0);
  for (int i = 0; i < 20; ++i) policy.Slept(0);  // A time-out, or a signal.
  policy.Slept(-1);
  EXPECT_EQ(CountFinds(&policy, 1000), 0);
  for (int i = 0; i < 20; ++i) policy.Slept(1);
  EXPECT_GT(CountFinds(&policy, 1000), 900);
  // One crowd doesn't matter for long.
  policy.Slept(100'000);
  for (int i = 0; i < 30; ++i) policy.Slept(1);
  EXPECT_GT(CountFinds(&policy, 1000), 900);
}

// As often in vain as not: it isn't given up, with a rest after each failure.
TEST(SpinPolicyTest, SometimesWhenItSometimesPays) {
  SpinPolicy policy(kLimitNs);
  bool found = false;
  const int spins = CountSpins(&policy, 10'000, [&](SpinPolicy* p) {
    found = !found;
    found ? p->Found() : p->Missed();
  });
  EXPECT_GT(spins, 5000);
  EXPECT_LT(spins, 7500);
}

TEST(SpinPolicyTest, SpinsUntilThereIsSomething) {
  SpinPolicy policy(20'000'000'000);
  int looks = 0;
  EXPECT_EQ(policy.Spin(kForever, [&] { return ++looks == 5 ? 7 : 0; }), 7);
  EXPECT_EQ(looks, 5);
  // An error is something, too.
  EXPECT_EQ(policy.Spin(kForever, [] { return -1; }), -1);
  EXPECT_TRUE(policy.ShouldSpin());
}

// Between two looks it offers the CPU to others, at least.
TEST(SpinPolicyTest, GivesUpAtItsLimit) {
  SpinPolicy policy(kLimitNs);
  const std::int64_t begin = NowNs();
  int looks = 0;
  EXPECT_EQ(policy.Spin(kForever, [&] { return ++looks, 0; }), 0);
  EXPECT_GE(NowNs() - begin, kLimitNs);
  EXPECT_GE(looks, 1);
  // 2 us between two looks.
  EXPECT_LE(looks, kLimitNs / 2000 + 1);
  EXPECT_FALSE(policy.ShouldSpin());
}

TEST(SpinPolicyTest, DeadlinesProveNothing) {
  SpinPolicy policy(20'000'000'000);
  EXPECT_EQ(policy.Spin(NowNs() + 100'000, [] { return 0; }), 0);
  EXPECT_EQ(policy.Spin(1, [] { return 0; }), 0);
  EXPECT_TRUE(policy.ShouldSpin());
}

}  // namespace
}  // namespace flare::io
