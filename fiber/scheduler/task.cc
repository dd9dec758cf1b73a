#include "flare/fiber/task.h"

#include <utility>

#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/startup/runtime_state.h"

namespace flare::fiber {

void Submit(Task* task) { SubmitFrom(CurrentWorker(), task); }

void SubmitFrom(Worker* worker, Task* task) {
  if (worker != nullptr) {
    worker->Push(task);
  } else {
    NearestGroup()->Inject(task);
  }
}

bool SubmitBehindOthers(Task* task, std::size_t most_events) {
  Worker* const worker = CurrentWorker();
  return worker != nullptr && worker->PushBehindOthers(task, most_events);
}

bool SubmitBehindEvents(Task* task) {
  Worker* const worker = CurrentWorker();
  return worker != nullptr && worker->PushBehindEvents(task);
}

void SubmitAll(TaskList&& tasks) {
  if (Worker* const worker = CurrentWorker()) {
    worker->PushAll(std::move(tasks));
  } else {
    NearestGroup()->InjectAll(std::move(tasks));
  }
}

void SubmitTo(std::size_t group, Task* task) {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->group()->index() == group) {
    worker->Push(task);
  } else {
    GetGroup(group)->Inject(task);
  }
}

bool ShortOfStacks() { return NearestGroup()->shortage().any(); }

bool AdmitTask() {
  StackShortage& shortage = NearestGroup()->shortage();
  if (!shortage.any()) return true;
  shortage.CountRejected();
  return false;
}

}  // namespace flare::fiber
