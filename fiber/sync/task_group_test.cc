#include "flare/fiber/task_group.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "flare/base/sanitizer.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/work_queue.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class TaskGroupTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TaskGroupTest);

// Blocks until a stop is requested: a child that never ends by itself.
void UntilStopped(const std::stop_token& stop) {
  Event never;
  EXPECT_FALSE(never.Wait(stop));
}

TEST_P(TaskGroupTest, WaitsForAll) {
  OnBoth([] {
    TaskGroup group;
    EXPECT_TRUE(group.Wait().ok());  // Without tasks.
    std::atomic<int> ran{0};
    for (int round = 1; round <= 3; ++round) {
      for (int i = 0; i < 100; ++i) {
        group.Spawn([&, i] {
          if (i % 3 == 0) this_fiber::Yield();
          ran.fetch_add(1);
        });
        group.Spawn([&] {
          ran.fetch_add(1);
          return Status();
        });
      }
      EXPECT_TRUE(group.Wait().ok());
      EXPECT_EQ(ran.load(), round * 200);
    }
    EXPECT_FALSE(group.stop_requested());
  });
}

TEST_P(TaskGroupTest, ClosuresEndBeforeTheWait) {
  OnBoth([] {
    const auto counted = std::make_shared<int>(1);
    std::array<char, 300> large{};
    large[299] = 'x';
    TaskGroup group;
    group.Spawn(
        [counted, moved = std::make_unique<int>(3)] { EXPECT_EQ(*moved, 3); });
    group.Spawn([counted, large] { EXPECT_EQ(large[299], 'x'); });
    EXPECT_TRUE(group.Wait().ok());
    EXPECT_EQ(counted.use_count(), 1);
  });
}

TEST_P(TaskGroupTest, FiberLocalsEndBeforeTheWait) {
  static std::atomic<int> alive;
  struct Value {
    Value() { alive.fetch_add(1); }
    ~Value() {
      this_fiber::SleepFor(std::chrono::microseconds(100));
      alive.fetch_sub(1);
    }
    int number = 0;
  };
  static FiberLocal<Value> local;
  TaskGroup group;
  for (int i = 0; i < 50; ++i) group.Spawn([i] { local->number = i; });
  EXPECT_TRUE(group.Wait().ok());
  EXPECT_EQ(alive.load(), 0);
}

TEST_P(TaskGroupTest, FirstErrorStopsTheOthers) {
  OnBoth([] {
    TaskGroup group;
    std::atomic<int> stopped{0};
    for (int i = 0; i < 20; ++i) {
      group.Spawn([&](std::stop_token stop) -> Status {
        UntilStopped(stop);
        stopped.fetch_add(1);
        return Status(ECANCELED, "stopped");
      });
    }
    group.Spawn([] { return Status(ENOENT, "the cause"); });
    const Status status = group.Wait();
    EXPECT_EQ(status, Status(ENOENT, "the cause"));
    EXPECT_EQ(stopped.load(), 20);
    EXPECT_TRUE(group.stop_requested());
    // It stays failed, and a late child learns of it.
    group.Spawn([](const std::stop_token& stop) {
      EXPECT_TRUE(stop.stop_requested());
    });
    EXPECT_EQ(group.Wait().code(), ENOENT);
  });
}

TEST_P(TaskGroupTest, ExceptionsArriveAtTheWaiter) {
  OnBoth([] {
    TaskGroup group;
    group.Spawn([](std::stop_token stop) { UntilStopped(stop); });
    group.Spawn([] {
      this_fiber::Yield();
      throw std::runtime_error("thrown by a child");
    });
    for (int i = 0; i < 2; ++i) {
      try {
        static_cast<void>(group.Wait());
        ADD_FAILURE() << "must throw";
      } catch (const std::runtime_error& e) {
        EXPECT_STREQ(e.what(), "thrown by a child");
      }
    }
  });
}

