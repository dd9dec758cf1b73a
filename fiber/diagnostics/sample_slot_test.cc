#include "flare/fiber/diagnostics/sample_slot.h"

#include <atomic>
#include <cstdint>
#include <thread>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/random.h"
#include "flare/fiber/testing/stress.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

Backtrace BacktraceOf(std::uintptr_t address) {
  Backtrace backtrace;
  EXPECT_TRUE(backtrace.Add(address));
  return backtrace;
}

TEST(SampleSlotTest, IsAnsweredByTheThreadAskedOnce) {
  SampleSlot slot;
  EXPECT_EQ(slot.Look(0), 0U);
  for (std::uintptr_t i = 1; i != 4; ++i) {
    slot.Ask(7);
    EXPECT_EQ(slot.Look(8), 0U);
    const std::uint32_t request = slot.Look(7);
    ASSERT_NE(request, 0U);
    EXPECT_TRUE(slot.Claim(request));
    EXPECT_FALSE(slot.Claim(request));
    EXPECT_EQ(slot.Look(7), 0U);
    slot.Answer(BacktraceOf(i));
    EXPECT_EQ(slot.Look(7), 0U);
    EXPECT_EQ(slot.Await(kNoDeadline), BacktraceOf(i));
    EXPECT_EQ(slot.Look(7), 0U);
  }
}

TEST(SampleSlotTest, ARequestThatNobodyTookEnds) {
  SampleSlot slot;
  slot.Ask(7);
  const std::uint32_t request = slot.Look(7);
  EXPECT_TRUE(slot.Await(0).empty());
  EXPECT_EQ(slot.Look(7), 0U);
  EXPECT_FALSE(slot.Claim(request));
}

// The handler was kept from its CPU between finding the request and claiming
// it, for longer than the asker had patience.
TEST(SampleSlotTest, ALateHandlerDoesNotTakeTheNextRequest) {
  SampleSlot slot;
  slot.Ask(7);
  const std::uint32_t late = slot.Look(7);
  EXPECT_TRUE(slot.Await(0).empty());
  for (const pid_t next : {8, 7}) {
    slot.Ask(next);
    EXPECT_FALSE(slot.Claim(late));
    const std::uint32_t request = slot.Look(next);
    EXPECT_TRUE(slot.Claim(request));
    slot.Answer(BacktraceOf(1));
    EXPECT_EQ(slot.Await(0), BacktraceOf(1));
  }
}

TEST(SampleSlotTest, WhatIsBeingWrittenIsWaitedFor) {
  SampleSlot slot;
  slot.Ask(7);
  ASSERT_TRUE(slot.Claim(slot.Look(7)));
  std::thread handler([&] { slot.Answer(BacktraceOf(5)); });
  EXPECT_EQ(slot.Await(0), BacktraceOf(5));
  handler.join();
}

// Patience that ends as the handler comes: the answer is that to this request,
// or there is none.
TEST(SampleSlotTest, PatienceEndsAsTheHandlerComes) {
  SampleSlot slot;
  std::atomic<bool> end{false};
  std::thread handler([&] {
    for (std::uint64_t i = 0; !end.load(); ++i) {
      const std::uint32_t request = slot.Look(7);
      for (std::uint64_t k = MixBits(i) % 64; k > 0; --k) CpuRelax();
      if (request == 0 || !slot.Claim(request)) continue;
      slot.Answer(BacktraceOf(request));
    }
  });
  const std::int64_t until = NowNs() + testing::StressNs(200'000'000);
  for (std::uint64_t i = 0; NowNs() < until; ++i) {
    slot.Ask(7);
    const std::uint32_t request = slot.Look(7);  // 0: claimed already.
    const auto patience_ns = static_cast<std::int64_t>(MixBits(i) % 20'000);
    const Backtrace answer = slot.Await(NowNs() + patience_ns);
    if (answer.empty() || request == 0) continue;
    ASSERT_EQ(answer, BacktraceOf(request));
  }
  end.store(true);
  handler.join();
}

}  // namespace
}  // namespace flare::fiber
