// Arenas of jemalloc, if the program is linked with it: a thread that uses an
// arena gets its memory from there, so threads of one NUMA node that share
// arenas with nobody else get memory of their node (it lies where it was first
// touched).
//
//   if (auto arena = CreateMallocArena()) UseMallocArena(*arena);
//
// Thread-safe. Without jemalloc nothing happens.

#ifndef FLARE_BASE_MALLOC_ARENA_H_
#define FLARE_BASE_MALLOC_ARENA_H_

#include <optional>

namespace flare {

// Is the general allocator one that has arenas?
bool HasMallocArenas();

// A new arena, which no thread uses unless it is told to. It lives as long as
// the process. nullopt: the allocator has no arenas, or no more of them.
std::optional<unsigned> CreateMallocArena();

// From now on the calling thread allocates from `arena`. The memory in its
// cache goes back first. False: no such arena.
bool UseMallocArena(unsigned arena);

// The calling thread's arena; nullopt: the allocator has none.
std::optional<unsigned> CurrentMallocArena();

}  // namespace flare

#endif  // FLARE_BASE_MALLOC_ARENA_H_
