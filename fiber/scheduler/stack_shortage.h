// Keeps a scheduling group going when it has no more stacks. Its workers go on
// with the fibers they have; tasks that have not started wait here until a
// worker has a stack to spare, or go to a neighbouring group where all have
// (spare_carriers.cc has the rules).
//
// A service should rather refuse work then than let it wait: see
// fiber::ShortOfStacks() and fiber::TrySpawn() in task.h.

#ifndef FLARE_FIBER_STACK_SHORTAGE_H_
#define FLARE_FIBER_STACK_SHORTAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/fiber/scheduler/injection_queue.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

// The shortage of one group. Thread-safe.
class StackShortage {
 public:
  // The worker `index` has no spare stack; it has one again. By that worker.
  void Begin(std::size_t index) noexcept {
    // relaxed: a worker's own mark reaches others with its idle bit [ST3].
    short_.fetch_or(std::uint64_t{1} << index, std::memory_order_relaxed);
    shortages_.fetch_add(1, std::memory_order_relaxed);  // A counter.
  }
  void End(std::size_t index) noexcept {
    short_.fetch_and(~(std::uint64_t{1} << index), std::memory_order_relaxed);
  }

  // Bit i: worker i is short.
  std::uint64_t mask() const noexcept {
    // relaxed: see Begin.
    return short_.load(std::memory_order_relaxed);
  }
  bool any() const noexcept { return mask() != 0; }

  // Tasks that wait for a stack, oldest first.
  void PutAside(Task* task) { aside_.Push(task); }
  TaskList TakeAside(std::size_t most) { return aside_.Take(most); }
  std::size_t aside() const noexcept { return aside_.size(); }

  void CountRejected() noexcept {
    rejected_.fetch_add(1, std::memory_order_relaxed);  // A counter.
  }

  // Counters since the start: workers that became short, TrySpawn()s refused.
  std::uint64_t shortages() const noexcept {
    return shortages_.load(std::memory_order_relaxed);
  }
  std::uint64_t rejected() const noexcept {
    return rejected_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> short_{0};
  std::atomic<std::uint64_t> shortages_{0};
  std::atomic<std::uint64_t> rejected_{0};
  InjectionQueue aside_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_SHORTAGE_H_
