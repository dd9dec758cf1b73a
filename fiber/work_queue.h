// WorkQueue: runs closures one at a time, in the order they were pushed, on
// fibers.
//
//   fiber::WorkQueue queue;
//   queue.Push([&] { log.Append(line); });   // never waits
//   queue.Stop();
//   queue.Join();                            // all of them have run
//
// State that only closures of one queue share needs no lock. A closure may
// block: the others wait, but no thread does. An idle queue holds no fiber.
// Closures of one queue don't always run on the same fiber, and in no execution
// context: FiberLocals are not the queue's.
//
// For a bounded queue, or values instead of closures, use Channel with a fiber
// that receives.

#ifndef FLARE_FIBER_WORK_QUEUE_H_
#define FLARE_FIBER_WORK_QUEUE_H_

#include <type_traits>
#include <utility>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

class Carrier;

// All functions may be called from fibers and plain threads, at the same time.
class WorkQueue {
 public:
  WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  // Stop() and Join(), unless that was done. By a closure of the queue it ends
  // the process.
  ~WorkQueue();

  // Has `f()` run after all closures that were pushed before, in the scheduling
  // group of the caller that pushes into an idle queue. `f` may be move-only;
  // an exception that leaves it ends the process. False after Stop(): `f` is
  // destroyed unrun. Never blocks. Allocates one pooled node (large closures:
  // on the heap).
  template <class F>
  bool Push(F&& f) {
    return PushItem(MakeSpawned<Closure<std::decay_t<F>>>(std::forward<F>(f)));
  }

  // Ends the queue: no more closures are taken, and those that were pushed are
  // still run. May be called repeatedly, also by closures of the queue. Never
  // blocks.
  void Stop();

  // Blocks the calling fiber or thread until the queue was stopped and all
  // closures have been run and destroyed. A closure of the queue that calls it
  // ends the process.
  void Join();

 private:
  struct Item : Task {
    bool refused = false;  // To be destroyed only.
  };
  template <class F>
  struct Closure;

  bool PushItem(Item* item);
  void Drain();

  struct DrainTask : Task {
    static void Run(Task* self) {
      static_cast<DrainTask*>(self)->queue->Drain();
    }
    WorkQueue* queue = nullptr;
  };

  DrainTask drain_;
  Spinlock lock_;
  TaskList items_ FLARE_GUARDED_BY(lock_);
  bool draining_ FLARE_GUARDED_BY(lock_) = false;  // drain_ is queued or runs.
  bool stopped_ FLARE_GUARDED_BY(lock_) = false;
  // The fiber that runs a closure.
  const Carrier* fiber_ FLARE_GUARDED_BY(lock_) = nullptr;
  Event done_;
};

template <class F>
struct WorkQueue::Closure : Item {
  template <class G>
  explicit Closure(G&& g) : f(std::forward<G>(g)) {
    run = &Closure::Run;
  }

  static void Run(Task* task) {
    auto* const self = static_cast<Closure*>(task);
    if (!self->refused) std::move(self->f)();
    FreeSpawned(self);
  }

  F f;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WORK_QUEUE_H_
