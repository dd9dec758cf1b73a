#include "flare/fiber/stack/stack_use.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"

namespace flare::fiber {
namespace {

// The functions' own part of the stack that they look at.
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr std::uintptr_t kMargin = 4096;
#else
constexpr std::uintptr_t kMargin = 1024;
#endif
// Pages looked at together; a gap of so many is taken for the end.
constexpr std::size_t kChunk = 64;

std::atomic<bool> profile_on{false};
Spinlock uses_lock;
auto& uses FLARE_GUARDED_BY(uses_lock) =
    *new std::unordered_map<const void*, StackUse>();

// The following two read and write memory that is no object. gcc and clang both
// know this spelling of the attribute.

// From the first word in [from, to) that isn't zero; `to` if there is none.
__attribute__((no_sanitize("address"), no_sanitize("thread"))) std::uintptr_t
FirstNonZero(std::uintptr_t from, std::uintptr_t to) {
  while (from < to && *reinterpret_cast<volatile std::uint64_t*>(from) == 0) {
    from += sizeof(std::uint64_t);
  }
  return from;
}

// However large the frames of its callers are, it stays below all of them.
__attribute__((noinline, no_sanitize("address"), no_sanitize("thread"))) void
Zero(std::uintptr_t from, std::uintptr_t to) {
  constexpr std::uintptr_t kOwnFrame = 256;
  to = std::min(to,
                (reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) -
                 kOwnFrame) &
                    ~std::uintptr_t{63});
  for (; from < to; from += sizeof(std::uint64_t)) {
    *reinterpret_cast<volatile std::uint64_t*>(from) = 0;
  }
}

// The lowest address of the stack that was used, given that [to, ...) is in
// use; zeroes the bytes between if asked to. Goes down chunk by chunk, and in
// each over the pages that exist.
std::uintptr_t Lowest(std::uintptr_t low, std::uintptr_t to, bool zero) {
  const std::uintptr_t page = PageSize();
  std::uintptr_t lowest = to;
  std::uintptr_t end = (to + page - 1) / page * page;
  while (end > low) {
    const std::size_t pages = std::min<std::size_t>(kChunk, (end - low) / page);
    const std::uintptr_t begin = end - pages * page;
    unsigned char exists[kChunk];
    if (mincore(reinterpret_cast<void*>(begin), pages * page, exists) != 0) {
      break;
    }
    bool any = false;
    for (std::size_t i = pages; i-- > 0;) {
      if ((exists[i] & 1) == 0) continue;
      any = true;
      const std::uintptr_t from = begin + i * page;
      const std::uintptr_t until = std::min(from + page, to);
      const std::uintptr_t used = FirstNonZero(from, until);
      if (used == until) continue;
      lowest = used;
      if (zero) Zero(used, until);
    }
    if (!any) break;
    end = begin;
  }
  return lowest;
}

// Returns an address of the calling function; the memory below it is unused.
[[gnu::always_inline]] inline std::uintptr_t EndOfUnused() {
  return (reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) -
          kMargin) &
         ~std::uintptr_t{63};
}

}  // namespace

void SetStackProfile(bool on) {
  // relaxed: before the workers start.
  profile_on.store(on, std::memory_order_relaxed);
  ScopedLock guard(uses_lock);
  uses.clear();
}

bool IsStackProfileOn() noexcept {
  // relaxed: set before the workers start.
  return profile_on.load(std::memory_order_relaxed);
}

void StartStackProfile(const char* low) {
  Lowest(reinterpret_cast<std::uintptr_t>(low), EndOfUnused(), /*zero=*/true);
}

void RecordStackUse(const char* low, const char* high, const void* entry) {
  const auto bottom = reinterpret_cast<std::uintptr_t>(low);
  const std::uintptr_t end = EndOfUnused();
  const std::uintptr_t lowest = Lowest(bottom, end, /*zero=*/false);
  {
    ScopedLock guard(uses_lock);
    StackUse& use = uses[entry];
    use.entry = entry;
    use.max_bytes = std::max<std::size_t>(
        use.max_bytes, reinterpret_cast<std::uintptr_t>(high) - lowest);
    ++use.tasks;
  }
  // Last, so that the stack used by the lines above is zeroed, too.
  Lowest(bottom, end, /*zero=*/true);
}

std::vector<StackUse> ListStackUses() {
  std::vector<StackUse> list;
  ScopedLock guard(uses_lock);
  for (const auto& [entry, use] : uses) list.push_back(use);
  return list;
}

}  // namespace flare::fiber
