#include "flare/fiber/this_fiber.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cerrno>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/sync/wait_list.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"

namespace flare::this_fiber {

using fiber::Carrier;

void Yield() {
  Carrier* const self = fiber::CurrentCarrier();
  if (self == nullptr) {
    sched_yield();
    return;
  }
  fiber::SuspendFiber(
      {"Yield"},
      [](void* task) { fiber::Submit(static_cast<fiber::Task*>(task)); },
      self->resume_task());
}

void SleepUntilNs(std::int64_t deadline_ns) {
  Carrier* const self = fiber::CurrentCarrier();
  if (self == nullptr) {
    const timespec at = {deadline_ns / kNsPerSecond,
                         deadline_ns % kNsPerSecond};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) ==
           EINTR) {
    }
    return;
  }
  struct Sleep : fiber::Timer {
    Carrier* sleeper;
    std::int64_t deadline_ns;
  } sleep;
  sleep.sleeper = self;
  sleep.deadline_ns = deadline_ns;
  sleep.set_callback([](fiber::Timer* timer) {
    fiber::ResumeFiber(static_cast<Sleep*>(timer)->sleeper);
  });
  fiber::SuspendFiber(
      {"sleep"},
      [](void* argument) {
        auto* const sleep = static_cast<Sleep*>(argument);
        fiber::ArmTimer(sleep, sleep->deadline_ns);
      },
      &sleep);
}

bool SleepUntilNs(const std::stop_token& stop, std::int64_t deadline_ns) {
  Spinlock lock;
  fiber::WaitList never;
  ScopedLock guard(lock);
  return never.Wait(&guard, {"sleep"}, {deadline_ns, &stop}) ==
         fiber::WaitResult::kTimedOut;
}

void SetName(const char* name) {
  if (Carrier* const self = fiber::CurrentFiber()) self->name = name;
}

std::uint64_t GetId() {
  Carrier* const self = fiber::CurrentFiber();
  if (self == nullptr) return 0;
  if (self->fiber_id == 0) {
    static std::atomic<std::uint64_t> next{1};
    // relaxed: only the number matters.
    self->fiber_id = next.fetch_add(1, std::memory_order_relaxed);
  }
  return self->fiber_id;
}

}  // namespace flare::this_fiber

namespace flare::fiber {

// noinline, so that no caller keeps the address; the empty asm, so that no call
// is taken for a repetition of an earlier one.
[[gnu::noinline]] int GetLastError() {
  asm volatile("" ::: "memory");
  return errno;
}

[[gnu::noinline]] void SetLastError(int error) {
  asm volatile("" ::: "memory");
  errno = error;
}

}  // namespace flare::fiber
