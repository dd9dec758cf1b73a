// A mutex that blocks the thread, for plain threads and libraries, or for
// sections that never block a fiber. It is a std::mutex that can be checked: a
// fiber that is suspended while its thread holds one would keep the other
// fibers of that thread out, and later unlock it on another thread. With the
// check on, the runtime reports such a fiber with both backtraces, of the
// locking and of the suspension (--flare_fiber_check_thread_locks).
//
//   ThreadMutex lock_;
//   int count_ FLARE_GUARDED_BY(lock_);
//   ...
//   ScopedLock guard(lock_);  // or std::scoped_lock, std::unique_lock
//
// To be held across something that may suspend the fiber use fiber::Mutex; for
// a few dozen instructions use Spinlock.
//
// Costs a std::mutex and one load of a flag. While the check is on, locking
// takes the backtrace too, 10 us or so.

#ifndef FLARE_BASE_THREAD_MUTEX_H_
#define FLARE_BASE_THREAD_MUTEX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/base/thread_annotations.h"

namespace flare {

class FLARE_CAPABILITY("mutex") ThreadMutex {
 public:
  ThreadMutex() = default;
  ThreadMutex(const ThreadMutex&) = delete;
  ThreadMutex& operator=(const ThreadMutex&) = delete;

  // Blocks the thread while another one holds the mutex. Not recursive.
  void lock() FLARE_ACQUIRE() {
    mutex_.lock();
    // relaxed: a switch that is set before the code to be checked starts.
    if (check_.load(std::memory_order_relaxed)) [[unlikely]] {
      NoteLocked();
    }
  }

  [[nodiscard]] bool try_lock() FLARE_TRY_ACQUIRE(true) {
    if (!mutex_.try_lock()) return false;
    if (check_.load(std::memory_order_relaxed)) [[unlikely]] {  // As in lock.
      NoteLocked();
    }
    return true;
  }

  // On the thread that has locked it.
  void unlock() FLARE_RELEASE() {
    if (noted_) [[unlikely]] {
      NoteUnlocked();
    }
    mutex_.unlock();
  }

  // Whether locking is noted from now on, in the whole process. Off at first.
  static void SetCheck(bool on) noexcept {
    // relaxed: see lock.
    check_.store(on, std::memory_order_relaxed);
  }

  // --- For the runtime's check; each concerns the calling thread ---

  struct Held {
    ThreadMutex* mutex;
    Backtrace where;  // It was locked.
  };

  // Keeps the number of noted mutexes that this thread holds in `*count`, too,
  // where it is cheaper to look at. nullptr: no more.
  static void CountHeldIn(std::uint32_t* count) noexcept;

  // The noted mutexes that this thread holds, in the order of locking.
  static std::vector<Held> HeldByThisThread();

  // They count as not noted any more, and may be unlocked on other threads.
  static void ForgetHeld() noexcept;

 private:
  [[gnu::noinline]] void NoteLocked();
  [[gnu::noinline]] void NoteUnlocked() noexcept;

  static constinit inline std::atomic<bool> check_{false};

  std::mutex mutex_;
  bool noted_ = false;  // Guarded by mutex_.
};

}  // namespace flare

#endif  // FLARE_BASE_THREAD_MUTEX_H_
