// The reply to one call of a web page, as a stream of messages over HTTP/2: the
// bytes that over HTTP/1.1 would go into chunks. Thread-safe as StreamWire
// says; nothing blocks.
#ifndef FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_
#define FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_server_session.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http2/http1_text.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/stream_wire.h"

namespace flare::rpc {

class Http2ReplyWire final : public StreamWire {
 public:
  // `uses` must have a dialect, whose call the ticket is.
  Http2ReplyWire(const HttpTicket& ticket, const HttpUses& uses,
                 GrpcServerSession* session)
      : ticket_(ticket),
        cors_(uses.cors),
        dialect_(uses.dialect),
        base64_(dialect_->IsBase64(ticket)),
        session_(session) {}
  // A reply that breaks off must not be taken for a whole one.
  ~Http2ReplyWire() override {
    RefPtr<StreamReceiver> dropped;
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr) return;
    dropped = std::move(stream->receiver);
    if (stream->status_sent) return;
    session_->session_->SendReset(stream, Http2Error::kInternalError);
    static_cast<void>(session_->FlushLocked());
  }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr || session_->closed_) return false;
    stream->http->base64 = base64_;
    stream->receiver = std::move(receiver);
    return true;
  }

  bool SendMessage(OutboundBody&& body, bool last) override {
    const std::size_t cost = body.size() + message_cost();
    Buffer message = dialect_->FormatStreamMessage(ticket_, std::move(body));
    if (message.empty()) {
      return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                   "a message of the stream exceeds 4 GiB"));
    }
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    // Of the reset its receiver is told.
    if (stream == nullptr || stream->status_sent) return !session_->closed_;
    // The rest returns when it has left.
    credit_ += cost - Http2Exchange::CreditOf(message.size(), base64_);
    SendHeadOnce(stream);
    session_->session_->SendData(stream, std::move(message));
    if (last) End(stream, flare::Status());
    const bool sent = session_->FlushLocked();
    if (GrpcServerStream* const open = Find()) credit_ += open->TakeCredit();
    return sent;
  }

  bool SendEnd(const flare::Status& status) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr) return !session_->closed_;
    if (stream->status_sent) return true;
    SendHeadOnce(stream);
    End(stream, status);
    return session_->FlushLocked();
  }
  void SendReset(const flare::Status& why) override {
    static_cast<void>(SendEnd(why));
  }

  // Nothing comes from the client behind the one message of its request.
  void SendCredit(std::size_t) override {}
  void HoldInput() override {}
  void ReleaseInput() override {}
  bool has_credits() const override { return true; }
  // Of its prefix, and what base64 may add to the last three bytes.
  std::size_t message_cost() const override {
    return base64_ ? kGrpcPrefixSize + 2 : kGrpcPrefixSize;
  }
  std::size_t TakeCredit() override { return std::exchange(credit_, 0); }

  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    (place == MetadataPlace::kInitial ? metadata_ : trailers_) = metadata;
    return true;
  }

 private:
  GrpcServerStream* Find() const FLARE_REQUIRES(session_->lock_) {
    return session_->Find(static_cast<std::int32_t>(ticket_.order));
  }

  void SendHeadOnce(GrpcServerStream* stream) FLARE_REQUIRES(session_->lock_) {
    if (std::exchange(stream->head_sent, true)) return;
    Buffer head = dialect_->FormatStreamHead(ticket_, metadata_);
    if (ticket_.cors != 0) {
      head = InsertFields(cors_->FieldsFor(ticket_.cors), std::move(head));
    }
    const Http2Reply reply(std::move(head));
    session_->session_->SendHeaders(stream, reply.fields(), /*end=*/false);
  }
  void End(GrpcServerStream* stream, const flare::Status& status)
      FLARE_REQUIRES(session_->lock_) {
    stream->status_sent = true;
    session_->session_->SendData(
        stream, dialect_->FormatStreamEnd(ticket_, status, trailers_));
    session_->session_->SendEnd(stream);
  }

  const HttpTicket ticket_;
  const HttpCors* const cors_;
  const HttpDialect* const dialect_;
  const bool base64_;
  GrpcServerSession* const session_;
  std::size_t credit_ = 0;  // Of its call's, which calls one at a time.
  Metadata metadata_;
  Metadata trailers_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_
