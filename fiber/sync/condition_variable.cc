#include "flare/fiber/condition_variable.h"

#include "flare/fiber/scheduler/carrier.h"

namespace flare::fiber {

void ConditionVariable::notify_one() {
  ScopedLock guard(lock_);
  waiters_.WakeOne();
}

void ConditionVariable::notify_all() {
  ScopedLock guard(lock_);
  waiters_.WakeAll();
}

// The waiter is linked before the mutex is released, so a notification that
// follows the release finds it. (A std::unique_lock tells the analysis
// nothing.)
bool ConditionVariable::WaitLimited(std::unique_lock<Mutex>& lock,
                                    const WaitLimit& limit)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  ScopedLock guard(lock_);
  const WaitResult result = waiters_.Wait(
      &guard, {"ConditionVariable", this}, limit,
      [](void* mutex) FLARE_NO_THREAD_SAFETY_ANALYSIS {
        static_cast<Mutex*>(mutex)->unlock();
      },
      lock.mutex());
  lock.mutex()->lock();
  return result == WaitResult::kWoken;
}

}  // namespace flare::fiber
