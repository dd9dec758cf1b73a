// [DL1] Regions are linked and unlinked under `regions_lock`. Debuggers read
//       the list without it, while the process stands still: a region is
//       complete before it is linked.
#include "flare/fiber/stack/stack_regions.h"

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::fiber {
namespace {

Spinlock regions_lock;

}  // namespace

StackRegion* first_stack_region FLARE_GUARDED_BY(regions_lock) = nullptr;

StackRegion* AddStackRegion(const void* owner, const void* low,
                            std::size_t stack_size, std::size_t stacks) {
  auto* const region = new StackRegion{
      nullptr, reinterpret_cast<std::uintptr_t>(low), stack_size, stacks, owner,
      nullptr};
  ScopedLock guard(regions_lock);
  region->next = first_stack_region;
  if (first_stack_region != nullptr) first_stack_region->prev = region;
  first_stack_region = region;  // [DL1]
  return region;
}

void RemoveStackRegion(StackRegion* region) noexcept {
  {
    ScopedLock guard(regions_lock);
    (region->prev == nullptr ? first_stack_region : region->prev->next) =
        region->next;
    if (region->next != nullptr) region->next->prev = region->prev;
  }
  delete region;
}

std::vector<StackRegion> ListStackRegions() {
  std::vector<StackRegion> regions;
  ScopedLock guard(regions_lock);
  for (const StackRegion* region = first_stack_region; region != nullptr;
       region = region->next) {
    regions.push_back(*region);
  }
  return regions;
}

}  // namespace flare::fiber
