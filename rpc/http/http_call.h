// Calls in the requests of HTTP: POST /rpc/<method>, or to a path that callers
// of other frameworks use, whose format is told by their Content-Type.
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_CALL_H_
#define FLARE_RPC_HTTP_HTTP_CALL_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Whether a request is for a call, on a server of these uses; if by another
// method than POST, to be refused.
bool IsHttpCall(const HttpUses& uses, const HttpHead& head);

// Whether it is the OPTIONS by which a browser asks for leave to call.
bool IsHttpPreflight(const HttpUses& uses, const HttpHead& head);

// Fills in the format of a call, and of the reply. False: it has none that the
// server speaks.
bool ReadHttpFormat(const HttpUses& uses, const HttpHead& head,
                    HttpTicket* ticket);

// HttpTicket::type of a call whose Content-Type is ContentTypeOf(format);
// those of other frameworks have greater ones, and below kDialectHttpType.
inline constexpr std::uint8_t kOwnHttpType = 1;

// The Content-Type of the reply to a call that is in no dialect.
std::string_view HttpTypeOf(const HttpTicket& ticket);

// Makes *request the call that `head` is the head of. request->ticket must be
// filled in as far as all requests have it; the rest is done here. Nothing in
// *request refers to the bytes of the head afterwards (which may be in
// request->scratch). Returned: why the call is refused, if it is.
std::optional<HttpRefusal> ReadHttpCall(const HttpUses& uses,
                                        const HttpHead& head,
                                        InboundRequest* request);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_CALL_H_
