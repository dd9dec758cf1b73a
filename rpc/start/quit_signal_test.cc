#include "flare/rpc/start/quit_signal.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include "flare/base/sanitizer.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/new_events.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/init/on_init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/testing/start_fixture.h"
#include "gtest/gtest.h"

FLARE_OVERRIDE_FLAG(logtostderr, true);

namespace flare {
namespace {

using rpc::testing::StartTest;
using rpc::testing::StartWith;
using StartDeathTest = StartTest;

class QuitSignalTest : public StartTest,
                       public ::testing::WithParamInterface<int> {};

TEST_P(QuitSignalTest, EndsTheWaitOfAllFibers) {
  const int result = StartWith({}, [](int, char**) {
    EXPECT_FALSE(CheckForQuitSignal());
    std::atomic<int> woken{0};
    std::vector<Fiber> waiters;
    for (int i = 0; i != 3; ++i) {
      waiters.emplace_back([&] {
        WaitForQuitSignal();
        ++woken;
      });
    }
    kill(getpid(), GetParam());
    WaitForQuitSignal();
    for (Fiber& waiter : waiters) waiter.join();
    EXPECT_TRUE(CheckForQuitSignal());
    WaitForQuitSignal();  // Returns at once.
    return woken.load();
  });
  EXPECT_EQ(result, 3);
}

INSTANTIATE_TEST_SUITE_P(Signals, QuitSignalTest,
                         ::testing::Values(SIGINT, SIGQUIT, SIGTERM));

TEST_F(StartTest, SignalsAreForgottenAtTheEnd) {
  struct sigaction before, after;
  sigaction(SIGTERM, nullptr, &before);
  for (int i = 0; i != 2; ++i) {
    StartWith({}, [](int, char**) {
      EXPECT_FALSE(CheckForQuitSignal());
      raise(SIGTERM);
      EXPECT_TRUE(CheckForQuitSignal());
      return 0;
    });
  }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

// A fiber that nobody joined still waits when the runtime ends: it is
// abandoned, and a signal that comes later isn't for it.
TEST_F(StartTest, WhoStillWaitsForASignalAtTheEndIsAbandoned) {
  static std::atomic<int> woken;
  static std::atomic<bool> begun;
  begun = false;
  // Left behind on purpose, and where leak checkers find it.
  static auto* const waiter = new Fiber;
  const int result = StartWith({}, [](int, char**) {
    *waiter = Fiber([] {
      begun = true;
      WaitForQuitSignal();
      ++woken;
    });
    while (!begun) this_fiber::Yield();
    return 7;
  });
  EXPECT_EQ(result, 7);
  StartWith({}, [](int, char**) {
    EXPECT_FALSE(CheckForQuitSignal());
    raise(SIGTERM);
    WaitForQuitSignal();
    return 0;
  });
  EXPECT_EQ(woken.load(), 0);
}

// Has the next Start() call `f` when its runtime has ended.
void CallAfterTheRuntime(std::function<void()> f) {
  static std::function<void()> at_end;
  // Callbacks are there to stay.
  static const init::OnInit callback(
      0, [] {},
      [] {
        if (at_end) std::exchange(at_end, nullptr)();
      });
  at_end = std::move(f);
}

// The stack of the fiber that waits is gone by then.
TEST_F(StartTest, ASignalAfterTheRuntimeWakesNobody) {
  static std::atomic<bool> begun;
  // Left behind on purpose, and where leak checkers find it.
  static auto* const waiter = new Fiber;
  bool seen = false;
  CallAfterTheRuntime([&] {
    raise(SIGTERM);
    seen = CheckForQuitSignal();
  });
  const int result = StartWith({}, [](int, char**) {
    *waiter = Fiber([] {
      begun = true;
      WaitForQuitSignal();
    });
    while (!begun) this_fiber::Yield();
    return 7;
  });
  EXPECT_EQ(result, 7);
  EXPECT_TRUE(seen);
}

TEST_F(StartTest, SignalsMayBeAskedForAfterTheRuntimeAlone) {
  bool seen = false;
  CallAfterTheRuntime([&] {
    EXPECT_FALSE(CheckForQuitSignal());
    raise(SIGTERM);
    seen = CheckForQuitSignal();
  });
  EXPECT_EQ(StartWith({}, [](int, char**) { return 7; }), 7);
  EXPECT_TRUE(seen);
}

// As one does whose exec() has failed.
TEST_F(StartTest, AForkedChildMayExit) {
#ifdef FLARE_ASAN
  GTEST_SKIP() << "what only the parent's threads hold is a leak of the child";
#endif
  const int status = StartWith({}, [](int, char**) {
    CheckForQuitSignal();
    const pid_t child = fork();
    if (child == 0) std::exit(3);
    int ended = 0;
    EXPECT_EQ(waitpid(child, &ended, 0), child);
    return ended;
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

// It has begun on another thread, and is kept from its CPU until the end:
// descriptors opened since then aren't written to, and the next start isn't
// told to quit.
TEST_F(StartTest, ALateSignalHandlerDoesNoHarm) {
  struct sigaction handler = {};
  for (int i = 0; i != 2; ++i) {
    StartWith({}, [&](int, char**) {
      EXPECT_FALSE(CheckForQuitSignal());
      EXPECT_EQ(sigaction(SIGTERM, nullptr, &handler), 0);
      return 0;
    });
    const fiber::testing::NewEvents others;
    handler.sa_handler(SIGTERM);
    EXPECT_EQ(others.written(), 0U);
  }
}

TEST_F(StartDeathTest, WithoutDescriptorsNobodyCanWaitForSignals) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartWith({},
                        [](int, char**) {
                          // UBSan needs a descriptor to look at types that are
                          // new to it.
                          (void)StatusFromErrno(EMFILE, "");
                          rlimit none = {};
                          setrlimit(RLIMIT_NOFILE, &none);
                          CheckForQuitSignal();
                          return 0;
                        }),
              ::testing::ExitedWithCode(1), "SIGTERM: create an eventfd: ");
}

TEST_F(StartDeathTest, WithoutThreadsNobodyCanWaitForSignals) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartWith({},
                        [](int, char**) {
                          // Root has no limit; others have threads already.
                          if (geteuid() == 0 &&
                              setresuid(61'234, 61'234, 61'234) != 0) {
                            std::cerr << "no other user, so: SIGTERM: can't "
                                         "start a thread: ";
                            std::_Exit(1);
                          }
                          const rlimit one = {1, 1};
                          setrlimit(RLIMIT_NPROC, &one);
                          CheckForQuitSignal();
                          return 0;
                        }),
              ::testing::ExitedWithCode(1), "SIGTERM: can't start a thread: ");
}

// Until CLOCK_MONOTONIC has advanced so far that a signal is no longer taken
// for a repetition of the first.
void SpinForAQuarterSecond() {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  while (std::chrono::steady_clock::now() < until) {
  }
}

TEST_F(StartDeathTest, SecondSignalAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(StartWith({},
                        [](int, char**) {
                          CheckForQuitSignal();
                          raise(SIGTERM);
                          SpinForAQuarterSecond();
                          raise(SIGINT);
                          return 0;
                        }),
              ::testing::KilledBySignal(SIGABRT), "second time");
}

// For a test that has begun to raise signals now: if that took so long that the
// last of them counts as a second request, being aborted is right.
void ExitWithSevenIfAbortedLate() {
  static std::chrono::steady_clock::time_point begin;
  begin = std::chrono::steady_clock::now();
  signal(SIGABRT, [](int) {
    const auto took = std::chrono::steady_clock::now() - begin;
    if (took > std::chrono::milliseconds(200)) _exit(7);
  });
}

TEST_F(StartDeathTest, SignalsInQuickSuccessionCountAsOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(StartWith({},
                                  [](int, char**) {
                                    CheckForQuitSignal();
                                    ExitWithSevenIfAbortedLate();
                                    raise(SIGTERM);
                                    raise(SIGTERM);
                                    raise(SIGINT);
                                    WaitForQuitSignal();
                                    return 7;
                                  })),
              ::testing::ExitedWithCode(7), "");
}

TEST_F(StartDeathTest, SecondSignalMayBeIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(StartWith({"--noflare_abort_on_double_quit_signal"},
                                  [](int, char**) {
                                    CheckForQuitSignal();
                                    raise(SIGTERM);
                                    SpinForAQuarterSecond();
                                    raise(SIGTERM);
                                    return 8;
                                  })),
              ::testing::ExitedWithCode(8), "");
}

}  // namespace
}  // namespace flare
