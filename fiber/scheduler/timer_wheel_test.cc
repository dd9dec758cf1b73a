#include "flare/fiber/scheduler/timer_wheel.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kTick = std::int64_t{1} << TimerWheel::kTickShift;

struct Recorded : Timer {
  Recorded() : Timer([](Timer* t) { ++static_cast<Recorded*>(t)->fired; }) {}
  int fired = 0;
};

TEST(TimerWheelTest, FiresOnceAndNeverEarly) {
  TimerWheel wheel(0);
  Recorded timer;
  wheel.Arm(&timer, 10 * kTick);
  EXPECT_EQ(wheel.next_deadline(), 10 * kTick);
  EXPECT_EQ(wheel.Fire(10 * kTick - 1), 0U);
  EXPECT_EQ(timer.fired, 0);
  EXPECT_EQ(wheel.Fire(10 * kTick), 1U);
  EXPECT_EQ(timer.fired, 1);
  EXPECT_EQ(wheel.Fire(100 * kTick), 0U);
  EXPECT_EQ(wheel.next_deadline(), kNoDeadline);
}

TEST(TimerWheelTest, RoundsUpToATick) {
  TimerWheel wheel(0);
  Recorded timer;
  wheel.Arm(&timer, 5 * kTick + 1);
  EXPECT_EQ(wheel.Fire(6 * kTick - 1), 0U);
  EXPECT_EQ(wheel.Fire(6 * kTick), 1U);
}

TEST(TimerWheelTest, WhatIsPastFiresAtOnce) {
  TimerWheel wheel(1000 * kTick);
  Recorded past;
  Recorded negative;
  wheel.Arm(&past, 10 * kTick);
  wheel.Arm(&negative, -5);
  EXPECT_LE(wheel.next_deadline(), 1000 * kTick);
  EXPECT_EQ(wheel.Fire(1000 * kTick), 2U);
}

TEST(TimerWheelTest, CancelledDoesNotFire) {
  TimerWheel wheel(0);
  Recorded timer;
  wheel.Arm(&timer, 3 * kTick);
  EXPECT_TRUE(wheel.Cancel(&timer));
  EXPECT_FALSE(wheel.Cancel(&timer));
  EXPECT_EQ(wheel.Fire(10 * kTick), 0U);
  wheel.Arm(&timer, 20 * kTick);
  EXPECT_EQ(wheel.Fire(20 * kTick), 1U);
  EXPECT_FALSE(wheel.Cancel(&timer));
}

TEST(TimerWheelTest, FarthestDeadlinesAreKept) {
  TimerWheel wheel(0);
  Recorded never;
  Recorded year;
  const std::int64_t one_year = 365LL * 86400 * 1'000'000'000;
  wheel.Arm(&never, kNoDeadline);
  wheel.Arm(&year, one_year);
  EXPECT_EQ(wheel.Fire(one_year - kTick), 0U);
  EXPECT_EQ(wheel.Fire(one_year + kTick), 1U);
  EXPECT_EQ(year.fired, 1);
  for (int i = 2; i < 20; ++i) EXPECT_EQ(wheel.Fire(i * one_year), 0U);
  EXPECT_TRUE(wheel.Cancel(&never));
}

// ... from anywhere in the top level's turn.
TEST(TimerWheelTest, FarDeadlinesFromAnyStart) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    const auto start = static_cast<std::int64_t>(random() >> (3 + i % 30));
    TimerWheel wheel(start);
    Recorded never;
    Recorded far;
    Recorded soon;
    const std::int64_t three_years = 3 * 365LL * 86400 * 1'000'000'000;
    wheel.Arm(&never, kNoDeadline);
    wheel.Arm(&far, start + three_years);
    wheel.Arm(&soon, start + 10 * kTick);
    EXPECT_EQ(wheel.Fire(start + 11 * kTick), 1U);
    EXPECT_EQ(wheel.Fire(start + three_years - kTick), 0U);
    EXPECT_EQ(wheel.Fire(start + three_years + kTick), 1U);
    EXPECT_EQ(far.fired, 1);
    EXPECT_TRUE(wheel.Cancel(&never));
  }
}

TEST(TimerWheelTest, OutlivedByItsTimers) {
  Recorded timer;
  {
    TimerWheel wheel(0);
    wheel.Arm(&timer, 100 * kTick);
  }
  EXPECT_FALSE(CancelTimer(&timer));
}

