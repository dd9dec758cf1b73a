// Takes the backtrace of another thread of this process, where it is now, by a
// signal (SIGURG) that makes it look at itself. See stuck_report.h for the
// effect on the thread.

#ifndef FLARE_FIBER_STACK_SAMPLER_H_
#define FLARE_FIBER_STACK_SAMPLER_H_

#include <sys/types.h>

#include <cstdint>

#include "flare/base/backtrace.h"

namespace flare::fiber {

// Takes over SIGURG; a handler that is there already is called for signals from
// elsewhere. Counted: as many StopStackSampler() calls end it. A handler that
// is installed meanwhile calls ours, and may keep it beyond that end: the next
// start then counts on it. Sampled threads must not block the signal:
// AcceptStackSampling().
void StartStackSampler();
void StopStackSampler();

// Unblocks the signal for the calling thread.
void AcceptStackSampling();

// The backtrace of the thread `tid` (gettid()) of this process. Waits for it
// for `patience_ns` at most; empty if it didn't answer, has ended, or the
// sampler isn't started. One call at a time, others wait for it. Blocks the
// thread, so don't call it on a fiber.
Backtrace SampleStack(pid_t tid, std::int64_t patience_ns);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_SAMPLER_H_
