// Records how deep tasks get on their stacks, for stack_profile.h.
//
// Memory of a stack that was never used reads as zero, and the part that a task
// has used is zeroed after it: so the lowest byte that isn't zero tells how
// deep it got, to within about 1 KiB. That costs two system calls and the
// zeroing for each task, 1 to 3 us, while the profile is on, and nothing
// otherwise.

#ifndef FLARE_FIBER_STACK_USE_H_
#define FLARE_FIBER_STACK_USE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flare::fiber {

// Covers all tasks that began with the function `entry`.
struct StackUse {
  const void* entry = nullptr;
  std::size_t max_bytes = 0;  // The deepest stack's.
  std::uint64_t tasks = 0;    // That have ended.
};

// Before the workers start; forgets the records.
void SetStackProfile(bool on);
bool IsStackProfileOn() noexcept;

// On the stack whose lowest usable byte is `low`, and which ends at `high`,
// with next to nothing on it yet: before its first task; after each.
[[gnu::noinline]] void StartStackProfile(const char* low);
[[gnu::noinline]] void RecordStackUse(const char* low, const char* high,
                                      const void* entry);

// Any thread.
std::vector<StackUse> ListStackUses();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_USE_H_
