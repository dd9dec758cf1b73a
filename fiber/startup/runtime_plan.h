// From RuntimeOptions to all that is decided before anything is built: the
// machine, the groups (plan.h), their places (placement.h) and their sets
// (group_sets.h).

#ifndef FLARE_FIBER_RUNTIME_PLAN_H_
#define FLARE_FIBER_RUNTIME_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/base/topology.h"
#include "flare/fiber/runtime_options.h"
#include "flare/fiber/startup/group_sets.h"
#include "flare/fiber/startup/placement.h"
#include "flare/fiber/startup/plan.h"

namespace flare::fiber {

struct Machine {
  Topology topology;
  // The process may run on all of the topology's CPUs: workers are bound.
  bool bind_cpus = true;
  // The topology's node numbers are the kernel's: memory may be asked from
  // them.
  bool bind_memory = true;
};

struct RuntimePlan {
  Machine machine;
  Plan shape;
  Placement placement;
  GroupSets sets;
  std::size_t reserve = 0;  // Workers in reserve, of each group.
  // Slots of each worker's run queue.
  std::uint32_t run_queue_slots = 0;

  // For the start-up log: groups and workers, nodes, CPUs, memory, why; and
  // each remark (see Placement) behind.
  std::string ToString() const;
};

// The machine that the options mean: the kernel's, or that of topology_file;
// less the CPUs that workers may not use. Reads files. Errors: the file or a
// CPU list can't be read, no CPU is left, both CPU lists are given.
Expected<Machine, Status> ReadMachine(const RuntimeOptions& options);

// Pure. Errors: a value out of range, or impossible on this machine.
Expected<RuntimePlan, Status> PlanRuntime(const RuntimeOptions& options,
                                          Machine machine);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUNTIME_PLAN_H_
