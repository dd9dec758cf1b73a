#include "flare/fiber/event.h"

#include "flare/fiber/scheduler/carrier.h"

namespace flare::fiber {

// With the lock held until all are woken: a waiter that has returned knows that
// the setter, perhaps a plain thread, touches neither the event nor the runtime
// any more, and may end both.
void Event::Set() {
  ScopedLock guard(lock_);
  // release: pairs with the acquire in IsSet [EV1]; waiters are ordered by the
  // lock.
  set_.store(true, std::memory_order_release);
  waiters_.WakeAll();
}

bool Event::WaitLimited(const WaitLimit& limit) {
  {
    ScopedLock guard(lock_);
    // relaxed: under the lock.
    if (set_.load(std::memory_order_relaxed)) return true;
    if (waiters_.Wait(&guard, {"Event", this}, limit) != WaitResult::kWoken) {
      return false;
    }
  }
  ScopedLock guard(lock_);  // Wait for the setter to let go.
  return true;
}

}  // namespace flare::fiber
