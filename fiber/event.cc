#include "flare/fiber/event.h"

#include <mutex>

#include "flare/fiber/carrier.h"

namespace flare::fiber {

void Event::Set() {
  std::scoped_lock guard(lock_);
  // release: pairs with the acquire in IsSet [EV1]; waiters are ordered by the
  // lock.
  set_.store(true, std::memory_order_release);
  waiters_.WakeAll();
}

bool Event::WaitLimited(const WaitLimit& limit) {
  {
    std::unique_lock guard(lock_);
    // relaxed: under the lock.
    if (set_.load(std::memory_order_relaxed)) return true;
    if (waiters_.Wait(&guard, {"Event", this}, limit) != WaitResult::kWoken) {
      return false;
    }
  }
  // The setter woke us with the lock held: wait until it has let go, so that
  // the event may be destroyed.
  std::scoped_lock guard(lock_);
  return true;
}

}  // namespace flare::fiber
