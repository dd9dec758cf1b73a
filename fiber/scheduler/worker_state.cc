#include "flare/fiber/scheduler/worker_state.h"

#include "flare/base/clock.h"

namespace flare::fiber {

WorkerState::WorkerState(std::size_t index, std::size_t number,
                         StackAllocator* stacks, Carrier::Entry enter,
                         std::int64_t stack_idle_ns)
    : index_(index),
      number_(number),
      spares_(stacks, enter, stack_idle_ns),
      timers_(NowNs()) {}

}  // namespace flare::fiber
