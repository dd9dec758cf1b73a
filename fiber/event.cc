#include "flare/fiber/event.h"

#include <mutex>

#include "flare/base/clock.h"

namespace flare::fiber {

void Event::Set() {
  std::scoped_lock guard(lock_);
  // release: pairs with the acquire in IsSet [EV1]; waiters are ordered by the
  // lock.
  set_.store(true, std::memory_order_release);
  waiters_.WakeAll();
}

bool Event::WaitUntil(std::int64_t deadline_ns) {
  {
    std::unique_lock guard(lock_);
    // relaxed: under the lock.
    if (set_.load(std::memory_order_relaxed)) return true;
    if (!waiters_.Wait(&guard, deadline_ns)) return false;
  }
  // The setter woke us with the lock held: wait until it has let go, so that
  // the event may be destroyed.
  std::scoped_lock guard(lock_);
  return true;
}

bool Event::WaitUntil(std::chrono::steady_clock::time_point deadline) {
  return WaitUntil(ToSteadyNs(deadline));
}

}  // namespace flare::fiber
