#include "flare/fiber/diagnostics/thread_exit.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>
#include <string>

#include "flare/base/backtrace.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/stack/stack.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr char kAdvice[] =
    ". That ends the thread, not the fiber, which ends by returning from its "
    "function";

std::string FiberName(const Carrier& fiber) {
  std::string text = "fiber ";
  text += fiber.name == nullptr ? "without name"
                                : '"' + std::string(fiber.name) + '"';
  return text + ", entry " +
         EntryName(reinterpret_cast<const void*>(fiber.entry));
}

// exit() runs destructors of thread-local objects, too, but on the stack that
// it was called on.
bool IsOnStackOf(const Carrier& fiber) {
  const auto* const here = static_cast<char*>(__builtin_frame_address(0));
  return here >= fiber.low() &&
         here < fiber.low() + fiber.stacks()->stack_size();
}

// Runs at the exit of a thread that fibers run on. Frames of the fiber may be
// gone by now, its carrier isn't.
void OnThreadExit() {
  if (IsForkedChild()) return;
  const Carrier* const fiber = CurrentFiber();
  if (fiber != nullptr && IsOnStackOf(*fiber)) return;
  LOG(FATAL) << "a thread that runs fibers has been cancelled, or has left by "
                "pthread_exit(), in "
             << (fiber == nullptr ? "no fiber" : FiberName(*fiber)) << kAdvice;
}

// Destroyed when the thread ends.
struct ExitGuard {
  bool forbidden = false;
  ~ExitGuard() {
    if (forbidden) OnThreadExit();
  }
};

[[gnu::noinline]] void SetThreadExit(bool forbidden) {
  static thread_local ExitGuard guard;
  guard.forbidden = forbidden;
}

// Before anything is unwound.
[[gnu::noinline]] void DieIfOnFiber() {
  if (IsForkedChild()) return;
  const Carrier* const fiber = CurrentFiber();
  if (fiber == nullptr) return;
  const Backtrace here = CurrentBacktrace(/*skip=*/1);
  std::string text;
  RunOnThreadStack([&] {
    text = "pthread_exit() in " + FiberName(*fiber) + kAdvice +
           ". Called here:\n" + here.ToString();
  });
  LOG(FATAL) << text;
}

}  // namespace

void ForbidThreadExit() { SetThreadExit(true); }
void AllowThreadExit() { SetThreadExit(false); }

}  // namespace flare::fiber

// In the place of libc's, which plain threads get. Weak, for programs that are
// linked with -static.
extern "C" [[gnu::weak]] void pthread_exit(void* value) {
  flare::fiber::DieIfOnFiber();
  using Exit = void (*)(void*);
  if (const auto exit_thread =
          reinterpret_cast<Exit>(dlsym(RTLD_NEXT, "pthread_exit"))) {
    exit_thread(value);
  }
  std::abort();
}
