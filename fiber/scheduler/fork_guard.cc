#include "flare/fiber/scheduler/fork_guard.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "flare/base/nonblocking_write.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {

const char kForkedChildMessage[] =
    "this process was forked from one that runs the fiber runtime, and has "
    "none "
    "of its workers: call exec after fork, use posix_spawn, or fork before "
    "flare::Start()";

namespace {

std::atomic<void (*)()> forget_runtime{nullptr};
std::atomic<bool> forked_child{false};

// A forked fiber's worker is replaced by this address, which is never mapped
// readable.
char* trap = nullptr;
struct sigaction previous;

void OnFault(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const auto low = reinterpret_cast<std::uintptr_t>(trap);
  if (at - low < sizeof(Worker)) DieAsForkedChild();
  // Some other mistake: as if this handler weren't there.
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    sigaction(signal, &previous, nullptr);  // The fault comes again.
  }
}

// Everything here must be async-signal-safe: other threads of the parent may
// have held any lock.
void InChild() {
  // relaxed: the only thread there is.
  void (*const forget)() = forget_runtime.load(std::memory_order_relaxed);
  if (forget == nullptr || IsForkedChild()) return;  // Or its child.
  forked_child.store(true, std::memory_order_relaxed);
  forget();
  if (CurrentWorker() == nullptr || trap == nullptr) return;
  ReplaceCurrentWorker(reinterpret_cast<Worker*>(trap));
  struct sigaction action = {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous);
}

void Install() {
  CHECK_EQ(pthread_atfork(nullptr, nullptr, &InChild), 0);
  void* const memory = mmap(nullptr, sizeof(Worker), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PCHECK(memory != MAP_FAILED);
  trap = static_cast<char*>(memory);
}

}  // namespace

void ArmForkGuard(void (*forget)()) {
  static const bool installed = (Install(), true);
  static_cast<void>(installed);
  // relaxed: a fork that races with the start of the runtime may be either.
  forget_runtime.store(forget, std::memory_order_relaxed);
}

void DisarmForkGuard() {
  // relaxed: a fork that races with the runtime's end may be either.
  forget_runtime.store(nullptr, std::memory_order_relaxed);
}

bool IsForkedChild() noexcept {
  // relaxed: set before the process had a second thread.
  return forked_child.load(std::memory_order_relaxed);
}

void DieAsForkedChild() noexcept {
  KeepStderrFromBlocking();
  // Where nothing can be written, the abort has to do.
  [[maybe_unused]] auto written = write(STDERR_FILENO, kForkedChildMessage,
                                        std::strlen(kForkedChildMessage));
  written = write(STDERR_FILENO, "\n", 1);
  std::abort();
}

}  // namespace flare::fiber
