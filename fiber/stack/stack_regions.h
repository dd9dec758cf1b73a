// All memory for stacks, for those who look for fibers in it: fiber lists and
// debuggers (debug_layout.h).

#ifndef FLARE_FIBER_STACK_REGIONS_H_
#define FLARE_FIBER_STACK_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flare::fiber {

// A stretch of address space cut into stacks of one size.
struct StackRegion {
  StackRegion* next;
  std::uintptr_t low;
  std::uint64_t stack_size;  // Bytes of each, guard included.
  std::uint64_t stacks;
  const void* owner;  // Its StackAllocator.
  StackRegion* prev;
};

// By stack allocators, when they have mapped memory and before they unmap it.
// The region is valid until it is removed. Thread-safe.
StackRegion* AddStackRegion(const void* owner, const void* low,
                            std::size_t stack_size, std::size_t stacks);
void RemoveStackRegion(StackRegion* region) noexcept;

// Copies (the links are meaningless in them), in no particular order.
std::vector<StackRegion> ListStackRegions();

// The first region, from which the others are linked. For debuggers; a running
// program calls ListStackRegions().
extern StackRegion* first_stack_region;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_REGIONS_H_
