// Code as users of the published framework write it: it must compile, and
// behave as it did there. The differences: docs/migration.md.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/function.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"

namespace {

using namespace std::literals;

class PublishedCodeTest : public flare::fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(PublishedCodeTest);

TEST(PublishedCodeRuntimeTest, StartsWithoutOptions) {
  ASSERT_TRUE(flare::fiber::StartRuntime().ok());
  EXPECT_GT(flare::fiber::GetSchedulingGroupCount(), 0u);
  flare::fiber::TerminateRuntime();
}

TEST_P(PublishedCodeTest, DetachedTimerThatIsPeriodic) {
  auto left = std::make_shared<std::atomic<int>>(3);
  auto turns = std::make_shared<flare::fiber::Latch>(3);
  flare::fiber::SetDetachedTimer(flare::ReadSteadyClock(), 100us, [=] {
    if (left->fetch_sub(1) > 0) turns->count_down();
  });
  turns->wait();
}

TEST_P(PublishedCodeTest, TimersThatTakeTheirIds) {
  auto start = flare::ReadSteadyClock();
  auto fired = std::make_shared<flare::fiber::Latch>(3);
  auto once =
      flare::fiber::SetTimer(start + 1ms, [=](auto&&) { fired->count_down(); });
  flare::fiber::SetTimer(start, 100us, [=](std::uint64_t timer_id) {
    flare::fiber::KillTimer(timer_id);
    fired->count_down();
  });
  flare::Function<void(std::uint64_t)> callback = [=](std::uint64_t timer_id) {
    flare::fiber::KillTimer(timer_id);
    fired->count_down();
  };
  flare::fiber::SetTimer(100us, std::move(callback));
  fired->wait();
  flare::fiber::KillTimer(once);
}

TEST_P(PublishedCodeTest, FiberLocals) {
  struct Context {
    int user = 0;
  };
  static flare::FiberLocal<Context> context;
  context->user = 1;
  flare::Fiber([] {
    EXPECT_EQ((*context).user, 0);
    context->user = 2;
    flare::this_fiber::Yield();
    EXPECT_EQ(context.get()->user, 2);
  }).join();
  EXPECT_EQ(context->user, 1);
  context->user = 0;
}

// Callable with an id and without.
TEST_P(PublishedCodeTest, TimersOfBoundFunctions) {
  flare::fiber::Latch fired(1);
  auto timer_id = flare::fiber::SetTimer(
      flare::ReadSteadyClock(),
      std::bind(&flare::fiber::Latch::count_down, &fired, 1));
  fired.wait();
  flare::fiber::KillTimer(timer_id);
}

}  // namespace
