// A worker's own queue of ready tasks: a fixed ring, first in, first out. Its
// owner pushes and pops; any other worker steals half of the tasks.
//
// Rules:
//  [RQ1] Only the owner writes `tail_`; slots [head, tail) hold queued tasks.
//  [RQ2] A thread that moves `head_` by a successful compare-exchange owns the
//        tasks between its old and new value. The slots were read before that:
//        if the exchange succeeds nobody had taken them, and the owner could
//        not have overwritten them, since it writes slot i + kCapacity only
//        after having seen head_ > i.
//  [RQ3] Indices are 32 bit and wrap; only differences count. A thief that
//        sleeps through exactly 2^32 pops would be fooled; between two looks at
//        head_ there are a few instructions.
//
// An atomic exchange costs as much as all the rest of running a short task, so
// while tasks are short the owner claims several with one, as long as they will
// take it some 2 us in all. If one of them then turns out to hold the thread,
// those behind it are rescued by a worker that the watch wakes:
//
//  [RQ4] claimed_[next_, end_) are the claimed tasks. The owner fills them, and
//        a rescuer shortens them, with lock_ held; the owner takes the next one
//        without it.
//  [RQ5] The owner stores next_ and then loads rescues_; a rescuer stores
//        rescues_ and, after a barrier on all threads (membarrier.h), loads
//        next_. So either the rescuer sees that a task has been taken, or the
//        owner sees that there was a rescue, and looks again under lock_.

#ifndef FLARE_FIBER_RUN_QUEUE_H_
#define FLARE_FIBER_RUN_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "flare/base/cpu.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/membarrier.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

template <std::uint32_t kCapacity>
class BasicRunQueue {
  static_assert((kCapacity & (kCapacity - 1)) == 0 && kCapacity >= 4);

 public:
  static constexpr std::uint32_t kSlots = kCapacity;

  // How many tasks fit; at most kSlots, at least 2. Before the queue is used.
  void set_capacity(std::uint32_t capacity) noexcept {
    capacity_ = std::clamp<std::uint32_t>(capacity, 2, kSlots);
  }
  std::uint32_t capacity() const noexcept { return capacity_; }

