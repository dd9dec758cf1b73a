#include "flare/base/object_pool.h"

#include <sched.h>

#include <algorithm>
#include <new>

namespace flare {
namespace {

// The state of one thread.
constinit thread_local PoolThreadExit* first_exit = nullptr;
constinit thread_local bool thread_has_ended = false;

struct ThreadEnd {
  ~ThreadEnd() {
    thread_has_ended = true;
    while (first_exit != nullptr) {
      PoolThreadExit* const exit = first_exit;
      first_exit = exit->next;
      exit->run();
    }
  }
};

}  // namespace

bool AtPoolThreadExit(PoolThreadExit* exit) noexcept {
  if (thread_has_ended) return false;
  PrepareThreadForPools();
  exit->next = first_exit;
  first_exit = exit;
  return true;
}

void PrepareThreadForPools() {
  static thread_local ThreadEnd at_end;
  // Constructed here, which registers its destructor.
  asm volatile("" : : "r"(&at_end));
}

PoolDepot::Shelf& PoolDepot::ThisNodesShelf() {
  unsigned cpu = 0;
  unsigned node = 0;
  // Fails only where the kernel has no such call; then all share one shelf.
  if (getcpu(&cpu, &node) != 0) node = 0;
  return shelves_[node % kMaxNodes];
}

std::size_t PoolDepot::Take(void** out, std::size_t n) {
  Shelf& shelf = ThisNodesShelf();
  std::scoped_lock lock(shelf.mutex);
  n = std::min(n, shelf.items.size());
  std::copy_n(shelf.items.end() - n, n, out);
  shelf.items.resize(shelf.items.size() - n);
  return n;
}

std::size_t PoolDepot::Put(void* const* items, std::size_t n) noexcept {
  Shelf& shelf = ThisNodesShelf();
  std::scoped_lock lock(shelf.mutex);
  // All at once, so that it never grows again.
  if (shelf.items.capacity() < capacity_) {
    try {
      shelf.items.reserve(capacity_);
    } catch (const std::bad_alloc&) {
      return 0;
    }
  }
  n = std::min(n, capacity_ - shelf.items.size());
  shelf.items.insert(shelf.items.end(), items, items + n);
  return n;
}

}  // namespace flare
