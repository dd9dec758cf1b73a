#include "flare/fiber/scheduler/fiber_locals.h"

#include "flare/fiber/scheduler/carrier.h"

namespace flare::fiber {

void FiberLocals::Clear() {
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

void DestroyFiberLocals(Carrier* carrier) {
  // Still this fiber's while they are being destroyed.
  FiberLocals* const locals = carrier->locals;
  locals->Clear();
  carrier->locals = nullptr;
  delete locals;
}

}  // namespace flare::fiber