  // Owner only. False: full.
  bool Push(Task* task) noexcept {
    // relaxed: written by this thread only [RQ1].
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ >= capacity_) {
      // acquire: pairs with the compare-exchanges in Claim, ClaimSeveral,
      // StealInto and TakeHalf [RQ2]: the slots before it have been read by the
      // threads that took them.
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail - cached_head_ >= capacity_) return false;
    }
    // relaxed: published by the release below.
    ring_[tail % kCapacity].store(task, std::memory_order_relaxed);
    // release: pairs with the acquire of tail_ in StealInto [RQ1].
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Owner only. The oldest task; nullptr: empty.
  Task* Pop() noexcept {
    // relaxed: written by this thread, or rechecked below [RQ4].
    const std::uint32_t next = next_.load(std::memory_order_relaxed);
    if (next == end_.load(std::memory_order_relaxed)) return Claim();
    Task* const task = claimed_[next];
    next_.store(next + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // relaxed: ordered after the store by the rescuer's barrier [RQ5].
    if (rescues_.load(std::memory_order_relaxed) == seen_rescues_) [[likely]] {
      return task;
    }
    return PopAfterRescue(next);
  }

  // Owner only. How many tasks may be claimed at once; 1: none in advance.
  void set_claim_limit(std::uint32_t limit) noexcept {
    claim_limit_ = std::clamp<std::uint32_t>(limit, 1, kMostClaimed);
  }

  // Called by the watch when claimed tasks wait for too long.
  void AskForRescue() noexcept {
    // relaxed: a hint to thieves.
    rescue_wanted_.store(true, std::memory_order_relaxed);
  }
  bool rescue_wanted() const noexcept {
    return rescue_wanted_.load(std::memory_order_relaxed);  // relaxed: a hint.
  }

  // Called by the owner of `thief`, which must have room: moves the claimed
  // tasks there, except for the oldest, which is returned. nullptr: none.
  Task* RescueInto(BasicRunQueue* thief) noexcept {
    ScopedLock guard(lock_);
    rescue_wanted_.store(false, std::memory_order_relaxed);  // A hint.
    // relaxed: under lock_ [RQ4]. No barrier for nothing.
    if (next_.load(std::memory_order_relaxed) ==
        end_.load(std::memory_order_relaxed)) {
      return nullptr;
    }
    // relaxed: ordered before the load by the barrier [RQ5].
    rescues_.store(rescues_.load(std::memory_order_relaxed) + 1,
                   std::memory_order_relaxed);
    MembarrierAll();
    const std::uint32_t next = next_.load(std::memory_order_relaxed);
    const std::uint32_t end = end_.load(std::memory_order_relaxed);
    if (next >= end) return nullptr;
    end_.store(next, std::memory_order_relaxed);  // Under lock_ [RQ4].
    for (std::uint32_t i = next + 1; i < end; ++i) thief->Push(claimed_[i]);
    return claimed_[next];
  }

  // Called by the owner of `thief`, an empty queue other than this: moves the
  // older half (at least one) there, except for one task, which is returned.
  // nullptr: nothing to steal.
  Task* StealInto(BasicRunQueue* thief) noexcept {
    // relaxed: `thief` is ours [RQ1].
    const std::uint32_t to = thief->tail_.load(std::memory_order_relaxed);
    // acquire: as in Push; it has room, but tasks that were stolen from it have
    // to have been read before their slots are written below [RQ2].
    thief->cached_head_ = thief->head_.load(std::memory_order_acquire);
    // acquire: orders the read of tail_ after it, so that the pair is sane.
    std::uint32_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      // acquire: pairs with the release in Push [RQ1].
      const std::uint32_t tail = tail_.load(std::memory_order_acquire);
      const std::uint32_t queued = tail - head;
      if (queued == 0) return nullptr;
      if (queued > kCapacity) {  // head went stale between the two loads.
        // acquire: orders the read of tail_ after it.
        head = head_.load(std::memory_order_acquire);
        continue;
      }
      const std::uint32_t n = queued - queued / 2;
      // The newest of the stolen ones is run first; order among tasks of
      // different workers is nobody's promise. relaxed: [RQ2], and the release
      // of thief->tail_ below.
      for (std::uint32_t i = 0; i + 1 < n; ++i) {
        thief->ring_[(to + i) % kCapacity].store(
            ring_[(head + i) % kCapacity].load(std::memory_order_relaxed),
            std::memory_order_relaxed);
      }
      Task* const last =
          ring_[(head + n - 1) % kCapacity].load(std::memory_order_relaxed);
      // acq_rel: release pairs with the acquire in Push [RQ2]; acquire makes a
      // failed try look at fresh values.
      if (head_.compare_exchange_weak(head, head + n, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        // release: pairs with the acquire of tail_ in other thieves [RQ1].
        if (n > 1) thief->tail_.store(to + n - 1, std::memory_order_release);
        return last;
      }
    }
  }

  // Owner only: takes the older half out of a full queue, as a list.
  TaskList TakeHalf() noexcept {
    TaskList list;
    std::uint32_t head = head_.load(std::memory_order_relaxed);  // As in Claim.
    for (;;) {
      const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
      const std::uint32_t n = (tail - head) / 2;
      // release: pairs with the acquire in Push [RQ2].
      if (head_.compare_exchange_weak(head, head + n, std::memory_order_release,
                                      std::memory_order_relaxed)) {
        for (std::uint32_t i = 0; i < n; ++i) {
          list.PushBack(
              ring_[(head + i) % kCapacity].load(std::memory_order_relaxed));
        }
        return list;
      }
    }
  }

  // Any thread; a snapshot. relaxed: a hint.
  std::uint32_t size() const noexcept {
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    const auto n = static_cast<std::int32_t>(tail - head);
    return n < 0 ? 0 : static_cast<std::uint32_t>(n);
  }

  // Tasks claimed but not started. Any thread; a snapshot. relaxed: a hint.
  std::uint32_t claimed() const noexcept {
    const auto n =
        static_cast<std::int32_t>(end_.load(std::memory_order_relaxed) -
                                  next_.load(std::memory_order_relaxed));
    return n < 0 ? 0 : static_cast<std::uint32_t>(n);
  }

  // Any thread; positions of the oldest task that has not started and behind
  // the newest, for the watch, which compares two looks. relaxed: hints.
  std::uint32_t head() const noexcept {
    return head_.load(std::memory_order_relaxed) - claimed();
  }
  std::uint32_t tail() const noexcept {
    return tail_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint32_t kMostClaimed = 8;

  // The oldest task in the ring, and a few behind it claimed.
  Task* Claim() noexcept {
    // relaxed: own writes, or validated by the exchange [RQ1] [RQ2].
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    // Half of it at most: the rest is for thieves.
    if (claim_limit_ > 1 && tail - head > 2) return ClaimSeveral();
    while (head != tail) {
      Task* const task =
          ring_[head % kCapacity].load(std::memory_order_relaxed);
      // release: pairs with the acquire in Push [RQ2]. The owner wrote the slot
      // itself, so it needs no acquire.
      if (head_.compare_exchange_weak(head, head + 1, std::memory_order_release,
                                      std::memory_order_relaxed)) {
        return task;
      }
    }
    return nullptr;
  }

  Task* ClaimSeveral() noexcept {
    ScopedLock guard(lock_);  // [RQ4]
    // relaxed, all: as in Claim, or under lock_.
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    std::uint32_t n;
    do {
      const std::uint32_t queued = tail - head;
      if (queued == 0) return nullptr;
      n = std::min(claim_limit_, queued - queued / 2);
      // release: pairs with the acquire in Push [RQ2].
    } while (!head_.compare_exchange_weak(
        head, head + n, std::memory_order_release, std::memory_order_relaxed));
    for (std::uint32_t i = 0; i < n; ++i) {
      claimed_[i] =
          ring_[(head + i) % kCapacity].load(std::memory_order_relaxed);
    }
    seen_rescues_ = rescues_.load(std::memory_order_relaxed);
    next_.store(1, std::memory_order_relaxed);
    end_.store(n, std::memory_order_relaxed);
    return claimed_[0];
  }

  // There was a rescue: has the task at `next` been taken away [RQ5]?
  [[gnu::noinline]] Task* PopAfterRescue(std::uint32_t next) noexcept {
    {
      ScopedLock guard(lock_);
      // relaxed, all: under lock_ [RQ4].
      seen_rescues_ = rescues_.load(std::memory_order_relaxed);
      const std::uint32_t end = end_.load(std::memory_order_relaxed);
      if (next < end) return claimed_[next];
      next_.store(end, std::memory_order_relaxed);
    }
    return Claim();
  }

  alignas(kCacheLine) std::atomic<std::uint32_t> head_{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> tail_{0};
  std::uint32_t capacity_ = kCapacity;
  std::uint32_t cached_head_ = 0;   // Owner's; at or behind head_.
  std::uint32_t claim_limit_ = 1;   // Owner's.
  std::uint32_t seen_rescues_ = 0;  // Owner's: of rescues_.
  std::atomic<std::uint32_t> next_{0};
  std::atomic<std::uint32_t> end_{0};
  std::atomic<std::uint32_t> rescues_{0};
  std::atomic<bool> rescue_wanted_{false};
  Spinlock lock_;
  Task* claimed_[kMostClaimed] = {};
  alignas(kCacheLine) std::atomic<Task*> ring_[kCapacity] = {};
};

using RunQueue = BasicRunQueue<256>;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUN_QUEUE_H_
