#include "flare/fiber/fiber_local.h"

#include <cxxabi.h>

#include <atomic>
#include <utility>
#include <vector>

#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/fiber_locals.h"
#include "flare/fiber/scheduler/worker.h"

// The program or library that this file is linked into: __dso_handle, which the
// compiler may have declared itself.
extern "C"
    [[gnu::visibility("hidden")]] void* flare_own_object asm("__dso_handle");

namespace flare::fiber {

namespace {

// A plain pointer, as destructors of other thread-locals, and of statics, may
// come after the end of the values and make new ones. Those end with the thread
// like the first, except those that statics make: they stay.
thread_local FiberLocals* thread_locals = nullptr;

void EndThreadLocals(void*) {
  thread_locals->Clear();
  delete std::exchange(thread_locals, nullptr);
}

// noinline: the address of a thread-local must not be kept across a suspension.
// The asm hides that it is always the same variable's: compilers otherwise
// take it to the caller all the same.
[[gnu::noinline]] FiberLocals* ThreadLocals() {
  if (thread_locals == nullptr) {
    thread_locals = new FiberLocals();
    // Registered as destructors of thread-locals are, also while they run.
    abi::__cxa_thread_atexit(&EndThreadLocals, nullptr, &flare_own_object);
  }
  FiberLocals* locals = thread_locals;
  asm volatile("" : "+r"(locals) : : "memory");
  return locals;
}

}  // namespace

std::size_t AllocateFiberLocalSlot() {
  static std::atomic<std::size_t> next{0};
  // relaxed: only the number matters.
  return next.fetch_add(1, std::memory_order_relaxed);
}

void* GetFiberLocal(std::size_t slot, void* (*create)(),
                    void (*destroy)(void*)) {
  Carrier* const carrier = CurrentFiber();  // Also in a region.
  if (carrier != nullptr && carrier->locals == nullptr) {
    carrier->locals = new FiberLocals();
  }
  FiberLocals* const locals =
      carrier != nullptr ? carrier->locals : ThreadLocals();
  if (slot < locals->values.size() && locals->values[slot].object != nullptr) {
    return locals->values[slot].object;
  }
  void* const object = create();  // May itself use fiber-locals, or block.
  if (slot >= locals->values.size()) locals->values.resize(slot + 1);
  locals->values[slot] = {object, destroy};
  return object;
}

void EndFiberLocals() {
  Carrier* const carrier = CurrentCarrier();
  if (carrier != nullptr && carrier->locals != nullptr) {
    DestroyFiberLocals(carrier);
  }
}

}  // namespace flare::fiber
