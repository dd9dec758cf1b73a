// Plain HTTP over a connection of HTTP/2, which its gRPC calls share
// (grpc_server_protocol.h): requests for handlers, and calls by POST, are made
// the same as over HTTP/1.1, whose parser reads their heads, and whose replies
// are sent in HTTP/2's form.
//
// Nothing blocks. The rules are in grpc_server_protocol.cc.
#ifndef FLARE_RPC_GRPC_HTTP2_SITE_H_
#define FLARE_RPC_GRPC_HTTP2_SITE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/grpc/grpc_server_session.h"
#include "flare/rpc/http/http_own_request.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http2/http1_text.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class Http2Site final : public HttpReplySender {
 public:
  // `session` must outlive it.
  Http2Site(const HttpUses& uses, const Limits& limits,
            GrpcServerSession* session)
      : uses_(uses), limits_(limits), session_(session) {}

  // The server has handlers, or calls, of HTTP.
  bool enabled() const { return uses_.plain || uses_.calls(); }

  // --- by the connection's reader, with the session's lock ---

  // The head of a stream: its beginning, its fields, and its end, from where on
  // the stream is ours.
  void Clear() { head_.Clear(); }
  void OnField(std::string_view name, std::string_view value) {
    head_.Add(name, value);
  }
  void Begin(GrpcServerStream* stream) FLARE_REQUIRES(session_->lock_);
  void OnData(GrpcServerStream* stream, Buffer&& bytes)
      FLARE_REQUIRES(session_->lock_);
  // Its end has come: fills in all of *request. False: the request was refused.
  bool Complete(GrpcServerStream* stream, InboundRequest* request)
      FLARE_REQUIRES(session_->lock_);

  // --- any thread ---

  // The reply to a call, or to a request that was refused. False: its stream is
  // gone.
  bool Write(const HttpTicket& ticket, OutboundResponse&& response);

  // The message of a web page's call; why the reply to a call can't be a
  // stream (empty: it can), and the stream.
  void ReadBody(InboundRequest* request) const;
  std::string_view WhyNoReplyStream(const HttpTicket& ticket) const;
  std::unique_ptr<StreamWire> OpenReplyStream(const HttpTicket& ticket);

  // HttpReplySender.
  void WriteHttp(const HttpTicket& ticket, HttpResponse&& response) override;
  ReplyTurn BeginHttp(HttpVersion version, const HttpResponse& head,
                      HttpTicket* ticket, ReplyTurnWaiter* waiter) override;
  bool WriteHttpPiece(const HttpTicket& ticket, Buffer&& piece) override;
  void EndHttp(const HttpTicket& ticket) override;
  bool replies_share() const override { return true; }
  ReplyTurn AskForRoom(const HttpTicket& ticket,
                       ReplyTurnWaiter* waiter) override;
  void AbortHttp(const HttpTicket& ticket) override;

 private:
  // Null: it is gone.
  GrpcServerStream* Find(const HttpTicket& ticket) const
      FLARE_REQUIRES(session_->lock_);
  // `request`: what its head says, if that was accepted.
  void Refuse(GrpcServerStream* stream, const HttpFault& fault)
      FLARE_REQUIRES(session_->lock_);
  void Refuse(GrpcServerStream* stream, const HttpFault& fault,
              const HttpTicket& request) FLARE_REQUIRES(session_->lock_);
  void Skip(GrpcServerStream* stream, std::uint64_t announced)
      FLARE_REQUIRES(session_->lock_);
  void RefuseSize(GrpcServerStream* stream) FLARE_REQUIRES(session_->lock_);
  void ReadTicket(const GrpcServerStream& stream, HttpHead* head,
                  HttpTicket* ticket) const;
  Buffer Format(const HttpTicket& ticket, OutboundResponse&& response) const;
  // A whole reply, in the form of HTTP/1.1. False: its stream is gone.
  bool Send(const HttpTicket& ticket, Buffer&& http1);

  const HttpUses uses_;
  const Limits limits_;
  GrpcServerSession* const session_;
  Http1RequestText head_;  // The reader's.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_HTTP2_SITE_H_
