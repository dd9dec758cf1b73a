#include "flare/fiber/diagnostics/stack_sampler.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/diagnostics/sample_slot.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr int kSignal = SIGURG;

SampleSlot slot;
ThreadMutex sample_lock;
ThreadMutex install_lock;
int installed FLARE_GUARDED_BY(install_lock) = 0;
// A handler that was installed after ours stayed when ours should have gone.
bool left_behind FLARE_GUARDED_BY(install_lock) = false;
struct sigaction previous_action;  // Written before the handler is installed.

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool IsHandler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void CallPrevious(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (IsHandler(previous_action)) {
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
  const std::uint32_t request = slot.Look(ThreadId());
  if (request != 0 && slot.Claim(request)) {
    slot.Answer(BacktraceFromSignal(context));
  }
  errno = saved_errno;
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         action.sa_sigaction == &OnSignal;
}

// False: there is no such thread.
bool Signal(pid_t tid) {
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
  struct sigaction now;
  CHECK_EQ(sigaction(kSignal, nullptr, &now), 0);
  // A handler that was installed after ours and stayed goes on to call ours:
  // were theirs our previous one, they would call each other for ever.
  if (left_behind && IsHandler(now)) return;
  previous_action = now;
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
  left_behind = !IsOurs(now);
  if (!left_behind) CHECK_EQ(sigaction(kSignal, &previous_action, nullptr), 0);
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
  slot.Ask(tid);
  return slot.Await(Signal(tid) ? deadline : 0);
}

}  // namespace flare::fiber
