#include "flare/base/reload_gate.h"

#include <chrono>
#include <cstdint>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

void WaitFor(std::chrono::nanoseconds time) {
  const std::int64_t end_ns = NowNs() + ToNs(time);
  while (NowNs() < end_ns) continue;
}

TEST(ReloadGate, LetsOneInAtATime) {
  constexpr std::chrono::microseconds kInterval(1);
  ReloadGate gate(kInterval);
  WaitFor(kInterval);
  {
    const ReloadGate::Turn turn = gate.TryEnter();
    EXPECT_TRUE(turn);
    WaitFor(kInterval);
    EXPECT_FALSE(gate.TryEnter());
  }
  EXPECT_TRUE(gate.TryEnter());
}

TEST(ReloadGate, LetsNobodyInBeforeTheInterval) {
  ReloadGate gate(std::chrono::hours(1));
  EXPECT_FALSE(gate.TryEnter());
}

TEST(ReloadGate, LetsNobodyInWithoutAnInterval) {
  for (const int ns : {0, -1}) {
    ReloadGate gate{std::chrono::nanoseconds(ns)};
    EXPECT_FALSE(gate.TryEnter());
  }
}

TEST(ReloadGate, NeedsAnIntervalBetweenTurns) {
  constexpr std::chrono::milliseconds kInterval(500);
  ReloadGate gate(kInterval);
  WaitFor(kInterval);
  const std::int64_t begin_ns = NowNs();
  EXPECT_TRUE(gate.TryEnter());
  while (!gate.TryEnter()) continue;
  EXPECT_GE(NowNs() - begin_ns, ToNs(kInterval));
}

}  // namespace
}  // namespace flare
