// Recorded calls, for loads.

#ifndef EXAMPLE_RPC_REPLAY_CALL_H_
#define EXAMPLE_RPC_REPLAY_CALL_H_

#include <memory>

#include "example/rpc/call.h"
#include "flare/rpc/rpc_channel.h"

namespace example {

// Sends calls of `options.replay`, which there must be, to a server of
// `channel`: the one whose number the plan has.
std::unique_ptr<Call> NewReplayCall(const LoadOptions& options,
                                    flare::RpcChannel* channel);

}  // namespace example

#endif  // EXAMPLE_RPC_REPLAY_CALL_H_
