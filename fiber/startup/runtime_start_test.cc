// Starts of the runtime that fail: they say why, and leave nothing behind.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

TEST(RuntimeOptionsTest, NonsenseIsRefused) {
  RuntimeOptions options;
  options.stack_size = 1000;
  EXPECT_NE(StartRuntime(options).message().find("1000"), std::string::npos);
  options = {};
  options.optimize_for = "quick";
  EXPECT_NE(StartRuntime(options).message().find("quick"), std::string::npos);
  options = {};
  options.accessible_cpus = "0-x";
  EXPECT_FALSE(StartRuntime(options).ok());
  options = {};
  options.work_stealing_ratio = -1;
  EXPECT_FALSE(StartRuntime(options).ok());
  EXPECT_FALSE(IsRuntimeRunning());
}

// Is there no handler for that signal?
bool IsDefault(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_DFL;
}

// How the start of a runtime of 8 workers ends where this user may have so many
// threads: exits with 0 if with a Status, which it prints, and if another one
// does start without that limit. Neither leaves its signal handler behind.
[[noreturn]] void StartWithThreads(rlim_t threads) {
  // Root has no limit, and other users have threads already.
  if (geteuid() == 0 && setresuid(61'234, 61'234, 61'234) != 0) std::_Exit(2);
  rlimit limit = {};
  getrlimit(RLIMIT_NPROC, &limit);
  const rlim_t before = std::exchange(limit.rlim_cur, threads);
  setrlimit(RLIMIT_NPROC, &limit);
  RuntimeOptions options;
  options.concurrency = 8;
  const Status started = StartRuntime(options);
  std::fputs(started.message().c_str(), stderr);
  if (started.ok() || IsRuntimeRunning()) std::_Exit(1);
  if (!IsDefault(SIGURG)) std::_Exit(4);
  limit.rlim_cur = before;
  setrlimit(RLIMIT_NPROC, &limit);
  if (!StartRuntime(options).ok()) std::_Exit(3);
  Event ran;
  Spawn([&] { ran.Set(); });
  ran.Wait();
  TerminateRuntime();
  if (!IsDefault(SIGURG)) std::_Exit(5);
  std::_Exit(0);
}

// Called so for GoogleTest to run it first: ThreadSanitizer wants no threads
// after a fork with several.
TEST(RuntimeStartDeathTest, SaysThatThereAreNoMoreThreads) {
  for (const rlim_t threads : {1, 2, 3, 6, 9}) {
    EXPECT_EXIT(StartWithThreads(threads), ::testing::ExitedWithCode(0),
                "can't start a thread.*--flare_concurrency_hint")
        << threads;
    // The others have many.
    if (geteuid() != 0) break;
  }
}

}  // namespace
}  // namespace flare::fiber
