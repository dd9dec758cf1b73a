#include "flare/fiber/blocking_region.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/diagnostics/thread_lock_check.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;

// A pipe, for calls that really block the thread.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_.data()), 0); }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }

  char Read() {
    char c = 0;
    EXPECT_EQ(read(ends_[0], &c, 1), 1);
    return c;
  }
  void Write(char c) { EXPECT_EQ(write(ends_[1], &c, 1), 1); }

 private:
  std::array<int, 2> ends_;
};

class BlockingRegionTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(BlockingRegionTest);

TEST_P(BlockingRegionTest, LeavesTheWorkerAndComesBack) {
  Fiber([] {
    ASSERT_TRUE(IsFiberWorker());
    const std::size_t group = GetCurrentSchedulingGroupIndex();
    {
      const BlockingRegion region;
      EXPECT_FALSE(IsFiberWorker());
      EXPECT_EQ(GetCurrentSchedulingGroupIndex(), group);
      char name[16];
      EXPECT_EQ(pthread_getname_np(pthread_self(), name, sizeof(name)), 0);
      EXPECT_EQ(std::string(name).substr(0, 10), "flare_blk/");
    }
    EXPECT_TRUE(IsFiberWorker());
  }).join();
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 1U);
}

// Where it may be stolen by another group, as any fiber that is queued.
TEST(BlockingRegionGroupsTest, ComesBackToItsGroup) {
  RuntimeOptions options;
  options.concurrency = 4;
  options.group_size = 2;
  options.work_stealing_ratio = 0;
  ASSERT_TRUE(StartRuntime(options).ok());
  ASSERT_EQ(GetSchedulingGroupCount(), 2U);
  std::array<int, 2> came_back{};
  for (int i = 0; i != 100; ++i) {
    Fiber([&] {
      const std::size_t group = GetCurrentSchedulingGroupIndex();
      { const BlockingRegion region; }
      ASSERT_EQ(GetCurrentSchedulingGroupIndex(), group);
      ++came_back.at(group);
    }).join();
  }
  EXPECT_EQ(came_back[0] + came_back[1], 100);
  TerminateRuntime();
}

TEST_P(BlockingRegionTest, DoesNothingOnThreads) {
  const std::thread::id before = std::this_thread::get_id();
  EXPECT_EQ(RunBlocking([] { return std::this_thread::get_id(); }), before);
  EXPECT_EQ(CurrentFiber(), nullptr);
  EXPECT_EQ(CurrentRegionGroup(), nullptr);
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 0U);
}

TEST_P(BlockingRegionTest, Nested) {
  Fiber([] {
    const BlockingRegion outer;
    const std::thread::id thread = std::this_thread::get_id();
    {
      const BlockingRegion inner;
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_EQ(RunBlocking([] { return std::this_thread::get_id(); }), thread);
    }
    EXPECT_FALSE(IsFiberWorker());
    EXPECT_EQ(std::this_thread::get_id(), thread);
  }).join();
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads, 1U);
}

TEST_P(BlockingRegionTest, ReturnsWhatTheFunctionDoes) {
  Fiber([] {
    EXPECT_EQ(RunBlocking([] { return 5; }), 5);
    EXPECT_EQ(*RunBlocking([] { return std::make_unique<int>(6); }), 6);
    int value = 0;
    int& reference = RunBlocking([&]() -> int& { return value; });
    EXPECT_EQ(&reference, &value);
    RunBlocking([&] { value = 7; });
    EXPECT_EQ(value, 7);
    auto moved = std::make_unique<int>(8);
    EXPECT_EQ(
        RunBlocking([moved = std::move(moved)]() mutable { return *moved; }),
        8);
  }).join();
}

TEST_P(BlockingRegionTest, ErrnoGoesAlong) {
  Fiber([] {
    SetLastError(EXDEV);
    RunBlocking([] {
      EXPECT_EQ(GetLastError(), EXDEV);
      EXPECT_EQ(close(-1), -1);
    });
    EXPECT_EQ(GetLastError(), EBADF);
    this_fiber::Yield();
    EXPECT_EQ(GetLastError(), EBADF);
  }).join();
}

