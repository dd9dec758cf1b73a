// On which NUMA node memory lies: asking the kernel for one, and looking.
// Thread-safe; system calls, for large pieces and at start-up.

#ifndef FLARE_BASE_MEMORY_POLICY_H_
#define FLARE_BASE_MEMORY_POLICY_H_

#include <cstddef>
#include <optional>

#include "flare/base/status.h"

namespace flare {

// Pages of [address, address + bytes) that are touched from now on come from
// `node` as long as it has some left, whichever thread touches them. `address`
// is that of a page. Errors: EINVAL if there is no such node or it has no
// memory; ENOSYS or EPERM where the kernel or a sandbox has no memory policies.
Status PreferMemoryOf(int node, void* address, std::size_t bytes);

// The node that the page at `address` lies on. nullopt if it has never been
// touched, the system doesn't say, or it doesn't say just now, since automatic
// NUMA balancing waits for the next access to the page: touch it and ask again.
std::optional<int> MemoryNodeOf(const void* address);

}  // namespace flare

#endif  // FLARE_BASE_MEMORY_POLICY_H_
