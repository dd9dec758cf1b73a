// The second thread that waits for events: by itself, and as a worker of a
// running group whose tasks block their threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/epoll_wait.h"
#include "flare/io/testing/event_source.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::EventSource;

// The parameter: for how long Poll() looks before it sleeps.
class StandbyTest : public ::testing::TestWithParam<std::chrono::microseconds> {
 protected:
  void SetUp() override {
    auto poller = EpollPoller::Create({.spin = GetParam()});
    ASSERT_TRUE(poller.has_value()) << poller.error().message();
    poller_ = std::move(*poller);
    source_ = MakeRefCounted<EventSource>(&task_);
    ASSERT_TRUE(poller_->Register(source_.Get()).ok());
    EXPECT_EQ(Poll(0), 1U);
  }
  void TearDown() override {
    if (standby_.joinable()) standby_.join();
    poller_->Retire(source_.Get());
  }

  std::size_t Poll(std::int64_t deadline_ns) {
    fiber::TaskList ready;
    poller_->Poll(deadline_ns, &ready);
    return ready.size();
  }

  void StartStandby(std::int64_t deadline_ns = kNoDeadline) {
    standby_ = std::thread([this, deadline_ns] {
      poller_->StandBy(deadline_ns);
      returned_.store(true);
    });
  }

  // Until a Poll() that waits has found the standby there.
  void PollUntilAlert() {
    do {
      source_->Touch();
      EXPECT_EQ(Poll(kNoDeadline), 1U);
    } while (!poller_->standby_is_alert());
  }

  std::unique_ptr<EpollPoller> poller_;
  fiber::Task task_;
  RefPtr<EventSource> source_;
  std::thread standby_;
  std::atomic<bool> returned_{false};
};

INSTANTIATE_TEST_SUITE_P(Spin, StandbyTest,
                         ::testing::Values(std::chrono::microseconds(0),
                                           std::chrono::microseconds(200)));

TEST_P(StandbyTest, TakesOverWhileNobodyWaitsInPoll) {
  StartStandby();
  PollUntilAlert();
  EXPECT_FALSE(returned_.load());
  source_->Touch();  // And nobody comes back to Poll().
  standby_.join();
  EXPECT_FALSE(poller_->standby_is_alert());
  EXPECT_EQ(Poll(0), 1U);  // It has left the event there.
}

TEST_P(StandbyTest, LeavesEventsToWhoWaitsInPoll) {
  StartStandby();
  PollUntilAlert();
  for (int i = 0; i < 100; ++i) {
    std::thread event([this] {
      while (poller_->standby_is_alert()) std::this_thread::yield();
      source_->Touch();
    });
    EXPECT_EQ(Poll(kNoDeadline), 1U);
    event.join();
    // Again: it would not be if it had returned.
    ASSERT_TRUE(poller_->standby_is_alert());
  }
  EXPECT_FALSE(returned_.load());
  poller_->WakeStandby();
}

TEST_P(StandbyTest, LooksBetweenTasksLeaveItAlert) {
  StartStandby();
  PollUntilAlert();
  EXPECT_EQ(Poll(0), 0U);
  EXPECT_TRUE(poller_->standby_is_alert());
  poller_->WakeStandby();
}

TEST_P(StandbyTest, IsWokenAlsoBeforeItSleeps) {
  poller_->WakeStandby();
  StartStandby();
  standby_.join();
  EXPECT_EQ(Poll(0), 0U);  // For Poll() that is no event.
}

TEST_P(StandbyTest, HasADeadline) {
  const std::int64_t deadline = NowNs() + 2'000'000;
  StartStandby(deadline);
  standby_.join();
  EXPECT_GE(NowNs(), deadline - 2000);
}

TEST_P(StandbyTest, IsNotAlertIfNobodyStandsBy) {
  source_->Touch();
  EXPECT_EQ(Poll(kNoDeadline), 1U);
  EXPECT_FALSE(poller_->standby_is_alert());
}

// Blocks its thread until the other one has run.
struct Blocker : fiber::Task {
  std::atomic<int> begun{0};
  std::atomic<int> released{0};
  // Atomic for ThreadSanitizer, which doesn't know that an event follows its
  // cause.
  std::atomic<fiber::Event*> ended{nullptr};
};
// Waits in its thread until `released` is more than the number of times that it
// has run before.
void Block(fiber::Task* task) {
  auto* const self = static_cast<Blocker*>(task);
  const int round = self->begun.fetch_add(1);
  self->begun.notify_one();
  self->released.wait(round);
  self->ended.load()->Set();
}
struct Releaser : fiber::Task {
  Blocker* blocker = nullptr;
};

// So that for the workers one task isn't worth waking anybody: only blocked
// threads are the exception. Runs until one of them polls and the other one
// stands by, which may have gone to sleep before that was wanted.
void RunShortTasks() {
  constexpr int kTasks = 1000;
  constexpr int kLooks = 10'000;  // While they go to sleep.
  const fiber::SchedulingGroup& group = *fiber::GetGroup(0);
  const EpollPoller& poller = *EpollPoller::OfGroup(0);
  for (;;) {
    fiber::Latch ran(kTasks);
    for (int i = 0; i < kTasks; ++i) fiber::Spawn([&ran] { ran.count_down(); });
    ran.wait();
    for (int i = 0; i < kLooks; ++i) {
      if (group.idle_mask() == group.all_idle_mask() && poller.has_standby()) {
        return;
      }
      std::this_thread::yield();
    }
  }
}

