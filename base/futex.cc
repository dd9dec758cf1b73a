#include "flare/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "flare/base/clock.h"
#include "flare/base/sanitizer.h"

namespace flare {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "the kernel reads the atomic as a plain 32-bit word");

// Calls that fail for another reason than the expected ones got a bad address:
// going on would be a busy loop or a lost wake-up.
[[noreturn]] void DieOfError(const char* what, const void* word) {
  std::fprintf(stderr, "%s(%p) failed: errno %d; is the address valid?\n", what,
               word, errno);
  std::abort();
}

#ifdef FLARE_TSAN

// ThreadSanitizer keeps a signal back until the thread makes a call that it
// intercepts, and this system call is none: a thread that sleeps here would
// never run its handler. So it wakes up now and then and makes such a call.
// Rarely, since a signal that comes meanwhile is sometimes lost for good: with
// a check each 50 ms a server missed one SIGTERM in 600. One that comes during
// the sleep ends it, as it has a time limit, and is handled at once.

timespec* UntilNextSignalCheck(timespec* until, timespec* check) {
  constexpr long kInterval = kNsPerSecond;
  clock_gettime(CLOCK_MONOTONIC, check);
  check->tv_nsec += kInterval;
  check->tv_sec += check->tv_nsec / kNsPerSecond;
  check->tv_nsec %= kNsPerSecond;
  const bool sooner =
      until != nullptr &&
      (until->tv_sec != check->tv_sec ? until->tv_sec < check->tv_sec
                                      : until->tv_nsec <= check->tv_nsec);
  if (!sooner) return check;
  *check = {};
  return until;
}

// False: it was not `check` that has timed out.
bool HandleSignalsAfter(const timespec& check) {
  if (check.tv_sec == 0 && check.tv_nsec == 0) return false;
  usleep(1);
  return true;
}

#else

timespec* UntilNextSignalCheck(timespec* until, timespec*) { return until; }
bool HandleSignalsAfter(const timespec&) { return false; }

#endif

}  // namespace

FutexResult FutexWait(const std::atomic<std::uint32_t>* word,
                      std::uint32_t expected, std::int64_t deadline_ns) {
  struct timespec deadline;
  struct timespec* until = nullptr;
  struct timespec check = {};
  if (deadline_ns != kNoDeadline) {
    if (deadline_ns < 0) deadline_ns = 0;  // The kernel would refuse it.
    deadline.tv_sec = deadline_ns / kNsPerSecond;
    deadline.tv_nsec = deadline_ns % kNsPerSecond;
    until = &deadline;
  }
  for (;;) {
    // The bitset form takes an absolute CLOCK_MONOTONIC time, so waiting again
    // after a signal needs no arithmetic.
    if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected,
                UntilNextSignalCheck(until, &check), nullptr,
                FUTEX_BITSET_MATCH_ANY) == 0) {
      return FutexResult::kWoken;
    }
    switch (errno) {
      case EAGAIN:
        return FutexResult::kChanged;
      case ETIMEDOUT:
        if (HandleSignalsAfter(check)) break;
        return FutexResult::kTimedOut;
      case EINTR:
        break;
      default:
        DieOfError("FutexWait", word);
    }
  }
}

int FutexWake(const std::atomic<std::uint32_t>* word, int count) {
  const long woken =
      syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
  if (woken < 0) {
    // EFAULT: the memory has been unmapped since; nobody can sleep there.
    // EINVAL: it has become part of a mutex with priority inheritance.
    if (errno != EFAULT && errno != EINVAL) DieOfError("FutexWake", word);
    return 0;
  }
  return static_cast<int>(woken);
}

}  // namespace flare
