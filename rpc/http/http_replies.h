// The output of an HTTP server, as bytes: replies to calls, replies of
// handlers, and refusals. Tickets say which of them is due, and its framing.
//
// Thread-safe; nothing blocks; in steady state nothing calls the general
// allocator, except for failures and refusals.
#ifndef FLARE_RPC_HTTP_HTTP_REPLIES_H_
#define FLARE_RPC_HTTP_HTTP_REPLIES_H_

#include <cstdint>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// The status of a call as that of HTTP.
int HttpStatusOf(int rpc_status);
// The status for callers that were refused with this HTTP status.
int RpcStatusOf(int http_status);

// The reply to a call. One that succeeded with parts that HTTP can't carry (an
// attachment, another compression than those of ticket.codings) fails.
Buffer FormatCallReply(const HttpTicket& ticket, OutboundResponse&& response);

// The last fields of a head, and its end: of a body of so many bytes, and of
// one in chunks.
void AppendLengthAndEnd(const HttpTicket& ticket, std::uint64_t content_length,
                        BufferBuilder* out);
void AppendChunkedAndEnd(const HttpTicket& ticket, BufferBuilder* out);

// The head of a reply that is a stream (http_streams.h), and the whole reply of
// one that fails before its first message. `delimited`: binary messages have
// their sizes in front, which the type says. `challenge`: for a client that
// isn't authenticated.
Buffer FormatStreamHead(const HttpTicket& ticket, bool delimited = false);
Buffer FormatStreamFailure(const HttpTicket& ticket,
                           const flare::Status& status,
                           const Metadata& challenge);

// That a request wasn't accepted: the ticket has the HTTP status, `response`
// why. The text is the body, or for calls in JSON a member of it, and for calls
// in the fields that callers read.
Buffer FormatRefusal(const HttpTicket& ticket,
                     const OutboundResponse& response);

// A refusal for a client that speaks HTTP/2, and would read the text above as a
// frame: SETTINGS, with which a server begins, and GOAWAY, which has the code
// HTTP_1_1_REQUIRED and the text.
Buffer FormatHttp2Refusal(std::string_view text);

// A handler's reply, and the fields that frame it. Sets ticket->close if the
// handler wants that.
Buffer FormatHandlerReply(HttpTicket* ticket, HttpResponse&& response);

// Its head alone, for a body in pieces. Says in *ticket how these go out:
// chunked, or up to the end of the connection, or (head_only) not at all.
Buffer FormatHandlerHead(HttpVersion version, const HttpResponse& response,
                         HttpTicket* ticket);

// A chunk with these bytes, of which there must be some; without them it would
// be the last one.
Buffer FormatChunk(Buffer&& bytes);
Buffer FormatLastChunk();

// A reply with these lines, which end with CRLF, as its first fields.
Buffer InsertFields(std::string_view lines, Buffer&& reply);

// A reply, of which more can't be known any more, with "Connection: close" as
// its first field. The "keep-alive" that HTTP/1.0 is told is taken out: where
// both are present "close" wins (RFC 9112, 9.3), but a client may look for the
// other alone. Further options, which handlers set, stay.
Buffer SayClose(Buffer&& reply);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_REPLIES_H_
