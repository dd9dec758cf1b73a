#include "flare/base/free_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdio>

#include "flare/base/jemalloc.h"
#include "flare/base/malloc_arena.h"

namespace flare {
namespace {

// jemalloc's MALLCTL_ARENAS_ALL is 4096.
constexpr char kReturnOld[] = "arena.4096.decay";
constexpr char kReturnAll[] = "arena.4096.purge";

bool Do(const char* action) {
  return HasMallocArenas() &&
         mallctl(action, nullptr, nullptr, nullptr, 0) == 0;
}

}  // namespace

bool ReturnOldFreeMemory() { return Do(kReturnOld); }

void ReturnAllFreeMemory() {
  if (Do(kReturnAll)) return;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

bool KeepReturningFreeMemory() {
  if (!HasMallocArenas()) return false;
  std::size_t most = 1;  // One for all arenas, not one for each CPU.
  mallctl("max_background_threads", nullptr, nullptr, &most, sizeof(most));
  bool on = true;
  return mallctl("background_thread", nullptr, nullptr, &on, sizeof(on)) == 0;
}

std::size_t ResidentBytes() {
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[128];
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  unsigned long pages = 0;  // The second number.
  if (std::sscanf(text, "%*u %lu", &pages) != 1) return 0;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace flare
