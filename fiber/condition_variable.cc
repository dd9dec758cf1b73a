#include "flare/fiber/condition_variable.h"

#include "flare/fiber/carrier.h"

namespace flare::fiber {

void ConditionVariable::notify_one() {
  std::scoped_lock guard(lock_);
  waiters_.WakeOne();
}

void ConditionVariable::notify_all() {
  std::scoped_lock guard(lock_);
  waiters_.WakeAll();
}

// The waiter is linked before the mutex is released, so a notification that
// follows the release finds it.
bool ConditionVariable::WaitLimited(std::unique_lock<Mutex>& lock,
                                    const WaitLimit& limit) {
  std::unique_lock guard(lock_);
  const WaitResult result = waiters_.Wait(
      &guard, {"ConditionVariable", this}, limit,
      [](void* mutex) { static_cast<Mutex*>(mutex)->unlock(); }, lock.mutex());
  lock.mutex()->lock();
  return result == WaitResult::kWoken;
}

}  // namespace flare::fiber
