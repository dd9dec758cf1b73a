#include "flare/rpc/server/call_limit.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// Small: no batches. Large: with.
constexpr std::size_t kLimits[] = {1, 7, 2000};

class CallLimitTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(CallLimitTest);

TEST_P(CallLimitTest, LetsInAsManyAsMayRun) {
  for (const std::size_t most : kLimits) {
    OnBoth([most] {
      CallLimit limit;
      limit.SetUp(most);
      EXPECT_EQ(limit.Enter(most + 5), most);
      EXPECT_EQ(limit.running(), most);
      EXPECT_EQ(limit.Enter(1), 0U);
      limit.Leave();
      EXPECT_EQ(limit.running(), most - 1);
      EXPECT_EQ(limit.Enter(3), 1U);
      EXPECT_EQ(limit.entered(), most + 1);
      for (std::size_t i = 0; i < most; ++i) limit.Leave();
      EXPECT_EQ(limit.running(), 0U);
      EXPECT_EQ(limit.Enter(most), most);
    });
  }
}

// Places that lie with workers which have nothing to do are found.
TEST_P(CallLimitTest, PlacesAreFoundWhereverTheyAre) {
  for (const std::size_t most : kLimits) {
    CallLimit limit;
    limit.SetUp(most);
    for (int round = 0; round < 20; ++round) {
      ASSERT_EQ(limit.Enter(most), most);
      std::vector<Fiber> fibers;
      for (std::size_t i = 0; i < most; ++i) {
        fibers.emplace_back([&] { limit.Leave(); });
      }
      for (Fiber& fiber : fibers) fiber.join();
      EXPECT_EQ(limit.running(), 0U);
      Fiber([&] { EXPECT_EQ(limit.Enter(most), most); }).join();
      EXPECT_EQ(limit.Enter(1), 0U);
      for (std::size_t i = 0; i < most; ++i) limit.Leave();
    }
  }
}

TEST_P(CallLimitTest, NeverMoreThanMayRun) {
  for (const std::size_t most : kLimits) {
    CallLimit limit;
    limit.SetUp(most);
    std::atomic<std::size_t> running{0};
    std::atomic<std::uint64_t> entered{0};
    const auto call = [&] {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t n = limit.Enter(i % 40 + 1);
        EXPECT_LE(running.fetch_add(n) + n, most);
        entered += n;
        if (i % 8 == 0) this_fiber::Yield();
        for (std::size_t j = 0; j < n; ++j) {
          --running;
          limit.Leave();
        }
      }
    };
    std::thread thread([&] {
      for (int i = 0; i < 2000; ++i) {
        if (limit.Enter(1) == 0) continue;
        EXPECT_LE(running.fetch_add(1) + 1, most);
        ++entered;
        --running;
        limit.Leave();
      }
    });
    std::vector<Fiber> fibers;
    for (int i = 0; i < 100; ++i) fibers.emplace_back(call);
    for (Fiber& fiber : fibers) fiber.join();
    thread.join();
    EXPECT_EQ(limit.running(), 0U);
    EXPECT_EQ(limit.entered(), entered.load());
    EXPECT_EQ(limit.Enter(most), most);
  }
}

// By no runtime, or another one: as from plain threads.
TEST(CallLimitAfterwards, CallsMayEndInALaterRuntime) {
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  CallLimit limit;
  limit.SetUp(1000);
  Fiber([&] { EXPECT_EQ(limit.Enter(1000), 1000U); }).join();
  fiber::TerminateRuntime();
  limit.Leave();
  options.concurrency = 2;
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  std::vector<Fiber> fibers;
  for (int i = 0; i < 999; ++i) fibers.emplace_back([&] { limit.Leave(); });
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_EQ(limit.running(), 0U);
  EXPECT_EQ(limit.Enter(1001), 1000U);
  fiber::TerminateRuntime();
}

}  // namespace
}  // namespace flare::rpc
