#include "flare/rpc/policy/method_policy.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::chrono::milliseconds;

TEST(MethodPolicyTest, SaysWhatContradictsItself) {
  const auto check = [](RetryPolicy retry) {
    return MethodPolicy::Check({.retry = std::move(retry)}).message();
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({.max_attempts = 1}),
            "max_attempts must be from 2 to 100, not 1");
  EXPECT_EQ(check({.max_attempts = 101}),
            "max_attempts must be from 2 to 100, not 101");
  EXPECT_EQ(check({.initial_backoff = milliseconds(-1)}),
            "initial_backoff must not be negative");
  EXPECT_EQ(check({.max_backoff = milliseconds(1)}),
            "max_backoff must be at least initial_backoff");
  EXPECT_EQ(check({.multiplier = 0.5}), "multiplier must be at least 1");
  EXPECT_EQ(check({.attempt_timeout = milliseconds(-1)}),
            "attempt_timeout must not be negative");
  const auto hedging = [](HedgingPolicy policy) {
    return MethodPolicy::Check({.hedging = std::move(policy)}).message();
  };
  EXPECT_EQ(hedging({}), "");
  EXPECT_EQ(hedging({.max_attempts = 0}),
            "max_attempts must be from 2 to 100, not 0");
  EXPECT_EQ(hedging({.delay = milliseconds(-1)}), "delay must not be negative");
  EXPECT_EQ(hedging({.percentile = 1}),
            "percentile must be at least 0 and below 1");
  EXPECT_EQ(
      MethodPolicy::Check({.retry = RetryPolicy(), .hedging = HedgingPolicy()})
          .message(),
      "a method can have a retry policy or a hedging policy, not both");
  EXPECT_EQ(MethodPolicy::Check({.timeout = milliseconds(0)}).message(),
            "timeout must be positive");
}

TEST(BackoffTest, GrowsUpToItsBound) {
  const RetryPolicy policy{.initial_backoff = milliseconds(10),
                           .max_backoff = milliseconds(35),
                           .multiplier = 2};
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  for (const std::size_t retry : {1, 2, 3, 50, 5000}) {
    EXPECT_EQ(BackoffNs(policy, retry, 0), 0);
  }
  EXPECT_NEAR(BackoffNs(policy, 1, kMost), 10e6, 1);
  EXPECT_NEAR(BackoffNs(policy, 1, kMost / 2), 5e6, 1);
  EXPECT_NEAR(BackoffNs(policy, 2, kMost), 20e6, 1);
  EXPECT_NEAR(BackoffNs(policy, 3, kMost), 35e6, 1);
  EXPECT_NEAR(BackoffNs(policy, 5000, kMost), 35e6, 1);
}

TEST(PushbackTest, IsMillisecondsOrForbids) {
  std::int64_t ns = 7;
  EXPECT_EQ(ParsePushback("250", &ns), Pushback::kAfter);
  EXPECT_EQ(ns, 250'000'000);
  EXPECT_EQ(ParsePushback("0", &ns), Pushback::kAfter);
  EXPECT_EQ(ns, 0);
  for (const char* const never :
       {"-1", "", "soon", "5 ", "99999999999999999999"}) {
    EXPECT_EQ(ParsePushback(never, &ns), Pushback::kNever) << never;
  }
}

TEST(IsRepeatedTest, MethodsThatMayNotRunTwice) {
  EXPECT_TRUE(IsRepeated({}, STATUS_FAIL_TO_CONNECT, false));
  EXPECT_FALSE(IsRepeated({}, STATUS_IO_ERROR, false));
  EXPECT_TRUE(IsRepeated({}, STATUS_IO_ERROR, true));
  EXPECT_FALSE(IsRepeated({}, 1234, true));
  EXPECT_TRUE(IsRepeated({1234}, 1234, true));
  EXPECT_FALSE(IsRepeated({1234}, 1234, false));
  EXPECT_FALSE(IsRepeated({1234}, STATUS_FAIL_TO_CONNECT, true));
}

TEST(HedgingDelayTest, IsThatOfThePercentileOnceThereAreCalls) {
  MethodPolicy fixed({.hedging = HedgingPolicy{.delay = milliseconds(7)}});
  MethodPolicy policy(
      {.hedging = HedgingPolicy{.delay = milliseconds(7), .percentile = 0.75}});
  for (int i = 0; i != 63; ++i) {
    policy.NoteLatency(i);
    fixed.NoteLatency(i);
  }
  EXPECT_EQ(policy.HedgingDelayNs(), 7'000'000);
  policy.NoteLatency(63);
  fixed.NoteLatency(63);
  EXPECT_EQ(policy.HedgingDelayNs(), 48);
  EXPECT_EQ(fixed.HedgingDelayNs(), 7'000'000);
  for (int i = 0; i != 256; ++i) policy.NoteLatency(5000);
  EXPECT_EQ(policy.HedgingDelayNs(), 5000);
}

}  // namespace
}  // namespace flare::rpc
