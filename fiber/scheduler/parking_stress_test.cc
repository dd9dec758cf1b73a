// Workers that are put to sleep and woken all the time, from all sides: plain
// threads, other groups, timers and a poller. A lost wake-up hangs the test.
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/injection_queue.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// A replacement for epoll: tasks "arrive" from any thread. Some of them rouse
// the standby, whether or not somebody is in Poll().
class FakePoller : public Poller {
 public:
  ~FakePoller() override { EXPECT_FALSE(inside_.load()); }

  bool can_stand_by() const noexcept override { return true; }

  void StandBy(std::int64_t deadline_ns) override {
    EXPECT_FALSE(standing_by_.exchange(true)) << "two threads stand by";
    stood_by_.store(true);
    while (standby_word_.exchange(0) == 0 && NowNs() < deadline_ns) {
      FutexWait(&standby_word_, 0, deadline_ns);
    }
    standing_by_.store(false);
  }

  void WakeStandby() override {
    standby_word_.store(1);
    FutexWake(&standby_word_, 1);
  }

  // Has anybody ever?
  bool stood_by() const { return stood_by_.load(); }

  void Poll(std::int64_t deadline_ns, TaskList* ready) override {
    EXPECT_FALSE(inside_.exchange(true)) << "two threads in one poller";
    for (;;) {
      // acquire: pairs with the release in Arrive and Wake.
      const std::uint32_t seen = changes_.load(std::memory_order_acquire);
      TaskList arrived = arrivals_.Take(1000);
      const bool any = !arrived.empty();
      ready->TakeAll(&arrived);
      if (any || woken_.exchange(false) || deadline_ns <= NowNs()) break;
      FutexWait(&changes_, seen, deadline_ns);
    }
    inside_.store(false);
  }

  void Wake() override {
    woken_.store(true);
    Change();
  }

  void Arrive(Task* task) {
    arrivals_.Push(task);
    if (arrived_.fetch_add(1) % 4 == 0) WakeStandby();
    Change();
  }

 private:
  void Change() {
    // release: pairs with the acquire in Poll.
    changes_.fetch_add(1, std::memory_order_release);
    FutexWake(&changes_, 1);
  }

  InjectionQueue arrivals_;
  std::atomic<std::uint32_t> changes_{0};
  std::atomic<bool> woken_{false};
  std::atomic<bool> inside_{false};
  std::atomic<unsigned> arrived_{0};
  std::atomic<std::uint32_t> standby_word_{0};
  std::atomic<bool> standing_by_{false};
  std::atomic<bool> stood_by_{false};
};

struct Shape {
  int workers;
  int group_size;
  bool standby = false;
};

class ParkingStressTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = GetParam().workers;
    options.group_size = GetParam().group_size;
    options.optimize_for = "compute-heavy";  // The readiest to wake.
    options.work_stealing_ratio = 1;
    options.make_poller = [](std::size_t) {
      return std::make_unique<FakePoller>();
    };
    ASSERT_TRUE(StartRuntime(options).ok());
    for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
      if (GetParam().standby) GetGroup(i)->WantStandby(kNoDeadline);
    }
  }
  void TearDown() override { TerminateRuntime(); }

  static FakePoller* PollerOf(std::size_t group) {
    return static_cast<FakePoller*>(GetPoller(group));
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, ParkingStressTest,
                         ::testing::Values(Shape{1, 1}, Shape{2, 2},
                                           Shape{4, 4}, Shape{4, 2},
                                           Shape{2, 2, true}, Shape{4, 4, true},
                                           Shape{4, 2, true}));

struct Arrival : Task {
  Latch* latch = nullptr;
};

// One at a time, so that everybody falls asleep in between.
TEST_P(ParkingStressTest, SingleEventsWakeSleepers) {
  const auto stood_by = [] {
    for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
      if (PollerOf(i)->stood_by()) return true;
    }
    return false;
  };
  // On a busy machine it takes more until somebody has stood by. Where there is
  // no standby the watch may ask for it, which isn't looked at.
  int i = 0;
  for (const std::int64_t end_ns = NowNs() + 20'000'000'000;
       i < 500 || (GetParam().standby && !stood_by() && NowNs() < end_ns);
       ++i) {
    Latch latch(1);
    Arrival arrival;
    arrival.latch = &latch;
    arrival.run = [](Task* task) {
      static_cast<Arrival*>(task)->latch->count_down();
    };
    const std::size_t group = i % GetSchedulingGroupCount();
    switch (i % 3) {
      case 0:
        PollerOf(group)->Arrive(&arrival);
        break;
      case 1:
        SubmitTo(group, &arrival);
        break;
      default:
        Submit(&arrival);
    }
    latch.wait();
  }
  EXPECT_TRUE(stood_by() || !GetParam().standby);
}

