// The primitives under all kinds of schedules: each test states an invariant
// for any order of events, and has it tried with many seeds. A deadlock or a
// lost wake-up ends the process with the seed that made it
// (testing/deterministic.h).
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <stop_token>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/fiber/async.h"
#include "flare/fiber/barrier.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/deterministic.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How many seeds: $FLARE_SCHEDULES, or 300.
const int kSchedules = [] {
  const char* const text = std::getenv("FLARE_SCHEDULES");
  const int count = text == nullptr ? 300 : std::atoi(text);
  CHECK_GT(count, 0) << "FLARE_SCHEDULES=" << text
                     << " must be a positive number";
  return count;
}();

void JoinAll(std::vector<Fiber>* fibers) {
  for (Fiber& fiber : *fibers) fiber.join();
}

// Some wait forever, some with time-outs, some can be stopped.
TEST(ScheduleExplorationTest, MutexExcludesAndIsPassedOn) {
  ExploreSchedules(kSchedules, [] {
    Mutex mutex;
    bool held = false;
    int entered = 0;
    std::stop_source stop;
    const auto enter = [&] {
      EXPECT_FALSE(held);
      held = true;
      ++entered;
      PreemptionPoint();
      this_fiber::SleepFor(microseconds(400));
      held = false;
      mutex.unlock();
    };
    std::vector<Fiber> fibers;
    int gave_up = 0;
    for (int i = 0; i < 3; ++i) {
      fibers.emplace_back([&] {
        mutex.lock();
        enter();
      });
      fibers.emplace_back([&, i] {
        mutex.try_lock_for(microseconds(400 * i)) ? enter() : void(++gave_up);
      });
      fibers.emplace_back(
          [&] { mutex.lock(stop.get_token()) ? enter() : void(++gave_up); });
    }
    this_fiber::SleepFor(microseconds(800));
    stop.request_stop();
    JoinAll(&fibers);
    EXPECT_EQ(entered + gave_up, 9);
    EXPECT_GE(entered, 3);
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  });
}

// A holder that locks again at once keeps nobody out for long, in whichever
// order they run; nor do others that wait, give up, and come again.
TEST(ScheduleExplorationTest, MutexIsHandedToThoseWhoWait) {
  ExploreSchedules(kSchedules, [] {
    constexpr int kMostHolds = 500;
    Mutex mutex;
    ConditionVariable never;
    bool held = false;
    bool hogs_on = true;
    int releases = 0;
    const auto hold = [&](std::chrono::nanoseconds length) {
      EXPECT_FALSE(std::exchange(held, true));
      this_fiber::SleepFor(length);
      held = false;
    };
    std::vector<Fiber> fibers;
    for (int i = 0; i < 2; ++i) {
      fibers.emplace_back([&, i] {
        while (hogs_on && releases < kMostHolds) {
          if (i == 0) {
            mutex.lock();
          } else if (!mutex.try_lock_for(microseconds(1200))) {
            continue;
          }
          hold(microseconds(100));
          mutex.unlock();
          ++releases;
        }
      });
    }
    std::vector<Fiber> waiters;
    waiters.emplace_back([&] {
      mutex.lock();
      hold(microseconds(10));
      mutex.unlock();
    });
    waiters.emplace_back([&] {
      EXPECT_TRUE(mutex.try_lock_for(std::chrono::hours(1)));
      hold(microseconds(10));
      mutex.unlock();
    });
    waiters.emplace_back([&] {
      std::unique_lock lock(mutex);
      never.wait_for(lock, microseconds(500));
      EXPECT_FALSE(held);
    });
    JoinAll(&waiters);
    hogs_on = false;
    EXPECT_LT(releases, 150);
    JoinAll(&fibers);
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  });
}

// Each notification wakes somebody who waited, also if time-outs come between.
TEST(ScheduleExplorationTest, ConditionVariableHandsOverAllItems) {
  ExploreSchedules(kSchedules, [] {
    constexpr int kItems = 6;
    Mutex mutex;
    ConditionVariable not_empty;
    std::deque<int> queue;
    std::multiset<int> taken;
    std::vector<Fiber> fibers;
    for (int i = 0; i < 3; ++i) {
      fibers.emplace_back([&, i] {
        for (int k = 0; k < kItems / 3; ++k) {
          std::unique_lock lock(mutex);
          if (i == 0) {
            while (!not_empty.wait_for(lock, microseconds(50),
                                       [&] { return !queue.empty(); })) {
            }
          } else {
            not_empty.wait(lock, [&] { return !queue.empty(); });
          }
          taken.insert(queue.front());
          queue.pop_front();
        }
      });
    }
    for (int i = 0; i < kItems; ++i) {
      {
        std::scoped_lock guard(mutex);
        queue.push_back(i);
      }
      not_empty.notify_one();
      if (i % 2 == 0) this_fiber::SleepFor(microseconds(50));
    }
    JoinAll(&fibers);
    EXPECT_EQ(taken, std::multiset<int>({0, 1, 2, 3, 4, 5}));
  });
}

