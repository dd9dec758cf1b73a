#include "flare/base/spin_policy.h"

#include <cstdint>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

constexpr std::int64_t kLimitNs = 1'000'000;

// For the next `n` sleeps: how many of them it would look around before.
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

// Except in a sample of sleeps.
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
  EXPECT_TRUE(policy.ShouldSpin());
  for (int i = 0; i < 20; ++i) policy.Slept(3);
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
  EXPECT_EQ(policy.Spin(kNoDeadline, [&] { return ++looks == 5 ? 7 : 0; }), 7);
  EXPECT_EQ(looks, 5);
  // An error is something, too.
  EXPECT_EQ(policy.Spin(kNoDeadline, [] { return -1; }), -1);
  EXPECT_TRUE(policy.ShouldSpin());
}

// Between two looks it offers the CPU to others, at least.
TEST(SpinPolicyTest, GivesUpAtItsLimit) {
  SpinPolicy policy(kLimitNs);
  const std::int64_t begin = NowNs();
  int looks = 0;
  EXPECT_EQ(policy.Spin(kNoDeadline, [&] { return ++looks, 0; }), 0);
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

// Twice the time of a wake-up, between 20 us and the given limit.
TEST(SpinPolicyTest, LearnsForHowLong) {
  SpinPolicy policy(100'000);
  EXPECT_EQ(policy.limit_ns(true), 100'000);
  const auto limit_after = [&](int n, std::int64_t overslept_ns) {
    for (int i = 0; i < n; ++i) policy.Overslept(overslept_ns);
    EXPECT_EQ(policy.limit_ns(false), 100'000);
    return policy.limit_ns(true);
  };
  EXPECT_EQ(limit_after(100, 3'000), 20'000);
  EXPECT_EQ(limit_after(100, 80'000), 100'000);
  const std::int64_t limit = limit_after(100, 30'000);
  EXPECT_GE(limit, 45'000);
  EXPECT_LE(limit, 65'000);
  // Most of which wait for a CPU, too.
  for (int i = 0; i < 100; ++i) {
    policy.Overslept(20'000);
    policy.Overslept(900'000);
    policy.Overslept(900'000);
  }
  EXPECT_GE(policy.limit_ns(true), 28'000);
  EXPECT_LE(policy.limit_ns(true), 55'000);
}

// A thread that looks for 10 us has not had the CPU all the time, for all it
// knows.
TEST(SpinPolicyTest, NotForLongWhereOthersWantTheCpu) {
  SpinPolicy policy(60'000'000'000);
  for (int i = 0; i < 200; ++i) policy.Overslept(0);
  const std::int64_t begin = NowNs();
  const auto look = [] {
    const std::int64_t until = NowNs() + 10'000;
    while (NowNs() < until) {
    }
    return 0;
  };
  EXPECT_EQ(policy.Spin(kNoDeadline, look), 0);
  EXPECT_LT(NowNs() - begin, 30'000'000'000);
}

TEST(SpinPolicyTest, ALowLimitStays) {
  SpinPolicy policy(5'000);
  policy.Overslept(1'000'000);
  EXPECT_EQ(policy.limit_ns(true), 5'000);
  policy.Overslept(0);
  EXPECT_EQ(policy.limit_ns(true), 5'000);
}

// By a sleep in two parts, now and then.
TEST(SpinPolicyTest, LearnsFromASleepOfItsOwn) {
  SpinPolicy policy(100'000);
  for (int i = 0; i < 20; ++i) policy.Slept(3);  // It doesn't spin.
  for (int i = 0; i < 100; ++i) policy.Overslept(25'000);
  const std::int64_t before = policy.limit_ns(true);
  int sleeps = 0;
  const std::int64_t begin = NowNs();
  const std::int64_t end = begin + 60'000'000'000;
  const auto sleep_until = [&](std::int64_t until) {
    ++sleeps;
    if (until == end) return 7;
    while (NowNs() < until) {
    }
    return 0;
  };
  EXPECT_EQ(policy.Wait(end, sleep_until), 7);
  EXPECT_EQ(sleeps, 2);
  EXPECT_NE(policy.limit_ns(true), before);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(policy.Wait(end, sleep_until), 7);
  const std::int64_t trials = sleeps - 100;
  EXPECT_LE(trials, 1 + (NowNs() - begin) / 20'000'000);
}

TEST(SpinPolicyTest, WhatComesMeanwhileIsReturned) {
  SpinPolicy policy(100'000);
  for (int i = 0; i < 20; ++i) policy.Slept(3);
  EXPECT_EQ(policy.Wait(kNoDeadline, [](std::int64_t) { return 3; }), 3);
  EXPECT_EQ(policy.limit_ns(true), 100'000);
  // A thread that only looks learns nothing and doesn't wait.
  EXPECT_EQ(
      policy.Wait(0, [](std::int64_t until) { return until == 0 ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace flare
