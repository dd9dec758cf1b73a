#include "flare/fiber/timer.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class TimerTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TimerTest);

// Runs timers that are due by now.
void RunWhatIsDue() {
  Event later;
  SetDetachedTimer(ReadSteadyClock() + milliseconds(1), [&] { later.Set(); });
  later.Wait();
}

struct Signalling : Timer {
  Signalling()
      : Timer([](Timer* t) {
          auto* const self = static_cast<Signalling*>(t);
          self->fired_at = NowNs();
          self->event.Set();
        }) {}
  std::int64_t fired_at = 0;
  Event event;
};

TEST_P(TimerTest, FiresAfterItsDeadlineFromAnyThread) {
  for (const bool on_fiber : {false, true}) {
    const auto check = [] {
      for (int us : {0, 100, 3000}) {
        Signalling timer;
        const std::int64_t deadline = NowNs() + us * 1000;
        ArmTimer(&timer, deadline);
        timer.event.Wait();
        EXPECT_GE(timer.fired_at, deadline - 1000);
        EXPECT_FALSE(CancelTimer(&timer));
      }
    };
    if (on_fiber) {
      Fiber(check).join();
    } else {
      check();
    }
  }
}

// A sleeping worker is told of a timer that is due before the end of its sleep.
TEST_P(TimerTest, EarlierTimerShortensTheSleep) {
  Signalling late;
  ArmTimer(&late, NowNs() + 3'600'000'000'000);
  Signalling soon;
  ArmTimer(&soon, NowNs() + 1'000'000);
  soon.event.Wait();
  EXPECT_TRUE(CancelTimer(&late));
  EXPECT_FALSE(late.event.IsSet());
}

