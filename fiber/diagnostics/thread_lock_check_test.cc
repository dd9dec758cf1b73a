#include "flare/fiber/diagnostics/thread_lock_check.h"

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber {

// Outside the anonymous namespace: tests look for the names.
namespace thread_lock_check_test {

[[gnu::noinline]] void LockHere(ThreadMutex* mutex)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  mutex->lock();
  asm volatile("");  // Prevents a tail call.
}

[[gnu::noinline]] void SuspendHere() {
  this_fiber::Yield();
  asm volatile("");
}

}  // namespace thread_lock_check_test

namespace {

using ::testing::HasSubstr;

using thread_lock_check_test::LockHere;
using thread_lock_check_test::SuspendHere;

// Gathers logged errors.
class ErrorLog : public google::LogSink {
 public:
  ErrorLog() { google::AddLogSink(this); }
  ~ErrorLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const struct ::tm*, const char* message,
            std::size_t size) override {
    std::scoped_lock guard(lock_);
    if (severity == google::GLOG_ERROR) errors_.emplace_back(message, size);
  }

  std::vector<std::string> errors() {
    std::scoped_lock guard(lock_);
    return errors_;
  }

 private:
  std::mutex lock_;
  std::vector<std::string> errors_;
};

void Start(ThreadLockCheck check, int workers = 1) {
  RuntimeOptions options;
  options.concurrency = workers;
  options.group_size = workers;
  options.thread_lock_check = check;
  const Status status = StartRuntime(options);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Runs `f` in a fiber, and returns the errors logged meanwhile.
template <class F>
std::vector<std::string> ErrorsOf(F f) {
  ErrorLog log;
  Start(ThreadLockCheck::kReport);
  Fiber fiber([&] {
    this_fiber::SetName("holder");
    f();
  });
  fiber.join();
  TerminateRuntime();
  SetThreadLockCheck(ThreadLockCheck::kOff);
  return log.errors();
}

TEST(ThreadLockCheck, ReportsBothPlaces) {
  ThreadMutex mutex;
  const auto errors = ErrorsOf([&] {
    LockHere(&mutex);
    SuspendHere();
    mutex.unlock();
  });
  ASSERT_EQ(errors.size(), 1U);
  const std::string& text = errors[0];
  EXPECT_THAT(text, HasSubstr("fiber \"holder\" is suspended ("));
  const std::size_t suspended = text.find("SuspendHere");
  const std::size_t locked = text.find("LockHere");
  EXPECT_NE(suspended, std::string::npos) << text;
  EXPECT_NE(locked, std::string::npos) << text;
  EXPECT_LT(suspended, locked) << text;
}

TEST(ThreadLockCheck, ReportsAllThatAreHeldOnce) {
  ThreadMutex a;
  ThreadMutex b;
  const auto errors = ErrorsOf([&] {
    LockHere(&a);
    LockHere(&b);
    SuspendHere();
    SuspendHere();  // Reported already.
    b.unlock();
    a.unlock();
    SuspendHere();  // Nothing held.
  });
  ASSERT_EQ(errors.size(), 1U);
  const std::size_t first = errors[0].find("locked here");
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(errors[0].find("locked here", first + 1), std::string::npos);
}

TEST(ThreadLockCheck, ReportsBlockingPrimitives) {
  ThreadMutex mutex;
  Event event;
  const auto errors = ErrorsOf([&] {
    Fiber setter([&] { event.Set(); });
    ScopedLock guard(mutex);
    event.Wait();
    setter.detach();
  });
  EXPECT_EQ(errors.size(), 1U);
}

TEST(ThreadLockCheck, HasNothingAgainstLocksOfFibers) {
  Mutex mutex;
  ThreadMutex before;
  EXPECT_TRUE(ErrorsOf([&] {
                { ScopedLock guard(before); }
                std::scoped_lock guard(mutex);
                SuspendHere();
              }).empty());
}

TEST(ThreadLockCheck, HasNothingAgainstThreadsThatWait) {
  ErrorLog log;
  Start(ThreadLockCheck::kReport);
  ThreadMutex mutex;
  Event event;
  {
    ScopedLock guard(mutex);
    Fiber fiber([&] {
      SuspendHere();
      event.Set();
    });
    event.Wait();
    fiber.join();
  }
  TerminateRuntime();
  SetThreadLockCheck(ThreadLockCheck::kOff);
  EXPECT_TRUE(log.errors().empty());
}

TEST(ThreadLockCheck, IsSilentWhenOff) {
  ErrorLog log;
  Start(ThreadLockCheck::kOff);
  ThreadMutex mutex;
  Fiber fiber([&] {
    ScopedLock guard(mutex);
    SuspendHere();  // The only worker, so nobody else unlocks.
  });
  fiber.join();
  TerminateRuntime();
  EXPECT_TRUE(log.errors().empty());
}

// Fibers that lock and suspend properly, on several workers.
TEST(ThreadLockCheck, CountsRightWhenFibersMove) {
  ErrorLog log;
  Start(ThreadLockCheck::kReport, 4);
  ThreadMutex mutex;
  int count = 0;
  std::vector<Fiber> fibers;
  for (int i = 0; i < 8; ++i) {
    fibers.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        {
          ScopedLock guard(mutex);
          ++count;
        }
        this_fiber::Yield();
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  TerminateRuntime();
  SetThreadLockCheck(ThreadLockCheck::kOff);
  EXPECT_EQ(count, 400);
  EXPECT_TRUE(log.errors().empty());
}

TEST(ThreadLockCheckDeathTest, EndsTheProcessIfAsked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Start(ThreadLockCheck::kAbort);
        ThreadMutex mutex;
        Fiber fiber([&] {
          this_fiber::SetName("holder");
          LockHere(&mutex);
          SuspendHere();
        });
        fiber.join();
      },
      "\"holder\" is suspended(.|\n)*SuspendHere(.|\n)*locked "
      "here(.|\n)*LockHere");
}

}  // namespace
}  // namespace flare::fiber
