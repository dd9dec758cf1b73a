// A queue that a group's workers share: for tasks from plain threads and other
// groups, and those that overflow a worker's ring; or for tasks that wait for
// something. Unbounded, first in, first out; a push never allocates, sleeps or
// fails.

#ifndef FLARE_FIBER_INJECTION_QUEUE_H_
#define FLARE_FIBER_INJECTION_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

class InjectionQueue {
 public:
  void Push(Task* task) {
    ScopedLock guard(lock_);
    tasks_.PushBack(task);
    // seq_cst: pairs with the load in size(), against a worker that goes to
    // sleep (scheduling_group.cc [P2]).
    size_.store(tasks_.size(), std::memory_order_seq_cst);
  }

  void PushAll(TaskList&& tasks) {
    ScopedLock guard(lock_);
    tasks_.TakeAll(&tasks);
    size_.store(tasks_.size(), std::memory_order_seq_cst);  // As in Push.
  }

  // Puts tasks back that were taken before those that are here.
  void Return(TaskList&& tasks) {
    ScopedLock guard(lock_);
    tasks.TakeAll(&tasks_);
    tasks_.TakeAll(&tasks);
    size_.store(tasks_.size(),
                std::memory_order_seq_cst);  // Pairs with size().
  }

  // The oldest tasks, at most `max`. If that is all, it takes as long for many
  // as for one: others wait for the lock, and taking the tasks one by one is to
  // touch each, which another worker wrote.
  TaskList Take(std::size_t max) {
    TaskList taken;
    if (empty()) return taken;
    ScopedLock guard(lock_);
    if (tasks_.size() <= max) {
      taken.TakeAll(&tasks_);
    } else {
      while (taken.size() < max) taken.PushBack(tasks_.PopFront());
    }
    // release: pairs with the load in size(): a thread that sees the tasks gone
    // sees that their taker is awake (shutdown.cc [SD1]).
    size_.store(tasks_.size(), std::memory_order_release);
    return taken;
  }

  // Gives all tasks to `to`, behind those that are there; returns how many. No
  // moment passes at which size() of both, asked of this one first, is without
  // them.
  std::size_t MoveAllTo(InjectionQueue* to) {
    if (empty()) return 0;
    ScopedLock guard(lock_);
    ScopedLock guard_of_other(to->lock_);  // Nobody holds it and wants ours.
    const std::size_t moved = tasks_.size();
    to->tasks_.TakeAll(&tasks_);
    // seq_cst: as in Push; pairs with the load in size().
    to->size_.store(to->tasks_.size(), std::memory_order_seq_cst);
    // release: after the store above, for threads that load them the other way
    // round in size() (shutdown.cc [SD1]).
    size_.store(0, std::memory_order_release);
    return moved;
  }

  // A snapshot. seq_cst: pairs with the stores in Push and PushAll
  // (scheduling_group.cc [P2]), and acquires the releases of those in Take and
  // MoveAllTo (shutdown.cc [SD1]).
  std::size_t size() const noexcept {
    return size_.load(std::memory_order_seq_cst);
  }
  bool empty() const noexcept { return size() == 0; }

 private:
  alignas(kCacheLine) Spinlock lock_;
  TaskList tasks_ FLARE_GUARDED_BY(lock_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_INJECTION_QUEUE_H_
