// Everything at once, for as long as $FLARE_STRESS_SECONDS says (per test; well
// below a second without it): storms of tasks, time-outs that race with
// wake-ups, timers armed and cancelled by many threads, and runtimes that are
// started and stopped with work in their queues. Each thing that is set going
// is counted, and must have ended exactly once; a lost wake-up hangs the test.
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/random.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::microseconds;

constexpr std::int64_t kShort = 150'000'000;  // ns

// A sequence of random numbers of one fiber or thread.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(MixBits(seed)) {}
  std::uint64_t Below(std::uint64_t n) { return MixBits(seed_ + ++drawn_) % n; }

 private:
  const std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

// Runs `round(i)` until the time is over; at least twice.
template <class Round>
void Repeat(Round round) {
  const std::int64_t end = NowNs() + testing::StressNs(kShort);
  for (int i = 0; i < 2 || NowNs() < end; ++i) {
    round(i);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class RuntimeStressTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(RuntimeStressTest);

struct Counted : Task {
  std::atomic<int>* runs = nullptr;
  Latch* latch = nullptr;
};

void Count(Task* task) {
  auto* const self = static_cast<Counted*>(task);
  Latch* const latch = self->latch;
  self->runs->fetch_add(1);
  latch->count_down();
}

// Far more tasks than all queues hold, while all workers are held up: a push
// must return, whatever the state of the queues, and each task run once.
TEST_P(RuntimeStressTest, StormsOfTasksFromOutside) {
  Repeat([](int round) {
    constexpr int kThreads = 3;
    constexpr int kEach = 20'000;
    const auto workers =
        static_cast<int>(GetSchedulingGroupCount() * GetSchedulingGroupSize());
    std::atomic<bool> pushed{false};
    Latch released(workers);
    for (int i = 0; i < workers; ++i) {
      Spawn([&] {
        while (!pushed.load()) CpuRelax();
        released.count_down();
      });
    }
    std::vector<std::atomic<int>> runs(kThreads * kEach);
    std::vector<Counted> tasks(kThreads * kEach);
    Latch latch(kThreads * kEach);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Dice dice(static_cast<std::uint64_t>(round * kThreads + t));
        TaskList batch;
        for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
          tasks[i].run = &Count;
          tasks[i].runs = &runs[i];
          tasks[i].latch = &latch;
          switch (dice.Below(3)) {
            case 0:
              Submit(&tasks[i]);
              break;
            case 1:
              SubmitTo(dice.Below(GetSchedulingGroupCount()), &tasks[i]);
              break;
            default:
              batch.PushBack(&tasks[i]);
          }
          if (dice.Below(100) == 0) SubmitAll(std::exchange(batch, {}));
        }
        SubmitAll(std::move(batch));
      });
    }
    for (auto& thread : threads) thread.join();
    pushed.store(true);
    latch.wait();
    released.wait();
    for (const auto& each : runs) ASSERT_EQ(each.load(), 1);
  });
}

// Storms from a task, which overflows its worker's ring again and again.
TEST_P(RuntimeStressTest, StormsOfTasksFromWithin) {
  Repeat([](int) {
    constexpr int kTasks = 50'000;
    std::vector<std::atomic<int>> runs(kTasks);
    std::vector<Counted> tasks(kTasks);
    Latch latch(kTasks);
    Spawn([&] {
      for (int i = 0; i < kTasks; ++i) {
        tasks[i].run = &Count;
        tasks[i].runs = &runs[i];
        tasks[i].latch = &latch;
        Submit(&tasks[i]);
      }
    });
    latch.wait();
    for (const auto& each : runs) ASSERT_EQ(each.load(), 1);
  });
}

// Tasks that spawn tasks, some of which suspend: stealing, claiming and
// rescuing at the same time.
TEST_P(RuntimeStressTest, TreesOfTasks) {
  struct Tree {
    static void Grow(std::atomic<int>* nodes, Latch* leaves, int depth,
                     std::uint64_t seed) {
      nodes->fetch_add(1);
      Dice dice(seed);
      if (dice.Below(8) == 0) this_fiber::Yield();
      if (dice.Below(64) == 0) this_fiber::SleepFor(microseconds(20));
      if (dice.Below(256) == 0) {  // Holds its worker.
        const std::int64_t end = NowNs() + 300'000;
        while (NowNs() < end) CpuRelax();
      }
      if (depth == 0) return leaves->count_down();
      for (const std::uint64_t side : {1, 2}) {
        Spawn([=] { Grow(nodes, leaves, depth - 1, 2 * seed + side); });
      }
    }
  };
  Repeat([](int round) {
    constexpr int kDepth = 10;
    std::atomic<int> nodes{0};
    Latch leaves(1 << kDepth);
    Tree::Grow(&nodes, &leaves, kDepth, static_cast<std::uint64_t>(round));
    leaves.wait();
    ASSERT_EQ(nodes.load(), (2 << kDepth) - 1);
  });
}

// Wake-ups from fibers and threads that come about when the wait times out:
// each permit is either used or still there.
TEST_P(RuntimeStressTest, TimeOutsMeetWakeUps) {
  Repeat([](int round) {
    constexpr int kFibers = 20;
    constexpr int kPermits = 400;
    Semaphore permits(0);
    std::atomic<int> used{0};
    std::atomic<bool> done{false};
    std::vector<Fiber> fibers;
    for (int i = 0; i < kFibers; ++i) {
      fibers.emplace_back([&, i] {
        Dice dice(static_cast<std::uint64_t>(round * kFibers + i));
        while (!done.load()) {
          const auto limit = microseconds(dice.Below(60));
          if (permits.try_acquire_for(limit)) used.fetch_add(1);
        }
      });
    }
    Fiber inner([&] {
      for (int i = 0; i < kPermits; ++i) {
        permits.release();
        if (i % 4 == 0) this_fiber::SleepFor(microseconds(i % 64));
      }
    });
    std::thread outer([&] {
      for (int i = 0; i < kPermits; ++i) {
        permits.release();
        for (int k = 0; k < i % 50; ++k) CpuRelax();
      }
    });
    inner.join();
    outer.join();
    done.store(true);
    for (Fiber& fiber : fibers) fiber.join();
    while (permits.try_acquire()) used.fetch_add(1);
    ASSERT_EQ(used.load(), 2 * kPermits);
  });
}

