// For work that may take more stack than a fiber has, such as looking up names
// and lines for backtraces.

#ifndef FLARE_FIBER_THREAD_STACK_H_
#define FLARE_FIBER_THREAD_STACK_H_

#include <system_error>
#include <thread>

#include "flare/fiber/scheduler/current_fiber.h"

namespace flare::fiber {

// Calls `f` on a new thread if the caller is a fiber, and in place if it isn't
// or no thread can be created. `f` must not throw or depend on its thread.
// Blocks the thread.
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
