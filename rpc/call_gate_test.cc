#include "flare/rpc/call_gate.h"

#include <chrono>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using Verdict = CallGate::Verdict;

TEST(CallGateTest, WithoutLimitNobodyIsAsked) {
  CallGate gate;
  gate.SetUp(0ns);
  EXPECT_TRUE(gate.IsOpen(0));
  EXPECT_TRUE(gate.IsOpen(1'000'000'000'000));
}

TEST(CallGateTest, CallsBeyondTheLimitAreRefused) {
  CallGate gate;
  gate.SetUp(50ns);
  EXPECT_TRUE(gate.IsOpen(50));
  EXPECT_FALSE(gate.IsOpen(51));
  EXPECT_EQ(gate.Ask(/*now_ns=*/1000, /*waited_ns=*/51), Verdict::kOverloaded);
}

TEST(CallGateTest, ClosesAtTheEarliestMoment) {
  CallGate gate;
  gate.SetUp(50ns);
  gate.CloseAt(1000);
  EXPECT_FALSE(gate.IsOpen(0));
  EXPECT_EQ(gate.Ask(1000, 0), Verdict::kBegin);
  EXPECT_EQ(gate.Ask(1000, 51), Verdict::kOverloaded);
  EXPECT_EQ(gate.Ask(1001, 0), Verdict::kStopping);
  gate.CloseAt(2000);
  EXPECT_EQ(gate.Ask(1001, 0), Verdict::kStopping);
  gate.CloseAt(500);
  EXPECT_EQ(gate.Ask(501, 0), Verdict::kStopping);
}

}  // namespace
}  // namespace flare::rpc
