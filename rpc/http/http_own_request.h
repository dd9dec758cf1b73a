// A request for an HTTP handler, as it is served: finds the handler, calls it,
// and sends its reply, in one piece or in several. Pooled, with the memory of
// request and response.
#ifndef FLARE_RPC_HTTP_HTTP_OWN_REQUEST_H_
#define FLARE_RPC_HTTP_HTTP_OWN_REQUEST_H_

#include <memory>
#include <optional>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/http/http_upgrade.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class HttpRequestCounters;

// Whether a reply with this status of a handler counts as failed: so do
// statuses that aren't final, in whose place 500 is sent.
inline bool IsFailure(HttpStatus status) {
  return static_cast<unsigned>(status) - 200 >= 200;
}

// Sends the replies of handlers: a connection's protocol. Thread-safe; doesn't
// block.
class HttpReplySender {
 public:
  // Fills in the header fields that frame the reply (Content-Length,
  // Connection).
  virtual void WriteHttp(const HttpTicket& ticket, HttpResponse&& response) = 0;

  // In place of WriteHttp, in pieces: BeginHttp until it says kNow, by then the
  // head was sent, with which *ticket is filled in further; WriteHttpPiece any
  // number of times unless that is head_only (false: the connection is closed),
  // and EndHttp. One thread at a time. After kNever WriteHttp is due.
  virtual ReplyTurn BeginHttp(HttpVersion version, const HttpResponse& head,
                              HttpTicket* ticket, ReplyTurnWaiter* waiter) = 0;
  virtual bool WriteHttpPiece(const HttpTicket& ticket, Buffer&& piece) = 0;
  virtual void EndHttp(const HttpTicket& ticket) = 0;

  // Whether replies share the connection, each with a window of its own. Then
  // each piece has to wait until AskForRoom() doesn't say kLater (kNever: the
  // reply can't be sent any more), and AbortHttp() gives a reply up without the
  // connection, and tells the one that waits for room.
  virtual bool replies_share() const { return false; }
  virtual ReplyTurn AskForRoom(const HttpTicket& /*ticket*/,
                               ReplyTurnWaiter* /*waiter*/) {
    return ReplyTurn::kNow;
  }
  virtual void AbortHttp(const HttpTicket& /*ticket*/) {}

  // In place of a reply, another protocol: the tunnel of the request that asks
  // for it, null if there is none. When that is reserved, BeginTunnel() until
  // it says kNow, by then 101 with `fields` was sent, and at the end EndHttp().
  virtual HttpTunnel* tunnel() { return nullptr; }
  virtual ReplyTurn BeginTunnel(const HttpTicket& /*ticket*/,
                                const HttpHeaders& /*fields*/,
                                ReplyTurnWaiter* /*waiter*/) {
    return ReplyTurn::kNever;
  }

 protected:
  ~HttpReplySender() = default;
};

class HttpOwnRequest final : public OwnRequest,
                             private HttpBodyWriter,
                             private HttpUpgrade {
 public:
  // From the pool, with a cleared request. Both must outlive it. `preflight`:
  // it is an OPTIONS for a call, as browsers ask.
  static HttpOwnRequest* New(const HttpUses* uses, HttpReplySender* sender,
                             bool preflight);

  HttpRequest& request() { return request_; }
  bool preflight() const { return preflight_; }
  HttpReplySender* sender() const { return sender_; }

  void Serve(OwnRequestHost* host) override;
  void Refuse(std::string_view text, OwnRequestHost* host) override;
  bool IsExempt() const override;
  void Recycle() override;

 private:
  void Answer();
  void CallHandler(HttpHandler* handler);

  // HttpBodyWriter, while the handler runs.
  flare::Status Write(Buffer piece) override;
  void Abort() override;
  HttpUpgrade* upgrade() override { return this; }
  // False: the connection is closed, or there is no memory, and the reply was
  // given up.
  bool Begin();
  bool MakePacker(CompressionAlgorithm coding);
  // The end of a reply in pieces.
  void End();

  // HttpUpgrade, while the handler runs.
  Expected<Link, flare::Status> Prepare() override;
  flare::Status Switch(const HttpHeaders& fields,
                       RefPtr<HttpTunnelReceiver> receiver) override;
  // It isn't opened.
  void LeaveTunnel();
  void CountReply(HttpRequestCounters* counters) const;

  const HttpUses* uses_ = nullptr;
  HttpReplySender* sender_ = nullptr;
  OwnRequestHost* host_ = nullptr;              // Set during Serve.
  const HttpServerContext* context_ = nullptr;  // Set while the handler runs.
  bool preflight_ = false;
  // Set for a reply in pieces, or a switch to another protocol, as soon as the
  // head was sent: its status was counted by then.
  std::optional<HttpTicket> pieces_;
  std::unique_ptr<StreamCompressor> packer_;  // Null: pieces go as they are.
  HttpRequest request_;
  HttpResponse response_;
};

// The HTTP request in *request, which has one.
inline HttpOwnRequest& HttpOf(const InboundRequest& request) {
  return static_cast<HttpOwnRequest&>(*request.own);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_OWN_REQUEST_H_
