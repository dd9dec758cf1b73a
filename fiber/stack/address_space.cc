#include "flare/fiber/stack/address_space.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace flare::fiber {

Status CheckAddressSpace(std::size_t threads) {
  constexpr std::size_t kHeap = 4 << 20;
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return Status();
  }
  std::size_t stack = 0;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return Status();
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_destroy(&attributes);
  const std::size_t bytes = threads * (stack + kHeap);
  void* const room = mmap(nullptr, bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, bytes);
    return Status();
  }
  return Status(ENOMEM,
                "no " + std::to_string(bytes >> 20) +
                    " MiB of address space for " + std::to_string(threads) +
                    " threads, each with a stack of " +
                    std::to_string(stack >> 10) +
                    " KiB and a heap; raise the limit of address space "
                    "(ulimit -v), lower that of stacks (ulimit -s), or have "
                    "fewer workers (--flare_concurrency_hint)");
}

}  // namespace flare::fiber
