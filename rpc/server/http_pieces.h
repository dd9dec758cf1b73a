// The reply to one HTTP request in pieces, for its handler: waits where the
// protocol must not.
#ifndef FLARE_RPC_SERVER_HTTP_PIECES_H_
#define FLARE_RPC_SERVER_HTTP_PIECES_H_

#include <optional>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/server/server_connection.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Whether a reply with this status of a handler counts as failed: so do
// statuses that aren't final, in whose place 500 is sent.
inline bool IsFailure(HttpStatus status) {
  return static_cast<unsigned>(status) - 200 >= 200;
}

class HttpPieces final : public HttpBodyWriter {
 public:
  // All must live until the reply has ended. Nothing is sent if nothing is
  // written.
  HttpPieces(ServerConnection* connection, ServerProtocol* protocol,
             const InboundRequest* request, const HttpResponse* response)
      : connection_(connection),
        protocol_(protocol),
        request_(request),
        response_(response) {}

  flare::Status Write(Buffer piece) override;
  void Abort() override;

  // Something was written: End() is due in place of the ordinary reply, whose
  // status was sent, and counted, by then.
  bool begun() const { return ticket_.has_value(); }
  void End() { protocol_->EndHttp(*ticket_); }

 private:
  // False: the connection is closed.
  bool Begin();

  ServerConnection* const connection_;
  ServerProtocol* const protocol_;
  const InboundRequest* const request_;
  const HttpResponse* const response_;
  std::optional<ReplyTicket> ticket_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_HTTP_PIECES_H_
