// Where a worker that has run out of work looks for some: what waits for the
// whole group, its siblings' rings, and other groups.
#include <algorithm>
#include <utility>

#include "flare/fiber/scheduler/neighbours.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

// A fair share, so that one worker doesn't run alone what many could.
TaskList Worker::TakeInjected(std::size_t most) {
  if (most == 0) return TaskList();
  if (group_->shortage().aside() != 0) [[unlikely]] {
    TaskList aside = TakeAside(most);
    if (!aside.empty()) return aside;
  }
  InjectionQueue& queue = group_->injection_;
  const std::size_t size = queue.size();
  if (size == 0) return TaskList();
  return queue.Take(std::min(size / group_->limit() + 1, most));
}

// With an empty ring.
Task* Worker::FromInjectionQueue() {
  return PushAllButFirst(TakeInjected(std::max(keep_limit_ / 2, 1U)));
}

Task* Worker::PushAllButFirst(TaskList&& tasks) {
  Task* const first = tasks.PopFront();
  while (Task* const task = tasks.PopFront()) {
    if (!run_queue_.Push(task)) Overflow(task);
  }
  return first;
}

Task* Worker::Steal() {
  random_ = random_ * 1664525U + 1013904223U;
  const std::size_t workers = group_->size();
  const std::size_t start = (random_ >> 8) % workers;
  for (std::size_t i = 0; i < workers; ++i) {
    Worker* const victim = group_->worker((start + i) % workers);
    if (victim == this) continue;
    if (Task* const task = StealFrom(&victim->run_queue_)) return task;
  }
  return group_->neighbours_.empty() ? nullptr : StealFromNeighbours();
}

Task* Worker::StealFromNeighbours() {
  Neighbours& neighbours = group_->neighbours_;
  SchedulingGroup* const inviting = neighbours.TakeInvitation();
  ++steal_attempts_;
  for (SchedulingGroup* const victim :
       {inviting, std::exchange(last_victim_, nullptr),
        neighbours.ChooseNear(steal_attempts_, random_ >> 16),
        neighbours.ChooseFar(steal_attempts_, random_ >> 16)}) {
    if (victim == nullptr) continue;
    if (Task* const task = StealFromGroup(victim)) {
      last_victim_ = victim;
      Bump(neighbours.IsFar(victim) ? counters_.far_steals
                                    : counters_.near_steals);
      return task;
    }
  }
  invited_by_ = inviting;
  return nullptr;
}

// Those of the group that invited us. Not as part of the search: while somebody
// is counted as searching, nobody else is woken [P4], and callbacks may take
// their time.
Task* Worker::FireNeighboursTimers(std::int64_t now_ns) {
  SchedulingGroup* const inviting = std::exchange(invited_by_, nullptr);
  // What they submit goes to our queue, fibers that they wake to their own.
  inviting->FireTimers(now_ns);
  if (Task* const task = Pop()) return task;
  Task* const task = StealFromGroup(inviting);
  if (task != nullptr) MaybeWakeHelper();
  return task;
}

Task* Worker::StealFromGroup(SchedulingGroup* victim) {
  for (std::size_t i = 0; i < victim->size(); ++i) {
    Worker* const worker = victim->worker((random_ + i) % victim->size());
    if (Task* const task = StealFrom(&worker->run_queue_)) return task;
  }
  // What is in its shared queue is its own workers' as long as one can be
  // woken.
  if (victim->CanWake()) return nullptr;
  const std::size_t most = std::max(keep_limit_ / 2, 1U);
  Task* const task = PushAllButFirst(victim->injection_.Take(
      std::min<std::size_t>(victim->injected() / 2 + 1, most)));
  if (task != nullptr) Bump(counters_.steals);
  return task;
}

Task* Worker::StealFrom(RunQueue* victim) {
  Task* task = nullptr;
  if (victim->rescue_wanted()) [[unlikely]] {
    task = victim->RescueInto(&run_queue_);
  }
  if (task == nullptr) task = victim->StealInto(&run_queue_);
  if (task != nullptr) Bump(counters_.steals);
  return task;
}

}  // namespace flare::fiber
