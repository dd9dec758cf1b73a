// An HTTP server's record of a request, for the answer.
#ifndef FLARE_RPC_HTTP_HTTP_TICKET_H_
#define FLARE_RPC_HTTP_HTTP_TICKET_H_

#include <cstdint>

#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// In the ReplyTicket of each request.
struct HttpTicket {
  std::uint64_t correlation_id = 0;  // of calls, as in Rpc-SeqNo
  std::uint64_t order = 0;           // place among the replies sent in order
  PayloadFormat format = PayloadFormat::kProtobuf;  // of calls
  std::uint8_t type = 1;  // which Content-Type calls have (http_call.cc)
  // For calls: the reply's possible compressions, as bits of
  // CompressionAlgorithm, and the place of the caller's origin (HttpCors).
  std::uint8_t codings = 0;
  std::uint8_t cors = 0;
  std::uint16_t http_status = 0;  // of a rejection; 0: from the status
  bool is_call = true;            // not a request for a handler
  bool has_correlation_id = true;
  bool ordered = false;     // `order` counts
  bool head_only = false;   // HEAD: the reply has no body
  bool close = false;       // the connection ends with this reply
  bool keep_alive = false;  // an HTTP/1.0 peer asked to keep the connection
  bool chunked = false;     // pieces go out as chunks
  bool http_10 = false;     // the peer knows no chunks
  bool http2 = false;       // the preface of HTTP/2, which is refused
};

inline HttpTicket& TicketOf(InboundRequest* request) {
  return request->ticket.As<HttpTicket>();
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_TICKET_H_