TEST_P(TaskGroupTest, DestructorStopsAndWaits) {
  OnBoth([] {
    std::atomic<int> ended{0};
    {
      TaskGroup group;
      for (int i = 0; i < 10; ++i) {
        group.Spawn([&](const std::stop_token& stop) {
          UntilStopped(stop);
          this_fiber::Yield();
          ended.fetch_add(1);
        });
      }
      group.Spawn([] { throw 3; });  // Logged only.
    }
    EXPECT_EQ(ended.load(), 10);
    try {
      TaskGroup group;
      group.Spawn([&](std::stop_token stop) {
        UntilStopped(stop);
        ended.fetch_add(1);
      });
      throw std::logic_error("leaves the scope");
    } catch (const std::logic_error&) {
    }
    EXPECT_EQ(ended.load(), 11);
  });
}

// An exception that comes after the last Wait() isn't lost without a word.
TEST_P(TaskGroupTest, UnseenExceptionsAreLogged) {
  struct Errors : google::LogSink {
    void send(google::LogSeverity severity, const char*, const char*, int,
              const google::LogMessageTime&, const char* message,
              std::size_t size) override {
      if (severity == google::ERROR) text.append(message, size);
    }
    std::string text;
  } errors;
  google::AddLogSink(&errors);
  {
    TaskGroup group;
    group.Spawn([] {});
    EXPECT_TRUE(group.Wait().ok());
    group.Spawn([] { throw std::runtime_error("unseen"); });
  }
  {
    TaskGroup group;
    group.Spawn([] { throw std::runtime_error("caught"); });
    EXPECT_THROW(static_cast<void>(group.Wait()), std::runtime_error);
  }
  google::RemoveLogSink(&errors);
  EXPECT_NE(errors.text.find("unseen"), std::string::npos) << errors.text;
  EXPECT_EQ(errors.text.find("caught"), std::string::npos) << errors.text;
}

TEST_P(TaskGroupTest, ChildrenSpawnSiblings) {
  TaskGroup group;
  std::atomic<int> ran{0};
  struct Tree {
    TaskGroup* group;
    std::atomic<int>* ran;
    int depth;
    void operator()() const {
      ran->fetch_add(1);
      if (depth == 0) return;
      group->Spawn(Tree{group, ran, depth - 1});
      if (depth % 2 == 0) this_fiber::Yield();
      group->Spawn(Tree{group, ran, depth - 1});
    }
  };
  group.Spawn(Tree{&group, &ran, 10});
  EXPECT_TRUE(group.Wait().ok());
  EXPECT_EQ(ran.load(), (1 << 11) - 1);
}

TEST_P(TaskGroupTest, NestedGroupsAreStoppedWithTheirParent) {
  OnBoth([] {
    EXPECT_FALSE(CurrentStopToken().stop_possible());
    TaskGroup outer;
    Latch waiting(3);
    std::atomic<int> stopped{0};
    outer.Spawn([&] {
      TaskGroup middle;
      middle.Spawn([&] {
        TaskGroup inner;
        inner.Spawn([&](const std::stop_token& stop) {
          waiting.count_down();
          UntilStopped(stop);
          stopped.fetch_add(1);
        });
        EXPECT_TRUE(inner.Wait().ok());
      });
      middle.Spawn([&] {
        waiting.count_down();
        UntilStopped(CurrentStopToken());
        stopped.fetch_add(1);
      });
      // The fiber is the outer group's child all the time.
      waiting.count_down();
      UntilStopped(CurrentStopToken());
      EXPECT_TRUE(middle.Wait().ok());
      EXPECT_TRUE(middle.stop_requested());
      stopped.fetch_add(1);
    });
    waiting.wait();
    EXPECT_EQ(stopped.load(), 0);
    outer.RequestStop();
    EXPECT_TRUE(outer.Wait().ok());  // Stopping is no failure by itself.
    EXPECT_EQ(stopped.load(), 3);
  });
}

