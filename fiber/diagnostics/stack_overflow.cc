#include "flare/fiber/diagnostics/stack_overflow.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>

#include "flare/base/backtrace.h"
#include "flare/base/nonblocking_write.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"
#include "glog/logging.h"

namespace flare::fiber {

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)
namespace {

// Symbols are looked up on it, and an earlier handler may be called on it. Only
// its touched part takes memory.
constexpr std::size_t kSignalStackBytes = 256 << 10;

constexpr int kSignals[] = {SIGSEGV, SIGBUS};
// The actions in effect before. Written before the handler is installed.
struct sigaction previous_actions[2];

struct sigaction* PreviousOf(int signal) {
  return &previous_actions[signal == SIGSEGV ? 0 : 1];
}

void Write(const char* text) {
  const std::size_t size = std::strlen(text);
  if (write(STDERR_FILENO, text, size) < 0) return;  // There is no other place.
}

void Report(const Carrier& fiber, const void* context) {
  // snprintf() of glibc neither allocates nor locks for these.
  char id[32] = "";
  if (fiber.fiber_id != 0) {
    std::snprintf(id, sizeof(id), ", id %llu,",
                  static_cast<unsigned long long>(fiber.fiber_id));
  }
  const bool named = fiber.name != nullptr;
  char text[256];
  std::snprintf(text, sizeof(text),
                "*** fiber %s%.64s%s%s overflowed its stack of %zu KiB; raise "
                "--flare_fiber_stack_size (or find the recursion) ***\n",
                named ? "\"" : "", named ? fiber.name : "without name",
                named ? "\"" : "", id, fiber.stacks()->stack_size() >> 10);
  Write(text);
  Write("entry: ");
  WriteFunctionName(STDERR_FILENO, reinterpret_cast<void*>(fiber.entry));
  Write("\n");

  const mcontext_t& machine =
      static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const auto pc = static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
  const auto frame = static_cast<std::uintptr_t>(machine.gregs[REG_RBP]);
#else
  const auto pc = static_cast<std::uintptr_t>(machine.pc);
  const auto frame = static_cast<std::uintptr_t>(machine.regs[29]);
#endif
  const char* const usable = fiber.low() + fiber.stacks()->guard_size();
  const StackCopy stack = {
      reinterpret_cast<std::uintptr_t>(usable),
      {usable, fiber.stacks()->stack_size() - fiber.stacks()->guard_size()}};
  // One more: `pc` is of the instruction itself, not behind a call.
  WriteStackEnds(STDERR_FILENO, WalkToBothEnds(pc + 1, frame, stack));
}

// The fiber whose guard was hit; nullptr: it was something else.
const Carrier* Overflowed(const siginfo_t& info) {
  if (info.si_code <= 0) return nullptr;  // Sent by somebody.
  if (IsForkedChild()) return nullptr;    // A look at its worker is a fault.
  const Carrier* const fiber = CurrentFiber();
  if (fiber == nullptr) return nullptr;
  const auto* const address = static_cast<const char*>(info.si_addr);
  return address >= fiber->low() &&
                 address < fiber->low() + fiber->stacks()->guard_size()
             ? fiber
             : nullptr;
}

void Handle(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  struct sigaction* const before = PreviousOf(signal);
  if (const Carrier* const fiber = Overflowed(*info)) {
    // First, so that a fault in here ends it, too.
    sigaction(signal, before, nullptr);
    KeepStderrFromBlocking();
    Report(*fiber, context);
    errno = saved_errno;
    return;  // To the same fault again.
  }
  if ((before->sa_flags & SA_SIGINFO) != 0) {
    before->sa_sigaction(signal, info, context);
    return;
  }
  if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
    before->sa_handler(signal);
    return;
  }
  if (info->si_code <= 0 && before->sa_handler == SIG_IGN) return;
  // Like the default action: a fault happens again; a sent signal is sent
  // again, and arrives on return.
  sigaction(signal, before, nullptr);
  if (info->si_code <= 0) raise(signal);
  errno = saved_errno;
}

// One thread's stack for signals.
class SignalStack {
 public:
  SignalStack() {
    stack_t now;
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) {
      return;
    }
    void* const memory =
        mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;  // An overflow will kill silently.
    stack_t ours = {};
    ours.ss_sp = memory;
    ours.ss_size = kSignalStackBytes;
    if (sigaltstack(&ours, nullptr) == 0) {
      memory_ = memory;
    } else {
      munmap(memory, kSignalStackBytes);
    }
  }

  ~SignalStack() {
    if (memory_ == nullptr) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(memory_, kSignalStackBytes);
  }

  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* memory_ = nullptr;
};

}  // namespace

void InstallOverflowHandler() {
  static Spinlock lock;
  ScopedLock guard(lock);
  PrepareBacktraces();
  for (int signal : kSignals) {
    struct sigaction now;
    if (sigaction(signal, nullptr, &now) != 0) continue;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &Handle) {
      continue;
    }
    *PreviousOf(signal) = now;
    struct sigaction ours = {};
    ours.sa_sigaction = &Handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    PLOG_IF(ERROR, sigaction(signal, &ours, nullptr) != 0)
        << "overflows of fiber stacks will not be reported";
  }
}

void InstallOverflowHandlerForThread() {
  [[maybe_unused]] static thread_local SignalStack stack;
}

#else
void InstallOverflowHandler() {}
void InstallOverflowHandlerForThread() {}
#endif

}  // namespace flare::fiber