// A timer fires, or its cancelling says that it won't: never both, nor neither.
class TimerClient {
 public:
  explicit TimerClient(std::uint64_t seed) : dice_(seed) {
    for (auto& timer : timers_) {
      timer.fired = &fired_;
      timer.set_callback(
          [](Timer* self) { static_cast<Node*>(self)->fired->fetch_add(1); });
    }
  }

  void Go(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Node& timer = timers_[dice_.Below(std::size(timers_))];
      if (timer.armed && CancelTimer(&timer)) ++cancelled_;
      ArmTimer(&timer, NowNs() + static_cast<std::int64_t>(
                                     dice_.Below(4) * dice_.Below(100'000)));
      timer.armed = true;
      ++armed_;
      if (IsFiberWorker() && dice_.Below(16) == 0) this_fiber::Yield();
    }
    for (auto& timer : timers_) {
      if (timer.armed && CancelTimer(&timer)) ++cancelled_;
    }
  }

  void Check() const { ASSERT_EQ(fired_.load() + cancelled_, armed_); }

 private:
  struct Node : Timer {
    std::atomic<int>* fired = nullptr;
    bool armed = false;
  };

  Dice dice_;
  Node timers_[16];
  std::atomic<int> fired_{0};
  int armed_ = 0;
  int cancelled_ = 0;
};

TEST_P(RuntimeStressTest, TimersOfManyThreads) {
  Repeat([](int round) {
    constexpr int kThreads = 2;
    constexpr int kFibers = 4;
    std::vector<std::unique_ptr<TimerClient>> clients;
    for (int i = 0; i < kThreads + kFibers; ++i) {
      clients.push_back(std::make_unique<TimerClient>(
          static_cast<std::uint64_t>(round * (kThreads + kFibers) + i)));
    }
    std::vector<std::thread> threads;
    std::vector<Fiber> fibers;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { clients[i]->Go(2000); });
    }
    for (int i = 0; i < kFibers; ++i) {
      fibers.emplace_back([&, i] { clients[kThreads + i]->Go(2000); });
    }
    for (auto& thread : threads) thread.join();
    for (Fiber& fiber : fibers) fiber.join();
    for (const auto& client : clients) client->Check();
  });
}

// Some of everything, at the same time.
void Mix(std::uint64_t seed) {
  struct Shared {
    Mutex mutex;
    ConditionVariable changed;
    int value FLARE_GUARDED_BY(mutex) = 0;
    Semaphore permits{3};
    std::atomic<int> steps{0};
  } shared;
  constexpr int kFibers = 12;
  constexpr int kSteps = 40;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    Fiber::Attributes where;
    where.scheduling_group = i % GetSchedulingGroupCount();
    fibers.emplace_back(where, [&shared, seed, i] {
      Dice dice(seed * kFibers + static_cast<std::uint64_t>(i));
      for (int k = 0; k < kSteps; ++k) {
        switch (dice.Below(6)) {
          case 0: {
            std::unique_lock lock(shared.mutex);
            ++shared.value;
            shared.changed.notify_all();
            break;
          }
          case 1: {
            std::unique_lock lock(shared.mutex);
            shared.changed.wait_for(lock, microseconds(dice.Below(200)));
            break;
          }
          case 2:
            shared.permits.acquire();
            this_fiber::Yield();
            shared.permits.release();
            break;
          case 3:
            if (shared.permits.try_acquire_for(microseconds(30))) {
              shared.permits.release();
            }
            break;
          case 4:
            Fiber([] { this_fiber::Yield(); }).join();
            break;
          default:
            this_fiber::SleepFor(microseconds(dice.Below(100)));
        }
        shared.steps.fetch_add(1);
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  ASSERT_EQ(shared.steps.load(), kFibers * kSteps);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(shared.permits.try_acquire());
}

TEST_P(RuntimeStressTest, Mixture) {
  Repeat([](int round) { Mix(static_cast<std::uint64_t>(round)); });
}

// Runtimes of all shapes, one after another: tasks that are queued when the end
// is asked for still run, and so do the tasks that they queue.
TEST(RuntimeRestartStressTest, StartsAndStops) {
  Repeat([](int round) {
    Dice dice(static_cast<std::uint64_t>(round));
    RuntimeOptions options;
    options.concurrency = static_cast<int>(dice.Below(4)) + 1;
    options.group_size = static_cast<int>(dice.Below(3)) + 1;
    options.run_queue_size = std::size_t{16} << dice.Below(6);
    options.work_stealing_ratio = static_cast<int>(dice.Below(3));
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
    if (dice.Below(4) == 0) Mix(static_cast<std::uint64_t>(round));
    std::atomic<int> ran{0};
    const auto tasks = static_cast<int>(dice.Below(2000));
    for (int i = 0; i < tasks; ++i) {
      Spawn([&ran, i] {
        if (i % 8 == 0) this_fiber::Yield();
        Spawn([&ran] { ran.fetch_add(1); });
        ran.fetch_add(1);
      });
    }
    TerminateRuntime();
    ASSERT_EQ(ran.load(), 2 * tasks);
  });
}

}  // namespace
}  // namespace flare::fiber
