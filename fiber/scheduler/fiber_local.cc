#include "flare/fiber/fiber_local.h"

#include <cxxabi.h>

#include <atomic>
#include <utility>
#include <vector>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/scheduler/carrier.h"

// The program or library that this file is linked into: __dso_handle, which the
// compiler may have declared itself.
extern "C"
    [[gnu::visibility("hidden")]] void* flare_own_object asm("__dso_handle");

namespace flare::fiber {

// The values of one fiber or thread, by slot.
struct FiberLocals {
  struct Value {
    void* object = nullptr;
    void (*destroy)(void*) = nullptr;
  };

  // Destructors may create values anew (of other slots, or the same): goes on
  // until none is left.
  void Clear() {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t i = values.size(); i-- > 0;) {
        const Value value = values[i];
        if (value.object == nullptr) continue;
        values[i] = {};
        value.destroy(value.object);
        any = true;
      }
    }
  }

  std::vector<Value> values;
};

namespace {

// A plain pointer, as destructors of other thread-locals, and of statics, may
// come after the end of the values and make new ones. Those end with the thread
// like the first, but for what statics make: that stays.
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
    // As destructors of thread-locals are registered, also while they run.
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

void DestroyFiberLocals(Carrier* carrier) {
  // Still this fiber's while they are being destroyed.
  FiberLocals* const locals = carrier->locals;
  locals->Clear();
  carrier->locals = nullptr;
  delete locals;
}

}  // namespace flare::fiber
