// The command-line flags of the fiber runtime: workers, their stacks, and aids
// that find mistakes. As those of servers and clients (flags.h) they only
// supply defaults, for programs that start by flare::Start(); others fill in
// fiber::RuntimeOptions themselves.
//
// The functions are thread-safe as long as nobody changes flags at the same
// time; none blocks, except to look at the machine.
#ifndef FLARE_RPC_START_RUNTIME_FLAGS_H_
#define FLARE_RPC_START_RUNTIME_FLAGS_H_

#include <gflags/gflags_declare.h>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/runtime.h"

// For tests and programs that set a flag in code before Start().
DECLARE_int32(flare_concurrency_hint);
DECLARE_int32(flare_scheduling_group_size);
DECLARE_bool(flare_numa_aware);
DECLARE_string(flare_fiber_scheduling_optimize_for);
DECLARE_int32(flare_io_spin_us);

namespace flare::rpc {

// Options to start the fiber runtime with; idle workers wait in epoll. Fails if
// the flags together are impossible on this machine: a CPU list that leaves
// none, more pinned workers than CPUs, a set of groups beyond the last. Reads
// the kernel's description of the machine.
Expected<fiber::RuntimeOptions, flare::Status> RuntimeOptionsFromFlags();

// Checks the values as ValidateFlags() of flags.h does, which calls this.
flare::Status ValidateRuntimeFlags();

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_RUNTIME_FLAGS_H_
