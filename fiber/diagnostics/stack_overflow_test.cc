#include "flare/fiber/diagnostics/stack_overflow.h"

#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// The stack as it is used up, 1 KiB at a time.
[[gnu::noinline]] std::uint64_t RecurseWithoutEnd(std::uint64_t depth) {
  volatile std::uint64_t used[128];
  for (auto& each : used) each = depth;
  const std::uint64_t below = depth == ~0ULL ? 0 : RecurseWithoutEnd(depth + 1);
  return below + used[depth % 128];
}

void OnFiber(void (*body)()) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  Fiber(body).join();
  TerminateRuntime();
}

class StackOverflowDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
    GTEST_SKIP() << "sanitizers report it their own way";
#endif
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

// An address that the compiler doesn't know, or it would warn.
void WriteNowhere() {
  static volatile std::uintptr_t nowhere = 8;
  *reinterpret_cast<volatile int*>(nowhere) = 1;
}

TEST_F(StackOverflowDeathTest, NamesTheFiberAndWhereItWas) {
  const auto overflow = [] {
    OnFiber([] {
      this_fiber::SetName("digger");
      this_fiber::GetId();
      RecurseWithoutEnd(0);
    });
  };
  EXPECT_EXIT(overflow(), ::testing::KilledBySignal(SIGSEGV),
              "fiber \"digger\", id 1, overflowed its stack of 128 KiB; raise "
              "--flare_fiber_stack_size");
  EXPECT_EXIT(overflow(), ::testing::KilledBySignal(SIGSEGV),
              "entry: .*Fiber.*\n.*#0 0x[0-9a-f]+ .*RecurseWithoutEnd"
              "(.|\n)*#9 .*RecurseWithoutEnd");
}

// The caller of the recursion, which tells it from others.
[[gnu::noinline]] std::uint64_t BeginToRecurse() {
  return RecurseWithoutEnd(0) + 1;  // Prevents a tail call.
}

TEST_F(StackOverflowDeathTest, ShowsTheOutermostFrames) {
  EXPECT_EXIT(
      OnFiber([] { BeginToRecurse(); }), ::testing::KilledBySignal(SIGSEGV),
      "#63 .*RecurseWithoutEnd.*\n *\\.\\.\\. [0-9]+ frames are left out "
      "\\.\\.\\.\n.*RecurseWithoutEnd(.|\n)*BeginToRecurse(.|\n)*"
      "Worker.*Loop");
}

TEST_F(StackOverflowDeathTest, WithoutNameAfterASuspension) {
  EXPECT_EXIT(OnFiber([] {
                this_fiber::Yield();
                RecurseWithoutEnd(0);
              }),
              ::testing::KilledBySignal(SIGSEGV),
              "fiber without name overflowed its stack");
}

// More than the guard, or all stacks that are likely to lie below it: by
// -fstack-clash-protection every page of it is touched.
[[gnu::noinline]] int TakeLargeFrame(std::size_t at) {
  volatile char frame[std::size_t{64} << 20];
  frame[at] = 1;
  return frame[at];
}

TEST_F(StackOverflowDeathTest, LargeFramesDoNotStepOverTheGuard) {
#if defined(__clang__) && defined(__aarch64__)
  GTEST_SKIP() << "clang 14 has no -fstack-clash-protection for AArch64";
#endif
  EXPECT_EXIT(OnFiber([] {
                // The far end, which is all that it means to touch.
                static volatile std::size_t at = 0;
                TakeLargeFrame(at);
              }),
              ::testing::KilledBySignal(SIGSEGV), "overflowed its stack");
}

TEST_F(StackOverflowDeathTest, InABlockingRegion) {
  EXPECT_EXIT(OnFiber([] {
                BlockingRegion region;
                RecurseWithoutEnd(0);
              }),
              ::testing::KilledBySignal(SIGSEGV), "overflowed its stack");
}

// Other faults are not taken for overflows.
TEST_F(StackOverflowDeathTest, OtherFaultsDieAsBefore) {
  EXPECT_EXIT(OnFiber(WriteNowhere), ::testing::KilledBySignal(SIGSEGV),
              "^[^*]*$");
  EXPECT_EXIT(OnFiber([] {
                kill(getpid(), SIGSEGV);
                pause();
              }),
              ::testing::KilledBySignal(SIGSEGV), "^[^*]*$");
  EXPECT_EXIT(OnFiber([] { raise(SIGBUS); }), ::testing::KilledBySignal(SIGBUS),
              "^[^*]*$");
}

// The guard of another stack than one's own.
TEST_F(StackOverflowDeathTest, AWildPointerIntoAGuardIsNoOverflow) {
  EXPECT_EXIT(
      OnFiber([] {
        int here = 0;
        const auto low = reinterpret_cast<std::uintptr_t>(&here) & ~131071UL;
        *reinterpret_cast<volatile char*>(low + 2 * 131072 + 8) = 1;
        _exit(0);  // Nobody's guard: that is as good.
      }),
      [](int status) {
        return ::testing::KilledBySignal(SIGSEGV)(status) ||
               ::testing::ExitedWithCode(0)(status);
      },
      "^[^*]*$");
}

// A handler that was there gets other faults, and the overflow itself after the
// report, if it has a stack to run on.
void Before(int, siginfo_t*, void*) {
  constexpr char kText[] = "handler of before\n";
  if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) _exit(2);
  _exit(77);
}

void InstallBefore(int flags) {
  struct sigaction action = {};
  action.sa_sigaction = &Before;
  action.sa_flags = SA_SIGINFO | flags;
  sigaction(SIGSEGV, &action, nullptr);
}

TEST_F(StackOverflowDeathTest, HandlersOfBeforeAreCalled) {
  EXPECT_EXIT((InstallBefore(0), OnFiber(WriteNowhere)),
              ::testing::ExitedWithCode(77), "handler of before");
  EXPECT_EXIT(
      (InstallBefore(SA_ONSTACK), OnFiber([] { RecurseWithoutEnd(0); })),
      ::testing::ExitedWithCode(77),
      "overflowed its stack(.|\n)*handler of before");
  // Without one the kernel kills.
  EXPECT_EXIT((InstallBefore(0), OnFiber([] { RecurseWithoutEnd(0); })),
              ::testing::KilledBySignal(SIGSEGV), "overflowed its stack");
}

// One who ignores SIGSEGVs that are sent still may.
TEST_F(StackOverflowDeathTest, IgnoredSignalsStayIgnored) {
  EXPECT_EXIT((signal(SIGSEGV, SIG_IGN), OnFiber([] {
                 kill(getpid(), SIGSEGV);
                 raise(SIGSEGV);
               }),
               _exit(5)),
              ::testing::ExitedWithCode(5), "");
}

TEST_F(StackOverflowDeathTest, ThreadsGetASignalStackOnce) {
  std::thread([] {
    stack_t stack;
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_NE(stack.ss_flags & SS_DISABLE, 0);
    InstallOverflowHandlerForThread();
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
    void* const first = stack.ss_sp;
    InstallOverflowHandlerForThread();
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_sp, first);
  }).join();
  // One that has its own keeps it.
  std::thread([] {
    static char memory[65536];
    stack_t own = {};
    own.ss_sp = memory;
    own.ss_size = sizeof(memory);
    ASSERT_EQ(sigaltstack(&own, nullptr), 0);
    InstallOverflowHandlerForThread();
    stack_t stack;
    ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
    EXPECT_EQ(stack.ss_sp, memory);
  }).join();
}

}  // namespace
}  // namespace flare::fiber
