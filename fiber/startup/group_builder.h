// Builds the scheduling groups of a runtime as they were planned: their memory
// where it belongs, their pollers, whom they help, and their first stacks.
// Their threads are started later (SchedulingGroup::Start).
#ifndef FLARE_FIBER_GROUP_BUILDER_H_
#define FLARE_FIBER_GROUP_BUILDER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/runtime_options.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/startup/runtime_plan.h"

namespace flare::fiber {

class Schedule;

// Appends to *groups; also those that were built before a failure: of a poller,
// or for want of memory. An empty `make_poller` gives no group a poller.
// `schedule` is null but in tests. Blocks: threads that
// are placed as a group's workers are started for the building, and joined. If
// there can be no more threads it throws std::system_error.
using MakePoller =
    std::function<Expected<std::unique_ptr<Poller>, Status>(std::size_t group)>;
Status BuildGroups(const RuntimeOptions& options, const RuntimePlan& plan,
                   const MakePoller& make_poller, Schedule* schedule,
                   std::vector<std::unique_ptr<SchedulingGroup>>* groups);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_GROUP_BUILDER_H_
