// Nobody waits for ever at a primitive that others take again as soon as they
// have given it back: fibers that hold it across a suspension, and threads.
// A waiter that is overtaken each time gets it when the others have given up,
// which is too late.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "flare/fiber/work_queue.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Takes something, holds it for a while, and takes it again at once, until
// somebody else was served.
class Hogs {
 public:
  Hogs(std::function<void()> take, std::function<void()> give)
      : take_(std::move(take)), give_(std::move(give)) {}
  ~Hogs() {
    served_ = true;
    for (Fiber& fiber : fibers_) fiber.join();
    // A fiber must not block its worker: the threads may wait for others.
    RunBlocking([&] {
      for (std::thread& thread : threads_) thread.join();
    });
  }

  void StartFibers(int count) {
    for (int i = 0; i < count; ++i) {
      fibers_.emplace_back([this] { Run(); });
    }
    while (!holds_) this_fiber::Yield();
  }
  void StartThread() {
    threads_.emplace_back([this] { Run(); });
    while (!holds_) this_fiber::Yield();
  }

  // The one that waited has it, while they still wanted it, too.
  bool WereStopped() {
    served_ = true;
    return releases_ < kMostReleases;
  }

 private:
  // Their attempts take at least half a second before they give up.
  static constexpr int kMostReleases = 5000;

  void Run() {
    while (!served_ && releases_ < kMostReleases) {
      take_();
      holds_ = true;
      this_fiber::SleepFor(microseconds(100));
      give_();
      ++releases_;
    }
  }

  const std::function<void()> take_;
  const std::function<void()> give_;
  std::atomic<bool> holds_{false};
  std::atomic<bool> served_{false};
  std::atomic<int> releases_{0};
  std::vector<Fiber> fibers_;
  std::vector<std::thread> threads_;
};

