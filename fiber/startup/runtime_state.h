// The running runtime, for code inside fiber/.

#ifndef FLARE_FIBER_RUNTIME_STATE_H_
#define FLARE_FIBER_RUNTIME_STATE_H_

#include <cstddef>

namespace flare::fiber {

class BlockingPool;
class SchedulingGroup;

// The group of the calling worker; for a plain thread the one that was dealt to
// it. Dies with a clear message when no runtime is running.
SchedulingGroup* NearestGroup();

SchedulingGroup* GetGroup(std::size_t index);

// The threads of blocking regions.
BlockingPool* GetBlockingPool();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUNTIME_STATE_H_
