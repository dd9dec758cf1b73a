// Whether threads that are to start will have address space, where that is
// limited (ulimit -v). Asked for beforehand, since an allocator may die of
// having nothing for a thread's first request, without a word (jemalloc 5.3
// does).

#ifndef FLARE_FIBER_ADDRESS_SPACE_H_
#define FLARE_FIBER_ADDRESS_SPACE_H_

#include <cstddef>

#include "flare/base/status.h"

namespace flare::fiber {

// Error ENOMEM: there isn't as much as `threads` more would take, with stacks
// of the default size and a few MiB of heap each; it says how much that is and
// what to do. Without a limit there is always enough. Any thread.
Status CheckAddressSpace(std::size_t threads);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_ADDRESS_SPACE_H_