class StarvationTest : public testing::RuntimeTest {
 protected:
  // `wait` is served on a thread and on a fiber, with so many fibers about, and
  // with a thread. In one of a few attempts, as a waiter that has no CPU for
  // that long isn't served, either.
  static void ExpectServed(int hogs, const std::function<void()>& take,
                           const std::function<void()>& give,
                           const std::function<bool()>& wait) {
    for (const bool by_fibers : {true, false}) {
      OnBoth([&] {
        bool served = false;
        for (int i = 0; i != 5 && !served; ++i) {
          Hogs others(take, give);
          by_fibers ? others.StartFibers(hogs) : others.StartThread();
          EXPECT_TRUE(wait());
          served = others.WereStopped();
        }
        EXPECT_TRUE(served)
            << (IsFiberWorker() ? "a fiber" : "a thread") << " that waits for "
            << (by_fibers ? "fibers" : "a thread");
      });
    }
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(StarvationTest);

TEST_P(StarvationTest, Mutex) {
  Mutex mutex;
  std::stop_source never;
  const std::function<bool()> waits[] = {
      [&] { return mutex.lock(), true; },
      [&] { return mutex.try_lock_for(hours(1)); },
      [&] { return mutex.lock(never.get_token()); },
      [&] { return mutex.try_lock_for(never.get_token(), hours(1)); }};
  for (const auto& wait : waits) {
    for (const int hogs : {1, 3}) {
      ExpectServed(
          hogs, [&] { mutex.lock(); }, [&] { mutex.unlock(); },
          [&] {
            const bool got = wait();
            if (got) mutex.unlock();
            return got;
          });
    }
  }
}

// A wait that ends has to have the mutex again.
TEST_P(StarvationTest, ConditionVariableThatTimesOut) {
  Mutex mutex;
  ConditionVariable never;
  ExpectServed(
      1, [&] { mutex.lock(); }, [&] { mutex.unlock(); },
      [&] {
        std::unique_lock lock(mutex);
        return never.wait_for(lock, milliseconds(10)) ==
               std::cv_status::timeout;
      });
}

TEST_P(StarvationTest, ProducerAndConsumer) {
  Mutex mutex;
  ConditionVariable not_empty;
  std::deque<int> queue;
  ExpectServed(
      1, [&] { mutex.lock(); },
      [&] {
        queue.push_back(1);
        not_empty.notify_one();
        mutex.unlock();
      },
      [&] {
        for (int i = 0; i < 5; ++i) {
          std::unique_lock lock(mutex);
          not_empty.wait(lock, [&] { return !queue.empty(); });
          queue.pop_front();
        }
        return true;
      });
}

TEST_P(StarvationTest, SharedMutex) {
  SharedMutex mutex;
  const std::function<void()> write = [&] { mutex.lock(); };
  const std::function<void()> written = [&] { mutex.unlock(); };
  const std::function<void()> read = [&] { mutex.lock_shared(); };
  const std::function<void()> was_read = [&] { mutex.unlock_shared(); };
  const auto to_write = [&] {
    const bool got = mutex.try_lock_for(hours(1));
    if (got) mutex.unlock();
    return got;
  };
  const auto to_read = [&] {
    const bool got = mutex.try_lock_shared_for(hours(1));
    if (got) mutex.unlock_shared();
    return got;
  };
  ExpectServed(3, read, was_read, to_write);  // One of them reads always.
  ExpectServed(2, write, written, to_write);
  ExpectServed(2, write, written, to_read);
}

TEST_P(StarvationTest, Semaphore) {
  Semaphore semaphore(1);
  ExpectServed(
      2, [&] { semaphore.acquire(); }, [&] { semaphore.release(); },
      [&] {
        const bool got = semaphore.try_acquire_for(hours(1));
        if (got) semaphore.release();
        return got;
      });
}

// Those that don't wait in line don't get ahead of it, either.
TEST_P(StarvationTest, SemaphoreThatOthersTry) {
  Semaphore semaphore(1);
  ExpectServed(
      1,
      [&] {
        while (!semaphore.try_acquire()) this_fiber::Yield();
      },
      [&] { semaphore.release(); },
      [&] { return semaphore.acquire(), semaphore.release(), true; });
}

TEST_P(StarvationTest, ChannelSenders) {
  for (const std::size_t capacity : {0, 1}) {
    Channel<int> channel(capacity);
    Fiber receiver([&] {
      while (channel.Receive()) this_fiber::SleepFor(microseconds(50));
    });
    ExpectServed(
        3, [&] { static_cast<void>(channel.Send(1)); }, [] {},
        [&] { return channel.Send(2) == ChannelResult::kDone; });
    channel.Close();
    receiver.join();
  }
}

TEST_P(StarvationTest, ChannelReceivers) {
  for (const std::size_t capacity : {0, 1}) {
    Channel<int> channel(capacity);
    Fiber sender([&] {
      while (channel.Send(1) == ChannelResult::kDone) {
        this_fiber::SleepFor(microseconds(50));
      }
    });
    ExpectServed(
        3, [&] { static_cast<void>(channel.Receive()); }, [] {},
        [&] { return channel.Receive().has_value(); });
    channel.Close();
    sender.join();
  }
}

// A case of Select() that is always possible doesn't hide another one.
TEST_P(StarvationTest, CasesOfSelect) {
  OnBoth([] {
    Channel<int> always;
    Channel<int> too;
    always.Close();
    too.Close();
    int turns[2] = {};
    for (int i = 0; i < 1000; ++i) {
      std::optional<int> a;
      std::optional<int> b;
      ++turns[Select(always.Receiving(&a), too.Receiving(&b)).index];
    }
    EXPECT_GT(turns[0], 100);
    EXPECT_GT(turns[1], 100);
  });
}

// Closures that push their successors leave room for others, in the queue and
// on their worker.
TEST_P(StarvationTest, WorkQueue) {
  WorkQueue queue;
  std::atomic<bool> stop{false};
  std::function<void()> again = [&] {
    if (!stop) queue.Push(again);
  };
  queue.Push(again);
  Event pushed;
  queue.Push([&] { pushed.Set(); });
  EXPECT_TRUE(pushed.WaitFor(seconds(60)));
  Event ran;
  Spawn([&] { ran.Set(); });
  EXPECT_TRUE(ran.WaitFor(seconds(60)));
  stop = true;
  queue.Stop();
  queue.Join();
}

TEST_P(StarvationTest, TaskGroup) {
  std::atomic<bool> stop{false};
  TaskGroup endless;
  std::function<void()> again = [&] {
    if (!stop) endless.Spawn(again);
  };
  endless.Spawn(again);
  TaskGroup other;
  other.Spawn([] { this_fiber::Yield(); });
  EXPECT_TRUE(other.WaitFor(seconds(60)).ok());
  stop = true;
  EXPECT_TRUE(endless.Wait().ok());
}

// Timers that are always due hold up neither others nor tasks.
TEST_P(StarvationTest, Timers) {
  // A run may go on after the kill.
  const auto runs = std::make_shared<std::atomic<int>>(0);
  std::vector<TimerId> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(SetTimer(std::chrono::nanoseconds(1), [runs] { ++*runs; }));
  }
  Event fired;
  const TimerId once =
      SetTimer(ReadSteadyClock() + milliseconds(1), [&] { fired.Set(); });
  EXPECT_TRUE(fired.WaitFor(seconds(60)));
  Event ran;
  Spawn([&] { ran.Set(); });
  EXPECT_TRUE(ran.WaitFor(seconds(60)));
  for (const TimerId timer : busy) KillTimer(timer);
  KillTimer(once);
}

}  // namespace
}  // namespace flare::fiber
