// A worker's own queue of ready tasks: a fixed ring, first in, first out. Its
// owner pushes and pops; any other worker steals half of what is there.
//
// Rules:
//  [RQ1] Only the owner writes `tail_`; slots [head, tail) hold queued tasks.
//  [RQ2] Whoever moves `head_` by a successful compare-exchange owns the tasks
//        between its old and new value. The slots were read before that: if the
//        exchange succeeds nobody had taken them, and the owner could not have
//        overwritten them, since it writes slot i + kCapacity only after having
//        seen head_ > i.
//  [RQ3] Indices are 32 bit and wrap; only differences count. A thief that
//        sleeps through exactly 2^32 pops would be fooled; between two looks at
//        head_ there are a few instructions.

#ifndef FLARE_FIBER_RUN_QUEUE_H_
#define FLARE_FIBER_RUN_QUEUE_H_

#include <atomic>
#include <cstdint>

#include "flare/base/cpu.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

template <std::uint32_t kCapacity>
class BasicRunQueue {
  static_assert((kCapacity & (kCapacity - 1)) == 0 && kCapacity >= 4);

 public:
  static constexpr std::uint32_t kSlots = kCapacity;

  // Owner only. False: full.
  bool Push(Task* task) noexcept {
    // relaxed: written by this thread only [RQ1].
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ >= kCapacity) {
      // acquire: pairs with the compare-exchange in Pop/Steal [RQ2]: the slots
      // before it have been read by whoever took them.
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail - cached_head_ >= kCapacity) return false;
    }
    // relaxed: published by the release below.
    ring_[tail % kCapacity].store(task, std::memory_order_relaxed);
    // release: pairs with the acquire of tail_ in StealInto [RQ1].
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Owner only. The oldest task; nullptr: empty.
  Task* Pop() noexcept {
    // relaxed: own writes, or validated by the exchange [RQ1] [RQ2].
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
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

  // Called by the owner of `thief`, an empty queue other than this: moves the
  // older half (at least one) there, except for one task, which is returned.
  // nullptr: nothing to steal.
  Task* StealInto(BasicRunQueue* thief) noexcept {
    // relaxed: `thief` is ours [RQ1].
    const std::uint32_t to = thief->tail_.load(std::memory_order_relaxed);
    // acquire: orders the read of tail_ after it, so that the pair is sane.
    std::uint32_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      // acquire: pairs with the release in Push [RQ1].
      const std::uint32_t tail = tail_.load(std::memory_order_acquire);
      const std::uint32_t queued = tail - head;
      if (queued == 0) return nullptr;
      if (queued > kCapacity) {  // head went stale between the two loads.
        // acquire: as above.
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
    std::uint32_t head = head_.load(std::memory_order_relaxed);  // As in Pop.
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

  // Any thread; a snapshot. relaxed: used as a hint, or after a fence
  // (parking).
  std::uint32_t size() const noexcept {
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    const auto n = static_cast<std::int32_t>(tail - head);
    return n < 0 ? 0 : static_cast<std::uint32_t>(n);
  }

  // Any thread; positions for the watch, which compares two looks. relaxed:
  // hints.
  std::uint32_t head() const noexcept {
    return head_.load(std::memory_order_relaxed);
  }
  std::uint32_t tail() const noexcept {
    return tail_.load(std::memory_order_relaxed);
  }

 private:
  alignas(kCacheLine) std::atomic<std::uint32_t> head_{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> tail_{0};
  std::uint32_t cached_head_ = 0;  // Owner's; at or behind head_.
  alignas(kCacheLine) std::atomic<Task*> ring_[kCapacity] = {};
};

using RunQueue = BasicRunQueue<256>;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUN_QUEUE_H_
