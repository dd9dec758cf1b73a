#include "flare/fiber/task.h"

#include <new>
#include <utility>

#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

void Submit(Task* task) { SubmitFrom(CurrentWorker(), task); }

void SubmitFrom(Worker* worker, Task* task) {
  if (worker != nullptr) {
    worker->Push(task);
  } else {
    NearestGroup()->Inject(task);
  }
}

SpawnNode AllocateSpawnNode() {
  Worker* const worker = CurrentWorker();
  return {worker != nullptr ? worker->spawn_nodes().Take()
                            : ::operator new(kSpawnNodeBytes),
          worker};
}

void FreeSpawnNode(void* memory) noexcept {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr) {
    worker->spawn_nodes().Put(memory);
  } else {
    ::operator delete(memory);
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
