#include "flare/fiber/diagnostics/thread_exit.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/work_queue.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

void OnNamedFiber(void (*body)()) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  Fiber([body] {
    this_fiber::SetName("leaver");
    body();
  }).join();
  TerminateRuntime();
}

class ThreadExitDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// A name that the tests look for.
[[gnu::noinline]] void LeaveHere() {
  pthread_exit(nullptr);
  asm volatile("");
}

constexpr char kReport[] =
    "pthread_exit.. in fiber \"leaver\", entry (.|\n)*"
    "Called here:(.|\n)*LeaveHere";

TEST_F(ThreadExitDeathTest, PthreadExitInAFiber) {
#ifdef FLARE_TSAN
  GTEST_SKIP() << "ThreadSanitizer's own pthread_exit() goes before ours";
#endif
  EXPECT_DEATH(OnNamedFiber(LeaveHere), kReport);
}

TEST_F(ThreadExitDeathTest, PthreadExitAfterASuspension) {
#ifdef FLARE_TSAN
  GTEST_SKIP() << "ThreadSanitizer's own pthread_exit() goes before ours";
#endif
  EXPECT_DEATH(OnNamedFiber([] {
                 this_fiber::Yield();
                 LeaveHere();
               }),
               kReport);
}

TEST_F(ThreadExitDeathTest, PthreadExitInABlockingRegion) {
#ifdef FLARE_TSAN
  GTEST_SKIP() << "ThreadSanitizer's own pthread_exit() goes before ours";
#endif
  EXPECT_DEATH(OnNamedFiber([] {
                 BlockingRegion region;
                 LeaveHere();
               }),
               kReport);
}

TEST_F(ThreadExitDeathTest, CancellationOfAWorker) {
#ifdef FLARE_ASAN
  GTEST_SKIP()
      << "AddressSanitizer takes the thread to be on the fiber's stack";
#endif
  EXPECT_DEATH(OnNamedFiber([] {
                 pthread_cancel(pthread_self());
                 pthread_testcancel();
               }),
               "a thread that runs fibers has been cancelled.* in fiber "
               "\"leaver\"");
}

// exit() ends the process as it should, from wherever.
TEST_F(ThreadExitDeathTest, ExitIsSomethingElse) {
  const auto silent =
      ::testing::Not(::testing::HasSubstr("a thread that runs fibers"));
  EXPECT_EXIT(OnNamedFiber([] { std::exit(7); }), ::testing::ExitedWithCode(7),
              silent);
  EXPECT_EXIT(OnNamedFiber([] {
                BlockingRegion region;
                std::exit(7);
              }),
              ::testing::ExitedWithCode(7), silent);
}

TEST(ThreadExit, PlainThreadsMay) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void*) -> void* {
                  Fiber([] { this_fiber::Yield(); }).join();
                  pthread_exit(nullptr);
                },
                nullptr),
            0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  TerminateRuntime();
}

// --- Those who would wait for themselves ---

TEST_F(ThreadExitDeathTest, AFiberThatJoinsItself) {
  EXPECT_DEATH(OnNamedFiber([] {
                 Fiber* self = nullptr;
                 Fiber fiber([&] {
                   while (self == nullptr) this_fiber::Yield();
                   self->join();
                 });
                 self = &fiber;
                 this_fiber::SleepFor(std::chrono::hours(1));
               }),
               "a Fiber joins itself");
  EXPECT_DEATH(OnNamedFiber([] {
                 Fiber* self = nullptr;
                 Fiber fiber([&] {
                   while (self == nullptr) this_fiber::Yield();
                   BlockingRegion region;
                   static_cast<void>(self->try_join_for(std::chrono::hours(1)));
                 });
                 self = &fiber;
                 this_fiber::SleepFor(std::chrono::hours(1));
               }),
               "a Fiber joins itself");
}

// By a handle that it has taken over it may let go of itself.
TEST(SelfJoin, DetachingIsFine) {
  OnNamedFiber([] {
    Fiber* self = nullptr;
    bool detached = false;
    Fiber fiber([&] {
      while (self == nullptr) this_fiber::Yield();
      self->detach();
      detached = true;
    });
    self = &fiber;
    while (!detached) this_fiber::Yield();
  });
}

TEST_F(ThreadExitDeathTest, AClosureThatJoinsItsQueue) {
  EXPECT_DEATH(OnNamedFiber([] {
                 WorkQueue queue;
                 queue.Push([&] {
                   this_fiber::Yield();
                   queue.Stop();
                   queue.Join();
                 });
                 this_fiber::SleepFor(std::chrono::hours(1));
               }),
               "a closure of a WorkQueue joins or destroys the queue");
}

// The carriers of those that have ended run others, who may join.
TEST(SelfJoin, NobodyElseIsTakenForTheOne) {
  OnNamedFiber([] {
    for (int i = 0; i < 200; ++i) {
      WorkQueue queue;
      Fiber first([&] {
        for (int k = 0; k < 65; ++k) queue.Push([] { this_fiber::Yield(); });
      });
      Fiber second([&] {
        first.join();
        queue.Stop();
        queue.Join();
      });
      second.join();
    }
  });
}

}  // namespace
}  // namespace flare::fiber
