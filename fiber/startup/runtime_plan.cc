#include "flare/fiber/startup/runtime_plan.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/malloc_arena.h"
#include "flare/base/string.h"
#include "flare/fiber/scheduler/group_size.h"
#include "flare/fiber/scheduler/run_queue.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/stack/stack.h"

namespace flare::fiber {
namespace {

// Fewer slots would have every second task go through the shared queue.
constexpr std::size_t kLeastSlots = 4;
constexpr std::size_t kMostQueued = std::size_t{1} << 24;

Status ValidateStack(const RuntimeOptions& options) {
  const std::size_t page = PageSize();
  if (options.stack_size >= page + kLeastStack &&
      options.stack_size % page == 0) {
    return Status();
  }
  return Status(EINVAL, "flare_fiber_stack_size is " +
                            std::to_string(options.stack_size) +
                            "; it must be a multiple of the page size, " +
                            std::to_string(page) + ", and at least " +
                            std::to_string(page + kLeastStack));
}

Status ValidateRatio(const char* flag, int ratio) {
  if (ratio >= 0) return Status();
  return Status(EINVAL, std::string(flag) + " is " + std::to_string(ratio) +
                            "; it must be 0 (never) or more (one in so many)");
}

Status ValidateTimes(const RuntimeOptions& options) {
  const std::pair<const char*, std::chrono::nanoseconds> times[] = {
      {"stack_idle", options.stack_idle},
      {"heap_idle", options.heap_idle},
      {"stuck_threshold", options.stuck_threshold},
      {"watch_period", options.watch_period},
      {"thread_spin", options.thread_spin},
      {"blocking_thread_idle", options.blocking_thread_idle},
  };
  for (const auto& [name, time] : times) {
    if (time.count() >= 0) continue;
    return Status(EINVAL, std::string("RuntimeOptions::") + name + " is " +
                              std::to_string(time.count()) +
                              " ns; it must be 0 or more");
  }
  return Status();
}

Status Validate(const RuntimeOptions& options) {
  Status status = ValidateStack(options);
  if (status.ok()) {
    status =
        ValidateRatio("flare_work_stealing_ratio", options.work_stealing_ratio);
  }
  if (status.ok()) {
    status = ValidateRatio("flare_cross_numa_work_stealing_ratio",
                           options.cross_numa_work_stealing_ratio);
  }
  if (status.ok() && options.reserve_workers < 0) {
    status = Status(EINVAL, "flare_fiber_reserve_workers is " +
                                std::to_string(options.reserve_workers) +
                                "; it must be 0 (none) or more");
  }
  if (status.ok() && options.max_blocking_threads < 1) {
    status =
        Status(EINVAL, "flare_fiber_max_blocking_threads must be at least 1");
  }
  if (status.ok()) status = ValidateTimes(options);
  return status;
}

// Each worker's part, as a power of two.
Expected<std::uint32_t, Status> SlotsPerWorker(std::size_t size,
                                               std::size_t workers) {
  const std::size_t least = std::bit_ceil(kLeastSlots * workers);
  if (!std::has_single_bit(size) || size < least || size > kMostQueued) {
    return Status(
        EINVAL, "flare_fiber_run_queue_size is " + std::to_string(size) +
                    "; it must be a power of two from " +
                    std::to_string(least) + " (" + std::to_string(kLeastSlots) +
                    " for each of " + CountOf(workers, "worker") +
                    " of a group) to " + std::to_string(kMostQueued));
  }
  const std::size_t slots = std::bit_floor(size / workers);
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(slots, RunQueue::kSlots));
}

// With one worker nothing runs in parallel, and it stays so.
std::size_t ReserveFor(const Plan& shape, int wanted) {
  if (shape.workers_per_group == 1) return 0;
  return std::min(static_cast<std::size_t>(wanted),
                  kMaxGroupSize - shape.workers_per_group);
}

// One stack to run on, one to go on with when a task suspends.
Status ValidateMaxStacks(std::size_t max_stacks, std::size_t workers) {
  const std::size_t least = 2 * workers;
  if (max_stacks == 0 || max_stacks >= least) return Status();
  return Status(EINVAL,
                "flare_fiber_max_stacks is " + std::to_string(max_stacks) +
                    "; it must be 0 (no limit) or at least two per worker, " +
                    std::to_string(least));
}

Expected<Topology, Status> WithFlagNamed(Expected<Topology> topology,
                                         const char* flag) {
  if (topology) return *std::move(topology);
  return Status(topology.error().code(),
                std::string(flag) + ": " + topology.error().message());
}

Expected<Topology, Status> Restrict(const RuntimeOptions& options,
                                    const Topology& topology) {
  const bool only = !options.accessible_cpus.empty();
  const bool except = !options.inaccessible_cpus.empty();
  if (only && except) {
    return Status(
        EINVAL,
        "flare_fiber_worker_accessible_cpus and "
        "flare_fiber_worker_inaccessible_cpus exclude each other: give one of "
        "them");
  }
  if (!only && !except) return topology;
  const char* const flag = only ? "flare_fiber_worker_accessible_cpus"
                                : "flare_fiber_worker_inaccessible_cpus";
  // On a machine on paper, "the last CPU" is that of the paper.
  const int cpu_count =
      options.topology_file.empty() ? 0 : topology.cpus().back() + 1;
  const auto list = ParseCpuList(
      only ? options.accessible_cpus : options.inaccessible_cpus, cpu_count);
  if (!list) {
    return Status(EINVAL, std::string(flag) + ": " + list.error().message());
  }
  return WithFlagNamed(
      only ? topology.RestrictedTo(*list) : topology.Without(*list), flag);
}

PlanRequest RequestFor(const RuntimeOptions& options,
                       const Topology& topology) {
  PlanRequest request;
  request.concurrency = options.concurrency;
  request.cpus = static_cast<std::size_t>(topology.parallelism());
  request.all_cpus = topology.cpus().size();
  request.nodes = topology.nodes().size();
  request.optimize_for = options.optimize_for;
  request.group_size = options.group_size;
  request.numa_aware = options.numa_aware;
  request.pinned = options.disallow_cpu_migration;
  return request;
}

// Presets bind groups as if nodes were alike. Where they aren't, a group on a
// small one would have few CPUs and as many tasks as any other.
Expected<Plan, Status> ShapeFor(const RuntimeOptions& options,
                                const Topology& topology) {
  PlanRequest request = RequestFor(options, topology);
  auto shape = MakePlan(request);
  if (!shape || !shape->numa_aware || IsCustomized(request) ||
      !CrowdsNode(*shape, topology, request.pinned)) {
    return shape;
  }
  request.nodes = 1;
  shape = MakePlan(request);
  if (shape) {
    shape->why += "; bound to nodes, groups would crowd the smaller of them";
  }
  return shape;
}

// "0,2 on node 0 (CPUs 0-3)".
std::string DescribeNode(const Topology::Node& node,
                         const std::vector<GroupPlacement>& groups) {
  std::vector<int> here;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].node == node.id) here.push_back(static_cast<int>(i));
  }
  return FormatCpuList(here) + " on node " + std::to_string(node.id) +
         " (CPUs " + FormatCpuList(node.cpus) + ")";
}

}  // namespace

