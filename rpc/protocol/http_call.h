// Calls in the requests of HTTP: POST /rpc/<method>, whose format is told by
// their Content-Type. Thread-safe; nothing blocks.
#ifndef FLARE_RPC_PROTOCOL_HTTP_CALL_H_
#define FLARE_RPC_PROTOCOL_HTTP_CALL_H_

#include <optional>
#include <string>
#include <string_view>

#include "flare/rpc/protocol/http_parser.h"
#include "flare/rpc/protocol/http_protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Whether a request for this target is a call, on a server of these uses.
bool IsHttpCall(const HttpUses& uses, std::string_view target);

// Why a request isn't served, as an HTTP status and as a text.
struct HttpRefusal {
  int status;
  std::string text;
};

// Makes *request the call that `head` is the head of. request->ticket must be
// filled in as far as all requests have it; the rest is done here. Nothing in
// *request refers to the bytes of the head afterwards (which may be in
// request->scratch). Returned: why the call is refused, if it is.
std::optional<HttpRefusal> ReadHttpCall(const HttpUses& uses,
                                        const HttpHead& head,
                                        InboundRequest* request);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_HTTP_CALL_H_
