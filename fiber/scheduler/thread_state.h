// The kernel's view of a thread of this process.

#ifndef FLARE_FIBER_THREAD_STATE_H_
#define FLARE_FIBER_THREAD_STATE_H_

#include <sys/types.h>

namespace flare::fiber {

// Does the thread (a number as of gettid()) sleep in the kernel, rather than
// run or wait for a CPU? False as well if there is no such thread, or no /proc
// to ask (proc(5), /proc/[pid]/stat: states S and D). Takes some microseconds.
// Any thread.
bool SleepsInKernel(pid_t thread) noexcept;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_STATE_H_