TEST(TimerWheelTest, CallbackMayArmAgainOrFree) {
  static TimerWheel* wheel;
  static int left;
  TimerWheel w(0);
  wheel = &w;
  left = 3;
  Timer again([](Timer* timer) {
    if (--left > 0) wheel->Arm(timer, 0);
  });
  w.Arm(&again, kTick);
  // One that arms itself for the past fires once in each turn.
  for (int i = 2; i >= 0; --i) {
    EXPECT_EQ(w.Fire(kTick), 1U);
    EXPECT_EQ(left, i);
    if (i > 0) {
      EXPECT_LE(w.next_deadline(), kTick);
    }
  }
  EXPECT_EQ(w.next_deadline(), kNoDeadline);

  auto* const freed = new Timer([](Timer* timer) { delete timer; });
  w.Arm(freed, 5 * kTick);
  EXPECT_EQ(w.Fire(5 * kTick), 1U);
}

// Random arming, cancelling and advancing against a multimap: each timer fires
// in the first Fire() at or after its tick, none other does.
TEST(TimerWheelTest, BehavesLikeAMap) {
  std::mt19937_64 random(11);
  std::int64_t now = 123456789;
  TimerWheel wheel(now);
  std::vector<std::unique_ptr<Recorded>> timers;
  std::vector<std::int64_t> due(300, -1);  // -1: not armed.
  for (int i = 0; i < 300; ++i) timers.push_back(std::make_unique<Recorded>());
  for (int step = 0; step < flare::testing::Rounds(50000); ++step) {
    const std::size_t i = random() % timers.size();
    const int kind = static_cast<int>(random() % 10);
    if (kind < 6) {
      if (due[i] >= 0) {
        ASSERT_TRUE(wheel.Cancel(timers[i].get()));
        due[i] = -1;
      } else {
        // Spread over all levels.
        const auto delay =
            static_cast<std::int64_t>(random() >> (20 + random() % 40));
        due[i] = now + delay;
        wheel.Arm(timers[i].get(), due[i]);
      }
      continue;
    }
    now += static_cast<std::int64_t>(random() >> (22 + random() % 40));
    std::vector<bool> expected(timers.size());
    for (std::size_t k = 0; k < due.size(); ++k) {
      timers[k]->fired = 0;
      expected[k] = due[k] >= 0 && (due[k] + kTick - 1) / kTick <= now / kTick;
    }
    wheel.Fire(now);
    std::int64_t earliest = kNoDeadline;
    for (std::size_t k = 0; k < due.size(); ++k) {
      ASSERT_EQ(timers[k]->fired, expected[k] ? 1 : 0) << "timer " << k;
      if (expected[k]) due[k] = -1;
      if (due[k] >= 0) earliest = std::min(earliest, due[k] + kTick);
    }
    // A sleeper that goes by it is never late.
    ASSERT_LE(wheel.next_deadline(), earliest);
  }
  for (std::size_t k = 0; k < due.size(); ++k) {
    if (due[k] >= 0) {
      EXPECT_TRUE(wheel.Cancel(timers[k].get()));
    }
  }
}

// One thread fires, others arm and cancel their own timers: a timer that Cancel
// says it stopped never fires; one that it didn't has fired to the end.
TEST(TimerWheelTest, StressCancelAgainstFire) {
  TimerWheel wheel(0);
  std::atomic<std::int64_t> now{0};
  std::atomic<bool> done{false};
  std::thread firing([&] {
    while (!done.load()) wheel.Fire(now.fetch_add(kTick));
  });
  std::vector<std::thread> owners;
  for (int t = 0; t < 2; ++t) {
    owners.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 30000; ++i) {
        auto timer = std::make_unique<Recorded>();
        wheel.Arm(timer.get(), now.load() + (random() % 4) * kTick);
        for (unsigned k = random() % 200; k > 0; --k) CpuRelax();
        const bool cancelled = wheel.Cancel(timer.get());
        // Plain int: the cancel orders the callback before us.
        ASSERT_EQ(timer->fired, cancelled ? 0 : 1);
      }
    });
  }
  for (auto& owner : owners) owner.join();
  done.store(true);
  firing.join();
}

}  // namespace
}  // namespace flare::fiber