TEST_P(TaskGroupTest, StoppingAChildGroupLeavesTheParent) {
  TaskGroup outer;
  outer.Spawn([](const std::stop_token& stop) {
    TaskGroup inner;
    inner.Spawn([] { return Status(EIO, "inner"); });
    EXPECT_EQ(inner.Wait().code(), EIO);
    EXPECT_FALSE(stop.stop_requested());
    TaskGroup independent{std::stop_token()};
    EXPECT_FALSE(independent.stop_requested());
  });
  EXPECT_TRUE(outer.Wait().ok());
  EXPECT_FALSE(outer.stop_requested());
}

TEST_P(TaskGroupTest, TokenOfOnesChoice) {
  std::stop_source source;
  TaskGroup group(source.get_token());
  TaskGroup independent{std::stop_token()};
  group.Spawn([](const std::stop_token& stop) { UntilStopped(stop); });
  source.request_stop();
  EXPECT_TRUE(group.Wait().ok());
  EXPECT_TRUE(group.stop_requested());
  EXPECT_FALSE(independent.stop_requested());
  TaskGroup late(source.get_token());
  EXPECT_TRUE(late.stop_requested());
  EXPECT_TRUE(late.stop_token().stop_requested());
}

TEST_P(TaskGroupTest, WaitWithLimits) {
  OnBoth([] {
    {
      TaskGroup group;
      group.Spawn([](const std::stop_token& stop) { UntilStopped(stop); });
      EXPECT_EQ(group.WaitFor(milliseconds(1)).code(), ETIMEDOUT);
      EXPECT_EQ(group.Wait().code(), ETIMEDOUT);
    }
    {
      TaskGroup group;
      group.Spawn([](const std::stop_token& stop) { UntilStopped(stop); });
      EXPECT_EQ(group.WaitUntil(std::chrono::steady_clock::now()).code(),
                ETIMEDOUT);
    }
    {
      std::stop_source source;
      TaskGroup group;
      group.Spawn([&](const std::stop_token& stop) {
        source.request_stop();
        UntilStopped(stop);
      });
      EXPECT_EQ(group.Wait(source.get_token()).code(), ECANCELED);
    }
    {
      std::stop_source source;
      TaskGroup group;
      group.Spawn([] {});
      EXPECT_TRUE(group.WaitFor(hours(1)).ok());
      group.Spawn([] {});
      EXPECT_TRUE(group.WaitFor(source.get_token(), hours(1)).ok());
      group.Spawn([](const std::stop_token& stop) { UntilStopped(stop); });
      EXPECT_EQ(
          group
              .WaitUntil(source.get_token(),
                         std::chrono::system_clock::now() + milliseconds(1))
              .code(),
          ETIMEDOUT);
    }
  });
}

TEST_P(TaskGroupTest, InheritsTheExecutionContext) {
  static ExecutionLocal<std::string> text;
  TaskGroup group;
  ExecutionContext::Create()->Execute([&] {
    *text = "inherited";
    group.Spawn([] { EXPECT_EQ(*text, "inherited"); });
  });
  group.Spawn([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); });
  EXPECT_TRUE(group.Wait().ok());
}

TEST_P(TaskGroupTest, SpawnsIntoOtherGroupsOfWorkers) {
  TaskGroup group;
  std::atomic<int> ran{0};
  for (std::size_t i = 0; i < GetSchedulingGroupCount(); ++i) {
    group.SpawnTo(i, [&] { ran.fetch_add(1); });
  }
  EXPECT_TRUE(group.Wait().ok());
  EXPECT_EQ(static_cast<std::size_t>(ran.load()), GetSchedulingGroupCount());
}

TEST_P(TaskGroupTest, FibersStartedByChildrenBelongToNoGroup) {
  TaskGroup group;
  group.Spawn([] {
    Fiber([] { EXPECT_FALSE(CurrentStopToken().stop_possible()); }).join();
    EXPECT_TRUE(CurrentStopToken().stop_possible());
  });
  EXPECT_TRUE(group.Wait().ok());
  Fiber([] { EXPECT_FALSE(CurrentStopToken().stop_possible()); }).join();
}

