// gRPC over HTTP/2, as a server: calls of gRPC's clients, of all four kinds of
// methods. In clear text, by prior knowledge: a connection begins with HTTP/2's
// preface, by which it is told from other protocols on the port.
//
// Requests that aren't gRPC's are those of HTTP, as far as the server has
// handlers or calls of HTTP (`uses`); see rpc/http/http_protocol.h. Handlers
// are told that they came by HTTP/1.1. 100 Continue isn't sent.
//
// The server's answers to requests that it can't serve; the connection goes on:
//
//   :status 405   another method than POST, on a server without HTTP
//   :status 415   a content-type that isn't gRPC's, on a server without HTTP
//   UNIMPLEMENTED an unknown service or method, or grpc-encoding
//   INTERNAL      a malformed grpc-timeout, or message; a unary call with no
//                 message, or with several
//   RESOURCE_EXHAUSTED  a message or metadata beyond the limits
//   reset, ENHANCE_YOUR_CALM  a head larger than Limits::max_head_size and the
//                 metadata's together, or with another content-type behind
//                 gRPC's
//
// Limits of a connection: fewer than Limits::max_pipeline streams at a time,
// but one in any case (more are refused), as many handlers whose streams have
// closed, but 100 in any case (more are refused), and the floods that
// Http2Session bounds, which close it.
//
// Elsewhere or missing: TLS with ALPN, and upgrades from HTTP/1.1.
#ifndef FLARE_RPC_GRPC_GRPC_SERVER_PROTOCOL_H_
#define FLARE_RPC_GRPC_GRPC_SERVER_PROTOCOL_H_

#include <memory>

#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

std::unique_ptr<ServerProtocol> NewGrpcServerProtocol(
    const Limits& limits, ReplySink* sink, const HttpUses& uses = {});

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_SERVER_PROTOCOL_H_
