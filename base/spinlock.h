// A lock of one byte for critical sections of a few dozen instructions: no
// system call, no allocation, no I/O inside, and a fiber must not suspend while
// holding it (others that want it would spin for as long). For anything longer
// use fiber::Mutex.
//
//   Spinlock lock_;
//   ...
//   ScopedLock guard(lock_);  // or std::scoped_lock, std::unique_lock
//
// Costs one atomic exchange to lock and a plain store to unlock. It is neither
// fair nor recursive. A waiter spins for about a microsecond, then offers its
// time slice with every look, since the holder may have been preempted.

#ifndef FLARE_BASE_SPINLOCK_H_
#define FLARE_BASE_SPINLOCK_H_

#include <sched.h>

#include <atomic>

#include "flare/base/cpu.h"
#include "flare/base/thread_annotations.h"

namespace flare {

class FLARE_CAPABILITY("Spinlock") Spinlock {
 public:
  constexpr Spinlock() = default;
  Spinlock(const Spinlock&) = delete;
  Spinlock& operator=(const Spinlock&) = delete;

  void lock() noexcept FLARE_ACQUIRE() {
    // acquire: pairs with the release in unlock.
    if (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
      LockSlow();
    }
  }

  [[nodiscard]] bool try_lock() noexcept FLARE_TRY_ACQUIRE(true) {
    // relaxed: a look first, so that failing doesn't take the line away from
    // the holder. acquire: pairs with the release in unlock.
    return !locked_.load(std::memory_order_relaxed) &&
           !locked_.exchange(true, std::memory_order_acquire);
  }

  void unlock() noexcept FLARE_RELEASE() {
    // release: pairs with the acquire in lock, LockSlow and try_lock.
    locked_.store(false, std::memory_order_release);
  }

 private:
  [[gnu::noinline, gnu::cold]] void LockSlow() noexcept {
    constexpr int kSpins = 64;
    for (int spins = 0;; ++spins) {
      // relaxed: read-only wait; the exchange below synchronises.
      while (locked_.load(std::memory_order_relaxed)) {
        if (++spins < kSpins) {
          CpuRelax();
        } else {
          sched_yield();
        }
      }
      // acquire: pairs with the release in unlock.
      if (!locked_.exchange(true, std::memory_order_acquire)) return;
    }
  }

  std::atomic<bool> locked_{false};
};

static_assert(sizeof(Spinlock) == 1);

}  // namespace flare

#endif  // FLARE_BASE_SPINLOCK_H_
