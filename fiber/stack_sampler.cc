// [SS1] There is one slot. Only who holds `sample_lock` moves it from kFree to
//       kAsked; only the handler, on the thread asked, moves it from kAsked to
//       kWriting and then to kDone. So the backtrace has one writer, and is
//       read after kDone (release, acquire) by who asked.
// [SS2] Who loses patience moves the slot from kAsked back to kFree, or finds
//       that the handler writes and waits for it. A signal that arrives later
//       finds no request for its thread, and does nothing.
#include "flare/fiber/stack_sampler.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr int kSignal = SIGURG;

enum : std::uint32_t { kFree, kAsked, kWriting, kDone };

struct Slot {
  std::atomic<std::uint32_t> state{kFree};
  std::atomic<pid_t> tid{0};
  Backtrace backtrace;
};

Slot slot;
ThreadMutex sample_lock;
ThreadMutex install_lock;
int installed FLARE_GUARDED_BY(install_lock) = 0;
struct sigaction previous_action;  // Written before the handler is installed.

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void CallPrevious(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL &&
             previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  }
}

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (info->si_code != SI_QUEUE || info->si_value.sival_ptr != &slot) {
    CallPrevious(signal, info, context);
    errno = saved_errno;
    return;
  }
  std::uint32_t asked = kAsked;
  // relaxed: the id is only compared; the request's fields are published by
  // `state`. acquire: pairs with the release in Ask [SS1].
  if (slot.state.load(std::memory_order_acquire) == kAsked &&
      slot.tid.load(std::memory_order_relaxed) == ThreadId() &&
      slot.state.compare_exchange_strong(asked, kWriting,
                                         std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
    slot.backtrace = BacktraceFromSignal(context);
    // release: pairs with the acquire in SampleStack [SS1].
    slot.state.store(kDone, std::memory_order_release);
    FutexWake(&slot.state, 1);
  }
  errno = saved_errno;
}

// False: there is no such thread.
bool Ask(pid_t tid) {
  // relaxed: published by the release below, which pairs with the acquires in
  // OnSignal [SS1].
  slot.tid.store(tid, std::memory_order_relaxed);
  slot.state.store(kAsked, std::memory_order_release);
  siginfo_t info = {};
  info.si_signo = kSignal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = &slot;
  return syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, kSignal, &info) == 0;
}

}  // namespace

void StartStackSampler() {
  PrepareBacktraces();
  ScopedLock guard(install_lock);
  if (installed++ != 0) return;
  CHECK_EQ(sigaction(kSignal, nullptr, &previous_action), 0);
  struct sigaction action = {};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  CHECK_EQ(sigaction(kSignal, &action, nullptr), 0);
}

void StopStackSampler() {
  ScopedLock guard(install_lock);
  if (--installed != 0) return;
  struct sigaction now;
  CHECK_EQ(sigaction(kSignal, nullptr, &now), 0);
  // Not if somebody has come after us.
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &OnSignal) {
    CHECK_EQ(sigaction(kSignal, &previous_action, nullptr), 0);
  }
}

void AcceptStackSampling() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kSignal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Backtrace SampleStack(pid_t tid, std::int64_t patience_ns) {
  {
    ScopedLock guard(install_lock);
    if (installed == 0) return Backtrace();
  }
  ScopedLock guard(sample_lock);
  const std::int64_t deadline = NowNs() + patience_ns;
  bool patient = Ask(tid);
  for (;;) {
    // acquire: pairs with the release in OnSignal [SS1].
    std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state == kDone) break;
    if (state == kAsked && !patient &&
        // relaxed: nothing is read but that nobody answered [SS2].
        slot.state.compare_exchange_strong(state, kFree,
                                           std::memory_order_relaxed)) {
      return Backtrace();
    }
    if (state == kAsked || state == kWriting) {
      FutexWait(&slot.state, state, patient ? deadline : kNoDeadline);
    }
    patient = patient && NowNs() < deadline;
  }
  const Backtrace backtrace = slot.backtrace;
  // relaxed: the lock orders this with the next request [SS1].
  slot.state.store(kFree, std::memory_order_relaxed);
  return backtrace;
}

}  // namespace flare::fiber
