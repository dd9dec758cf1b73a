// The calls of web pages: Connect and gRPC-Web, on the paths
// /package.Service/Method. docs/browser.md has the protocols from outside.
//
//   Content-Type                            body of request and reply
//   application/proto, application/json     one message: a unary call of
//     with Connect-Protocol-Version         Connect
//   application/connect+proto, +json        messages with a prefix
//   application/grpc-web, +proto, +json     messages with a prefix
//   application/grpc-web-text, +proto       the same in base64
//
// A prefix is a byte of flags and the size in four bytes. Replies of the latter
// three end with a frame that says how the call went: JSON of Connect (flag 2),
// or gRPC's trailers as lines of text (flag 128).
#ifndef FLARE_RPC_WEB_WEB_DIALECT_H_
#define FLARE_RPC_WEB_WEB_DIALECT_H_

#include "flare/rpc/http/http_dialect.h"

namespace flare::rpc {

// The one object, which is constant.
const HttpDialect* WebDialect();

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEB_WEB_DIALECT_H_