// Round by round an event whose task blocks its thread, and another one that
// ends it.
std::uint64_t WatchWakesInRounds(std::uint64_t rounds) {
  fiber::RuntimeOptions options;
  options.concurrency = 2;
  options.reserve_workers = 0;  // These two, or the first may not be back.
  options.make_poller = EpollPoller::Factory();
  EXPECT_TRUE(fiber::StartRuntime(options).ok());
  // As the watch does after 200 us, for which these tasks don't block.
  fiber::GetGroup(0)->WantStandby(kNoDeadline);

  Blocker blocker;
  blocker.run = Block;
  Releaser releaser;
  releaser.blocker = &blocker;
  releaser.run = [](fiber::Task* task) {
    std::atomic<int>& released =
        static_cast<Releaser*>(task)->blocker->released;
    released.fetch_add(1);
    released.notify_one();
  };
  auto first = MakeRefCounted<EventSource>(&blocker);
  auto second = MakeRefCounted<EventSource>(&releaser);
  for (int round = 0; round < static_cast<int>(rounds); ++round) {
    RunShortTasks();
    fiber::Event ended;
    blocker.ended.store(&ended);
    if (round == 0) {  // That makes an event of each.
      EXPECT_TRUE(EpollPoller::OfGroup(0)->Register(first.Get()).ok());
      blocker.begun.wait(0);
      EXPECT_TRUE(EpollPoller::OfGroup(0)->Register(second.Get()).ok());
    } else {
      first->Touch();
      blocker.begun.wait(round);
      second->Touch();
    }
    ended.Wait();
  }
  EpollPoller::OfGroup(0)->Retire(first.Get());
  EpollPoller::OfGroup(0)->Retire(second.Get());
  testing::DrainPollers();
  const std::uint64_t wakes = fiber::GetRuntimeStatistics().watch_wakes;
  fiber::TerminateRuntime();
  return wakes;
}

// The best of several: on a crowded machine a worker may lose its CPU just
// before it stands by.
TEST(StandbyInRuntimeTest, TheNextEventDoesntWaitForTheWatch) {
  constexpr std::uint64_t kRounds = 200;
  std::uint64_t least = kRounds;
  for (int i = 0; i < 10 && least >= kRounds / 4; ++i) {
    least = std::min(least, WatchWakesInRounds(kRounds));
  }
  EXPECT_LT(least, kRounds / 4);
}

struct Ticker : fiber::Task {
  std::atomic<int> ticks{0};
};

// One worker is blocked, the second has been woken in its place: it has the
// third stand by.
TEST(StandbyInRuntimeTest, AnotherOneTakesItsPlaceWithoutTheWatch) {
  fiber::RuntimeOptions options;
  options.concurrency = 3;
  options.reserve_workers = 0;
  options.watch_period = std::chrono::nanoseconds(0);
  options.make_poller = EpollPoller::Factory();
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  fiber::GetGroup(0)->WantStandby(kNoDeadline);
  EpollPoller* const poller = EpollPoller::OfGroup(0);
  RunShortTasks();

  fiber::Event ended;
  Blocker blocker;
  blocker.ended.store(&ended);
  blocker.run = Block;
  Ticker ticker;
  ticker.run = [](fiber::Task* task) {
    auto* const self = static_cast<Ticker*>(task);
    self->ticks.fetch_add(1);
    self->ticks.notify_one();
  };
  auto blocks = MakeRefCounted<EventSource>(&blocker);
  auto ticks = MakeRefCounted<EventSource>(&ticker);
  ASSERT_TRUE(poller->Register(blocks.Get()).ok());
  blocker.begun.wait(0);
  ASSERT_TRUE(poller->Register(ticks.Get()).ok());
  ticker.ticks.wait(0);
  // The first one asleep again may be the one that stands by.
  for (int n = 1; fiber::GetRuntimeStatistics().blocked_workers == 0 ||
                  !poller->has_standby();
       ++n) {
    ticks->Touch();
    ticker.ticks.wait(n);
  }
  blocker.released.store(1);
  blocker.released.notify_one();
  ended.Wait();
  poller->Retire(blocks.Get());
  poller->Retire(ticks.Get());
  testing::DrainPollers();
  fiber::TerminateRuntime();
}

// One that is idle stands by for the one that polls, without an event; sooner
// or later, as the watch finds each blocked thread once. If none is, the watch
// starts one. The parameters: workers, and tasks that block their threads.
class StandbyWhileBlockedTest
    : public ::testing::TestWithParam<std::pair<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Numbers, StandbyWhileBlockedTest,
                         ::testing::Values(std::pair(3, 1), std::pair(2, 1),
                                           std::pair(2, 3)));

TEST_P(StandbyWhileBlockedTest, IsWanted) {
  const auto [workers, blocked] = GetParam();
  fiber::RuntimeOptions options;
  options.concurrency = workers;
  options.make_poller = EpollPoller::Factory();
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  EXPECT_FALSE(fiber::GetGroup(0)->LacksStandby(NowNs()));
  bool stands_by = false;
  while (!stands_by) {
    std::atomic<bool> stop{false};
    fiber::Latch begun(blocked);
    fiber::Latch ended(blocked);
    for (int i = 0; i < blocked; ++i) {
      fiber::Spawn([&] {
        begun.count_down();
        stop.wait(false);
        ended.count_down();
      });
    }
    begun.wait();
    const std::int64_t enough = NowNs() + 20'000'000;
    while (!stands_by && NowNs() < enough) {
      std::this_thread::yield();
      stands_by = EpollPoller::OfGroup(0)->has_standby();
    }
    stop.store(true);
    stop.notify_all();
    ended.wait();
  }
  fiber::TerminateRuntime();
}

}  // namespace
}  // namespace flare::io
