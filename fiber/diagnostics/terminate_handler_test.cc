#include "flare/fiber/diagnostics/terminate_handler.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber {

// Outside the anonymous namespace: tests look for the names.
namespace terminate_handler_test {

struct Custom {};

[[gnu::noinline]] void ThrowRuntimeError() {
  throw std::runtime_error("no such picture");
}

[[gnu::noinline]] void ThrowAfterSuspension() {
  this_fiber::Yield();
  ThrowRuntimeError();
  asm volatile("");  // Prevents a tail call.
}

}  // namespace terminate_handler_test

namespace {

using terminate_handler_test::Custom;
using terminate_handler_test::ThrowAfterSuspension;
using terminate_handler_test::ThrowRuntimeError;

void StartOneWorker() {
  RuntimeOptions options;
  options.concurrency = 1;
  options.group_size = 1;
  const Status status = StartRuntime(options);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Runs `f` in a fiber named "thrower", which is to end the process.
template <class F>
void RunInFiber(F f) {
  StartOneWorker();
  Spawn([f] {
    this_fiber::SetName("thrower");
    f();
  });
  Event never;
  never.Wait();
}

class TerminateHandlerDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(TerminateHandlerDeathTest, NamesFiberExceptionAndPlaceOfTheThrow) {
  EXPECT_DEATH(RunInFiber(&ThrowRuntimeError),
               "an exception left fiber \"thrower\"(.|\n)*on worker 0/0: "
               "std::runtime_error: no such picture. Thrown here:(.|\n)*"
               "ThrowRuntimeError");
}

TEST_F(TerminateHandlerDeathTest, WorksAfterASuspension) {
  EXPECT_DEATH(RunInFiber(&ThrowAfterSuspension),
               "thrower(.|\n)*ThrowRuntimeError(.|\n)*ThrowAfterSuspension");
}

TEST_F(TerminateHandlerDeathTest, NamesFibersInBlockingRegions) {
  EXPECT_DEATH(RunInFiber([] { RunBlocking(&ThrowRuntimeError); }),
               "an exception left fiber \"thrower\"(.|\n)*, in a "
               "BlockingRegion: std::runtime_error: no such picture. Thrown "
               "here:(.|\n)*ThrowRuntimeError");
}

TEST_F(TerminateHandlerDeathTest, TellsTheFibersId) {
  EXPECT_DEATH(RunInFiber([] {
                 this_fiber::GetId();
                 throw std::runtime_error("x");
               }),
               "fiber \"thrower\", id [0-9]+, entry .*lambda");
}

TEST_F(TerminateHandlerDeathTest, NamesTypesThatAreNoStdExceptions) {
  EXPECT_DEATH(RunInFiber([] { throw Custom(); }),
               "0/0: flare::fiber::terminate_handler_test::Custom. Thrown");
  EXPECT_DEATH(RunInFiber([] { throw 42; }), "0/0: int. Thrown");
}

TEST_F(TerminateHandlerDeathTest, NamesFibersThatAreJoined) {
  EXPECT_DEATH(
      {
        StartOneWorker();
        Fiber fiber([] { throw std::runtime_error("joined"); });
        fiber.join();
      },
      "fiber without name, (.|\n)*std::runtime_error: joined");
}

TEST_F(TerminateHandlerDeathTest, ShowsTerminateWithoutException) {
  EXPECT_DEATH(RunInFiber([] { std::terminate(); }),
               "std::terminate\\(\\) was called in fiber \"thrower\"");
}

TEST_F(TerminateHandlerDeathTest, CallsTheHandlerBeforeIt) {
  EXPECT_DEATH(
      {
        std::set_terminate([] {
          std::fputs("the program's own handler\n", stderr);
          std::abort();
        });
        RunInFiber(&ThrowRuntimeError);
      },
      "an exception left fiber(.|\n)*the program's own handler");
}

// Counts the errors that are logged.
class CountErrors : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char*, const char*, int,
            const struct ::tm*, const char*, std::size_t) override {
    if (severity == google::GLOG_ERROR) ++errors;
  }

  int errors = 0;
};

TEST_F(TerminateHandlerDeathTest, LeavesPlainThreadsAlone) {
  EXPECT_DEATH(
      {
        static CountErrors sink;
        google::AddLogSink(&sink);
        std::set_terminate([] {
          std::fprintf(stderr, "%d errors before\n", sink.errors);
          std::abort();
        });
        StartOneWorker();
        std::thread([] { throw std::runtime_error("thread"); }).join();
      },
      "0 errors before");
}

TEST(TerminateHandler, ExceptionsThatAreCaughtAreNobodysBusiness) {
  StartOneWorker();
  std::string what;
  Fiber fiber([&] {
    try {
      ThrowAfterSuspension();
    } catch (const std::exception& e) {
      this_fiber::Yield();
      what = e.what();
    }
  });
  fiber.join();
  EXPECT_EQ(what, "no such picture");
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber
