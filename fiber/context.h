// The context switch: exchanges the callee-saved registers, the stack pointer
// and the floating-point control words. About 5 ns.

#ifndef FLARE_FIBER_CONTEXT_H_
#define FLARE_FIBER_CONTEXT_H_

#include <cstddef>

namespace flare::fiber {

extern "C" {

// Saves the caller's registers on its stack and the resulting stack pointer in
// `*save_sp`, then continues what was saved under `target_sp`. Returns when
// somebody switches back to `*save_sp`, with the `value` that one passes,
// possibly on another thread: whatever the caller fetched from thread-local
// storage before is stale by then.
void* flare_switch_context(void** save_sp, void* target_sp, void* value);

// Where a new context starts; not to be called.
void flare_context_entry();
}

// Prepares a context at the high end of a stack so that the first switch to
// the returned stack pointer calls `entry(argument, value)`. `entry` must not
// return.
void* MakeContext(void* stack_top, void (*entry)(void*, void*), void* argument);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CONTEXT_H_
