// For what may take more stack than a fiber has, such as looking up names and
// lines for backtraces.

#ifndef FLARE_FIBER_THREAD_STACK_H_
#define FLARE_FIBER_THREAD_STACK_H_

#include <system_error>
#include <thread>

#include "flare/fiber/scheduler/current_fiber.h"

namespace flare::fiber {

// Calls `f`, which must not throw nor care where it runs: on a thread of its
// own if this is a fiber, unless there can be none. Blocks the thread.
template <class F>
void RunOnThreadStack(const F& f) {
  if (CurrentFiber() == nullptr) return f();
  std::thread thread;
  try {
    thread = std::thread([&f] { f(); });
  } catch (const std::system_error&) {  // No more threads.
    return f();
  }
  thread.join();
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_STACK_H_
