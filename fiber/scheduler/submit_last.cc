#include "flare/fiber/submit_last.h"

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

}  // namespace flare::fiber
