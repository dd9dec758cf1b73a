// The fiber that the calling code belongs to, wherever it runs.

#ifndef FLARE_FIBER_CURRENT_FIBER_H_
#define FLARE_FIBER_CURRENT_FIBER_H_

namespace flare::fiber {

class Carrier;
class SchedulingGroup;

// The fiber's carrier, whether it runs on a worker or in a BlockingRegion;
// nullptr on a plain thread.
Carrier* CurrentFiber();

// The scheduling group of the fiber that is in a BlockingRegion here; nullptr
// on any other thread.
SchedulingGroup* CurrentRegionGroup() noexcept;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CURRENT_FIBER_H_