TEST_P(BlockingRegionTest, FiberLocalsAreTheFibers) {
  static FiberLocal<std::string> local;
  *local = "main";
  Fiber([] {
    *local = "fiber";
    const std::string* const mine = local.get();
    const std::uint64_t id = this_fiber::GetId();
    Carrier* const carrier = CurrentCarrier();
    RunBlocking([&] {
      EXPECT_EQ(local.get(), mine);
      EXPECT_EQ(this_fiber::GetId(), id);
      EXPECT_EQ(CurrentCarrier(), nullptr);
      EXPECT_EQ(CurrentFiber(), carrier);
      this_fiber::SetName("in a region");
    });
    EXPECT_EQ(local.get(), mine);
    EXPECT_STREQ(carrier->name, "in a region");
  }).join();
  Fiber([] {  // First touched in a region: ends with the fiber all the same.
    static int alive = 0;
    struct Counted {
      Counted() { ++alive; }
      ~Counted() { --alive; }
    };
    static FiberLocal<Counted> counted;
    Fiber([] {
      const Counted* const made = RunBlocking([] { return counted.get(); });
      EXPECT_EQ(counted.get(), made);
      EXPECT_EQ(alive, 1);
    }).join();
    this_fiber::Yield();
  })
      .join();
  EXPECT_EQ(*local, "main");
}

// A fiber that waits for the region says so.
TEST_P(BlockingRegionTest, ShowsAsSuspended) {
  Pipe pipe;
  std::atomic<Carrier*> carrier{nullptr};
  Fiber fiber([&] {
    Carrier* const self = CurrentCarrier();
    const BlockingRegion region;
    carrier = self;
    pipe.Read();
  });
  while (carrier == nullptr) std::this_thread::yield();
  EXPECT_TRUE(carrier.load()->suspended);
  EXPECT_STREQ(carrier.load()->reason.what, "BlockingRegion");
  pipe.Write('x');
  fiber.join();
}

// More regions that block in the kernel than there are workers, and the workers
// go on.
TEST_P(BlockingRegionTest, WorkersStayResponsive) {
  const int regions = 4 * GetParam().workers;
  Pipe pipe;
  Latch inside(regions);
  std::atomic<int> read{0};
  std::vector<Fiber> fibers;
  for (int i = 0; i < regions; ++i) {
    fibers.emplace_back([&] {
      const BlockingRegion region;
      inside.count_down();
      read += pipe.Read() == 'x' ? 1 : 0;
    });
  }
  inside.wait();  // Each has got a thread.
  for (int i = 0; i < 100; ++i) {
    int sum = 0;
    Fiber([&] {
      for (int k = 0; k < 10; ++k) {
        sum += k;
        this_fiber::Yield();
      }
    }).join();
    EXPECT_EQ(sum, 45);
  }
  EXPECT_EQ(read, 0);
  for (int i = 0; i < regions; ++i) pipe.Write('x');
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_EQ(read, regions);
  EXPECT_EQ(GetRuntimeStatistics().blocking_threads,
            static_cast<std::uint64_t>(regions));
}

// Primitives inside block the thread, and meet fibers outside.
TEST_P(BlockingRegionTest, PrimitivesInside) {
  Event locked;
  Event go;
  Event done;
  Mutex mutex;
  Fiber inside([&] {
    std::unique_lock held(mutex);
    locked.Set();
    RunBlocking([&] {
      go.Wait();
      held.unlock();  // Locked on a worker.
      const std::scoped_lock again(mutex);
      EXPECT_FALSE(IsFiberWorker());
      Fiber([&] { done.Set(); }).join();
      this_fiber::SleepFor(std::chrono::microseconds(10));
    });
  });
  Fiber outside([&] {
    locked.Wait();
    EXPECT_FALSE(mutex.try_lock_for(milliseconds(1)));
    go.Set();
    const std::scoped_lock guard(mutex);
  });
  done.Wait();
  inside.join();
  outside.join();
}

TEST_P(BlockingRegionTest, ExceptionsInside) {
  Fiber([] {
    int caught = 0;
    for (int i = 0; i < 10; ++i) {
      RunBlocking([&] {
        try {
          throw std::runtime_error("inside " + std::to_string(i));
        } catch (const std::runtime_error& error) {
          EXPECT_EQ(error.what(), "inside " + std::to_string(i));
          ++caught;
        }
      });
    }
    EXPECT_EQ(caught, 10);
  }).join();
}

