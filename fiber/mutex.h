// A mutex for fibers and plain threads, with the interface of std::mutex (so
// std::scoped_lock and std::unique_lock work). A waiting fiber is suspended;
// its worker goes on with other tasks. A holder may suspend, too.
//
// Not recursive, not fair: a running fiber may overtake one that is being
// woken.

#ifndef FLARE_FIBER_MUTEX_H_
#define FLARE_FIBER_MUTEX_H_

#include <atomic>
#include <cstdint>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/wait_list.h"

namespace flare::fiber {

class FLARE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Blocks the fiber (or thread) while another one holds the mutex.
  void lock() FLARE_ACQUIRE() {
    if (!try_lock()) [[unlikely]] {
      LockSlow(kNoDeadline);
    }
  }

  bool try_lock() FLARE_TRY_ACQUIRE(true) {
    std::uint32_t expected = kFree;
    // acquire: pairs with the release in unlock [MU1].
    return state_.compare_exchange_strong(
        expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }

  // False: the deadline (NowNs() time) passed first.
  bool try_lock_until(std::int64_t deadline_ns) FLARE_TRY_ACQUIRE(true) {
    return try_lock() || LockSlow(deadline_ns);
  }

  // By whoever locked it, though perhaps on another worker by now.
  void unlock() FLARE_RELEASE() {
    // release: pairs with the acquires in try_lock and LockSlow [MU1].
    if (state_.exchange(kFree, std::memory_order_release) == kContended)
        [[unlikely]] {
      WakeWaiter();
    }
  }

 private:
  // kContended: held, and there may be waiters to wake.
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kContended = 2;

  bool LockSlow(std::int64_t deadline_ns);
  void WakeWaiter();

  std::atomic<std::uint32_t> state_{kFree};
  Spinlock lock_;
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_MUTEX_H_
