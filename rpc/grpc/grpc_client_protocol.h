// The client's side of `grpc`: gRPC over HTTP/2 with prior knowledge, all four
// kinds of methods, many calls at once on a connection. docs/grpc.md is for
// users.
//
//   - Unary calls and streams share connections. Beyond the number of streams
//     that the server allows calls wait for their turn.
//   - Messages are protobuf, and compressed as the controller asks. Received
//     ones may be compressed.
//   - A call that is cancelled or runs out of time resets its stream.
//   - After the server's GOAWAY the connection gets no more calls. Calls that
//     the server hasn't looked at, as that or REFUSED_STREAM says, fail with
//     STATUS_OUT_OF_SERVICE, and as unprocessed ones: they may begin again on
//     another connection.
#ifndef FLARE_RPC_GRPC_GRPC_CLIENT_PROTOCOL_H_
#define FLARE_RPC_GRPC_GRPC_CLIENT_PROTOCOL_H_

#include <memory>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

std::unique_ptr<ClientProtocol> NewGrpcClientProtocol(const Limits& limits,
                                                      std::string_view host);

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_CLIENT_PROTOCOL_H_