// A permit is neither lost nor given twice when it meets a time-out.
TEST(ScheduleExplorationTest, SemaphoreKeepsCount) {
  ExploreSchedules(kSchedules, [] {
    Semaphore permits(2);
    int inside = 0;
    std::vector<Fiber> fibers;
    for (int i = 0; i < 6; ++i) {
      fibers.emplace_back([&, i] {
        for (int k = 0; k < 3; ++k) {
          if (i % 2 == 0) {
            permits.acquire();
          } else if (!permits.try_acquire_for(microseconds(100))) {
            continue;
          }
          EXPECT_LE(++inside, 2);
          this_fiber::SleepFor(microseconds(100));
          --inside;
          permits.release();
        }
      });
    }
    JoinAll(&fibers);
    EXPECT_TRUE(permits.try_acquire());
    EXPECT_TRUE(permits.try_acquire());
    EXPECT_FALSE(permits.try_acquire());
  });
}

TEST(ScheduleExplorationTest, EventsAndLatchesWakeEverybody) {
  ExploreSchedules(kSchedules, [] {
    Event event;
    Latch latch(3);
    int timed_out = 0;
    std::vector<Fiber> fibers;
    for (int i = 0; i < 3; ++i) {
      fibers.emplace_back([&, i] {
        if (!event.WaitFor(milliseconds(i))) ++timed_out;
        latch.count_down();
        event.Wait();
      });
    }
    fibers.emplace_back([&] {
      this_fiber::SleepFor(milliseconds(1));
      event.Set();
    });
    latch.wait();
    JoinAll(&fibers);
    EXPECT_GE(timed_out, 0);
    EXPECT_TRUE(event.WaitFor(milliseconds(0)));
  });
}

TEST(ScheduleExplorationTest, SharedMutexKeepsWritersAlone) {
  ExploreSchedules(kSchedules, [] {
    SharedMutex mutex;
    int readers = 0;
    int writers = 0;
    std::vector<Fiber> fibers;
    for (int i = 0; i < 3; ++i) {
      fibers.emplace_back([&] {
        std::shared_lock lock(mutex);
        ++readers;
        EXPECT_EQ(writers, 0);
        this_fiber::SleepFor(microseconds(50));
        EXPECT_EQ(writers, 0);
        --readers;
      });
      fibers.emplace_back([&, i] {
        std::unique_lock lock(mutex, std::defer_lock);
        if (i == 0) {
          lock.lock();
        } else if (!lock.try_lock_for(microseconds(100))) {
          return;
        }
        EXPECT_EQ(++writers, 1);
        EXPECT_EQ(readers, 0);
        this_fiber::SleepFor(microseconds(50));
        EXPECT_EQ(readers, 0);
        --writers;
      });
    }
    JoinAll(&fibers);
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  });
}

TEST(ScheduleExplorationTest, BarrierPhasesDontOverlap) {
  ExploreSchedules(kSchedules, [] {
    constexpr int kFibers = 3;
    int phase = 0;
    Barrier barrier(kFibers);
    int arrived[4] = {};
    std::vector<Fiber> fibers;
    for (int i = 0; i < kFibers; ++i) {
      fibers.emplace_back([&, i] {
        for (int k = 0; k < 4; ++k) {
          if (i == k % kFibers) this_fiber::SleepFor(microseconds(50));
          ++arrived[k];
          barrier.arrive_and_wait();
          EXPECT_EQ(arrived[k], kFibers);
          phase = k;
        }
      });
    }
    JoinAll(&fibers);
    EXPECT_EQ(phase, 3);
  });
}

// A timer that is killed around the time it is due runs at most once, and not
// at all after KillTimer().
TEST(ScheduleExplorationTest, KilledTimersStayDead) {
  ExploreSchedules(kSchedules, [] {
    int runs = 0;
    int periodic_runs = 0;
    bool killed = false;
    const TimerId once = SetTimer(ReadSteadyClock() + microseconds(500), [&] {
      EXPECT_FALSE(killed);
      ++runs;
    });
    const TimerId often = SetTimer(microseconds(100), [&] {
      ++periodic_runs;
      this_fiber::Yield();
    });
    this_fiber::SleepFor(microseconds(500));
    KillTimer(once);
    killed = true;
    KillTimer(often);
    const int until_killed = periodic_runs;
    this_fiber::SleepFor(milliseconds(5));
    EXPECT_LE(runs, 1);
    EXPECT_LE(periodic_runs, until_killed + 1);  // One may have been queued.
  });
}

