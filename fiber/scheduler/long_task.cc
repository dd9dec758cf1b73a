#include "flare/fiber/long_task.h"

#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

bool SubmitLast(Task* task) {
  Worker* const worker = CurrentWorker();
  if (worker == nullptr) return false;
  SchedulingGroup* const group = worker->group();
  if (worker->run_queue().size() == 0 && group->pending_events() == 0) {
    return false;
  }
  group->DeferTask(task);  // [P7]
  return true;
}

void SubmitToLast(std::size_t group, Task* task) {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->group()->index() == group) {
    worker->LookForIo();
    if (SubmitLast(task)) return;
  }
  SubmitTo(group, task);
}

// The one that is woken takes over tasks that are queued here, and then sleeps
// in the poller [P6].
void CallLookout() {
  Worker* const worker = CurrentWorker();
  if (worker == nullptr) return;
  SchedulingGroup* const group = worker->group();
  if (group->poller() == nullptr || !group->CanWake()) return;
  if (!group->WillSeeNextEvent()) group->Wake(1);
}

bool ClaimLongTask() {
  Worker* const worker = CurrentWorker();
  return worker != nullptr && worker->ClaimLongTask();
}

}  // namespace flare::fiber
