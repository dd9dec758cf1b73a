// The runtime as a whole, over several numbers of workers. Starts that fail are
// in runtime_start_test.cc, leftovers of the end in runtime_end_test.cc.
#include "flare/fiber/runtime.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "flare/fiber/async.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/future.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class RuntimeTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(RuntimeTest);

TEST_P(RuntimeTest, RunsWhatPlainThreadsSpawn) {
  constexpr int kThreads = 3;
  constexpr int kEach = 2000;
  Latch all(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        Spawn([&] {
          EXPECT_TRUE(IsFiberWorker());
          all.count_down();
        });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  all.wait();
  EXPECT_FALSE(IsFiberWorker());
}

// Far more than a run queue holds: the rest spills, nothing is lost.
TEST_P(RuntimeTest, OverflowLosesNothing) {
  constexpr int kTasks = 5000;
  std::atomic<int> ran{0};
  Latch all(kTasks);
  Fiber([&] {
    for (int i = 0; i < kTasks; ++i) {
      Spawn([&] {
        ran.fetch_add(1);
        all.count_down();
      });
    }
  }).join();
  all.wait();
  EXPECT_EQ(ran.load(), kTasks);
}

TEST_P(RuntimeTest, RecursiveSpawn) {
  std::atomic<int> leaves{0};
  Latch all(1 << 12);
  struct Tree {
    static void Grow(int depth, std::atomic<int>* leaves, Latch* all) {
      if (depth == 0) {
        leaves->fetch_add(1);
        all->count_down();
        return;
      }
      for (int i = 0; i < 2; ++i) {
        Spawn([=] { Grow(depth - 1, leaves, all); });
      }
    }
  };
  Spawn([&] { Tree::Grow(12, &leaves, &all); });
  all.wait();
  EXPECT_EQ(leaves.load(), 1 << 12);
}

TEST_P(RuntimeTest, TasksOfOneWorkerRunInOrder) {
  // Only with a single worker is nothing stolen.
  if (GetSchedulingGroupSize() != 1) GTEST_SKIP() << "one worker only";
  if (IsShuffleRequested()) GTEST_SKIP() << "shuffled";
  std::vector<int> order;
  Fiber([&] {
    Latch all(10);
    for (int i = 0; i < 10; ++i) {
      Spawn([&, i] {
        order.push_back(i);
        all.count_down();
      });
    }
    all.wait();
  }).join();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(RuntimeTest, ManyFibersSuspendAndResume) {
  constexpr int kFibers = 500;
  std::vector<Fiber> fibers;
  std::atomic<int> sum{0};
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([&sum, i] {
      int local = i;  // Must survive on this fiber's stack.
      for (int k = 0; k < 20; ++k) {
        this_fiber::Yield();
        local += k;
      }
      sum.fetch_add(local - i);
    });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(sum.load(), kFibers * 190);
}

TEST_P(RuntimeTest, SleepsAtLeastAsLongAsAsked) {
  std::vector<Fiber> fibers;
  for (int i = 0; i < 50; ++i) {
    fibers.emplace_back([i] {
      const std::int64_t start = NowNs();
      this_fiber::SleepFor(std::chrono::microseconds(100 * i));
      // 1 us of tolerance between clocks of different threads (clock.h).
      EXPECT_GE(NowNs() - start, 100'000 * i - 1000);
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

TEST_P(RuntimeTest, ErrnoBelongsToTheFiber) {
  std::vector<Fiber> fibers;
  for (int i = 1; i <= 50; ++i) {
    fibers.emplace_back([i] {
      for (int k = 0; k < 50; ++k) {
        SetLastError(i);
        this_fiber::Yield();
        EXPECT_EQ(GetLastError(), i);
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

// Fibers that suspend inside catch blocks and during unwinding, interleaved.
TEST_P(RuntimeTest, ExceptionsSurviveSuspensions) {
  struct YieldOnExit {
    ~YieldOnExit() { this_fiber::Yield(); }
  };
  std::vector<Fiber> fibers;
  std::atomic<int> caught{0};
  for (int i = 0; i < 50; ++i) {
    fibers.emplace_back([&caught, i] {
      for (int k = 0; k < 20; ++k) {
        const std::string text = std::to_string(i) + "/" + std::to_string(k);
        try {
          YieldOnExit yield;
          throw std::runtime_error(text);
        } catch (const std::runtime_error& first) {
          this_fiber::Yield();
          EXPECT_EQ(std::uncaught_exceptions(), 0);
          try {
            throw;
          } catch (const std::runtime_error& again) {
            this_fiber::Yield();
            EXPECT_EQ(again.what(), text);
            caught.fetch_add(1);
          }
          EXPECT_EQ(first.what(), text);
        }
        EXPECT_EQ(std::current_exception(), nullptr);
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(caught.load(), 1000);
}

TEST_P(RuntimeTest, FiberLocalsAreSeparateAndDestroyed) {
  static std::atomic<int> alive;
  struct Value {
    Value() { alive.fetch_add(1); }
    ~Value() {
      this_fiber::Yield();  // May still block.
      alive.fetch_sub(1);
    }
    int number = 0;
  };
  alive = 0;
  FiberLocal<Value> local;
  FiberLocal<std::string> text;
  std::vector<Fiber> fibers;
  for (int i = 0; i < 100; ++i) {
    fibers.emplace_back([&, i] {
      local->number = i;
      *text = std::to_string(i);
      for (int k = 0; k < 5; ++k) {
        this_fiber::Yield();
        EXPECT_EQ(local->number, i);
        EXPECT_EQ(*text, std::to_string(i));
      }
    });
  }
  for (auto& fiber : fibers) fiber.join();
  // The values end after the fiber's function, with the task.
  const std::int64_t give_up = NowNs() + 10'000'000'000;
  while (alive.load() != 0 && NowNs() < give_up) std::this_thread::yield();
  EXPECT_EQ(alive.load(), 0);
}

TEST_P(RuntimeTest, IdsAreUnique) {
  EXPECT_EQ(this_fiber::GetId(), 0U);
  std::vector<std::uint64_t> ids(100);
  std::vector<Fiber> fibers;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    fibers.emplace_back([&ids, i] {
      ids[i] = this_fiber::GetId();
      this_fiber::Yield();
      EXPECT_EQ(this_fiber::GetId(), ids[i]);
    });
  }
  for (auto& fiber : fibers) fiber.join();
  std::sort(ids.begin(), ids.end());
  EXPECT_NE(ids.front(), 0U);
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST_P(RuntimeTest, AsyncGivesResults) {
  std::vector<Future<int>> futures;
  for (int i = 0; i < 100; ++i) {
    futures.push_back(Async([i] {
      this_fiber::Yield();
      return i;
    }));
  }
  int sum = 0;
  Fiber([&] {
    for (auto& future : futures) sum += BlockingGet(std::move(future));
  }).join();
  EXPECT_EQ(sum, 4950);
  BlockingGet(Async([] {}));  // From a plain thread, without a value.
}

TEST_P(RuntimeTest, BlockingTryGetGivesUp) {
  Promise<int> promise;
  EXPECT_FALSE(
      BlockingTryGet(promise.GetFuture(), std::chrono::milliseconds(1)));
  promise.SetValue(1);  // Nobody is there any more.
}

TEST_P(RuntimeTest, GroupsAreAddressable) {
  for (std::size_t g = 0; g < GetSchedulingGroupCount(); ++g) {
    Event done;
    SpawnTo(g, [&] {
      // One of this group's, unless a neighbour helps (neighbours_test.cc).
      EXPECT_LT(GetCurrentSchedulingGroupIndex(), GetSchedulingGroupCount());
      done.Set();
    });
    done.Wait();
  }
}

// Each worker of all groups has a number of its own.
TEST_P(RuntimeTest, WorkersAreNumbered) {
  EXPECT_EQ(GetCurrentWorkerIndex(), kNoWorker);
  std::vector<std::atomic<int>> group_of(GetWorkerCount());
  EXPECT_GE(group_of.size(), static_cast<std::size_t>(GetParam().workers));
  std::vector<Fiber> fibers;
  for (int i = 0; i < 1000; ++i) {
    fibers.emplace_back([&] {
      ASSERT_LT(GetCurrentWorkerIndex(), group_of.size());
      const auto group = static_cast<int>(GetCurrentSchedulingGroupIndex());
      const int before = group_of[GetCurrentWorkerIndex()].exchange(group + 1);
      EXPECT_TRUE(before == 0 || before == group + 1);
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
}

TEST_P(RuntimeTest, ReadyDelaysAreSampled) {
  const std::int64_t start = NowNs();
  std::int64_t queued = 0;
  Fiber([&] {
    while (GetReadyDelays().count() < 5 && NowNs() < start + 20'000'000'000) {
      for (int i = 0; i < 100; ++i) Spawn([] {});
      queued += 100;
      this_fiber::Yield();
    }
  }).join();
  const Histogram delays = GetReadyDelays();
  EXPECT_GE(delays.count(), 5U);
  EXPECT_LE(delays.max(), NowNs() - start);
  // A sample: one a millisecond and worker.
  EXPECT_LE(delays.count(),
            ((NowNs() - start) / 1'000'000 + 2) * GetParam().workers);
}

// Tasks that hold their threads until all are there: each needs a worker, and
// their submitter wakes but two.
TEST_P(RuntimeTest, BatchesWakeAllWhoAreNeeded) {
  const auto size = static_cast<int>(GetSchedulingGroupSize());
  std::atomic<int> there{0};
  Latch left(size);
  struct Meet : Task {
    std::atomic<int>* there;
    Latch* left;
    int expected;
  };
  std::vector<Meet> tasks(size);
  TaskList list;
  for (Meet& task : tasks) {
    task.there = &there;
    task.left = &left;
    task.expected = size;
    task.run = [](Task* self) {
      auto* const meet = static_cast<Meet*>(self);
      meet->there->fetch_add(1);
      while (meet->there->load() < meet->expected) std::this_thread::yield();
      meet->left->count_down();
    };
    list.PushBack(&task);
  }
  SubmitAll(std::move(list));
  left.wait();
  EXPECT_EQ(there.load(), size);
}

TEST_P(RuntimeTest, StartingTwiceIsAnError) {
  EXPECT_FALSE(StartRuntime(RuntimeOptions()).ok());
}

// Woken from another group, or from a thread, a fiber goes on where it was.
TEST(RuntimeGroupsTest, FibersStayInTheirGroup) {
  RuntimeOptions options;
  options.concurrency = 2;
  options.group_size = 1;
  options.work_stealing_ratio = 0;
  ASSERT_TRUE(StartRuntime(options).ok());
  constexpr int kRounds = 200;
  Semaphore ping(0);
  Semaphore pong(0);
  Channel<int> channel(0);
  const auto in_group = [](std::size_t group, auto f) {
    Fiber::Attributes attributes;
    attributes.scheduling_group = group;
    return Fiber(attributes, std::move(f));
  };
  Fiber first = in_group(0, [&] {
    for (int i = 0; i < kRounds; ++i) {
      ping.release();
      pong.acquire();
      ASSERT_EQ(GetCurrentSchedulingGroupIndex(), 0U);
      ASSERT_EQ(channel.Send(i), ChannelResult::kDone);
      ASSERT_EQ(GetCurrentSchedulingGroupIndex(), 0U);
    }
    in_group(1, [] {}).join();
    EXPECT_EQ(GetCurrentSchedulingGroupIndex(), 0U);
    this_fiber::SleepFor(std::chrono::milliseconds(1));
    EXPECT_EQ(GetCurrentSchedulingGroupIndex(), 0U);
    channel.Close();
  });
  Fiber second = in_group(1, [&] {
    for (int i = 0; i < kRounds; ++i) {
      ping.acquire();
      ASSERT_EQ(GetCurrentSchedulingGroupIndex(), 1U);
      pong.release();
      ASSERT_EQ(channel.Receive().value(), i);
      ASSERT_EQ(GetCurrentSchedulingGroupIndex(), 1U);
    }
    EXPECT_FALSE(channel.Receive());
    EXPECT_EQ(GetCurrentSchedulingGroupIndex(), 1U);
  });
  first.join();
  second.join();
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
