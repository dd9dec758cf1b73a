// Where the groups of a plan go: to which NUMA node, and each worker to which
// CPUs. Pure, as the plan is (plan.h).

#ifndef FLARE_FIBER_PLACEMENT_H_
#define FLARE_FIBER_PLACEMENT_H_

#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/base/topology.h"
#include "flare/fiber/startup/plan.h"

namespace flare::fiber {

struct GroupPlacement {
  int node = -1;  // The kernel's number; -1: not bound to a node.
  // The node that memory is asked from: `node`, if it has memory and is not the
  // only one with some. -1: wherever the kernel finds it.
  int memory_node = -1;
  std::vector<int> cpus;  // That the group's workers may run on; ascending.
  std::vector<int> pins;  // If they are pinned: the one CPU of each worker.
};

struct Placement {
  std::vector<GroupPlacement> groups;
  // Remarks for the operator: a node with more workers than CPUs, memory from
  // elsewhere.
  std::vector<std::string> remarks;
};

// Groups of a NUMA-aware plan are dealt to the nodes: one for each, then each
// further one to where there are the most CPUs per group. So even nodes get
// theirs in turn, and uneven ones in proportion. Other plans' groups may run on
// all CPUs of the topology.
//
// With `pinned`, each worker gets a CPU for itself. Error EINVAL: there are too
// few, in all or on one of the nodes; the message says what to change.
Expected<Placement, Status> PlaceGroups(const Plan& plan,
                                        const Topology& topology, bool pinned);

// Whether a NUMA-aware plan's groups would crowd some node: it would have more
// workers than CPUs and, unless `pinned`, over a quarter more than its part.
bool CrowdsNode(const Plan& plan, const Topology& topology, bool pinned);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_PLACEMENT_H_
