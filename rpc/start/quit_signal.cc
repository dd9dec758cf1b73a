// A signal handler may do next to nothing, least of all wake a fiber. So it
// counts, and writes to an eventfd on which a thread of this file sleeps; that
// thread sets the event. It ends before the runtime does: then nothing may come
// from outside any more, and fibers that still wait are abandoned, the event's
// list of them with them.
//
// Fibers that the event wakes need workers, which calls may hold: so, until the
// end, the thread looks whether the workers still begin tasks. If they don't,
// it begins the stop of the servers itself (running_servers.h). A queue alone
// is no reason: it is first in, first out, so the program gets its turn.
#include "flare/rpc/start/quit_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/malloc_arena.h"
#include "flare/base/nonblocking_write.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/io/fd.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/running_servers.h"
#include "glog/logging.h"

namespace flare {
namespace {

constexpr int kSignals[] = {SIGINT, SIGQUIT, SIGTERM};
// Signals this close to the first are taken for the same request.
constexpr std::int64_t kSameRequestNs = 200'000'000;

// Workers that begin no task for so long, once there was a signal, are held if
// one is queued. So are those whose queue alone takes kLongPatienceNs: the
// program would begin its stop too late.
constexpr std::int64_t kPatienceNs = 300 * kNsPerMs;
constexpr std::int64_t kLongPatienceNs = 3 * kNsPerSecond;

// The handler's variables. All are lock-free, thus safe in it. The eventfd is
// made once and never closed: a handler that has begun on some thread may write
// to it after the signals were given back, which nobody can wait for, and would
// write to whatever has got its number by then.
std::atomic<int> wakeup_fd{-1};
std::atomic<bool> abort_on_second{true};
std::atomic<bool> quit_requested{false};
std::atomic<std::int64_t> first_signal_ns{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t SignalSafeNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * kNsPerSecond + now.tv_nsec;
}

void OnQuitSignal(int) {
  const int saved_errno = errno;
  const std::int64_t now_ns = SignalSafeNowNs();
  std::int64_t first_ns = 0;
  // relaxed, here and below: single flags and times; the eventfd orders.
  if (first_signal_ns.compare_exchange_strong(first_ns, now_ns,
                                              std::memory_order_relaxed)) {
    quit_requested.store(true, std::memory_order_relaxed);
    io::SignalEventFd(wakeup_fd.load(std::memory_order_relaxed));
  } else if (now_ns - first_ns > kSameRequestNs &&
             abort_on_second.load(std::memory_order_relaxed)) {
    constexpr char kText[] = "Asked to quit a second time: aborting.\n";
    KeepStderrFromBlocking();
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, kText, sizeof(kText) - 1);
    std::abort();
  }
  errno = saved_errno;
}

// A program that would never know of a signal isn't to run. Its workers still
// do, so no destructors.
[[noreturn]] void GiveUp(const std::string& why) {
  LOG(ERROR) << "Can't wait for SIGINT, SIGQUIT and SIGTERM: " << why << ".";
  google::FlushLogFiles(google::INFO);
  std::_Exit(1);
}

// A task of a scheduling group that tells whether it has been run, or others
// before it.
class Probe : public fiber::Task {
 public:
  Probe() {
    run = [](fiber::Task* self) {
      // release: pairs with the acquire in done().
      static_cast<Probe*>(self)->done_.store(true, std::memory_order_release);
    };
  }
  // acquire: pairs with the release above, so that it may be queued again.
  bool done() const { return done_.load(std::memory_order_acquire); }
  void QueueIn(std::size_t group) {
    // relaxed: its queue publishes it.
    done_.store(false, std::memory_order_relaxed);
    queued_ns_ = NowNs();
    fiber::SubmitTo(group, this);
  }
  // Whether the group's workers have begun tasks since the last call, and will
  // come to this one soon.
  bool SeesProgress(std::size_t group) {
    const std::uint64_t tasks = fiber::GetTasksBegun(group);
    return std::exchange(tasks_, tasks) != tasks &&
           NowNs() - queued_ns_ < kLongPatienceNs;
  }

