#include "flare/io/epoll_wait.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>

#include "flare/base/clock.h"

namespace flare::io {
namespace {

// Through syscall(), for C libraries older than the kernel (glibc < 2.35).
// `timeout` nullptr: no limit.
int EpollPwait2(int epoll, epoll_event* events, int max,
                const timespec* timeout) {
  return static_cast<int>(
      ::syscall(SYS_epoll_pwait2, epoll, events, max, timeout, nullptr, 0));
}

// For kernels before 5.11: the next millisecond not before the deadline.
int EpollWaitMs(int epoll, epoll_event* events, int max, std::int64_t ns) {
  const std::int64_t ms = ns < 0 ? -1 : ns / kNsPerMs + (ns % kNsPerMs != 0);
  return ::epoll_wait(epoll, events, max,
                      static_cast<int>(std::min<std::int64_t>(
                          ms, std::numeric_limits<int>::max())));
}

}  // namespace

int EpollWait(int epoll, epoll_event* events, int max,
              std::int64_t deadline_ns) {
  // Most calls are such looks, and there is no time to copy (docs/decisions/
  // 0033-calls-for-one-piece.md).
  if (deadline_ns == 0) return ::epoll_wait(epoll, events, max, 0);
  // Does the kernel lack epoll_pwait2? relaxed: finding it out twice is fine.
  static std::atomic<bool> lacks_pwait2{false};
  std::int64_t ns = -1;  // No limit.
  if (deadline_ns != kNoDeadline) {
    ns = std::max<std::int64_t>(deadline_ns - NowNs(), 0);
  }
  if (!lacks_pwait2.load(std::memory_order_relaxed)) {
    const timespec timeout{.tv_sec = static_cast<time_t>(ns / kNsPerSecond),
                           .tv_nsec = static_cast<long>(ns % kNsPerSecond)};
    const int n = EpollPwait2(epoll, events, max, ns < 0 ? nullptr : &timeout);
    // EPERM: of sandboxes that are older than the call.
    if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return n;
    lacks_pwait2.store(true, std::memory_order_relaxed);
  }
  return EpollWaitMs(epoll, events, max, ns);
}

}  // namespace flare::io
