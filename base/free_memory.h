// Free memory of the general allocator, which keeps pages that the program has
// freed. jemalloc returns those of an arena when that is used again, glibc only
// those at the end of a heap: after a burst, an idle process holds them for
// good.
//
//   ReturnAllFreeMemory();   // Nobody needs it now.
//
// A program that runs fibers needs none of this: the runtime does it
// (fiber/scheduler/memory_watch.h). With allocators other than these two
// nothing happens. Thread-safe.

#ifndef FLARE_BASE_FREE_MEMORY_H_
#define FLARE_BASE_FREE_MEMORY_H_

#include <cstddef>

namespace flare {

// Returns pages that have been free for as long as the allocator's settings ask
// for: jemalloc's dirty_decay_ms, 10 s by default. Cheap where there are none.
// False: the allocator doesn't know how long (glibc), and nothing was done.
bool ReturnOldFreeMemory();

// Returns all free pages. Takes about 0.2 s for each GiB; glibc lets nobody use
// a heap meanwhile.
void ReturnAllFreeMemory();

// For programs without the runtime: has jemalloc do the first by itself, on a
// thread of its own that sleeps while there is nothing to return. Don't use it
// in a process that will fork and go on in the child, which doesn't have the
// thread. False: the allocator has none.
bool KeepReturningFreeMemory();

// Memory of the process that the system holds in RAM; 0: unknown. One read of a
// file under /proc.
std::size_t ResidentBytes();

}  // namespace flare

#endif  // FLARE_BASE_FREE_MEMORY_H_
