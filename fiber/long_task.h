// For tasks that compute for so long, 0.1 ms or more, that others must not wait
// for them, however many of them come at once. All are for tasks on a worker;
// on plain threads they do nothing. None of them blocks.
#ifndef FLARE_FIBER_LONG_TASK_H_
#define FLARE_FIBER_LONG_TASK_H_

#include <cstddef>

#include "flare/fiber/task.h"

namespace flare::fiber {

// Queues `task`, which may be running, behind all tasks that are queued on the
// calling worker, and all events that are known (poller.h), however many those
// are. Further events may bring others to wait for, but not before it has had
// its turn. False: there are none, or the caller is a plain thread; it is not
// queued.
[[nodiscard]] bool SubmitLast(Task* task);

// The calling task has computed: queues `task`, which is to do so next, behind
// all that has come meanwhile, for which it looks: a system call, if no other
// worker does. In another group, or on a plain thread, it is SubmitTo(). Hold
// no lock: that look may destroy what the poller was the last to refer to.
void SubmitToLast(std::size_t group, Task* task);

// The calling task is about to compute: wakes a worker of the group that
// sleeps, if there is one, so that it sees the next event. A system call, if no
// worker would see it. Nothing on a plain thread.
void CallLookout();

// True once for each task, if it has held its worker for 0.1 ms by now, and
// that worker's tasks have taken 50 us on average lately: it should do a small
// thing itself, such as a send, rather than queue it behind others, which may
// take as long. Only once, as many small things aren't small together.
bool ClaimLongTask();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_LONG_TASK_H_
