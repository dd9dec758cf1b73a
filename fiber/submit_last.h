// For tasks that others must not wait for, however many of them come at once.
#ifndef FLARE_FIBER_SUBMIT_LAST_H_
#define FLARE_FIBER_SUBMIT_LAST_H_

#include "flare/fiber/task.h"

namespace flare::fiber {

// Queues `task`, which may be running, behind all tasks that are queued on the
// calling worker, and all events that are known (poller.h), however many those
// are. Further events may bring others to wait for, but not before it has had
// its turn. False: there are none, or the caller is a plain thread; it is not
// queued.
[[nodiscard]] bool SubmitLast(Task* task);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SUBMIT_LAST_H_
