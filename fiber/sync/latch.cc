#include "flare/fiber/latch.h"

#include "flare/fiber/scheduler/carrier.h"
#include "glog/logging.h"

namespace flare::fiber {

Latch::Latch(std::ptrdiff_t expected) : count_(expected) {
  CHECK_GE(expected, 0) << "a Latch can't expect less than nothing";
}

void Latch::count_down(std::ptrdiff_t n) {
  CHECK_GE(n, 0) << "a Latch is counted down only";
  ScopedLock guard(lock_);
  // relaxed: under the lock.
  const std::ptrdiff_t left = count_.load(std::memory_order_relaxed) - n;
  CHECK_GE(left, 0) << "a Latch was counted down by more than it expected";
  // release: pairs with the acquire in try_wait [LA1]; waiters are ordered by
  // the lock.
  count_.store(left, std::memory_order_release);
  if (left == 0) waiters_.WakeAll();
}

bool Latch::WaitLimited(const WaitLimit& limit) {
  {
    ScopedLock guard(lock_);
    // relaxed: under the lock.
    if (count_.load(std::memory_order_relaxed) == 0) return true;
    if (waiters_.Wait(&guard, {"Latch", this}, limit) != WaitResult::kWoken) {
      return false;
    }
  }
  // The caller that counted to zero woke us with the lock held: wait until it
  // has let go, so that the latch may be destroyed.
  ScopedLock guard(lock_);
  return true;
}

}  // namespace flare::fiber
