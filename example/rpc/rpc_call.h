// Calls of EchoService, RelayService and methods found at run time, over the
// RPC stack.

#ifndef EXAMPLE_RPC_RPC_CALL_H_
#define EXAMPLE_RPC_RPC_CALL_H_

#include <memory>

#include "example/rpc/call.h"

namespace example {

// As OpenTarget(), for every protocol that RpcChannel knows.
flare::Expected<std::unique_ptr<Target>, flare::Status> OpenRpcTarget(
    const LoadOptions& options);

}  // namespace example

#endif  // EXAMPLE_RPC_RPC_CALL_H_