// A closure that can't be copied is nobody's child, and leaves nothing behind
// (as LeakSanitizer sees).
TEST_P(TaskGroupTest, ClosuresThatFailToBeCopied) {
  struct Uncopyable {
    Uncopyable() = default;
    Uncopyable(const Uncopyable&) { throw std::runtime_error("copied"); }
    void operator()() const {}
  };
  OnBoth([] {
    const Uncopyable f;
    TaskGroup group;
    EXPECT_THROW(group.Spawn(f), std::runtime_error);
    EXPECT_TRUE(group.Wait().ok());
    EXPECT_THROW(fiber::Spawn(f), std::runtime_error);
    WorkQueue queue;
    EXPECT_THROW(queue.Push(f), std::runtime_error);
  });
}

// Closures that a pooled node has room for, but not on the right address.
TEST_P(TaskGroupTest, ClosuresOfLargeAlignment) {
  struct alignas(64) Aligned {
    void operator()() const {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(this) % 64, 0U);
      ran->count_down();
    }
    Latch* ran;
  };
  OnBoth([] {
    Latch ran(3);
    const Aligned f{&ran};
    TaskGroup group;
    group.Spawn(f);
    fiber::Spawn(f);
    WorkQueue queue;
    queue.Push(f);
    ran.wait();
  });
}

// A fiber stays the child that it is while it is in a region.
TEST_P(TaskGroupTest, GoesAlongIntoBlockingRegions) {
  TaskGroup outer;
  Latch waiting(1);
  outer.Spawn([&](std::stop_token stop) {
    RunBlocking([&] {
      EXPECT_EQ(CurrentStopToken(), stop);
      TaskGroup inner;
      inner.Spawn([&](const std::stop_token& inner_stop) {
        waiting.count_down();
        UntilStopped(inner_stop);
      });
      EXPECT_TRUE(inner.Wait().ok());
      EXPECT_TRUE(inner.stop_requested());
    });
  });
  waiting.wait();
  outer.RequestStop();
  EXPECT_TRUE(outer.Wait().ok());
}

// Tokens are asked for while a stop is requested: all of them learn of it.
TEST_P(TaskGroupTest, TokensRaceWithStopping) {
  for (int round = 0; round < 200; ++round) {
    TaskGroup group;
    for (int i = 0; i < 4; ++i) {
      group.Spawn([&] { UntilStopped(group.stop_token()); });
    }
    group.Spawn([&] { group.RequestStop(); });
    EXPECT_TRUE(group.Wait().ok());
  }
}

// A group made by the child of the one above, and so on: `deepest` is called by
// the last of them.
void Nest(int depth, const std::function<void(TaskGroup*)>& deepest) {
  TaskGroup group;
  if (depth == 0) return deepest(&group);
  group.Spawn([&] { Nest(depth - 1, deepest); });
  EXPECT_TRUE(group.Wait().ok());
}

TEST_P(TaskGroupTest, GroupsNestDeep) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  constexpr int kDepth = 300;  // Fibers cost them much.
#else
  constexpr int kDepth = 3000;
#endif
  std::atomic<int> ran{0};
  Nest(kDepth, [&](TaskGroup*) { ++ran; });
  EXPECT_EQ(ran.load(), 1);
}

TEST_P(TaskGroupTest, DeepGroupsAreStopped) {
  TaskGroup outermost;
  Event begun;
  outermost.Spawn([&] {
    Nest(100, [&](TaskGroup* group) {
      begun.Set();
      UntilStopped(group->stop_token());
    });
  });
  begun.Wait();
  // On a fiber, whose stack is small.
  Fiber([&] { outermost.RequestStop(); }).join();
  EXPECT_TRUE(outermost.Wait().ok());
}

TEST(TaskGroupDeathTest, WaitingForOneself) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        RuntimeOptions options;
        options.concurrency = 1;
        if (StartRuntime(options).ok()) {
          TaskGroup group;
          group.Spawn([&] { return group.Wait(); });
          static_cast<void>(group.Wait());
        }
      },
      "wait for itself");
}

}  // namespace
}  // namespace flare::fiber
