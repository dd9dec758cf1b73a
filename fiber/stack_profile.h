// Measures how deep the stacks of tasks get, by the function that each starts
// with: to choose --flare_fiber_stack_size by, which a guess makes too large or
// too small.
//
//   RuntimeOptions options;
//   options.stack_profile = true;      // --flare_fiber_stack_profile
//   ...                                // the service under its usual load
//   for (const StackProfileEntry& each : GetStackProfile()) { ... }
//
// stack_use.h says how the depth is found. While the profile is on, that costs
// 1 to 3 us for each task, and nothing otherwise.
//
// Any thread or fiber may call these functions.

#ifndef FLARE_FIBER_STACK_PROFILE_H_
#define FLARE_FIBER_STACK_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

struct StackProfileEntry {
  Task::Run entry = nullptr;
  std::string name;  // EntryName() in fiber_list.h.
  std::size_t max_bytes =
      0;                    // The deepest stack's, with the runtime's own part.
  std::uint64_t tasks = 0;  // That have ended.
};

// Returns the profile since the runtime was started, deepest first. Empty if
// that was without the profile. Looks names up, which may take a second.
std::vector<StackProfileEntry> GetStackProfile();

// Returns twice the deepest, plus the guard, in pages, and no less than the
// minimum that the runtime allows. 0: nothing is known.
std::size_t SuggestedStackSize();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_PROFILE_H_
