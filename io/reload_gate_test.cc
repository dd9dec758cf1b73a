#include "flare/io/reload_gate.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>

#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using namespace std::chrono_literals;

void WaitFor(std::chrono::nanoseconds time) {
  const std::int64_t end_ns = NowNs() + ToNs(time);
  while (NowNs() < end_ns) continue;
}

class Looker : public std::enable_shared_from_this<Looker> {
 public:
  explicit Looker(std::chrono::nanoseconds interval) : gate_(interval) {}

  void LookIfDue() { gate_.LookIfDue(this, &Looker::Look); }
  int looks() const { return looks_; }

  std::shared_ptr<std::latch> hangs;

 private:
  void Look() {
    const int others = at_once_++;
    EXPECT_EQ(others, 0);
    ++looks_;
    if (hangs != nullptr) hangs->wait();
    --at_once_;
  }

  ReloadGate gate_;
  std::atomic<int> looks_{0};
  std::atomic<int> at_once_{0};
};

TEST(ReloadGateAlone, LooksAfterTheInterval) {
  constexpr std::chrono::microseconds kInterval(1);
  const auto looker = std::make_shared<Looker>(kInterval);
  for (int i = 1; i != 4; ++i) {
    WaitFor(kInterval);
    looker->LookIfDue();
    EXPECT_EQ(looker->looks(), i);
  }
}

TEST(ReloadGateAlone, LooksNeitherBeforeTheIntervalNorWithoutOne) {
  for (const std::chrono::nanoseconds interval : {3600s, 0s, -1s}) {
    const auto looker = std::make_shared<Looker>(interval);
    WaitFor(1us);
    looker->LookIfDue();
    EXPECT_EQ(looker->looks(), 0);
  }
}

TEST(ReloadGateAlone, WaitsForTheIntervalBetweenLooks) {
  constexpr std::chrono::milliseconds kInterval(100);
  const auto looker = std::make_shared<Looker>(kInterval);
  WaitFor(kInterval);
  const std::int64_t begin_ns = NowNs();
  while (looker->looks() != 2) looker->LookIfDue();
  EXPECT_GE(NowNs() - begin_ns, ToNs(kInterval));
}

class ReloadGateTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ReloadGateTest);

TEST_P(ReloadGateTest, CallersSeeTheLookThatTheyBegan) {
  // Again if a look got no CPU for as long as callers wait.
  const auto all_see_it = [] {
    bool in_time = true;
    Fiber([&] {
      const auto looker = std::make_shared<Looker>(1ns);
      for (int i = 1; i != 100 && in_time; ++i) {
        const std::int64_t begin_ns = NowNs();
        looker->LookIfDue();
        const int looks = looker->looks();
        in_time = NowNs() - begin_ns < 200 * kNsPerMs;
        EXPECT_TRUE(looks == i || !in_time) << looks << " of " << i;
      }
    }).join();
    return in_time;
  };
  EXPECT_TRUE(fiber::testing::Eventually(all_see_it));
}

// As on a network mount whose server is gone.
TEST_P(ReloadGateTest, NobodyWaitsLongForALookThatHangs) {
  const auto hangs = std::make_shared<std::latch>(1);
  auto looker = std::make_shared<Looker>(1ns);
  looker->hangs = hangs;
  const std::int64_t start_ns = NowNs();
  Fiber caller([&] {
    for (int i = 0; i != 100; ++i) looker->LookIfDue();
  });
  // Others work meanwhile, were there one worker.
  Fiber([] { this_fiber::Yield(); }).join();
  caller.join();
  // Had each of them waited, it were 20 s.
  EXPECT_LT(NowNs() - start_ns, 15 * kNsPerSecond);
  EXPECT_EQ(looker->looks(), 1);
  hangs->count_down();
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    looker->LookIfDue();
    return looker->looks() > 1;
  }));
  // The last look may outlive all others' references.
  looker.reset();
}

}  // namespace
}  // namespace flare::io
