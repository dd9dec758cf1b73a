#include "flare/fiber/startup/group_builder.h"

#include <cerrno>
#include <cstddef>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/malloc_arena.h"
#include "flare/base/topology.h"
#include "flare/fiber/scheduler/neighbours.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/schedule.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

using Groups = std::vector<std::unique_ptr<SchedulingGroup>>;

// The arenas of a group's workers, one for every few of them, so that they
// rarely meet. They can't be given back, so the group with the same index on
// the same node has the same ones after the runtime was started again.
std::vector<unsigned> ArenasOf(int node, std::size_t group,
                               std::size_t workers) {
  constexpr std::size_t kWorkersPerArena = 4;
  static auto* const all =
      new std::map<std::pair<int, std::size_t>, std::vector<unsigned>>();
  std::vector<unsigned>& arenas = (*all)[{node, group}];
  const std::size_t wanted =
      (workers + kWorkersPerArena - 1) / kWorkersPerArena;
  while (arenas.size() < wanted) {
    const auto arena = CreateMallocArena();
    if (!arena) break;
    arenas.push_back(*arena);
  }
  return arenas;
}

SchedulingGroup::Options GroupOptions(const RuntimeOptions& options,
                                      const RuntimePlan& plan,
                                      Schedule* schedule, std::size_t i) {
  const GroupPlacement& place = plan.placement.groups[i];
  SchedulingGroup::Options group;
  group.index = i;
  group.workers = plan.shape.workers_per_group;
  group.reserve = plan.reserve;
  group.wake_threshold_ns = plan.shape.wake_threshold_ns;
  group.run_queue_slots = plan.run_queue_slots;
  group.stacks.stack_size = options.stack_size;
  group.stacks.guard = options.stack_guard;
  group.stacks.limit = options.max_stacks / plan.shape.groups;
  group.stack_idle_ns = options.stack_idle.count();
  group.node = place.node;
  if (plan.machine.bind_cpus) {
    group.cpus = place.cpus;
    group.pins = place.pins;
  }
  if (plan.machine.bind_memory && place.memory_node >= 0) {
    group.stacks.node = place.memory_node;
    group.arenas = ArenasOf(place.memory_node, i, group.workers);
  }
  group.schedule = schedule;
  group.make_worker = &Worker::Make;
  if (schedule != nullptr) group.stack_idle_ns = 0;  // By the real time.
  return group;
}

// Built by a thread that is placed like the group's workers, so that its memory
// lies on their node; by the calling one if that is.
std::unique_ptr<SchedulingGroup> BuildGroup(SchedulingGroup::Options options) {
  if (options.arenas.empty() && options.schedule == nullptr &&
      (options.cpus.empty() || options.cpus == GetThreadAffinity())) {
    return std::make_unique<SchedulingGroup>(std::move(options));
  }
  std::unique_ptr<SchedulingGroup> group;
  std::thread([&] {
    if (!options.cpus.empty()) {
      const Status bound = SetThreadAffinity(options.cpus);
      LOG_IF(ERROR, !bound.ok()) << bound.message();
    }
    if (!options.arenas.empty()) UseMallocArena(options.arenas[0]);
    if (options.schedule != nullptr) options.schedule->OnThreadStart();
    group = std::make_unique<SchedulingGroup>(std::move(options));
  }).join();
  return group;
}

// Error: that of a poller.
Status BuildEach(const RuntimeOptions& options, const RuntimePlan& plan,
                 const MakePoller& make_poller, Schedule* schedule,
                 Groups* groups) {
  for (std::size_t i = 0; i < plan.shape.groups; ++i) {
    auto group = GroupOptions(options, plan, schedule, i);
    auto poller = make_poller
                      ? make_poller(i)
                      : Expected<std::unique_ptr<Poller>, Status>(nullptr);
    if (!poller) {
      return Status(poller.error().code(), "the poller of scheduling group " +
                                               std::to_string(i) + ": " +
                                               poller.error().message());
    }
    group.poller = *std::move(poller);
    groups->push_back(BuildGroup(std::move(group)));
  }
  return Status();
}

// Two per worker: one to run on, one to go on with when a task suspends.
Status GetFirstStacks(const RuntimeOptions& options, const Groups& groups) {
  for (auto& group : groups) {
    if (group->GetFirstStacks()) continue;
    return Status(ENOMEM, "no memory for the stacks of scheduling group " +
                              std::to_string(group->index()) + ", two of " +
                              std::to_string(options.stack_size) +
                              " bytes per worker: see the log");
  }
  return Status();
}

void ConnectNeighbours(const RuntimeOptions& options, const RuntimePlan& plan,
                       const Groups& groups) {
  for (auto& group : groups) {
    Neighbours::Circle near{{}, options.work_stealing_ratio};
    Neighbours::Circle far{{}, options.cross_numa_work_stealing_ratio};
    for (auto& other : groups) {
      if (other == group ||
          !plan.sets.Together(other->index(), group->index())) {
        continue;
      }
      (other->node() == group->node() ? near : far)
          .groups.push_back(other.get());
    }
    group->neighbours().Set(std::move(near), std::move(far));
  }
}

}  // namespace

Status BuildGroups(const RuntimeOptions& options, const RuntimePlan& plan,
                   const MakePoller& make_poller, Schedule* schedule,
                   Groups* groups) {
  if (Status s = BuildEach(options, plan, make_poller, schedule, groups);
      !s.ok()) {
    return s;
  }
  ConnectNeighbours(options, plan, *groups);
  return GetFirstStacks(options, *groups);
}

}  // namespace flare::fiber
