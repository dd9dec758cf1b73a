// Calls of EchoService, RelayService and methods found at run time, over the
// RPC stack.

#ifndef EXAMPLE_RPC_RPC_CALL_H_
#define EXAMPLE_RPC_RPC_CALL_H_

#include <memory>
#include <string>

#include "example/rpc/call.h"
#include "flare/rpc/client_protocol.h"

namespace example {

// As OpenTarget(), for every protocol that RpcChannel knows.
flare::Expected<std::unique_ptr<Target>, flare::Status> OpenRpcTarget(
    const LoadOptions& options);

// The protocol of such an address, to ask for its traits; null: none is known.
std::unique_ptr<flare::rpc::ClientProtocol> ProtocolOf(
    const std::string& server_addr);

}  // namespace example

#endif  // EXAMPLE_RPC_RPC_CALL_H_
