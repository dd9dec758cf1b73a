#include "flare/fiber/stack/stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "flare/base/clock.h"
#include "flare/base/memory_policy.h"
#include "flare/base/sanitizer.h"
#include "flare/fiber/stack/stack_regions.h"
#include "glog/logging.h"

#ifdef FLARE_ASAN
#include <sanitizer/asan_interface.h>
#endif

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // Linux 6.13; not in older headers.
#endif

namespace flare::fiber {
namespace {

constexpr std::int64_t kLogIntervalNs = 1'000'000'000;

// Guards of all allocators that have mappings of their own.
std::atomic<std::size_t> mapped_guards{0};

std::size_t MaxMapCount() {
  std::size_t count = 65530;  // The kernel's default.
  std::ifstream("/proc/sys/vm/max_map_count") >> count;
  return count;
}

// One more, if the limit allows.
bool CountMappedGuard() {
  // relaxed: only the number matters.
  std::size_t count = mapped_guards.load(std::memory_order_relaxed);
  do {
    if (count >= MappedGuardLimit()) return false;
  } while (!mapped_guards.compare_exchange_weak(count, count + 1,
                                                std::memory_order_relaxed));
  return true;
}

// A light guard was refused. Is that for the memory, which is locked, or does
// this kernel have none?
bool IsForLockedMemory() {
  void* const page = mmap(nullptr, PageSize(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  const bool possible = munlock(page, PageSize()) == 0 &&
                        madvise(page, PageSize(), MADV_GUARD_INSTALL) == 0;
  munmap(page, PageSize());
  return possible;
}

void UncountMappedGuards(std::size_t count) {
  // relaxed: only the number matters.
  mapped_guards.fetch_sub(count, std::memory_order_relaxed);
}

}  // namespace

std::size_t PageSize() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t MappedGuardLimit() {
  static const std::size_t limit = [] {
    std::size_t used = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++used;
    const std::size_t ours = MaxMapCount() / 8 * 7;
    return ours > used ? (ours - used) / 2 : 0;
  }();
  return limit;
}

StackAllocator::StackAllocator(const Options& options)
    : options_(options),
      guard_size_(options.guard ? PageSize() : 0),
      light_guards_(options.light_guards) {
  CHECK_EQ(options_.stack_size % PageSize(), 0U)
      << "a fiber stack must be a multiple of the page size";
  CHECK_GE(options_.stack_size, guard_size_ + kLeastStack)
      << "fiber stack too small";
}

StackAllocator::~StackAllocator() {
  for (auto& [low, region] : regions_) Unmap(&region);
}

bool StackAllocator::MapRegion() {
  const std::size_t bytes = kStacksPerRegion * options_.stack_size;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return false;
  // A huge page would make the first touch of one stack cost 2 MiB.
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  if (options_.node >= 0) {
    const Status asked = PreferMemoryOf(options_.node, memory, bytes);
    LOG_IF_EVERY_N(WARNING, !asked.ok(), 1000)
        << "fiber stacks may lie on any node: " << asked.message();
  }
  char* const low = static_cast<char*>(memory);
  Region& region = regions_[low];
  region.low = low;
  region.listed =
      AddStackRegion(this, low, options_.stack_size, kStacksPerRegion);
  const std::size_t stacks = regions_.size() * kStacksPerRegion;
  if (warm_.capacity() < stacks) {
    warm_.reserve(std::max(stacks, 2 * warm_.capacity()));
  }
  fresh_ = &region;
  return true;
}

void StackAllocator::Unmap(Region* region) const noexcept {
  RemoveStackRegion(region->listed);
  const std::size_t bytes = kStacksPerRegion * options_.stack_size;
#ifdef FLARE_ASAN
  // Frames that were left by a switch are marked; others may be mapped here.
  ASAN_UNPOISON_MEMORY_REGION(region->low, bytes);
#endif
  munmap(region->low, bytes);
  UncountMappedGuards(region->mapped_guards);
}

StackAllocator::Shortage StackAllocator::InstallGuard(Region* region,
                                                      char* low) {
  if (guard_size_ == 0) return Shortage::kNone;
  if (light_guards_) {
    if (madvise(low, guard_size_, MADV_GUARD_INSTALL) == 0) {
      return Shortage::kNone;
    }
    if (errno != EINVAL) return Shortage::kGuard;
    light_guards_ = false;
    LOG(WARNING) << (IsForLockedMemory()
                         ? "memory is locked (mlockall), in which stacks have "
                           "no light guards and keep their memory for good"
                         : "this kernel has no light guards for stacks (Linux "
                           "6.13)")
                 << ": each fiber stack takes two memory mappings, so that "
                 << MappedGuardLimit()
                 << " stacks fit under vm.max_map_count=" << MaxMapCount()
                 << "; raise that if you need more";
  }
  if (!CountMappedGuard()) return Shortage::kMappings;
  if (mprotect(low, guard_size_, PROT_NONE) != 0) {
    UncountMappedGuards(1);
    return Shortage::kGuard;
  }
  ++region->mapped_guards;
  return Shortage::kNone;
}

void* StackAllocator::Take(Shortage* why) {
  if (options_.limit != 0 && allocated_ >= options_.limit) {
    *why = Shortage::kLimit;
    return nullptr;
  }
  char* low = nullptr;
  if (!warm_.empty()) {
    low = warm_.back();
    warm_.pop_back();
    least_warm_ = std::min(least_warm_, warm_.size());
    CountWarm();
  } else {
    low = with_cold_.empty() ? TakeFresh(why) : TakeCold();
    if (low == nullptr) return nullptr;
  }
  ++allocated_;
  return low;
}

// There is one.
char* StackAllocator::TakeCold() {
  Region* const region = with_cold_.Front();
  const std::size_t place = region->cold_places[--region->cold];
  if (region->cold == 0) with_cold_.Remove(region);
  return region->low + place * options_.stack_size;
}

char* StackAllocator::TakeFresh(Shortage* why) {
  if (fresh_ == nullptr && !MapRegion()) {
    *why = Shortage::kMemory;
    return nullptr;
  }
  char* const low = fresh_->low + fresh_->begun * options_.stack_size;
  *why = InstallGuard(fresh_, low);
  if (*why != Shortage::kNone) return nullptr;
  if (++fresh_->begun == kStacksPerRegion) fresh_ = nullptr;
  return low;
}

void* StackAllocator::Allocate() {
  Shortage why = Shortage::kNone;
  std::size_t allocated;
  {
    ScopedLock guard(lock_);
    void* const low = Take(&why);
    if (low != nullptr || !TimeToLog()) return low;
    allocated = allocated_;
  }
  Log(why, allocated, errno);
  return nullptr;
}

bool StackAllocator::TimeToLog() {
  const std::int64_t now = NowNs();
  if (now < next_log_ns_) return false;
  next_log_ns_ = now + kLogIntervalNs;
  return true;
}

void StackAllocator::Log(Shortage why, std::size_t allocated, int error) const {
  std::string text = "no further fiber stack: " + std::to_string(allocated) +
                     " of " + std::to_string(options_.stack_size) +
                     " bytes are in use; ";
  switch (why) {
    case Shortage::kNone:
      break;
    case Shortage::kLimit:
      text += "this is the group's share of --flare_fiber_max_stacks";
      break;
    case Shortage::kMappings:
      text += "guards may have no more than " +
              std::to_string(MappedGuardLimit()) +
              " mappings on this kernel: raise vm.max_map_count and start "
              "again, or run Linux 6.13 or later";
      break;
    case Shortage::kMemory:
      text += std::string("mmap: ") + std::strerror(error) +
              (error == EAGAIN ? ": memory is locked (mlockall): raise the "
                                 "limit of that (ulimit -l)"
                               : ": raise the limit of address space (ulimit "
                                 "-v)") +
              ", or lower --flare_fiber_stack_size";
      break;
    case Shortage::kGuard:
      text += std::string("its guard: ") + std::strerror(error) +
              ": raise vm.max_map_count";
      break;
  }
  LOG(ERROR) << text
             << ". Tasks that have not started wait until a fiber has ended.";
}

void StackAllocator::Free(void* low) noexcept {
  bool too_many;
  {
    ScopedLock guard(lock_);
    --allocated_;
    warm_.push_back(static_cast<char*>(low));
    CountWarm();
    too_many = warm_.size() > options_.high_water;
  }
  if (too_many) GiveBack(std::min(kBatch, options_.high_water / 8 + 1));
}

void StackAllocator::Trim() noexcept {
  std::size_t left;
  {
    ScopedLock guard(lock_);
    left = least_warm_;
  }
  while (left != 0) {
    const std::size_t given = GiveBack(left);
    if (given == 0) break;
    left -= given;
  }
  {
    ScopedLock guard(lock_);
    least_warm_ = warm_.size();
  }
  ReturnRegions();
}

std::size_t StackAllocator::GiveBack(std::size_t most) noexcept {
  std::array<char*, kBatch> stacks;
  std::size_t count;
  {
    ScopedLock guard(lock_);
    count = std::min({most, kBatch, warm_.size()});
    const auto end = warm_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(warm_.begin(), end, stacks.begin());
    warm_.erase(warm_.begin(), end);
    least_warm_ = std::min(least_warm_, warm_.size());
    CountWarm();
  }
  // The system calls stay outside the lock; the stacks are ours alone.
  ReleaseMemory(std::span(stacks).first(count));
  ScopedLock guard(lock_);
  for (std::size_t i = 0; i < count; ++i) MakeCold(stacks[i]);
  return count;
}

void StackAllocator::MakeCold(const char* stack) noexcept {
  Region& region = std::prev(regions_.upper_bound(stack))->second;
  const auto offset = static_cast<std::size_t>(stack - region.low);
  region.cold_places[region.cold] =
      static_cast<std::uint8_t>(offset / options_.stack_size);
  if (++region.cold == 1) with_cold_.PushBack(&region);
}

void StackAllocator::ReturnRegions() noexcept {
  Regions unused;
  {
    ScopedLock guard(lock_);
    for (auto at = with_cold_.begin(); at != with_cold_.end();) {
      Region* const region = &*at++;
      if (region->cold != region->begun) continue;
      with_cold_.Remove(region);
      if (fresh_ == region) fresh_ = nullptr;
      unused.insert(regions_.extract(region->low));
    }
  }
  // The system calls stay outside the lock.
  for (auto& [low, region] : unused) Unmap(&region);
}

// Guards between neighbouring stacks stay.
void StackAllocator::ReleaseMemory(std::span<char*> stacks) const noexcept {
  std::sort(stacks.begin(), stacks.end());
  for (std::size_t i = 0; i < stacks.size();) {
    const std::size_t first = i++;
    while (i < stacks.size() &&
           stacks[i] == stacks[i - 1] + options_.stack_size) {
      ++i;
    }
    madvise(stacks[first], (i - first) * options_.stack_size, MADV_DONTNEED);
  }
}

std::size_t StackAllocator::allocated() const {
  ScopedLock guard(lock_);
  return allocated_;
}

std::size_t StackAllocator::regions() const {
  ScopedLock guard(lock_);
  return regions_.size();
}

}  // namespace flare::fiber
