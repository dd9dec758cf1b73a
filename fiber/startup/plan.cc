#include "flare/fiber/startup/plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "flare/fiber/scheduler/group_size.h"

namespace flare::fiber {
namespace {

struct Preset {
  std::string_view name;
  std::size_t smallest;  // Group size is searched in [smallest, limit);
  std::size_t limit;     // 0: the preset doesn't search.
  std::int64_t wake_threshold_ns;
};

constexpr std::array kPresets = {
    Preset{"compute-heavy", 0, 0, 0},   Preset{"compute", 0, 0, 10'000},
    Preset{"neutral", 16, 32, 20'000},  Preset{"io", 12, 24, 50'000},
    Preset{"io-heavy", 8, 16, 100'000}, Preset{"customized", 0, 0, 50'000},
};

std::size_t CeilDiv(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

Status Invalid(std::string text) { return Status(EINVAL, std::move(text)); }

const Preset* FindPreset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

Status Validate(const PlanRequest& request) {
  if (!IsPreset(request.optimize_for)) {
    std::string known;
    for (const Preset& preset : kPresets) {
      known += (known.empty() ? "" : ", ") + std::string(preset.name);
    }
    return Invalid("unknown flare_fiber_scheduling_optimize_for '" +
                   request.optimize_for + "'; use one of " + known);
  }
  if (request.concurrency < 0 || request.concurrency > kMaxConcurrency) {
    return Invalid("flare_concurrency_hint is " +
                   std::to_string(request.concurrency) +
                   "; it must be from 0 (as many as CPUs) to " +
                   std::to_string(kMaxConcurrency));
  }
  const int size = request.group_size.value_or(0);
  if (size < 0 || size > static_cast<int>(kMaxGroupSize)) {
    return Invalid("flare_scheduling_group_size is " + std::to_string(size) +
                   "; it must be from 1 to " + std::to_string(kMaxGroupSize) +
                   " (0: chosen for you)");
  }
  return Status();
}

// As few groups as possible.
Plan Fewest(std::size_t wanted) {
  Plan plan;
  plan.groups = CeilDiv(wanted, kMaxGroupSize);
  plan.workers_per_group = CeilDiv(wanted, plan.groups);
  plan.why = "as few groups as possible, not bound to nodes";
  return plan;
}

Plan PerNode(std::size_t wanted, std::size_t nodes) {
  const std::size_t per_node = CeilDiv(wanted, nodes);
  const std::size_t groups_per_node = CeilDiv(per_node, kMaxGroupSize);
  Plan plan;
  plan.groups = groups_per_node * nodes;
  plan.workers_per_group = CeilDiv(per_node, groups_per_node);
  plan.numa_aware = true;
  plan.why = "as few groups per NUMA node as possible";
  return plan;
}

// The group size in the preset's range that gives the fewest surplus workers;
// `multiple`: the number of groups must divide by it.
Plan Search(const Preset& preset, std::size_t wanted, std::size_t multiple) {
  Plan best;
  best.groups = 0;
  for (std::size_t size = preset.smallest; size < preset.limit; ++size) {
    const std::size_t groups = CeilDiv(wanted, size);
    if (groups % multiple != 0) continue;
    if (best.groups == 0 || groups * size < best.workers()) {
      best.groups = groups;
      best.workers_per_group = size;
    }
  }
  return best;
}

Plan Searched(const Preset& preset, std::size_t wanted, std::size_t nodes) {
  const std::string range = "[" + std::to_string(preset.smallest) + ", " +
                            std::to_string(preset.limit) + ")";
  Plan plan;
  if (wanted <= preset.smallest) {
    plan.workers_per_group = wanted;
    plan.why = "too few for more than one group";
    return plan;
  }
  if (nodes > 1) {
    plan = Search(preset, wanted, nodes);
    if (plan.groups != 0 && plan.workers() - wanted <= wanted / 10) {
      plan.numa_aware = true;
      plan.why = "the group size in " + range +
                 " that divides evenly over the NUMA nodes with the fewest "
                 "surplus workers";
      return plan;
    }
  }
  plan = Search(preset, wanted, 1);
  plan.why = "the group size in " + range + " with the fewest surplus workers";
  if (nodes > 1) {
    plan.why +=
        "; none of these divides evenly over the NUMA nodes with at "
        "most a tenth of surplus workers, so that groups aren't bound";
  }
  return plan;
}

Plan Customized(const PlanRequest& request, std::size_t wanted) {
  const bool numa = request.numa_aware.value_or(true) && request.nodes > 1;
  auto size = static_cast<std::size_t>(request.group_size.value_or(0));
  Plan plan;
  plan.why = "customized: groups of at most " + std::to_string(size);
  if (size == 0) {  // By default one group a node, if that isn't too large.
    size =
        std::min(kMaxGroupSize, numa ? CeilDiv(wanted, request.nodes) : wanted);
    plan.why = "customized: as few groups as possible";
  }
  plan.why += numa                ? ", as many on each NUMA node"
              : request.nodes > 1 ? ", not bound, as flare_numa_aware is off"
                                  : "";
  plan.groups = CeilDiv(wanted, size);
  if (numa) plan.groups = CeilDiv(plan.groups, request.nodes) * request.nodes;
  plan.workers_per_group = CeilDiv(wanted, plan.groups);
  plan.numa_aware = numa;
  return plan;
}

Plan PlanFor(const PlanRequest& request, std::size_t wanted) {
  const Preset& preset = *FindPreset(request.optimize_for);
  Plan plan;
  if (IsCustomized(request)) {
    plan = Customized(request, wanted);
  } else if (preset.limit != 0) {
    plan = Searched(preset, wanted, request.nodes);
  } else if (preset.name == "compute" && request.nodes > 1 &&
             2 * wanted >= std::max(request.cpus, request.all_cpus)) {
    plan = PerNode(wanted, request.nodes);
  } else {
    plan = Fewest(wanted);
  }
  plan.wake_threshold_ns = preset.wake_threshold_ns;
  return plan;
}

// Rounded up, there may be more workers than CPUs, though each should have its
// own.
Plan LargestPinned(const PlanRequest& request) {
  std::size_t wanted = request.cpus;
  Plan plan = PlanFor(request, wanted);
  while (plan.workers() > request.cpus && wanted > 1) {
    plan = PlanFor(request, --wanted);
  }
  return plan;
}

}  // namespace

Expected<Plan, Status> MakePlan(const PlanRequest& request) {
  if (Status status = Validate(request); !status.ok()) {
    return Unexpected(std::move(status));
  }
  Plan plan;
  std::string wanted;
  if (request.concurrency > 0) {
    plan = PlanFor(request, static_cast<std::size_t>(request.concurrency));
    wanted = std::to_string(request.concurrency) + " workers wanted";
  } else if (request.pinned) {
    plan = LargestPinned(request);
    wanted = "as many workers as CPUs for them alone";
  } else {
    plan = PlanFor(request, std::max<std::size_t>(request.cpus, 4));
    wanted = request.cpus >= 4 ? "as many workers as CPUs"
                               : "4 workers, though fewer CPUs";
  }
  plan.why = request.optimize_for + ", " + wanted + "; " + plan.why;
  return plan;
}

bool IsPreset(std::string_view name) { return FindPreset(name) != nullptr; }

bool IsCustomized(const PlanRequest& request) {
  return request.optimize_for == "customized" ||
         request.group_size.value_or(0) > 0 || request.numa_aware.has_value();
}

}  // namespace flare::fiber
