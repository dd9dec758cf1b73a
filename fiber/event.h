// A one-bit gate: waiters block until it is set. Stays set until Reset().
// Usable from fibers and from plain threads, and safe to destroy as soon as a
// Wait() on it has returned, although the setter may still be inside Set().

#ifndef FLARE_FIBER_EVENT_H_
#define FLARE_FIBER_EVENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/wait_list.h"

namespace flare::fiber {

class Event {
 public:
  // Any thread. Wakes all waiters. Does not block. What happened before Set()
  // is visible to who returns from Wait().
  void Set();

  // Blocks the calling fiber (or thread) until the event is set.
  void Wait() { WaitUntil(kNoDeadline); }

  // False: the deadline (NowNs() time) passed first.
  bool WaitUntil(std::int64_t deadline_ns);
  bool WaitUntil(std::chrono::steady_clock::time_point deadline);

  bool IsSet() const noexcept {
    // acquire: pairs with the release in Set [EV1].
    return set_.load(std::memory_order_acquire);
  }

  // Not while others wait or set.
  void Reset() noexcept {
    // relaxed: the caller excludes concurrent use.
    set_.store(false, std::memory_order_relaxed);
  }

 private:
  Spinlock lock_;
  std::atomic<bool> set_{false};
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_EVENT_H_
