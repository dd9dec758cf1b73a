// [SM1] A writer's actions are visible to all callers that lock after it, and
//       readers' actions to the writers after them: unlocking releases, locking
//       acquires state_. A caller that stores to it has acquired it before.
// [SM2] While kWaiting is set, state_ is changed under lock_ only: everybody's
//       short way fails. A caller that wants to wait sets it, under lock_.
//       While a list isn't empty it is set; while it is set and lock_ is free,
//       a list isn't empty, or a waiter that has given up is on its way to
//       Grant().
// [SM3] A list becomes non-empty only while somebody holds the mutex, and a
//       holder that gives it up while one isn't empty lets somebody in. So a
//       free mutex has no waiters. A waiter that is woken holds the mutex
//       already.
// [SM4] A holder that unlocks touches the mutex no more once somebody else may
//       have locked and destroyed it: its exchange without lock_ is the last
//       access, or else it wakes, under lock_, a waiter that comes for lock_
//       before leaving. If all waiters have given up, it clears kWaiting while
//       it still holds the mutex, and unlocks the short way.
// [SM5] When a writer gives the mutex up, the readers that wait come first;
//       when the last reader does, a writer.
// [SM6] holder_ is written by a writer that holds the mutex only, as in a Mutex
//       [MU5]: an address in its stack after it has got the mutex, and null
//       before it gives the mutex up. Readers leave it null.
#include "flare/fiber/shared_mutex.h"

#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/sync/lock_wait.h"

namespace flare::fiber {

bool SharedMutex::LockSlow(const WaitLimit& limit) {
  const LockWait wait(kToWrite);
  ScopedLock guard(lock_);
  if (TakeState() == 0) {
    // relaxed: unlocking will publish it. Nobody waits [SM3].
    state_.store(kWriter, std::memory_order_relaxed);
    NoteHolder();
    return true;
  }
  if (!FinishWait(writers_.Wait(&guard, {kToWrite, this}, limit))) return false;
  NoteHolder();
  return true;
}

bool SharedMutex::LockSharedSlow(const WaitLimit& limit) {
  const LockWait wait(kToRead);
  ScopedLock guard(lock_);
  if ((TakeState() & kWriter) == 0 && writers_.empty()) {
    // relaxed: the next change releases.
    state_.fetch_add(kReader, std::memory_order_relaxed);
    Grant(false);  // Others may still wait for a writer that gave up.
    return true;
  }
  return FinishWait(readers_.Wait(&guard, {kToRead, this}, limit));
}

bool SharedMutex::FinishWait(WaitResult result) {
  ScopedLock guard(lock_);
  if (result == WaitResult::kWoken)
    return true;  // Now the waker is gone [SM4].
  Grant(false);   // Readers may wait because we did.
  return false;
}

void SharedMutex::UnlockSlow(std::uint32_t held) {
  {
    ScopedLock guard(lock_);
    if (!readers_.empty() || !writers_.empty()) {
      // acq_rel: pairs with the exchanges in the header [SM1].
      state_.fetch_sub(held, std::memory_order_acq_rel);
      Grant(held == kWriter);  // [SM5]
      return;
    }
    // relaxed: still ours [SM4].
    state_.fetch_and(~kWaiting, std::memory_order_relaxed);
  }
  if (held == kWriter) {
    unlock();
  } else {
    unlock_shared();
  }
}

// Makes state_ the property of the holder of lock_ [SM2].
std::uint32_t SharedMutex::TakeState() {
  // acq_rel: pairs with the exchanges in the header [SM1].
  return state_.fetch_or(kWaiting, std::memory_order_acq_rel) & ~kWaiting;
}

// Lets in the waiters that may come in, and clears kWaiting if nobody waits
// after that.
void SharedMutex::Grant(bool readers_first) {
  std::uint32_t state = TakeState();
  if (state != kWriter && (readers_first || writers_.empty())) {
    while (readers_.WakeOne()) state += kReader;
  }
  if (state == 0 && writers_.WakeOne()) state = kWriter;
  if (!readers_.empty() || !writers_.empty()) state |= kWaiting;
  // release: pairs with the acquires in the header [SM1].
  state_.store(state, std::memory_order_release);
}

}  // namespace flare::fiber
