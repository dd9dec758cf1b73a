#include "flare/fiber/startup/placement.h"

#include <cerrno>
#include <cstddef>
#include <utility>

#include "flare/base/string.h"

namespace flare::fiber {
namespace {

// How many groups each of the topology's nodes gets.
std::vector<std::size_t> DealGroups(std::size_t groups,
                                    const Topology& topology) {
  const std::vector<Topology::Node>& nodes = topology.nodes();
  std::vector<std::size_t> dealt(nodes.size(), 0);
  for (std::size_t i = 0; i < groups; ++i) {
    std::size_t to = i;
    if (i >= nodes.size()) {
      to = 0;
      for (std::size_t n = 1; n < nodes.size(); ++n) {
        // More CPUs for each group, this one included.
        if (nodes[n].cpus.size() * (dealt[to] + 1) >
            nodes[to].cpus.size() * (dealt[n] + 1)) {
          to = n;
        }
      }
    }
    ++dealt[to];
  }
  return dealt;
}

GroupPlacement OnNode(const Topology::Node& node, const Topology& topology) {
  GroupPlacement group;
  group.node = node.id;
  group.cpus = node.cpus;
  if (node.has_memory && topology.memory_nodes() > 1) {
    group.memory_node = node.id;
  }
  return group;
}

// Group by group around the nodes, until each has those dealt to it.
std::vector<GroupPlacement> BindGroups(const Plan& plan,
                                       const Topology& topology) {
  std::vector<std::size_t> left = DealGroups(plan.groups, topology);
  std::vector<GroupPlacement> groups;
  while (groups.size() < plan.groups) {
    for (std::size_t n = 0; n < left.size(); ++n) {
      if (left[n] == 0) continue;
      --left[n];
      groups.push_back(OnNode(topology.nodes()[n], topology));
    }
  }
  return groups;
}

// Gives each worker the next CPU of those its group may use. False: no more.
bool PinWorkers(std::size_t workers, std::vector<int>* free,
                GroupPlacement* group) {
  if (free->size() < workers) return false;
  const auto end = free->begin() + static_cast<std::ptrdiff_t>(workers);
  group->pins.assign(free->begin(), end);
  free->erase(free->begin(), end);
  return true;
}

Status TooFewCpus(const Plan& plan, const Topology& topology) {
  return Status(
      EINVAL,
      "flare_fiber_worker_disallow_cpu_migration wants a CPU for each worker, "
      "but the plan is " +
          CountOf(plan.groups, "group") + " of " +
          CountOf(plan.workers_per_group, "worker") + " for " +
          CountOf(topology.cpus().size(), "CPU") + " (" + topology.ToString() +
          "); lower flare_concurrency_hint, allow more CPUs, or do without");
}

Status TooFewCpusOn(const Topology::Node& node, std::size_t workers) {
  return Status(EINVAL,
                "flare_fiber_worker_disallow_cpu_migration wants a CPU for "
                "each worker, but NUMA node " +
                    std::to_string(node.id) + " has " +
                    CountOf(node.cpus.size(), "CPU") + " for " +
                    CountOf(workers, "worker") +
                    "; lower flare_concurrency_hint or "
                    "flare_scheduling_group_size, or set "
                    "flare_numa_aware=false");
}

// For NUMA-bound groups, node by node.
Status PinToNodes(const Plan& plan, const Topology& topology,
                  Placement* placement) {
  for (const Topology::Node& node : topology.nodes()) {
    std::vector<int> free = node.cpus;
    std::size_t workers = 0;
    bool enough = true;
    for (GroupPlacement& group : placement->groups) {
      if (group.node != node.id) continue;
      workers += plan.workers_per_group;
      enough &= PinWorkers(plan.workers_per_group, &free, &group);
    }
    if (!enough) return TooFewCpusOn(node, workers);
  }
  return Status();
}

std::vector<std::string> Remarks(const Plan& plan, const Topology& topology,
                                 const Placement& placement) {
  std::vector<std::string> remarks;
  for (const Topology::Node& node : topology.nodes()) {
    std::size_t workers = 0;
    for (const GroupPlacement& group : placement.groups) {
      if (group.node == node.id) workers += plan.workers_per_group;
    }
    if (workers > node.cpus.size()) {
      remarks.push_back("node " + std::to_string(node.id) + " has " +
                        CountOf(workers, "worker") + " for " +
                        CountOf(node.cpus.size(), "CPU"));
    }
    if (workers > 0 && !node.has_memory) {
      remarks.push_back("node " + std::to_string(node.id) +
                        " has no memory: its groups get it from where the "
                        "kernel thinks is nearest");
    }
  }
  return remarks;
}

}  // namespace

Expected<Placement, Status> PlaceGroups(const Plan& plan,
                                        const Topology& topology, bool pinned) {
  if (pinned && plan.workers() > topology.cpus().size()) {
    return TooFewCpus(plan, topology);
  }
  Placement placement;
  if (plan.numa_aware) {
    placement.groups = BindGroups(plan, topology);
    if (pinned) {
      Status status = PinToNodes(plan, topology, &placement);
      if (!status.ok()) return status;
    }
    placement.remarks = Remarks(plan, topology, placement);
    return placement;
  }
  std::vector<int> free = topology.cpus();
  for (std::size_t i = 0; i < plan.groups; ++i) {
    GroupPlacement group;
    group.cpus = topology.cpus();
    if (pinned) PinWorkers(plan.workers_per_group, &free, &group);
    placement.groups.push_back(std::move(group));
  }
  return placement;
}

bool CrowdsNode(const Plan& plan, const Topology& topology, bool pinned) {
  const std::vector<std::size_t> dealt = DealGroups(plan.groups, topology);
  for (std::size_t n = 0; n < dealt.size(); ++n) {
    const std::size_t workers = dealt[n] * plan.workers_per_group;
    const std::size_t cpus = topology.nodes()[n].cpus.size();
    if (workers <= cpus) continue;
    if (pinned ||
        4 * workers * topology.cpus().size() > 5 * plan.workers() * cpus) {
      return true;
    }
  }
  return false;
}

}  // namespace flare::fiber