TEST(ScheduleExplorationTest, JoinsWithLimitsLoseNobody) {
  ExploreSchedules(kSchedules, [] {
    bool ended = false;
    Fiber fiber([&] {
      this_fiber::SleepFor(milliseconds(1));
      ended = true;
    });
    if (!fiber.try_join_for(milliseconds(1))) fiber.join();
    EXPECT_TRUE(ended);
  });
}

TEST(ScheduleExplorationTest, FuturesMeetTimeOuts) {
  int in_time = 0;
  int late = 0;
  ExploreSchedules(kSchedules, [&] {
    Event gone;
    auto future = Async([&] {
      this_fiber::SleepFor(milliseconds(1));
      gone.Set();
      return std::make_unique<int>(5);
    });
    const auto value = BlockingTryGet(std::move(future), milliseconds(1));
    EXPECT_EQ(value ? **value : 5, 5);
    ++(value ? in_time : late);
    gone.Wait();  // A result that comes too late is dropped, by then.
  });
  EXPECT_GT(in_time, 0);
  EXPECT_GT(late, 0);
}

// The first failure stops the others, and nobody is left behind.
TEST(ScheduleExplorationTest, TaskGroupsEndWithAllTheirChildren) {
  ExploreSchedules(kSchedules, [] {
    int ended = 0;
    Status status;
    {
      TaskGroup group;
      for (int i = 0; i < 4; ++i) {
        group.Spawn([&](std::stop_token stop) {
          EXPECT_FALSE(this_fiber::SleepFor(stop, std::chrono::hours(1)));
          ++ended;
        });
      }
      group.Spawn([&]() -> Status {
        this_fiber::SleepFor(microseconds(100));
        ++ended;
        return Status(7, "broken");
      });
      if (group.Wait().code() == 7) ++ended;
    }
    EXPECT_EQ(ended, 6);
  });
}

// Senders, receivers, time-outs and the closing meet: each value that was sent
// is received or left in the channel, once.
TEST(ScheduleExplorationTest, ChannelsLoseNothing) {
  for (const int capacity : {0, 1, 3}) {
    ExploreSchedules(kSchedules, [capacity] {
      Channel<int> channel(static_cast<std::size_t>(capacity));
      std::multiset<int> sent;
      std::multiset<int> received;
      std::vector<Fiber> fibers;
      for (int i = 0; i < 3; ++i) {
        fibers.emplace_back([&, i] {
          for (int k = 0; k < 3; ++k) {
            const int value = 10 * i + k;
            const ChannelResult result =
                i == 0 ? channel.SendFor(value, microseconds(50))
                       : channel.Send(value);
            if (result == ChannelResult::kDone) sent.insert(value);
          }
        });
        fibers.emplace_back([&, i] {
          for (int k = 0; k < 3; ++k) {
            const auto value = i == 0 ? channel.ReceiveFor(microseconds(50))
                                      : channel.Receive();
            if (value) received.insert(*value);
          }
        });
      }
      this_fiber::SleepFor(milliseconds(1));
      channel.Close();
      JoinAll(&fibers);
      while (const auto value = channel.TryReceive()) received.insert(*value);
      EXPECT_EQ(sent, received);
    });
  }
}

// Explores Select(), which must do exactly one of its operations.
TEST(ScheduleExplorationTest, SelectDoesOneOperation) {
  ExploreSchedules(kSchedules, [] {
    Channel<int> left(0);
    Channel<int> right(1);
    int sent = 0;
    int received = 0;
    std::vector<Fiber> fibers;
    for (int i = 0; i < 2; ++i) {
      fibers.emplace_back([&] {
        for (int k = 0; k < 3; ++k) {
          int one = 1;
          int two = 1;
          if (SelectFor(microseconds(50), left.Sending(&one),
                        right.Sending(&two))
                  .result == ChannelResult::kDone) {
            ++sent;
          }
        }
      });
      fibers.emplace_back([&] {
        for (int k = 0; k < 3; ++k) {
          std::optional<int> one;
          std::optional<int> two;
          SelectFor(microseconds(50), left.Receiving(&one),
                    right.Receiving(&two));
          received += (one ? 1 : 0) + (two ? 1 : 0);
        }
      });
    }
    JoinAll(&fibers);
    while (right.TryReceive()) ++received;
    EXPECT_EQ(sent, received);
  });
}

}  // namespace
}  // namespace flare::fiber::testing