 private:
  std::atomic<bool> done_{true};
  std::uint64_t tasks_ = 0;
  std::int64_t queued_ns_ = 0;
};

class QuitWatcher {
 public:
  // `watches`: whether signals set the event, or are counted only.
  explicit QuitWatcher(bool watches) {
    if (wakeup_fd < 0) wakeup_fd = eventfd(0, EFD_CLOEXEC);
    if (wakeup_fd < 0) {
      GiveUp(StatusFromErrno(errno, "create an eventfd").message() +
             "; raise the limit of descriptors (ulimit -n)");
    }
    abort_on_second = FLAGS_flare_abort_on_double_quit_signal;
    // At the start of a runtime, and not at the end of the last one, whose
    // handler may have come after that.
    quit_requested = false;
    first_signal_ns = 0;
    try {
      if (watches) thread_ = std::thread([this] { Watch(); });
    } catch (const std::system_error& error) {
      GiveUp(std::string("can't start a thread: ") + error.what() +
             "; raise the limit of threads (ulimit -u) or of memory");
    }
    struct sigaction action = {};
    action.sa_handler = OnQuitSignal;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    for (std::size_t i = 0; i != std::size(kSignals); ++i) {
      PCHECK(sigaction(kSignals[i], &action, &previous_[i]) == 0);
    }
  }

  ~QuitWatcher() {
    for (std::size_t i = 0; i != std::size(kSignals); ++i) {
      sigaction(kSignals[i], &previous_[i], nullptr);
    }
    StopWatching();
  }

  void StopWatching() {
    if (!thread_.joinable()) return;
    ending_ = true;
    io::SignalEventFd(wakeup_fd);
    thread_.join();
  }

  void Wait() { quit_.Wait(); }

 private:
  void Watch() {
    // Gets the thread an arena: when it is to quit the process may have no
    // memory left, and jemalloc crashes in a first allocation without any. The
    // same for the probes, as far as there are groups by now.
    CurrentMallocArena();
    if (fiber::IsRuntimeRunning()) MakeProbes();
    while (!quit_requested && !ending_) {
      std::uint64_t count;
      // Blocks until the handler or StopWatching() writes, or has written to
      // the last watcher.
      [[maybe_unused]] const ssize_t n = read(wakeup_fd, &count, sizeof(count));
    }
    if (!quit_requested) return;
    quit_.Set();
    while (!ending_ && !(rpc::RunningServer::Any() && AreWorkersHeld())) {
      WaitForEnd(kPatienceNs);
    }
    if (!ending_) rpc::RunningServer::StopAll();
  }

  void MakeProbes() {
    probes_ = std::vector<Probe>(fiber::GetSchedulingGroupCount());
  }

  // Whether a group still has the task that was queued earlier, and has begun
  // none since the last call.
  bool AreWorkersHeld() {
    if (probes_.empty()) MakeProbes();
    for (std::size_t group = 0; group != probes_.size(); ++group) {
      Probe& probe = probes_[group];
      if (!probe.SeesProgress(group) && !probe.done()) return true;
      if (probe.done()) probe.QueueIn(group);
    }
    return false;
  }

  // Until StopWatching() writes, for that long at most. Numbers that signals
  // have written, before it or to the last watcher, are passed over.
  void WaitForEnd(std::int64_t timeout_ns) {
    const std::int64_t until_ns = NowNs() + timeout_ns;
    for (std::int64_t left_ns = timeout_ns; left_ns > 0 && !ending_;
         left_ns = until_ns - NowNs()) {
      pollfd wakeup = {.fd = wakeup_fd, .events = POLLIN, .revents = 0};
      if (poll(&wakeup, 1, static_cast<int>(left_ns / kNsPerMs + 1)) != 1) {
        continue;
      }
      std::uint64_t count;
      [[maybe_unused]] const ssize_t n = read(wakeup_fd, &count, sizeof(count));
    }
  }

  std::atomic<bool> ending_{false};
  // Destroyed when the runtime has ended, which runs them all before.
  std::vector<Probe> probes_;
  fiber::Event quit_;
  struct sigaction previous_[std::size(kSignals)];
  std::thread thread_;
};

ThreadMutex watcher_lock;
// exit() leaves it alone: fibers may still wait, and a forked child has no
// thread to join.
QuitWatcher* watcher FLARE_GUARDED_BY(watcher_lock) = nullptr;
bool waits_have_ended FLARE_GUARDED_BY(watcher_lock) = false;

QuitWatcher* GetWatcher() {
  ScopedLock guard(watcher_lock);
  if (watcher == nullptr) watcher = new QuitWatcher(!waits_have_ended);
  return watcher;
}

}  // namespace

void rpc::AwaitQuitSignal() { GetWatcher()->Wait(); }

bool rpc::HasQuitSignalCome() {
  GetWatcher();
  // relaxed: a caller that asks again sees it in the end.
  return quit_requested.load(std::memory_order_relaxed);
}

void rpc::EndQuitSignalWaits() {
  ScopedLock guard(watcher_lock);
  waits_have_ended = true;
  if (watcher != nullptr) watcher->StopWatching();
}

void rpc::ForgetQuitSignals() {
  ScopedLock guard(watcher_lock);
  delete std::exchange(watcher, nullptr);
  waits_have_ended = false;
}

}  // namespace flare
