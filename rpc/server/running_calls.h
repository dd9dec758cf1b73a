// The calls of servers as others see them: in lists of fibers, and in the list
// of those that a server abandons.
#ifndef FLARE_RPC_SERVER_RUNNING_CALLS_H_
#define FLARE_RPC_SERVER_RUNNING_CALLS_H_

#include <vector>

#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

// Calls of the server with that state that count as running, the oldest one
// first. Any of them may end meanwhile. Takes some microseconds for each call
// of the process. Any thread.
std::vector<AbandonedCall> RunningCalls(ServerState* state);

// From here on lists of fibers say for which calls these work
// (fiber::ExecutionContext::SetDescriber). Any thread.
void ShowCallsOfFibers();

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_RUNNING_CALLS_H_
