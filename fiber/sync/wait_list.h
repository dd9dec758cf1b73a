// The base of all blocking primitives: a list of waiters, each a suspended
// fiber or a blocked thread, guarded by the primitive's own spinlock.
//
//   bool Gate::Enter(WaitLimit limit) {
//     ScopedLock guard(lock_);
//     if (open_) return true;
//     return waiters_.Wait(&guard, {"Gate", this}, limit) ==  // Releases it.
//            WaitResult::kWoken;
//   }
//   void Gate::Open() {
//     ScopedLock guard(lock_);
//     open_ = true;
//     waiters_.WakeAll();
//   }
//
// A wait ends in exactly one of three ways: somebody woke the waiter, its
// deadline passed, or a stop was requested of the token it was given. Waits
// without a deadline arm no timer, waits without a token register nothing.

#ifndef FLARE_FIBER_WAIT_LIST_H_
#define FLARE_FIBER_WAIT_LIST_H_

#include <atomic>
#include <cstdint>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/thread_wait.h"
#include "flare/fiber/timer.h"

namespace flare::fiber {

class Carrier;
class WaitList;
struct WaitReason;  // carrier.h

// When a wait gives up though nobody woke it.
struct WaitLimit {
  std::int64_t deadline_ns = kNoDeadline;  // In NowNs() time.
  // Must outlive the wait; nullptr: can't be stopped. On a worker no callback
  // of such a token, wherever registered, may suspend its fiber: by a
  // fiber::Mutex that another one has, say [WL5].
  const std::stop_token* stop = nullptr;
};

enum class [[nodiscard]] WaitResult : std::uint8_t{
    kWoken,     // By WakeOne or WakeAll.
    kTimedOut,  // The deadline passed.
    kStopped,   // A stop was requested, perhaps long before the wait.
};

// One blocked fiber or thread; on its stack.
class Waiter {
 public:
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  friend class WaitList;

  struct TimeoutTimer : Timer {
    Waiter* waiter = nullptr;
  };
  enum class Stop : std::uint8_t { kRegistering, kListening, kRequested };

  explicit Waiter(Spinlock* lock);
  void Wake();
  static void OnTimeout(Timer* timer);
  void OnStop();
  // Unlinks it, unless it was woken already, and decides; true if it did.
  bool GiveUp(WaitResult result);
  // Each releases the lock and returns once the result is decided. (Locks that
  // are handed on are beyond the analysis.)
  void Block(ScopedLock<Spinlock>* guard, WaitReason reason,
             std::int64_t deadline_ns) FLARE_NO_THREAD_SAFETY_ANALYSIS;
  void BlockStoppable(ScopedLock<Spinlock>* guard, WaitReason reason,
                      const WaitLimit& limit) FLARE_NO_THREAD_SAFETY_ANALYSIS;
  void BlockThread(ScopedLock<Spinlock>* guard,
                   std::int64_t deadline_ns) FLARE_NO_THREAD_SAFETY_ANALYSIS;

  Waiter* prev_ = nullptr;
  Waiter* next_ = nullptr;
  WaitList* list_ = nullptr;  // The one it is linked in; guarded by lock_.
  Spinlock* const lock_;
  Carrier* const carrier_;                    // nullptr: a plain thread.
  WaitResult result_ = WaitResult::kWoken;    // Set by the unlinking [WL2].
  std::atomic<Stop> stop_{Stop::kListening};  // [WL4]
  ThreadWait thread_wait_;                    // If it is a plain thread.
  TimeoutTimer timer_;
};

// First in, first out. Every call needs the lock that guards the list.
class WaitList {
 public:
  WaitList() = default;
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;

  bool empty() const { return head_ == nullptr; }

  // Blocks the caller (fiber or thread) until it is woken or `limit` is
  // reached; says which. `reason` names the primitive: {"Mutex", this}. A
  // caller that needs the lock again after it takes it. `*guard` holds the lock
  // that guards this list; on return that has been released, and `*guard` must
  // not be used.
  WaitResult Wait(ScopedLock<Spinlock>* guard, WaitReason reason,
                  const WaitLimit& limit);

  // ... the same, but calls `before(argument)` once the caller is in the list
  // and the lock still held: releases whatever else must be. It is called in
  // any case, and must not suspend.
  WaitResult Wait(ScopedLock<Spinlock>* guard, WaitReason reason,
                  const WaitLimit& limit, void (*before)(void*),
                  void* argument);

  // Wakes the one that has waited longest. False: there was none.
  bool WakeOne();

  void WakeAll();

  // WakeAll() in two steps, so that the waking needn't hold the lock: unlinks
  // all waiters, and wakes them. Between the two they can't end by themselves.
  [[nodiscard]] Waiter* TakeAll();
  static void WakeTaken(Waiter* taken);

 private:
  friend class Waiter;

  void PushBack(Waiter* waiter);
  void Remove(Waiter* waiter);

  Waiter* head_ = nullptr;
  Waiter* tail_ = nullptr;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WAIT_LIST_H_