TEST_P(ParkingStressTest, ProducersOnAllSides) {
  constexpr int kEach = 3000;
  constexpr int kProducers = 3;
  Latch latch(kProducers * kEach);
  std::vector<std::vector<Arrival>> arrivals(kProducers);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    arrivals[p] = std::vector<Arrival>(kEach);
    producers.emplace_back([&, p] {
      std::mt19937 random(p);
      for (Arrival& arrival : arrivals[p]) {
        arrival.latch = &latch;
        arrival.run = [](Task* task) {
          auto* const self = static_cast<Arrival*>(task);
          if (reinterpret_cast<std::uintptr_t>(self) % 3 == 0) {
            this_fiber::Yield();
          }
          self->latch->count_down();
        };
        const std::size_t group = random() % GetSchedulingGroupCount();
        if (random() % 2 == 0) {
          PollerOf(group)->Arrive(&arrival);
        } else {
          SubmitTo(group, &arrival);
        }
        // Now and then long enough for workers to fall asleep.
        for (unsigned k = random() % 400; k > 0; --k) CpuRelax();
      }
    });
  }
  for (auto& producer : producers) producer.join();
  latch.wait();
}

// Fibers of different groups that wake each other in turn, with naps.
TEST_P(ParkingStressTest, PingPongAcrossGroups) {
  constexpr int kPairs = 8;
  constexpr int kRounds = 200;
  std::vector<Fiber> fibers;
  struct Ball {
    Event there;
    Event back;
  };
  std::vector<std::vector<Ball>> balls(kPairs);
  for (int p = 0; p < kPairs; ++p) {
    balls[p] = std::vector<Ball>(kRounds);
    Fiber::Attributes first;
    first.scheduling_group = p % GetSchedulingGroupCount();
    Fiber::Attributes second;
    second.scheduling_group = (p + 1) % GetSchedulingGroupCount();
    fibers.emplace_back(first, [&balls, p] {
      for (int i = 0; i < kRounds; ++i) {
        balls[p][i].there.Set();
        balls[p][i].back.Wait();
      }
    });
    fibers.emplace_back(second, [&balls, p] {
      for (int i = 0; i < kRounds; ++i) {
        balls[p][i].there.Wait();
        if (i % 10 == p) this_fiber::SleepFor(std::chrono::microseconds(30));
        balls[p][i].back.Set();
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

// Starting and stopping, with work left in the queues: all of it runs.
TEST(RuntimeLifeTest, StopsAfterWhatIsQueued) {
  for (int i = 0; i < 30; ++i) {
    RuntimeOptions options;
    options.concurrency = i % 4 + 1;
    options.group_size = i % 2 + 1;
    ASSERT_TRUE(StartRuntime(options).ok());
    std::atomic<int> ran{0};
    for (int k = 0; k < 200; ++k) {
      Spawn([&ran] {
        Spawn([&ran] { ran.fetch_add(1); });
        ran.fetch_add(1);
      });
    }
    TerminateRuntime();
    ASSERT_EQ(ran.load(), 400);
  }
}

// Tasks that last tasks hand to other groups, back and forth, run as well.
TEST(RuntimeLifeTest, StopsAfterWhatGroupsHandToEachOther) {
  struct Hop {
    static void Go(std::atomic<int>* hops, int left) {
      hops->fetch_add(1);
      if (left == 0) return;
      const std::size_t here = GetCurrentSchedulingGroupIndex();
      SpawnTo((here + 1) % GetSchedulingGroupCount(),
              [=] { Go(hops, left - 1); });
    }
  };
  for (int i = 0; i < 50; ++i) {
    RuntimeOptions options;
    options.concurrency = 4;
    options.group_size = i % 2 + 1;
    ASSERT_TRUE(StartRuntime(options).ok());
    std::atomic<int> hops{0};
    for (int k = 0; k < 3; ++k) Spawn([&] { Hop::Go(&hops, 50); });
    TerminateRuntime();
    ASSERT_EQ(hops.load(), 3 * 51);
  }
}

// A worker goes to sleep while the other is in the middle of short tasks, after
// both were busy for so long that the watch had nothing to watch: a task that
// the other one queues behind a long task still gets a helper.
TEST(WatchWakesTest, WhenAGroupBecomesPartlyIdle) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.optimize_for = "io-heavy";
  options.make_poller = [](std::size_t) {
    return std::make_unique<FakePoller>();
  };
  ASSERT_TRUE(StartRuntime(options).ok());
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> busy{true};
    std::atomic<int> started{0};
    std::atomic<bool> helped{false};
    Latch ended(2);
    const auto both_started = [&] {
      started.fetch_add(1);
      while (started.load() < 2) CpuRelax();
    };
    Spawn([&] {
      both_started();
      while (busy.load()) CpuRelax();
      ended.count_down();  // And goes to sleep.
    });
    Spawn([&] {
      both_started();
      const std::int64_t start = NowNs();
      while (NowNs() < start + 1'000'000) CpuRelax();
      busy.store(false);
      Spawn([&] { helped.store(true); });
      // Holds its thread until the one behind it has run.
      const std::int64_t give_up = NowNs() + 10'000'000'000;
      while (!helped.load() && NowNs() < give_up) CpuRelax();
      EXPECT_TRUE(helped.load());
      ended.count_down();
    });
    ended.wait();
  }
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
