// The unit of scheduling, and lists of them, as queues, pollers and timers hand
// them on. fiber/task.h has the functions that queue tasks.

#ifndef FLARE_FIBER_TASK_LIST_H_
#define FLARE_FIBER_TASK_LIST_H_

#include "flare/base/intrusive_list.h"

namespace flare::fiber {

// Intrusive: derive from it or embed it. `run` is called exactly once for each
// Submit, on a worker; it may block its fiber and may destroy or resubmit the
// task. An exception leaving `run` terminates the process. A task is in at
// most one queue at a time.
struct Task {
  using Run = void (*)(Task* self);

  Run run = nullptr;
  Task* next = nullptr;  // The queue's, while the task is queued.
};

// A list for handing over a batch. It isn't thread-safe.
using TaskList = IntrusiveQueue<Task, &Task::next>;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TASK_LIST_H_
