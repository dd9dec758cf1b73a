#include "flare/rpc/policy/retry_budget.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace flare {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
using Use = RetryBudget::Use;

int TakeAll(RetryBudget* budget, std::int64_t now_ns) {
  int taken = 0;
  while (budget->Take(Use::kRetry, now_ns)) ++taken;
  return taken;
}

TEST(RetryBudgetTest, BeginsFull) {
  RetryBudget budget({.per_call = 0.2, .per_second = 0}, 0);
  EXPECT_EQ(budget.left(), 100);
  EXPECT_EQ(TakeAll(&budget, 0), 100);
  RetryBudget large({.per_call = 0.2, .per_second = 50}, 0);
  EXPECT_EQ(TakeAll(&large, 0), 500);
}

TEST(RetryBudgetTest, CallsFillIt) {
  RetryBudget budget({.per_call = 0.2, .per_second = 0}, 0);
  TakeAll(&budget, 0);
  for (int i = 0; i != 50; ++i) budget.OnCall();
  EXPECT_EQ(TakeAll(&budget, kSecond), 10);
  for (int i = 0; i != 100'000; ++i) budget.OnCall();
  EXPECT_EQ(TakeAll(&budget, kSecond), 100);
}

TEST(RetryBudgetTest, TimeFillsIt) {
  RetryBudget budget({.per_call = 0, .per_second = 10}, 0);
  TakeAll(&budget, 0);
  EXPECT_EQ(TakeAll(&budget, kSecond / 2), 5);
  EXPECT_EQ(TakeAll(&budget, kSecond), 5);
  EXPECT_EQ(TakeAll(&budget, 1'000'000 * kSecond), 100);
}

TEST(RetryBudgetTest, Counts) {
  RetryBudget budget({.per_call = 0, .per_second = 0}, 0);
  budget.OnCall();
  EXPECT_TRUE(budget.Take(Use::kRetry, 0));
  EXPECT_TRUE(budget.Take(Use::kHedge, 0));
  EXPECT_TRUE(budget.Take(Use::kHedge, 0));
  TakeAll(&budget, 0);
  const RetryBudget::Counters counters = budget.counters();
  EXPECT_EQ(counters.calls, 1);
  EXPECT_EQ(counters.retries, 98);
  EXPECT_EQ(counters.hedges, 2);
  EXPECT_EQ(counters.refused, 1);
}

}  // namespace
}  // namespace flare
