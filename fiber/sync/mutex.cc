// [MU1] A holder's actions are visible to the next one: unlocking releases,
//       locking acquires state_, or, if the mutex is handed over, lock_.
// [MU2] state_ becomes and ceases to be kContended under lock_ only. A waiter
//       links itself only after it has made it kContended and found it held, so
//       a holder that unlocks after that takes lock_, hence finds the waiter.
// [MU3] A holder that unlocks touches the mutex no more once somebody else may
//       have locked and destroyed it. Freeing it without lock_ is the last
//       access; it is freed or handed over under lock_ only for a waiter that
//       has been woken, which comes for lock_ itself before it leaves. If all
//       waiters have given up, it is made kHeld again, and then freed without
//       lock_.
// [MU4] A woken waiter competes for the free mutex and may find it taken again.
//       After kMostInVain such wake-ups, or one that comes when it has waited
//       for kLongWaitNs, it waits in starving_. While that list isn't empty
//       unlocking doesn't free the mutex: state_ stays kContended, the first of
//       the list is woken and holds the mutex, and nobody can overtake it. Only
//       waiters that were on their way can still come into the list, so those
//       of waiters_ get their turn, too.
// [MU5] holder_ is written by the holder only: an address in its stack after it
//       has got the mutex, and null before it gives the mutex up. So a reader
//       that finds an address knows the holder, whose stack is still there. One
//       that finds null knows nothing: the mutex is free or changing hands.
#include "flare/fiber/mutex.h"

#include <algorithm>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/sync/lock_wait.h"

namespace flare::fiber {
namespace {

constexpr int kPatience = 60;    // Pauses before a waiter sleeps, about.
constexpr int kMostPauses = 16;  // Between two looks.

// A waiter puts up with so much before it is handed the mutex [MU4]. Handing
// over costs a switch, during which nobody has it, so it is the exception.
constexpr int kMostInVain = 16;
constexpr std::int64_t kLongWaitNs = 1'000'000;

}  // namespace

bool Mutex::LockSlow(const WaitLimit& limit) {
  // Critical sections are short: a moment's patience is cheaper than a switch.
  // The looks are few: each takes the cache line away from the holder.
  int pauses = 1;
  for (int paused = 0; paused < kPatience; paused += pauses) {
    // relaxed: a first look before the exchange in try_lock.
    if (state_.load(std::memory_order_relaxed) == kFree && try_lock()) {
      return true;
    }
    for (int i = 0; i < pauses; ++i) CpuRelax();
    pauses = std::min(2 * pauses, kMostPauses);
  }
  const LockWait wait(kName);
  const std::int64_t since_ns = NowNs();
  for (int in_vain = 0;; ++in_vain) {
    ScopedLock guard(lock_);
    // acquire: pairs with the releases in unlock and UnlockSlow [MU1] [MU2].
    if (state_.exchange(kContended, std::memory_order_acquire) == kFree) {
      NoteTaken();
      return true;
    }
    const bool starves = in_vain >= kMostInVain ||
                         (in_vain > 0 && NowNs() - since_ns >= kLongWaitNs);
    WaitList& list = starves ? starving_ : waiters_;
    if (list.Wait(&guard, {kName, this}, limit) != WaitResult::kWoken) {
      return false;
    }
    if (starves) {               // The waker has handed it over [MU4].
      ScopedLock taking(lock_);  // [MU1] [MU3]
      NoteTaken();
      return true;
    }
  }
}

// Ours, and kContended stays only for others that wait.
void Mutex::NoteTaken() {
  NoteHolder();
  if (waiters_.empty() && starving_.empty()) {
    // relaxed: nobody reads anything by it.
    state_.store(kHeld, std::memory_order_relaxed);
  }
}

void Mutex::UnlockSlow() {
  {
    ScopedLock guard(lock_);
    if (starving_.WakeOne()) return;  // Handed over, not freed [MU4].
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
