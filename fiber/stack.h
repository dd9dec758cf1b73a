// Memory for fiber stacks: carved out of large reserved regions, each stack
// with a guard at its low end that turns an overflow into a fault.
//
// On Linux 6.13 and later guards cost no extra mapping (MADV_GUARD_INSTALL), so
// a million stacks need no change of vm.max_map_count. Older kernels get
// mprotect(), which costs two mappings a stack: about 30,000 stacks under the
// default limit, and a log line that says so once it is hit.

#ifndef FLARE_FIBER_STACK_H_
#define FLARE_FIBER_STACK_H_

#include <cstddef>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::fiber {

// Less than this, guard aside, holds no useful call chain.
inline constexpr std::size_t kLeastStack = 12288;

// Stacks of one size for the workers of one group. Thread-safe. Hands out what
// was given back last, since its pages are there and perhaps still cached.
class StackAllocator {
 public:
  struct Options {
    std::size_t stack_size = 131072;  // Guard included; multiple of a page.
    bool guard = true;
    // Free stacks beyond this many give their memory back to the system,
    // though not their address space.
    std::size_t high_water = 1024;
  };

  explicit StackAllocator(const Options& options);
  ~StackAllocator();  // All stacks must have been given back.

  StackAllocator(const StackAllocator&) = delete;
  StackAllocator& operator=(const StackAllocator&) = delete;

  // Lowest address of a stack of stack_size() bytes, of which the guard_size()
  // lowest fault. nullptr (and now and then a log line) when the system has no
  // more.
  void* Allocate();
  void Free(void* low) noexcept;

  std::size_t stack_size() const noexcept { return options_.stack_size; }
  std::size_t guard_size() const noexcept { return guard_size_; }
  std::size_t allocated() const;  // Handed out now.

 private:
  // Maps a region of kStacksPerRegion stacks and adds them to fresh_.
  bool MapRegion() FLARE_REQUIRES(lock_);
  bool InstallGuard(char* low);

  static constexpr std::size_t kStacksPerRegion = 256;

  const Options options_;
  const std::size_t guard_size_;
  mutable Spinlock lock_;
  std::vector<void*> regions_ FLARE_GUARDED_BY(lock_);
  std::vector<void*> free_ FLARE_GUARDED_BY(lock_);   // Used before; LIFO.
  std::vector<void*> cold_ FLARE_GUARDED_BY(lock_);   // ... memory given back.
  std::vector<char*> fresh_ FLARE_GUARDED_BY(lock_);  // Without guard yet.
  std::size_t allocated_ FLARE_GUARDED_BY(lock_) = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_H_
