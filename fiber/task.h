// A task is the unit of scheduling: a function that has not started yet. It
// has no stack of its own. Queueing one writes a pointer into the current
// worker's run queue; running one is a plain call on whatever stack the worker
// is using. Only a task that blocks costs a stack and a context switch.
//
//   struct Flush : fiber::Task { ... };          // embed or derive
//   flush.run = [](fiber::Task* self) { static_cast<Flush*>(self)->Go(); };
//   fiber::Submit(&flush);                       // never allocates
//
//   fiber::Spawn([=] { Handle(request); });      // pooled closure
//
// Use `Fiber` (fiber.h) or `Async` (async.h) if somebody waits for the end.
//
// All functions may be called from any thread while the runtime runs, never
// block, and fail only where they return a bool: beyond a full run queue, tasks
// spill into the group's injection queue.

#ifndef FLARE_FIBER_TASK_H_
#define FLARE_FIBER_TASK_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "flare/fiber/scheduler/spawn_nodes.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

// Queues `task`: on a worker into its own run queue (first in, first out),
// from a plain thread into the injection queue of a nearby group.
void Submit(Task* task);

// Queues a batch as Submit() does, with a single decision about waking an idle
// worker. If tasks of the group have taken long lately, its workers share the
// batch: it is started in its order, and behind batches that came earlier,
// except a few tasks at its front (some 0.5 ms of work).
void SubmitAll(TaskList&& tasks);

// Queues the running task `task` once more, behind others: for a task that
// gains from that, such as one that sends the output of the others. True: it is
// queued behind all tasks of the calling worker, and behind those that the next
// known events make ready (poller.h). False: it isn't queued and should go on,
// because there are only a few such tasks, more than 0.5 ms of work, or more
// than `most_events` known events. Call it a few times in a row at most, since
// others may do the same. False on plain threads.
[[nodiscard]] bool SubmitBehindOthers(Task* task, std::size_t most_events);

// SubmitBehindOthers() for a task that gains from waiting longer: it runs when
// a worker of the caller's group has no other task and no known event left.
// That may take a millisecond.
[[nodiscard]] bool SubmitBehindEvents(Task* task);

// Queues `task` in the scheduling group with that index (see runtime.h). On a
// worker of that group this is Submit(). If all workers of the group are busy
// another one may help out (neighbours.h). A group that doesn't exist ends the
// process.
void SubmitTo(std::size_t group, Task* task);

// The pooled node that a spawned closure is stored in. AllocateSpawnNode also
// returns the calling worker (nullptr on a plain thread) to be handed to
// SubmitFrom(), if nothing in between can suspend the fiber.
class Worker;
struct SpawnNode {
  void* memory;
  Worker* worker;
};
SpawnNode AllocateSpawnNode();
void FreeSpawnNode(void* memory) noexcept;
void SubmitFrom(Worker* worker, Task* task);

// Makes a T in a pooled node; the code that runs it must destroy it, and free
// the node.
template <class T, class... Args>
T* MakeInSpawnNode(Args&&... args) {
  void* const memory = AllocateSpawnNode().memory;
  try {
    return new (memory) T(std::forward<Args>(args)...);
  } catch (...) {  // A closure that failed to be copied.
    FreeSpawnNode(memory);
    throw;
  }
}

// Whether a T goes into a pooled node. It can't be a constant of T's, which
// couldn't know its size: T isn't complete there.
template <class T>
constexpr bool FitsSpawnNode() {
  return sizeof(T) <= kSpawnNodeBytes &&
         alignof(T) <= alignof(std::max_align_t);
}

// Makes a T in a pooled node if it fits, else on the heap; for FreeSpawned().
template <class T, class... Args>
T* MakeSpawned(Args&&... args) {
  if constexpr (FitsSpawnNode<T>()) {
    return MakeInSpawnNode<T>(std::forward<Args>(args)...);
  } else {
    return new T(std::forward<Args>(args)...);
  }
}

// Destroys and frees a T that MakeSpawned<T>() has made.
template <class T>
void FreeSpawned(T* spawned) {
  if constexpr (FitsSpawnNode<T>()) {
    spawned->~T();
    FreeSpawnNode(spawned);
  } else {
    delete spawned;
  }
}

// A closure as a task.
template <class F>
class ClosureTask : public Task {
 public:
  template <class G>
  explicit ClosureTask(G&& f) : f_(std::forward<G>(f)) {
    run = [](Task* self) { static_cast<ClosureTask*>(self)->Go(); };
  }

 private:
  void Go() {
    std::move(f_)();
    FreeSpawned(this);
  }

  F f_;
};

// Runs `f()` as a task: fire and forget. `f` may be move-only; it is destroyed
// after the call, on the worker that finished it.
template <class F>
void Spawn(F&& f) {
  using Closure = ClosureTask<std::decay_t<F>>;
  // Moving a closure in can't suspend; copying one might.
  constexpr bool kMoves =
      std::is_trivially_copyable_v<std::decay_t<F>> ||
      (!std::is_lvalue_reference_v<F> &&
       !std::is_const_v<std::remove_reference_t<F>> &&
       std::is_nothrow_move_constructible_v<std::decay_t<F>>);
  if constexpr (FitsSpawnNode<Closure>() && kMoves) {
    const SpawnNode node = AllocateSpawnNode();
    SubmitFrom(node.worker, new (node.memory) Closure(std::forward<F>(f)));
  } else {
    Submit(MakeSpawned<Closure>(std::forward<F>(f)));
  }
}

// Returns whether the caller's scheduling group is out of stacks, so that tasks
// that have not started wait until fibers have ended. Servers should refuse
// work then. Two loads; any thread.
bool ShortOfStacks();
// Returns false, and counts that (RuntimeStatistics::rejected_tasks), if
// ShortOfStacks().
bool AdmitTask();

// Spawn() unless the group is short of stacks: false then, and `f` is left as
// it is. Makes no promise that the task finds a stack when it starts.
template <class F>
[[nodiscard]] bool TrySpawn(F&& f) {
  if (!AdmitTask()) return false;
  Spawn(std::forward<F>(f));
  return true;
}

// Spawn() into a given scheduling group.
template <class F>
void SpawnTo(std::size_t group, F&& f) {
  SubmitTo(group,
           MakeSpawned<ClosureTask<std::decay_t<F>>>(std::forward<F>(f)));
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TASK_H_
