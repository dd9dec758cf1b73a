#include "flare/fiber/condition_variable.h"

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
bool ConditionVariable::WaitUntilNs(std::unique_lock<Mutex>& lock,
                                    std::int64_t deadline_ns) {
  std::unique_lock guard(lock_);
  const bool notified = waiters_.Wait(
      &guard, deadline_ns,
      [](void* mutex) { static_cast<Mutex*>(mutex)->unlock(); }, lock.mutex());
  lock.mutex()->lock();
  return notified;
}

}  // namespace flare::fiber
