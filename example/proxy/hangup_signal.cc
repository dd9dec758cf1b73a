// A signal handler may do next to nothing: this one writes to an eventfd, which
// a thread reads. A fiber in a blocking region could wait long: there may be
// few of those.

#include "example/proxy/hangup_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/fd.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

// The eventfd. Made once and never closed: a handler that has begun on some
// thread may write to it after the signal was given back, which nobody can wait
// for, and would write to whatever has got its number by then.
std::atomic<int> hangup_event{-1};

void OnHangup(int) {
  const int saved_errno = errno;
  // relaxed: set before the handler is.
  flare::io::SignalEventFd(hangup_event.load(std::memory_order_relaxed));
  errno = saved_errno;
}

// A program that would never know of a signal isn't to run. Its workers still
// do, so no destructors.
[[noreturn]] void GiveUp(const std::string& why) {
  LOG(ERROR) << "Can't wait for SIGHUP: " << why << ".";
  google::FlushLogFiles(google::INFO);
  std::_Exit(1);
}

// The event's number, which has been made if need be.
int HangupEvent() {
  // relaxed, both: one thread at a time, and the handler is installed after it,
  // by a system call.
  int event = hangup_event.load(std::memory_order_relaxed);
  if (event >= 0) return event;
  event = ::eventfd(0, EFD_CLOEXEC);
  if (event < 0) {
    GiveUp(flare::StatusFromErrno(errno, "create an eventfd").message() +
           "; raise the limit of descriptors (ulimit -n)");
  }
  hangup_event.store(event, std::memory_order_relaxed);
  return event;
}

// Makes the event's count 0 without blocking.
void Forget(int event) {
  flare::io::SignalEventFd(event);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(event, &count, sizeof(count));
}

}  // namespace

HangupSignal::HangupSignal(std::function<void()> on_hangup)
    : on_hangup_(std::move(on_hangup)), event_(HangupEvent()) {
  Forget(event_);  // The rest of the last one.
  struct sigaction action = {};
  action.sa_handler = OnHangup;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  PCHECK(::sigaction(SIGHUP, &action, &previous_) == 0) << "sigaction";
  try {
    watcher_ = std::thread([this] { Watch(); });
  } catch (const std::system_error& error) {
    GiveUp(std::string("can't start a thread: ") + error.what() +
           "; raise the limit of threads (ulimit -u, the cgroup's pids.max) or "
           "of memory");
  }
}

HangupSignal::~HangupSignal() {
  ::sigaction(SIGHUP, &previous_, nullptr);
  // relaxed: the eventfd orders it before the watcher's look.
  ending_.store(true, std::memory_order_relaxed);
  flare::io::SignalEventFd(event_);
  ended_.Wait();  // Suspends the fiber; a run may need its worker.
  watcher_.join();
}

void HangupSignal::Watch() {
  for (;;) {
    std::uint64_t count = 0;
    // EINTR is like a signal that nobody sent: harmless.
    [[maybe_unused]] const ssize_t n = ::read(event_, &count, sizeof(count));
    // relaxed: see the destructor.
    if (ending_.load(std::memory_order_relaxed)) break;
    flare::Fiber([this] {
      flare::this_fiber::SetName("hangup_signal");
      on_hangup_();
    }).join();
  }
  ended_.Set();
}

}  // namespace example::proxy
