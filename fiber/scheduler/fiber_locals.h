// The values of the FiberLocals (fiber/fiber_local.h) of one fiber.

#ifndef FLARE_FIBER_FIBER_LOCALS_H_
#define FLARE_FIBER_FIBER_LOCALS_H_

#include <cstddef>
#include <vector>

namespace flare::fiber {

class Carrier;

// The values of one fiber or thread, by slot.
struct FiberLocals {
  struct Value {
    void* object = nullptr;
    void (*destroy)(void*) = nullptr;
  };

  // Destructors may create values anew (of other slots, or the same): goes on
  // until none is left.
  void Clear();

  std::vector<Value> values;
};

// Ends the values of the task that has finished on `carrier`, which has some.
// May block, as part of the task.
[[gnu::noinline]] void DestroyFiberLocals(Carrier* carrier);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_FIBER_LOCALS_H_
