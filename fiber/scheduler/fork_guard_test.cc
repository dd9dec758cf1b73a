#include "flare/fiber/scheduler/fork_guard.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

extern char** environ;

namespace flare::fiber {
namespace {

struct Ended {
  int status = 0;
  std::string said;  // On stderr.

  bool Exited(int code) const {
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
  }
  bool DiedWithMessage() const {
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
           said.find(kForkedChildMessage) != std::string::npos;
  }
};

Ended AwaitChild(pid_t child, int read_end) {
  Ended ended;
  char buffer[1024];
  for (ssize_t got; (got = read(read_end, buffer, sizeof(buffer))) > 0;) {
    ended.said.append(buffer, static_cast<std::size_t>(got));
  }
  close(read_end);
  EXPECT_EQ(waitpid(child, &ended.status, 0), child);
  return ended;
}

// Forks; the child calls `in_child`, if that is given, and exits with 7 if that
// returns. `child`, if given, is told whether this is the child, and then
// returns from here as well.
Ended Fork(const std::function<void()>& in_child, bool* child = nullptr) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  EXPECT_GE(pid, 0);
  if (pid != 0) {
    close(ends[1]);
    return AwaitChild(pid, ends[0]);
  }
  dup2(ends[1], STDERR_FILENO);
  close(ends[0]);
  close(ends[1]);
  if (in_child) in_child();
  if (child == nullptr) _exit(7);
  *child = true;
  return Ended();
}

class ForkGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = 2;
    options.group_size = 2;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  // Fork() in a fiber.
  static Ended ForkInFiber(const std::function<void()>& in_child) {
    Ended ended;
    Fiber fiber([&] { ended = Fork(in_child); });
    fiber.join();
    return ended;
  }
};

#define EXPECT_DIES(expression)                \
  {                                            \
    const Ended ended = (expression);          \
    EXPECT_TRUE(ended.DiedWithMessage())       \
        << ended.status << ": " << ended.said; \
  }

TEST_F(ForkGuardTest, ChildOfAThreadDiesAtItsFirstUseOfTheRuntime) {
  EXPECT_DIES(Fork([] { Spawn([] {}); }));
  EXPECT_DIES(Fork([] { Fiber fiber([] {}); }));
  EXPECT_DIES(Fork([] { GetSchedulingGroupCount(); }));
  EXPECT_DIES(Fork([] { TerminateRuntime(); }));
  EXPECT_DIES(Fork([] { GetRuntimeStatistics(); }));
  EXPECT_DIES(Fork([] {
    Event event;
    event.Wait();  // Nobody could set it.
  }));
  EXPECT_DIES(Fork([] {
    Channel<int> channel;
    static_cast<void>(channel.Receive());
  }));
}

TEST_F(ForkGuardTest, ChildOfAFiberDiesAtItsFirstUseOfTheRuntime) {
  EXPECT_DIES(ForkInFiber([] { Spawn([] {}); }));
  EXPECT_DIES(ForkInFiber([] { this_fiber::Yield(); }));
  EXPECT_DIES(
      ForkInFiber([] { this_fiber::SleepFor(std::chrono::milliseconds(1)); }));
  EXPECT_DIES(ForkInFiber([] {
    Event event;
    event.Wait();
  }));
  EXPECT_DIES(ForkInFiber([] { this_fiber::GetId(); }));
  EXPECT_DIES(ForkInFiber([] { GetSchedulingGroupCount(); }));
}

// The fiber's function returns into the worker's loop.
TEST_F(ForkGuardTest, ChildOfAFiberDiesWhenTheFiberEnds) {
  Ended ended;
  Event done;
  Spawn([&] {
    bool child = false;
    ended = Fork(nullptr, &child);
    if (!child) done.Set();
  });
  done.Wait();
  EXPECT_TRUE(ended.DiedWithMessage()) << ended.status << ": " << ended.said;
}

TEST_F(ForkGuardTest, ChildOfABlockingRegionDiesAtItsFirstUseOfTheRuntime) {
  const auto in_region = [](const std::function<void()>& in_child) {
    Ended ended;
    Fiber fiber([&] { RunBlocking([&] { ended = Fork(in_child); }); });
    fiber.join();
    return ended;
  };
  EXPECT_DIES(in_region([] { Spawn([] {}); }));
  EXPECT_DIES(in_region([] {
    Event event;
    event.Wait();
  }));
  EXPECT_TRUE(in_region(nullptr).Exited(7));
}

