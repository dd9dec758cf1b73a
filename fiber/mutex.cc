// [MU2] A waiter links itself only after it has exchanged the state to
//       kContended under lock_ and found it held. Whoever unlocks after that
//       sees kContended and takes lock_, hence finds the waiter.
// [MU3] A waiter that acquires leaves kContended behind only if others wait: an
//       unlock that finds no waiter must not touch the mutex again, for it may
//       be destroyed by who locks it next.
#include "flare/fiber/mutex.h"

#include <mutex>

#include "flare/base/cpu.h"

namespace flare::fiber {

bool Mutex::LockSlow(std::int64_t deadline_ns) {
  // Critical sections are short: a moment's patience is cheaper than a switch.
  for (int i = 0; i < 40; ++i) {
    // relaxed: a first look before the exchange in try_lock.
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) {
      return true;
    }
    CpuRelax();
  }
  for (;;) {
    std::unique_lock guard(lock_);
    // acquire: pairs with the release in unlock [MU1] [MU2] [MU3].
    if (state_.exchange(kContended, std::memory_order_acquire) == kFree) {
      // relaxed: ours, and all kContended are written under lock_ [MU3].
      if (waiters_.empty()) state_.store(kHeld, std::memory_order_relaxed);
      return true;
    }
    if (!waiters_.Wait(&guard, deadline_ns)) return false;
  }
}

void Mutex::WakeWaiter() {
  std::scoped_lock guard(lock_);
  waiters_.WakeOne();
}

}  // namespace flare::fiber
