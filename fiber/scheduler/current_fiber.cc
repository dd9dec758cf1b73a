#include "flare/fiber/scheduler/current_fiber.h"

#include "flare/fiber/scheduler/blocking_pool.h"
#include "flare/fiber/scheduler/blocking_visit.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

Carrier* CurrentFiber() {
  if (Carrier* const carrier = CurrentCarrier()) return carrier;
  const BlockingVisit* const visit = BlockingThread::CurrentVisit();
  return visit == nullptr ? nullptr : visit->carrier;
}

SchedulingGroup* CurrentRegionGroup() noexcept {
  const BlockingVisit* const visit = BlockingThread::CurrentVisit();
  return visit == nullptr ? nullptr : visit->group;
}

}  // namespace flare::fiber