Expected<Machine, Status> ReadMachine(const RuntimeOptions& options) {
  Machine machine;
  if (options.topology_file.empty()) {
    machine.topology = Topology::FromSystem();
  } else {
    auto described = WithFlagNamed(Topology::FromFile(options.topology_file),
                                   "flare_topology_file");
    if (!described) return described.error();
    machine.topology = *std::move(described);
    const std::vector<int> ours = GetThreadAffinity();
    const std::vector<int>& theirs = machine.topology.cpus();
    machine.bind_cpus =
        std::includes(ours.begin(), ours.end(), theirs.begin(), theirs.end());
    machine.bind_memory = false;
  }
  auto restricted = Restrict(options, machine.topology);
  if (!restricted) return restricted.error();
  machine.topology = *std::move(restricted);
  return machine;
}

Expected<RuntimePlan, Status> PlanRuntime(const RuntimeOptions& options,
                                          Machine machine) {
  if (Status status = Validate(options); !status.ok()) return status;
  RuntimePlan plan;
  plan.machine = std::move(machine);
  const Topology& topology = plan.machine.topology;
  auto shape = ShapeFor(options, topology);
  if (!shape) return shape.error();
  plan.shape = *std::move(shape);
  plan.reserve = ReserveFor(plan.shape, options.reserve_workers);
  if (Status status =
          ValidateMaxStacks(options.max_stacks, plan.shape.workers());
      !status.ok()) {
    return status;
  }
  auto placement =
      PlaceGroups(plan.shape, topology, options.disallow_cpu_migration);
  if (!placement) return placement.error();
  plan.placement = *std::move(placement);
  auto sets = GroupSets::Parse(options.group_sets, plan.shape.groups);
  if (!sets) return sets.error();
  plan.sets = *std::move(sets);
  auto slots =
      SlotsPerWorker(options.run_queue_size, plan.shape.workers_per_group);
  if (!slots) return slots.error();
  plan.run_queue_slots = *slots;
  return plan;
}

std::string RuntimePlan::ToString() const {
  const Topology& topology = machine.topology;
  std::string text = CountOf(shape.groups, "scheduling group") + " of " +
                     CountOf(shape.workers_per_group, "worker");
  if (shape.numa_aware) {
    const char* separator = ": ";
    for (const Topology::Node& node : topology.nodes()) {
      text += separator + DescribeNode(node, placement.groups);
      separator = ", ";
    }
  } else {
    text += " on the CPUs " + FormatCpuList(topology.cpus()) + " of " +
            CountOf(topology.nodes().size(), "NUMA node");
  }
  if (!placement.groups.front().pins.empty()) {
    text += ", a CPU for each worker";
  }
  if (!machine.bind_cpus) {
    text += ", not bound as these CPUs aren't all here";
  }
  const bool prefers = std::any_of(
      placement.groups.begin(), placement.groups.end(),
      [](const GroupPlacement& group) { return group.memory_node >= 0; });
  if (!machine.bind_memory || !prefers) {
    text += "; memory from wherever the kernel takes it";
  } else {
    text += HasMallocArenas()
                ? "; memory from the group's node, by arenas of its own"
                : "; stacks from the group's node (no jemalloc, so no arenas)";
  }
  if (const std::string named = sets.ToString(); !named.empty()) {
    text += "; sets: " + named;
  }
  if (reserve != 0) {
    text += "; in reserve " + CountOf(reserve, "worker") + " for each group";
  }
  text += "; because: " + shape.why + "; " +
          std::to_string(topology.parallelism()) + " CPU(s) to use at a time";
  if (topology.quota()) text += " by the cgroup's quota";
  for (const std::string& remark : placement.remarks) text += "; " + remark;
  return text;
}

}  // namespace flare::fiber