TEST_P(TimerTest, CancelledByAnotherWorker) {
  for (int i = 0; i < 300; ++i) {
    auto timer = std::make_unique<Signalling>();
    Fiber([&] { ArmTimer(timer.get(), NowNs() + i % 30 * 5'000); }).join();
    Fiber([&] {
      const bool cancelled = CancelTimer(timer.get());
      EXPECT_NE(cancelled, timer->event.IsSet());
    }).join();
  }
}

TEST(TimerDeathTest, ACallbackThatCancelsItsTimer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto cancel_itself = [] {
    RuntimeOptions options;
    options.concurrency = 1;
    ASSERT_TRUE(StartRuntime(options).ok());
    Timer timer([](Timer* self) { CancelTimer(self); });
    ArmTimer(&timer, NowNs());
    std::this_thread::sleep_for(std::chrono::hours(1));
  };
  EXPECT_DEATH(cancel_itself(), "CancelTimer.. in the timer's own callback");
}

TEST_P(TimerTest, ClosureRunsOnAFiber) {
  Event done;
  const TimerId id = SetTimer(ReadSteadyClock() + milliseconds(1), [&] {
    EXPECT_TRUE(IsFiberWorker());
    this_fiber::Yield();  // May block.
    done.Set();
  });
  done.Wait();
  KillTimer(id);

  Event detached;
  SetDetachedTimer(ReadSteadyClock(), [&] { detached.Set(); });
  detached.Wait();
}

TEST_P(TimerTest, KilledBeforeItsTimeNeverRuns) {
  auto guard = std::make_shared<int>(0);
  const TimerId id = SetTimer(ReadSteadyClock() + std::chrono::hours(1),
                              [guard] { FAIL() << "killed"; });
  EXPECT_EQ(guard.use_count(), 2);
  KillTimer(id);
  EXPECT_EQ(guard.use_count(), 1);  // The closure is gone, too.
}

TEST_P(TimerTest, PeriodicRunsDoNotOverlapAndEnd) {
  // A run may go on after the kill, and after the test.
  struct State {
    std::atomic<int> runs{0};
    std::atomic<bool> running{false};
    Latch five{5};
  };
  const auto state = std::make_shared<State>();
  const TimerId id = SetTimer(microseconds(100), [state] {
    EXPECT_FALSE(state->running.exchange(true));
    this_fiber::SleepFor(microseconds(300));  // Longer than the interval.
    state->running.store(false);
    if (state->runs.fetch_add(1) < 5) state->five.count_down();
  });
  state->five.wait();
  KillTimer(id);
  // One that had started may still finish; no further one starts.
  const std::int64_t give_up = NowNs() + 30'000'000'000;
  while (state->running.load() && NowNs() < give_up) {
    std::this_thread::yield();
  }
  const int at_end = state->runs.load();
  // By the time a later timer has fired, several more would have been due.
  Signalling later;
  ArmTimer(&later, NowNs() + 2'000'000);
  later.event.Wait();
  EXPECT_LE(state->runs.load(), at_end + 1);
}

// Kill and run meet: the later of them frees the timer.
TEST_P(TimerTest, KilledWhileItIsDue) {
  for (int i = 0; i < 500; ++i) {
    // A run that has started may go on after the kill.
    const auto runs = std::make_shared<std::atomic<int>>(0);
    Fiber([&] {
      const TimerId id =
          SetTimer(ReadSteadyClock(), [runs] { runs->fetch_add(1); });
      for (int k = i % 20; k > 0; --k) this_fiber::Yield();
      KillTimer(id);
    }).join();
    EXPECT_LE(runs->load(), 1);
  }
}

TEST_P(TimerTest, SetAndKilledByAnyone) {
  // Set by a fiber, killed by a thread, and the other way round.
  TimerId id = 0;
  Event runs;
  Fiber([&] {
    id = SetTimer(ReadSteadyClock() - milliseconds(1), [&] { runs.Set(); });
  }).join();
  runs.Wait();
  KillTimer(id);
  const auto guard = std::make_shared<int>(0);
  id = SetTimer(std::chrono::hours(1), [guard] { FAIL(); });
  Fiber([&] { KillTimer(id); }).join();
  EXPECT_EQ(guard.use_count(), 1);
}

TEST_P(TimerTest, DetachedOneShotFires) {
  Event fired;
  DetachTimer(
      SetTimer(ReadSteadyClock() + milliseconds(1), [&] { fired.Set(); }));
  fired.Wait();
  // The closure is gone after the run though nobody kills the timer.
  const auto guard = std::make_shared<int>(0);
  Event again;
  SetDetachedTimer(ReadSteadyClock(), [&again, guard] { again.Set(); });
  again.Wait();
  const std::int64_t give_up = NowNs() + 10'000'000'000;
  while (guard.use_count() != 1 && NowNs() < give_up) this_fiber::Yield();
  EXPECT_EQ(guard.use_count(), 1);
}

// The first run isn't before its time, and run k not before k intervals later;
// turns that come while a run goes on are skipped.
TEST_P(TimerTest, PeriodicRunsKeepTheirTime) {
  constexpr std::int64_t kInterval = 1'000'000;
  constexpr std::size_t kRuns = 8;
  // A run may go on after the kill.
  struct State {
    std::vector<std::int64_t> at;
    Latch done{kRuns};
  };
  const auto state = std::make_shared<State>();
  const auto start = ReadSteadyClock() + milliseconds(2);
  const TimerId id =
      SetTimer(start, std::chrono::nanoseconds(kInterval), [state] {
        if (state->at.size() >= kRuns) return;
        state->at.push_back(NowNs());
        if (state->at.size() == 3) this_fiber::SleepFor(microseconds(2500));
        state->done.count_down();
      });
  state->done.wait();
  KillTimer(id);
  for (std::size_t k = 0; k < kRuns; ++k) {
    const std::int64_t turn =
        ToSteadyNs(start) + static_cast<std::int64_t>(k) * kInterval;
    EXPECT_GE(state->at[k], turn - 1000) << k;  // Clocks: base/clock.h.
  }
  // The third took two and a half turns.
  EXPECT_GE(state->at[3], state->at[2] + 2'499'000);
}

TEST_P(TimerTest, PeriodicTimersOfManyFibers) {
  constexpr int kTimers = 20;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kTimers; ++i) {
    fibers.emplace_back([i] {
      // Outlives a run that the kill doesn't wait for.
      const auto latch = std::make_shared<Latch>(3);
      const auto runs = std::make_shared<std::atomic<int>>(0);
      const TimerId id = SetTimer(microseconds(50 + i), [=] {
        if (runs->fetch_add(1) < 3) latch->count_down();
      });
      latch->wait();
      KillTimer(id);
      EXPECT_GE(runs->load(), 3);
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

// An interval beyond the range of deadlines means never, not at once.
TEST_P(TimerTest, EndlessIntervals) {
  constexpr auto kEndless = std::chrono::nanoseconds::max();
  std::atomic<int> late{0};
  std::atomic<int> once{0};
  Event ran;
  const TimerId never = SetTimer(kEndless, [&] { late.fetch_add(1); });
  const TimerId first =
      SetTimer(std::chrono::steady_clock::now(), kEndless, [&] {
        once.fetch_add(1);
        ran.Set();
      });
  ran.Wait();
  RunWhatIsDue();
  KillTimer(never);
  KillTimer(first);
  EXPECT_EQ(late.load(), 0);
  EXPECT_EQ(once.load(), 1);
}

// A first time that is long over is one run, not one for each turn since.
TEST_P(TimerTest, PeriodicFromLongAgo) {
  for (const auto at : {std::chrono::steady_clock::time_point::min(),
                        std::chrono::steady_clock::time_point()}) {
    std::atomic<int> runs{0};
    Event ran;
    const TimerId id = SetTimer(at, std::chrono::hours(1'000'000), [&] {
      runs.fetch_add(1);
      ran.Set();
    });
    ran.Wait();
    RunWhatIsDue();
    KillTimer(id);
    EXPECT_EQ(runs.load(), 1);
  }
}

TEST(TimerDeathTest, ZeroIsNoTimer) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(KillTimer(0), "0 is no timer's id");
  EXPECT_DEATH(DetachTimer(0), "0 is no timer's id");
}

TEST(TimerDeathTest, PeriodsMustBeLongerThanZero) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(SetTimer(std::chrono::nanoseconds(0), [] {}),
               "interval of a periodic timer");
  EXPECT_DEATH(SetTimer(ReadSteadyClock(), milliseconds(-1), [] {}),
               "interval of a periodic timer");
}

TEST(TimerLifeTest, MayOutliveTheRuntime) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  auto guard = std::make_shared<int>(0);
  const TimerId id =
      SetTimer(ReadSteadyClock() + std::chrono::hours(1), [guard] {});
  Signalling timer;
  ArmTimer(&timer, NowNs() + 3'600'000'000'000);
  TerminateRuntime();
  KillTimer(id);
  EXPECT_EQ(guard.use_count(), 1);
  EXPECT_FALSE(CancelTimer(&timer));
}

// Ids are good for the next runtime, too: of timers that have fired, whose
// wheels are gone, and of those that were waiting.
TEST(TimerLifeTest, KilledInTheNextRuntime) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto guard = std::make_shared<int>(0);
  const TimerId fired = SetTimer(ReadSteadyClock(), [guard] {});
  const TimerId waiting = SetTimer(std::chrono::hours(1), [guard] {});
  RunWhatIsDue();
  TerminateRuntime();
  ASSERT_TRUE(StartRuntime(options).ok());
  KillTimer(fired);
  KillTimer(waiting);
  EXPECT_EQ(guard.use_count(), 1);
  TerminateRuntime();
}

// Nobody has their ids: their contents go with the runtime. It may end other
// timers.
TEST(TimerLifeTest, DetachedTimersEndWithTheRuntime) {
  RuntimeOptions options;
  options.concurrency = 2;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto guard = std::make_shared<int>(0);
  SetDetachedTimer(ReadSteadyClock() + std::chrono::hours(1), [guard] {});
  DetachTimer(SetTimer(std::chrono::hours(1), [guard] {}));
  for (int i = 0; i < 10; ++i) {
    const TimerId other = SetTimer(std::chrono::hours(1), [guard] {});
    const std::shared_ptr<void> kills(nullptr,
                                      [other](void*) { KillTimer(other); });
    SetDetachedTimer(ReadSteadyClock() + std::chrono::hours(1), [kills] {});
  }
  EXPECT_EQ(guard.use_count(), 13);
  TerminateRuntime();
  EXPECT_EQ(guard.use_count(), 1);
}

// They are always due, and keep a worker busy.
TEST(TimerLifeTest, PeriodicTimersDoNotHoldUpTheEnd) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto guard = std::make_shared<int>(0);
  const std::int64_t patience = NowNs() + 30'000'000'000;
  const auto run = [guard, patience] {
    const std::int64_t end = NowNs() + 100'000;
    while (NowNs() < end && end < patience) {
    }
  };
  for (int i = 0; i < 8; ++i) {
    DetachTimer(SetTimer(std::chrono::microseconds(1), run));
  }
  const TimerId kept = SetTimer(std::chrono::microseconds(1), run);
  RunWhatIsDue();
  TerminateRuntime();
  EXPECT_LT(NowNs(), patience);
  EXPECT_EQ(guard.use_count(), 3);  // Ours, and those of `run` and `kept`.
  KillTimer(kept);
  EXPECT_EQ(guard.use_count(), 2);
}

// It is told its id, and may be gone before SetTimer() returns.
TEST_P(TimerTest, KillsItselfByTheIdItIsGiven) {
  OnBoth([] {
    for (int i = 0; i < 100; ++i) {
      const auto given = std::make_shared<std::atomic<TimerId>>(0);
      const auto guard = std::make_shared<int>(0);
      Event killed;
      const auto kill = [&killed, given, guard](TimerId id) {
        EXPECT_EQ(given->exchange(id), 0u) << "a run after the kill";
        KillTimer(id);
        killed.Set();
      };
      const TimerId id =
          i % 3 == 0   ? SetTimer(ReadSteadyClock(), kill)
          : i % 3 == 1 ? SetTimer(ReadSteadyClock(), microseconds(1), kill)
                       : SetTimer(microseconds(20), kill);
      killed.Wait();
      EXPECT_EQ(given->load(), id);
      // The timer gives up its closure: ours is left, and that in `kill`.
      const std::int64_t patience = NowNs() + 60'000'000'000;
      while (guard.use_count() != 2 && NowNs() < patience) this_fiber::Yield();
      EXPECT_EQ(guard.use_count(), 2);
    }
  });
}

// Killing from inside the timer's own run.
TEST_P(TimerTest, KillsItself) {
  std::atomic<TimerId> id{0};
  std::atomic<int> runs{0};
  Event killed;
  id = SetTimer(ReadSteadyClock() + milliseconds(5), microseconds(50), [&] {
    while (id.load() == 0) this_fiber::Yield();
    runs.fetch_add(1);
    KillTimer(id.load());
    killed.Set();
  });
  killed.Wait();
  EXPECT_EQ(runs.load(), 1);
}

}  // namespace
}  // namespace flare::fiber
