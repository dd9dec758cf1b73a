#include "flare/fiber/stack_profile.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "flare/fiber/fiber_list.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/stack/stack_use.h"

namespace flare::fiber {

std::vector<StackProfileEntry> GetStackProfile() {
  std::vector<StackProfileEntry> profile;
  for (const StackUse& use : ListStackUses()) {
    profile.push_back(
        {reinterpret_cast<Task::Run>(const_cast<void*>(use.entry)),
         std::string(), use.max_bytes, use.tasks});
  }
  RunOnThreadStack([&] {
    for (StackProfileEntry& each : profile) {
      each.name = EntryName(reinterpret_cast<const void*>(each.entry));
    }
  });
  std::sort(profile.begin(), profile.end(), [](const auto& a, const auto& b) {
    return std::pair(b.max_bytes, a.name) < std::pair(a.max_bytes, b.name);
  });
  return profile;
}

std::size_t SuggestedStackSize() {
  std::size_t deepest = 0;
  for (const StackUse& use : ListStackUses()) {
    deepest = std::max(deepest, use.max_bytes);
  }
  if (deepest == 0) return 0;
  const std::size_t page = PageSize();
  return (std::max(2 * deepest, kLeastStack) + page - 1) / page * page + page;
}

}  // namespace flare::fiber
