// For work that may take more stack than a fiber has, such as looking up names
// and lines for backtraces.

#ifndef FLARE_FIBER_THREAD_STACK_H_
#define FLARE_FIBER_THREAD_STACK_H_

#include <exception>
#include <system_error>
#include <thread>

#include "flare/fiber/scheduler/current_fiber.h"

namespace flare::fiber {

// Calls `f` on a new thread if the caller is a fiber, and in place if it isn't
// or no thread can be created. Throws what `f` throws, which must not depend on
// its thread. Blocks the thread.
template <class F>
void RunOnThreadStack(const F& f) {
  if (CurrentFiber() == nullptr) return f();
  std::exception_ptr thrown;
  std::thread thread;
  try {
    thread = std::thread([&f, &thrown] {
      try {
        f();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
  } catch (const std::system_error&) {  // No more threads.
    return f();
  }
  thread.join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_STACK_H_
