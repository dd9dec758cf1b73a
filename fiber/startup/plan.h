// From the number of workers wanted to groups of workers: how many of each, and
// whether they are bound to NUMA nodes. (Which CPUs they then get is
// placement.h.) Pure arithmetic, the same for the same input, so that plans for
// machines we don't have are unit tests. The presets and their sizes are those
// users of the published framework know.

#ifndef FLARE_FIBER_PLAN_H_
#define FLARE_FIBER_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::fiber {

inline constexpr int kMaxConcurrency = 4096;  // Workers of a process.

struct PlanRequest {
  int concurrency = 0;   // Workers wanted; 0: max(cpus, 4); see `pinned`.
  std::size_t cpus = 1;  // CPUs that may be used at a time.
  // All that may be used, of which a quota may leave less at a time; 0: `cpus`.
  std::size_t all_cpus = 0;
  std::size_t nodes = 1;  // NUMA nodes with such CPUs.
  std::string optimize_for = "neutral";
  // Given explicitly, either makes the plan "customized".
  std::optional<int> group_size;
  std::optional<bool> numa_aware;
  // Gives each worker a CPU of its own. With concurrency 0 there are then no
  // more workers than CPUs, however few.
  bool pinned = false;
};

struct Plan {
  std::size_t groups = 1;
  std::size_t workers_per_group = 1;
  bool numa_aware = false;  // Groups are bound to nodes.
  // See SchedulingGroup::Options.
  std::int64_t wake_threshold_ns = 20'000;
  std::string why;  // For the start-up log line; half a sentence.

  std::size_t workers() const { return groups * workers_per_group; }
};

// Errors: a negative or absurd number, an unknown preset.
//
//   compute-heavy  as few groups as possible, of at most 64 workers; no binding
//   compute        with several nodes and at least half as many workers as
//                  CPUs: groups per node, bound; else as compute-heavy
//   neutral, io, io-heavy
//                  groups of [16, 32), [12, 24), [8, 16) workers; fewer workers
//                  than that make one group. With several nodes, the size that
//                  divides evenly over them with the fewest surplus workers,
//                  bound, unless the surplus exceeds a tenth
//   customized     ceil(workers / group size) groups; bound unless refused, the
//                  number of groups then rounded up to a multiple of the nodes
//
// How readily idle workers are woken follows the preset too: from at once
// (compute-heavy) to a backlog of 100 us (io-heavy).
Expected<Plan, Status> MakePlan(const PlanRequest& request);

// Whether there is a preset of that name.
bool IsPreset(std::string_view name);

// Whether the user has said how to divide the workers: "customized" above.
bool IsCustomized(const PlanRequest& request);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_PLAN_H_
