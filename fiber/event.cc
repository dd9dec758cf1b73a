#include "flare/fiber/event.h"

#include <mutex>

#include "flare/fiber/carrier.h"

namespace flare::fiber {

void Event::Set() {
  Waiter* waiters;
  {
    std::scoped_lock guard(lock_);
    // release: pairs with the acquire in IsSet [EV1]; waiters are ordered by
    // the lock.
    set_.store(true, std::memory_order_release);
    waiters = waiters_.TakeAll();
  }
  // The event is not touched after the lock was let go, since whoever has
  // waited may destroy it.
  WaitList::WakeTaken(waiters);
}

bool Event::WaitLimited(const WaitLimit& limit) {
  std::unique_lock guard(lock_);
  // relaxed: under the lock.
  if (set_.load(std::memory_order_relaxed)) return true;
  return waiters_.Wait(&guard, {"Event", this}, limit) == WaitResult::kWoken;
}

}  // namespace flare::fiber