TEST_F(ForkGuardTest, ChildOfABlockingRegionDiesWhenTheRegionEnds) {
  Ended ended;
  Event done;
  Spawn([&] {
    bool child = false;
    RunBlocking([&] { ended = Fork(nullptr, &child); });
    if (!child) done.Set();
  });
  done.Wait();
  EXPECT_TRUE(ended.DiedWithMessage()) << ended.status << ": " << ended.said;
}

TEST_F(ForkGuardTest, ChildThatLeavesTheRuntimeAloneMayGoOn) {
  const auto harmless = [] {
    Mutex mutex;
    mutex.lock();
    mutex.unlock();
    if (IsRuntimeRunning() || !IsForkedChild()) _exit(1);
  };
  EXPECT_TRUE(Fork(harmless).Exited(7));
  EXPECT_TRUE(ForkInFiber(harmless).Exited(7));
  EXPECT_FALSE(IsForkedChild());
}

TEST_F(ForkGuardTest, ExecWorks) {
  const auto exec = [] {
    execl("/bin/sh", "sh", "-c", "exit 5", static_cast<char*>(nullptr));
  };
  EXPECT_TRUE(Fork(exec).Exited(5));
  EXPECT_TRUE(ForkInFiber(exec).Exited(5));
}

TEST_F(ForkGuardTest, PosixSpawnWorks) {
  const auto spawn = [] {
    pid_t child = 0;
    const char* const arguments[] = {"sh", "-c", "exit 5", nullptr};
    EXPECT_EQ(posix_spawn(&child, "/bin/sh", nullptr, nullptr,
                          const_cast<char**>(arguments), environ),
              0);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5);
  };
  spawn();
  Fiber fiber(spawn);
  fiber.join();
}

TEST_F(ForkGuardTest, ParentGoesOn) {
  Fork([] {});
  ForkInFiber([] {});
  int value = 0;
  Fiber fiber([&] {
    this_fiber::Yield();
    value = 1;
  });
  fiber.join();
  EXPECT_EQ(value, 1);
}

TEST_F(ForkGuardTest, ChildCannotStartAnotherRuntime) {
  const auto start = [] {
    const Status status = StartRuntime(RuntimeOptions());
    _exit(!status.ok() && status.message() == kForkedChildMessage ? 3 : 4);
  };
  EXPECT_TRUE(Fork(start).Exited(3));
  EXPECT_TRUE(ForkInFiber(start).Exited(3));
}

TEST_F(ForkGuardTest, OtherFaultsOfTheChildAreWhatTheyWere) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  GTEST_SKIP() << "The sanitizers report faults in their own way";
#endif
  const Ended ended = ForkInFiber([] {
    signal(SIGABRT, SIG_DFL);
    void* const locked =
        mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *static_cast<volatile int*>(locked) = 1;
  });
  EXPECT_TRUE(WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGSEGV);
  EXPECT_EQ(ended.said.find(kForkedChildMessage), std::string::npos);
}

TEST(ForkGuard, FaultsOfAChildsChildComeToTheHandlerFromBefore) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  GTEST_SKIP() << "The sanitizers report faults in their own way";
#endif
  struct sigaction action = {};
  action.sa_handler = [](int) { _exit(42); };
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGSEGV, &action, &before), 0);
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  Ended ended;
  Fiber fiber([&] {
    ended = Fork([] {
      const Ended of_its_child = Fork([] {
        void* const locked =
            mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *static_cast<volatile int*>(locked) = 1;
      });
      _exit(of_its_child.Exited(42) ? 43 : 44);
    });
  });
  fiber.join();
  TerminateRuntime();
  EXPECT_TRUE(ended.Exited(43)) << ended.status;
  ASSERT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
}

TEST(ForkGuard, ProcessesForkedWithoutARuntimeMayStartOne) {
#ifdef FLARE_TSAN
  GTEST_SKIP() << "ThreadSanitizer forbids threads after a fork";
#endif
  const auto use = [] {
    if (!StartRuntime(RuntimeOptions()).ok()) _exit(1);
    int value = 0;
    Fiber fiber([&] { value = 7; });
    fiber.join();
    TerminateRuntime();
    _exit(value);
  };
  EXPECT_TRUE(Fork(use).Exited(7));
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  TerminateRuntime();
  EXPECT_TRUE(Fork(use).Exited(7));
}

}  // namespace
}  // namespace flare::fiber
