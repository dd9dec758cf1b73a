#include "flare/fiber/semaphore.h"

#include "flare/fiber/scheduler/carrier.h"
#include "glog/logging.h"

namespace flare::fiber {

Semaphore::Semaphore(std::ptrdiff_t initial) : count_(initial) {
  CHECK_GE(initial, 0) << "a Semaphore can't begin with less than nothing";
}

bool Semaphore::try_acquire() {
  ScopedLock guard(lock_);
  if (count_ <= 0) return false;
  --count_;
  return true;
}

bool Semaphore::AcquireLimited(const WaitLimit& limit) {
  {
    ScopedLock guard(lock_);
    if (count_ > 0) {
      --count_;
      return true;
    }
    // The unit is handed over by release().
    if (waiters_.Wait(&guard, {"Semaphore", this}, limit) !=
        WaitResult::kWoken) {
      return false;
    }
  }
  // ... which wakes us with the lock held: wait until it has let go, so that
  // the semaphore may be destroyed.
  ScopedLock guard(lock_);
  return true;
}

void Semaphore::release(std::ptrdiff_t n) {
  CHECK_GE(n, 0) << "a Semaphore takes no units back";
  ScopedLock guard(lock_);
  while (n > 0 && waiters_.WakeOne()) --n;
  count_ += n;
}

}  // namespace flare::fiber