TEST_P(BlockingRegionTest, ExceptionsLeaveIt) {
  Fiber([] {
    for (int i = 0; i < 10; ++i) {
      try {
        RunBlocking([] { throw std::out_of_range("left"); });
        ADD_FAILURE() << "not thrown";
      } catch (const std::out_of_range& error) {
        EXPECT_TRUE(IsFiberWorker());
        EXPECT_STREQ(error.what(), "left");
        EXPECT_EQ(std::uncaught_exceptions(), 0);
      }
    }
  }).join();
}

// A region in a handler, and one in a destructor during unwinding: the caught
// exception and the number of those in flight belong to the fiber.
TEST_P(BlockingRegionTest, ExceptionsAround) {
  struct OnUnwind {
    ~OnUnwind() {
      EXPECT_EQ(std::uncaught_exceptions(), 1);
      RunBlocking([] {
        EXPECT_EQ(std::uncaught_exceptions(), 1);
        try {
          throw 5;
        } catch (int five) {
          EXPECT_EQ(five, 5);
        }
      });
      this_fiber::Yield();
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i < 20; ++i) {
    fibers.emplace_back([i] {
      try {
        const OnUnwind on_unwind;
        throw std::runtime_error(std::to_string(i));
      } catch (const std::runtime_error&) {
        EXPECT_EQ(RunBlocking([] { return std::uncaught_exceptions(); }), 0);
        try {
          RunBlocking([] { throw; });  // The exception being handled, rethrown.
        } catch (const std::runtime_error& error) {
          EXPECT_EQ(error.what(), std::to_string(i));
        }
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
}

TEST_P(BlockingRegionTest, Stress) {
  const std::int64_t end = NowNs() + testing::StressNs(150'000'000);
  Mutex mutex;
  Semaphore few(3);
  std::int64_t counter = 0;
  std::atomic<std::int64_t> expected{0};
  std::vector<Fiber> fibers;
  for (unsigned i = 0; i < 12; ++i) {
    fibers.emplace_back([&, i] {
      std::mt19937 random(i);
      while (NowNs() < end) {
        switch (random() % 5) {
          case 0: {
            const BlockingRegion region;
            const std::scoped_lock guard(mutex);
            ++counter;
            ++expected;
            break;
          }
          case 1: {
            const std::scoped_lock guard(mutex);
            RunBlocking([&] { ++counter; });
            ++expected;
            break;
          }
          case 2:
            RunBlocking([] { sched_yield(); });
            break;
          case 3:
            few.acquire();
            RunBlocking([] {});
            few.release();
            break;
          default:
            this_fiber::Yield();
        }
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  EXPECT_EQ(counter, expected.load());
}

// The runtime's end with regions in it: waits for them, and for the later work
// of their fibers.
TEST_P(BlockingRegionTest, TerminateWaits) {
  constexpr int kRegions = 10;
  TerminateRuntime();
  for (int round = 0; round < 20; ++round) {
    SetUp();
    Pipe pipe;
    std::atomic<int> finished{0};
    Latch inside(kRegions);
    for (int i = 0; i < kRegions; ++i) {
      Spawn([&] {
        RunBlocking([&] {
          inside.count_down();
          pipe.Read();
        });
        this_fiber::Yield();
        RunBlocking([] {});
        Spawn([&] { ++finished; });
      });
    }
    inside.wait();
    std::thread writer([&] {
      for (int i = 0; i < kRegions; ++i) pipe.Write('x');
    });
    TerminateRuntime();
    EXPECT_EQ(finished, kRegions);
    writer.join();
  }
}

// It would wait for the region that it is called in.
TEST(BlockingRegionDeathTest, NoPlaceToTerminateFrom) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        RuntimeOptions options;
        options.concurrency = 1;
        (void)StartRuntime(options);
        Fiber([] { RunBlocking(&TerminateRuntime); }).join();
      },
      "TerminateRuntime\\(\\) from a fiber would wait for itself");
}

// A lock of the thread would be left behind.
TEST(BlockingRegionDeathTest, NotUnderAThreadMutex) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        RuntimeOptions options;
        options.concurrency = 1;
        options.thread_lock_check = ThreadLockCheck::kAbort;
        (void)StartRuntime(options);
        Fiber([] {
          ThreadMutex mutex;
          const std::scoped_lock guard(mutex);
          const BlockingRegion region;
        }).join();
      },
      "BlockingRegion");
}

}  // namespace
}  // namespace flare::fiber
