#include "flare/base/malloc_arena.h"

#include <cstddef>

#include "flare/base/jemalloc.h"

namespace flare {
namespace {

// An unsigned number; nullopt if there is no such thing to read.
std::optional<unsigned> Read(const char* name) {
  unsigned value = 0;
  std::size_t size = sizeof(value);
  if (!HasMallocArenas() || mallctl(name, &value, &size, nullptr, 0) != 0) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

bool HasMallocArenas() { return mallctl != nullptr; }

std::optional<unsigned> CreateMallocArena() { return Read("arenas.create"); }

bool UseMallocArena(unsigned arena) {
  if (!HasMallocArenas()) return false;
  // Fails where there is no thread cache, which is all right.
  mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  return mallctl("thread.arena", nullptr, nullptr, &arena, sizeof(arena)) == 0;
}

std::optional<unsigned> CurrentMallocArena() { return Read("thread.arena"); }

}  // namespace flare
