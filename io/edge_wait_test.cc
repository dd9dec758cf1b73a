#include "flare/io/edge_wait.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

#include "flare/fiber/fiber.h"
#include "flare/fiber/task.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/testing/socket_waiters.h"
#include "flare/io/wait_limit.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using Outcome = EdgeWait::Outcome;

class EdgeWaitTest : public fiber::testing::RuntimeTest {
 protected:
  // A fiber that waits, once.
  Fiber Wait(const WaitLimit& limit = {}) {
    return Fiber([this, limit, seen = wait_.edges()] {
      outcome_ = wait_.Wait(seen, limit);
      ++done_;
    });
  }

  EdgeWait wait_;
  std::atomic<Outcome> outcome_{};
  std::atomic<int> done_{0};
};
FLARE_INSTANTIATE_RUNTIME_TEST(EdgeWaitTest);

TEST_P(EdgeWaitTest, AnEdgeThatNobodyWaitsForQueuesNothingAndIsntLost) {
  OnBoth([] {
    EdgeWait wait;
    const std::uint64_t seen = wait.edges();
    EXPECT_FALSE(wait.OnEdge());
    EXPECT_EQ(wait.Wait(seen, {}), Outcome::kEdge);
    EXPECT_EQ(wait.Wait(wait.edges(), WaitLimit(milliseconds(1))),
              Outcome::kTimedOut);
  });
}

TEST_P(EdgeWaitTest, AnEdgeWakesOneAndPassingOnTheNext) {
  Fiber first = Wait();
  ASSERT_TRUE(testing::SocketWaiters(1));
  Fiber second = Wait();
  ASSERT_TRUE(testing::SocketWaiters(2));
  ASSERT_TRUE(wait_.OnEdge());
  EXPECT_FALSE(wait_.OnEdge()) << "queued twice";
  wait_.WakeQueued();
  first.join();
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(outcome_, Outcome::kEdge);
  wait_.PassOn();
  second.join();
  EXPECT_EQ(done_, 2);
  wait_.PassOn();  // To nobody.
  EXPECT_FALSE(wait_.OnEdge()) << "for nobody";
}

// A queued task that finds nobody any more, and one after it.
TEST_P(EdgeWaitTest, WaitersThatGiveUpTakeNoEdgeAlong) {
  Wait(milliseconds(1)).join();
  EXPECT_EQ(outcome_, Outcome::kTimedOut);
  // Nobody has noticed yet that the list is empty.
  ASSERT_TRUE(wait_.OnEdge());
  wait_.WakeQueued();
  EXPECT_FALSE(wait_.OnEdge());
  Fiber waiter = Wait();
  ASSERT_TRUE(testing::SocketWaiters(1));
  ASSERT_TRUE(wait_.OnEdge());
  wait_.WakeQueued();
  waiter.join();
  EXPECT_EQ(outcome_, Outcome::kEdge);
}

TEST_P(EdgeWaitTest, AStopEndsAWait) {
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  Fiber waiter = Wait({stop, minutes(1)});
  ASSERT_TRUE(testing::SocketWaiters(1));
  source.request_stop();
  waiter.join();
  EXPECT_EQ(outcome_, Outcome::kStopped);
  EXPECT_EQ(wait_.Wait(wait_.edges(), WaitLimit(stop)), Outcome::kStopped);
}

TEST_P(EdgeWaitTest, CloseWakesAllForEver) {
  Fiber first = Wait();
  Fiber second = Wait();
  ASSERT_TRUE(testing::SocketWaiters(2));
  wait_.Close();
  first.join();
  second.join();
  OnBoth([&] { EXPECT_EQ(wait_.Wait(wait_.edges(), {}), Outcome::kClosed); });
}

// Takers of a stock that one poller fills, some of whom give up: none sleeps
// while there is stock.
TEST_P(EdgeWaitTest, StressNobodyWaitsForWhatIsThere) {
  constexpr int kTakers = 8;
  constexpr int kUnits = 4000;
  std::atomic<int> stock{0};
  std::atomic<int> taken{0};
  const auto try_take = [&] {
    int had = stock.load();
    while (had > 0 && !stock.compare_exchange_weak(had, had - 1)) continue;
    return had > 0;
  };
  const auto take = [&](int number) {
    for (int round = 0; taken.load() < kUnits; ++round) {
      const std::uint64_t seen = wait_.edges();
      if (try_take()) {
        if (taken.fetch_add(1) + 1 == kUnits) wait_.Close();
        wait_.PassOn();
        continue;
      }
      const bool patient = (number + round) % 4 != 0;
      const auto outcome =
          wait_.Wait(seen, patient ? WaitLimit()
                                   : WaitLimit(std::chrono::microseconds(50)));
      if (outcome == Outcome::kClosed) return;
    }
  };
  fiber::TaskGroup takers;
  for (int i = 0; i != kTakers; ++i) takers.Spawn([&, i] { take(i); });
  takers.Spawn([&] {
    for (int made = 0; made < kUnits; made += 2) {
      stock += 2;  // One edge for both.
      if (wait_.OnEdge()) fiber::Spawn([&] { wait_.WakeQueued(); });
      if (made % 64 == 0) this_fiber::Yield();
    }
  });
  EXPECT_TRUE(takers.WaitFor(minutes(1)).ok()) << taken << " taken, " << stock;
  wait_.Close();
  EXPECT_EQ(taken, kUnits);
}

}  // namespace
}  // namespace flare::io
