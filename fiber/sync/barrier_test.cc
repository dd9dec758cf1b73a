#include "flare/fiber/barrier.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class BarrierTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(BarrierTest);
using BarrierDeathTest = BarrierTest;
FLARE_INSTANTIATE_RUNTIME_TEST(BarrierDeathTest);

TEST_P(BarrierTest, OnePartyNeverWaits) {
  int phases = 0;
  Barrier barrier(1, [&]() noexcept { ++phases; });
  for (int i = 1; i <= 10; ++i) {
    barrier.arrive_and_wait();
    EXPECT_EQ(phases, i);
  }
}

// Nobody is in phase n + 1 while somebody is in phase n, and the completion
// function runs once in between, alone.
TEST_P(BarrierTest, KeepsInStep) {
  constexpr int kFibers = 10;
  constexpr int kThreads = 2;
  constexpr int kPhases = 200;
  int completed = 0;                           // Ordered by the barrier alone.
  std::vector<int> at(kFibers + kThreads, 0);  // Each party's own.
  Barrier barrier(kFibers + kThreads, [&]() noexcept {
    ++completed;
    for (const int phase : at) EXPECT_EQ(phase, completed);
  });
  const auto party = [&](int self) {
    for (int i = 1; i <= kPhases; ++i) {
      at[static_cast<std::size_t>(self)] = i;
      if ((i + self) % 5 == 0) this_fiber::Yield();
      barrier.arrive_and_wait();
      // Nobody can end the next phase before we arrive in it.
      EXPECT_EQ(completed, i);
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) fibers.emplace_back(party, i);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(party, kFibers + i);
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(completed, kPhases);
}

TEST_P(BarrierTest, ArriveThenWait) {
  Barrier barrier(3);
  const auto first = barrier.arrive(2);
  EXPECT_FALSE(barrier.wait_for(first, milliseconds(1)));
  const auto second = barrier.arrive();
  barrier.wait(first);
  barrier.wait(second);
  EXPECT_TRUE(barrier.wait_for(first, milliseconds(1)));
  EXPECT_TRUE(barrier.wait_until(first, steady_clock::now()));
}

TEST_P(BarrierTest, DropShrinksLaterPhases) {
  int phases = 0;
  Barrier barrier(3, [&]() noexcept { ++phases; });
  Fiber dropper([&] { barrier.arrive_and_drop(); });
  dropper.join();
  EXPECT_EQ(phases, 0);
  Fiber other([&] {
    barrier.arrive_and_wait();
    barrier.arrive_and_wait();
    barrier.arrive_and_drop();
  });
  barrier.arrive_and_wait();
  EXPECT_EQ(phases, 1);
  barrier.arrive_and_wait();
  EXPECT_EQ(phases, 2);
  other.join();
  barrier.arrive_and_wait();
  barrier.arrive_and_wait();
  EXPECT_EQ(phases, 4);
}

TEST_P(BarrierTest, LimitsLeaveTheArrivalInPlace) {
  Barrier barrier(2);
  const auto check = [&] {
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const auto arrival = barrier.arrive();
    const auto soon = [] { return steady_clock::now() + milliseconds(1); };
    EXPECT_FALSE(barrier.wait_for(stop, arrival, milliseconds(1)));
    EXPECT_FALSE(barrier.wait_until(stop, arrival, soon()));
    EXPECT_FALSE(barrier.wait_until(arrival, soon()));
    source.request_stop();
    EXPECT_FALSE(barrier.wait(stop, arrival));
    // Only one is missing.
    const auto second = barrier.arrive();
    barrier.wait(second);
    EXPECT_TRUE(barrier.wait(stop, arrival));
  };
  check();
  Fiber(check).join();
}

// The completion function may suspend: the others wait for it.
TEST_P(BarrierTest, CompletionMaySuspend) {
  int phases = 0;
  Event go;
  Barrier barrier(4, [&]() noexcept {
    go.Wait();
    this_fiber::SleepFor(std::chrono::microseconds(100));
    ++phases;
  });
  std::vector<Fiber> fibers;
  for (int i = 0; i < 4; ++i) {
    fibers.emplace_back([&] {
      barrier.arrive_and_wait();
      EXPECT_EQ(phases, 1);
    });
  }
  go.Set();
  for (Fiber& fiber : fibers) fiber.join();
}

TEST_P(BarrierDeathTest, TooManyArrivals) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH({ (void)Barrier(2).arrive(3); }, "3 arrive at a Barrier");
  EXPECT_DEATH({ (void)Barrier(0).arrive(); }, "0 are missing");
}

// Barriers that come and go, parties that drop out, waits that are cut short.
TEST_P(BarrierTest, Stress) {
  const std::int64_t end = NowNs() + testing::StressNs(100'000'000);
  for (int round = 0; NowNs() < end; ++round) {
    const int parties = round % 7 + 1;
    std::atomic<int> completions{0};
    struct Count {
      void operator()() noexcept { ++*completions; }
      std::atomic<int>* completions;
    };
    auto barrier =
        std::make_unique<Barrier<Count>>(parties, Count{&completions});
    std::vector<Fiber> fibers;
    for (int i = 0; i < parties; ++i) {
      fibers.emplace_back([&, i] {
        for (int phase = 1; phase <= 5 + i; ++phase) {
          const auto arrival = barrier->arrive();
          if ((phase + i) % 3 == 0) {
            if (!barrier->wait_for(arrival, std::chrono::microseconds(phase))) {
              barrier->wait(arrival);
            }
          } else {
            barrier->wait(arrival);
          }
          EXPECT_GE(completions.load(), phase);
        }
        barrier->arrive_and_drop();
      });
    }
    for (Fiber& fiber : fibers) fiber.join();
    barrier.reset();
    EXPECT_EQ(completions.load(), 5 + parties);
  }
}

}  // namespace
}  // namespace flare::fiber
