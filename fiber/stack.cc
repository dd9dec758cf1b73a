#include "flare/fiber/stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

#include "flare/fiber/debug_layout.h"
#include "glog/logging.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // Linux 6.13; not in older headers.
#endif

namespace flare::fiber {
namespace {

std::size_t PageSize() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

StackAllocator::StackAllocator(const Options& options)
    : options_(options), guard_size_(options.guard ? PageSize() : 0) {
  CHECK_EQ(options_.stack_size % PageSize(), 0U)
      << "a fiber stack must be a multiple of the page size";
  CHECK_GE(options_.stack_size, guard_size_ + kLeastStack)
      << "fiber stack too small";
}

StackAllocator::~StackAllocator() {
  RemoveStackRegions(this);
  for (void* region : regions_) {
    munmap(region, kStacksPerRegion * options_.stack_size);
  }
}

bool StackAllocator::MapRegion() {
  const std::size_t bytes = kStacksPerRegion * options_.stack_size;
  void* const region =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (region == MAP_FAILED) {
    PLOG_EVERY_N(ERROR, 1000)
        << "mmap of " << bytes << " bytes for fiber stacks";
    return false;
  }
  // A huge page would make the first touch of one stack cost 2 MiB.
  madvise(region, bytes, MADV_NOHUGEPAGE);
  regions_.push_back(region);
  AddStackRegion(this, region, options_.stack_size, kStacksPerRegion);
  fresh_.reserve(fresh_.size() + kStacksPerRegion);
  // Lowest address handed out first.
  for (std::size_t i = kStacksPerRegion; i-- > 0;) {
    fresh_.push_back(static_cast<char*>(region) + i * options_.stack_size);
  }
  return true;
}

bool StackAllocator::InstallGuard(char* low) {
  if (guard_size_ == 0) return true;
  if (madvise(low, guard_size_, MADV_GUARD_INSTALL) == 0) return true;
  if (mprotect(low, guard_size_, PROT_NONE) == 0) return true;
  PLOG_EVERY_N(ERROR, 1000)
      << "no guard for another fiber stack (this kernel spends two mappings on "
         "each: raise vm.max_map_count, or run Linux 6.13 or later)";
  return false;
}

void* StackAllocator::Allocate() {
  std::scoped_lock guard(lock_);
  for (auto* list : {&free_, &cold_}) {
    if (list->empty()) continue;
    void* const low = list->back();
    list->pop_back();
    ++allocated_;
    return low;
  }
  if (fresh_.empty() && !MapRegion()) return nullptr;
  char* const low = fresh_.back();
  if (!InstallGuard(low)) return nullptr;
  fresh_.pop_back();
  ++allocated_;
  return low;
}

void StackAllocator::Free(void* low) noexcept {
  bool give_back;
  {
    std::scoped_lock guard(lock_);
    --allocated_;
    give_back = free_.size() >= options_.high_water;
    if (!give_back) free_.push_back(low);
  }
  if (!give_back) return;
  // The system call stays outside the lock; the stack is still ours alone.
  madvise(static_cast<char*>(low) + guard_size_,
          options_.stack_size - guard_size_, MADV_DONTNEED);
  std::scoped_lock guard(lock_);
  cold_.push_back(low);
}

std::size_t StackAllocator::allocated() const {
  std::scoped_lock guard(lock_);
  return allocated_;
}

}  // namespace flare::fiber
