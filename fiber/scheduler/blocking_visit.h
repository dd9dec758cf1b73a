// A fiber's stay on a thread of the blocking pool: shared by its BlockingRegion
// (in fiber/blocking_region.h) and the pool.

#ifndef FLARE_FIBER_BLOCKING_VISIT_H_
#define FLARE_FIBER_BLOCKING_VISIT_H_

namespace flare::fiber {

class BlockingThread;
class Carrier;
class SchedulingGroup;

struct BlockingVisit {
  Carrier* carrier = nullptr;        // The fiber's; nullptr: there is no visit.
  SchedulingGroup* group = nullptr;  // Where the fiber is queued afterwards.
  BlockingThread* thread = nullptr;  // Where it is; by that one.
  BlockingVisit* next = nullptr;     // In the pool's queue.
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_BLOCKING_VISIT_H_
