// Memory for fiber stacks: carved out of large reserved regions, each stack
// with a guard at its low end that turns an overflow into a fault.
//
// On Linux 6.13 and later guards cost no extra mapping (MADV_GUARD_INSTALL), so
// a million stacks need no change of vm.max_map_count. Older kernels get
// mprotect(), which costs two mappings a stack: all allocators together then
// hand out no more than MappedGuardLimit() stacks, about 28,000 under the
// default limit, so that mappings are left for everybody else.
//
// A burst leaves nothing behind: regions in which no stack is used are unmapped
// (Trim()), with the page tables that unmapping alone returns.
//
// Running out is an answer, not an error of the program: Allocate() returns
// nullptr, and spare_carriers.cc shows how the scheduler deals with it.

#ifndef FLARE_FIBER_STACK_H_
#define FLARE_FIBER_STACK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "flare/base/intrusive_list.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::fiber {

struct StackRegion;  // stack_regions.h

// Less than this, guard aside, holds no useful call chain.
inline constexpr std::size_t kLeastStack = 12288;

// In bytes, as the system has it.
std::size_t PageSize();

// Stacks with guards of their own mappings that can exist, given
// vm.max_map_count and the process's mappings at the first call; an eighth of
// the mappings is left to others. Reads /proc, once.
std::size_t MappedGuardLimit();

// Stacks of one size for the workers of one group. Thread-safe. Hands out the
// stack that was given back last, since its pages are there and perhaps still
// cached.
class StackAllocator {
 public:
  struct Options {
    std::size_t stack_size = 131072;  // Guard included; multiple of a page.
    bool guard = true;
    // Stacks handed out at a time; 0: as many as the system has.
    std::size_t limit = 0;
    // Free stacks beyond this many give their memory back to the system at
    // once, though not their address space.
    std::size_t high_water = 16384;
    int node = -1;  // NUMA node that memory is preferred from; -1: any.
    // False: guards as on kernels before 6.13.
    bool light_guards = true;
  };

  explicit StackAllocator(const Options& options);
  ~StackAllocator();  // All stacks must have been given back.

  StackAllocator(const StackAllocator&) = delete;
  StackAllocator& operator=(const StackAllocator&) = delete;

  // Lowest address of a stack of stack_size() bytes, of which the guard_size()
  // lowest fault. nullptr, and once a second a log line that says why, when the
  // limit is reached or the system has no more.
  void* Allocate();
  void Free(void* low) noexcept;

  // Returns to the system the memory of those free stacks that were not needed
  // at any moment since the last call, and then the regions whose stacks are
  // all free and without memory: to be called at intervals. One system call for
  // each run of neighbouring stacks, and for each region; blocks nobody
  // meanwhile.
  void Trim() noexcept;

  std::size_t stack_size() const noexcept { return options_.stack_size; }
  std::size_t guard_size() const noexcept { return guard_size_; }
  std::size_t limit() const noexcept { return options_.limit; }
  std::size_t allocated() const;  // Handed out now.
  std::size_t regions() const;    // Mapped now.
  // Free ones that hold memory. Any thread, without a lock.
  std::size_t warm() const noexcept {
    return warm_count_.load(std::memory_order_relaxed);  // A hint.
  }

  static constexpr std::size_t kStacksPerRegion = 256;

 private:
  // Stacks that are mapped, and unmapped, together.
  struct Region : IntrusiveListNode<> {
    char* low = nullptr;
    StackRegion* listed = nullptr;
    std::size_t begun = 0;  // Handed out at least once: the lowest ones.
    // Free, and without memory; by their places in the region.
    std::size_t cold = 0;
    std::array<std::uint8_t, kStacksPerRegion> cold_places;
    std::size_t mapped_guards = 0;
  };
  static_assert(kStacksPerRegion <= 256);
  using Regions = std::map<const char*, Region>;  // By `low`.

  // Why there is no stack.
  enum class Shortage { kNone, kLimit, kMappings, kMemory, kGuard };

  void* Take(Shortage* why) FLARE_REQUIRES(lock_);
  char* TakeCold() FLARE_REQUIRES(lock_);
  char* TakeFresh(Shortage* why) FLARE_REQUIRES(lock_);
  bool MapRegion() FLARE_REQUIRES(lock_);
  void Unmap(Region* region) const noexcept;
  Shortage InstallGuard(Region* region, char* low) FLARE_REQUIRES(lock_);
  bool TimeToLog() FLARE_REQUIRES(lock_);
  void Log(Shortage why, std::size_t allocated, int error) const;

  // Gives the memory of up to `most` of the warm stacks back that have been
  // free for longest. How many it was.
  std::size_t GiveBack(std::size_t most) noexcept;
  void ReleaseMemory(std::span<char*> stacks) const noexcept;
  void MakeCold(const char* stack) noexcept FLARE_REQUIRES(lock_);
  // Unmaps the regions that nobody uses.
  void ReturnRegions() noexcept;
  void CountWarm() FLARE_REQUIRES(lock_) {
    warm_count_.store(warm_.size(), std::memory_order_relaxed);  // A hint.
  }

  static constexpr std::size_t kBatch = 32;  // Stacks for GiveBack().

  const Options options_;
  const std::size_t guard_size_;
  mutable Spinlock lock_;
  Regions regions_ FLARE_GUARDED_BY(lock_);
  IntrusiveList<Region> with_cold_ FLARE_GUARDED_BY(lock_);
  // The one whose stacks haven't all been handed out yet; nullptr: there is
  // none.
  Region* fresh_ FLARE_GUARDED_BY(lock_) = nullptr;
  // Free stacks that hold memory, the latest behind. Has room for all there can
  // be, so that Free() doesn't allocate.
  std::vector<char*> warm_ FLARE_GUARDED_BY(lock_);
  std::size_t allocated_ FLARE_GUARDED_BY(lock_) = 0;
  // As few as were warm at any moment since the last Trim().
  std::size_t least_warm_ FLARE_GUARDED_BY(lock_) = 0;
  bool light_guards_ FLARE_GUARDED_BY(lock_);
  std::int64_t next_log_ns_ FLARE_GUARDED_BY(lock_) = 0;
  std::atomic<std::size_t> warm_count_{0};
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STACK_H_
