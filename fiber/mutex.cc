// [MU1] What the holder did is visible to the next one: unlocking releases,
//       locking acquires state_.
// [MU2] state_ becomes and ceases to be kContended under lock_ only. A waiter
//       links itself only after it has made it kContended and found it held, so
//       whoever unlocks after that takes lock_, hence finds the waiter.
// [MU3] Who unlocks touches the mutex no more once somebody else may have
//       locked and destroyed it. Freeing it without lock_ is the last access;
//       it is freed under lock_ only for a waiter that has been woken, which
//       comes for lock_ itself before it leaves. If all waiters have given up,
//       it is made kHeld again, and then freed without lock_.
#include "flare/fiber/mutex.h"

#include <algorithm>

#include "flare/base/cpu.h"
#include "flare/fiber/carrier.h"

namespace flare::fiber {
namespace {

constexpr int kPatience = 60;    // Pauses before a waiter sleeps, about.
constexpr int kMostPauses = 16;  // Between two looks.

}  // namespace

bool Mutex::LockSlow(const WaitLimit& limit) {
  // Critical sections are short: a moment's patience is cheaper than a switch.
  // Not too many looks: each takes the cache line away from the holder.
  int pauses = 1;
  for (int paused = 0; paused < kPatience; paused += pauses) {
    // relaxed: a first look before the exchange in try_lock.
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) {
      return true;
    }
    for (int i = 0; i < pauses; ++i) CpuRelax();
    pauses = std::min(2 * pauses, kMostPauses);
  }
  for (;;) {
    ScopedLock guard(lock_);
    // acquire: pairs with the releases in unlock and UnlockSlow [MU1] [MU2].
    if (state_.exchange(kContended, std::memory_order_acquire) == kFree) {
      // relaxed: ours, and kContended stays only for others that wait.
      if (waiters_.empty()) state_.store(kHeld, std::memory_order_relaxed);
      return true;
    }
    if (waiters_.Wait(&guard, {"Mutex", this}, limit) != WaitResult::kWoken) {
      return false;
    }
  }
}

void Mutex::UnlockSlow() {
  {
    ScopedLock guard(lock_);
    if (!waiters_.empty()) {
      // release: pairs with the acquires in try_lock and LockSlow [MU1] [MU3].
      state_.store(kFree, std::memory_order_release);
      waiters_.WakeOne();
      return;
    }
    // relaxed: ours [MU3].
    state_.store(kHeld, std::memory_order_relaxed);
  }
  unlock();  // A new waiter may have come: then all over again.
}

}  // namespace flare::fiber
