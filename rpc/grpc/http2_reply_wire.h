// The reply to one call of HTTP, as a stream of messages over HTTP/2; over
// HTTP/1.1 they would go into chunks (http_streams.h). Thread-safe as
// StreamWire says; nothing blocks.
#ifndef FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_
#define FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_

#include <google/protobuf/io/coded_stream.h>

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
#include "flare/rpc/http/http_streams.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http2/http1_text.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class Http2ReplyWire final : public StreamWire {
 public:
  Http2ReplyWire(const HttpTicket& ticket, const HttpUses& uses,
                 GrpcServerSession* session)
      : ticket_(ticket),
        cors_(uses.cors),
        dialect_(IsDialect(ticket) ? uses.dialect : nullptr),
        base64_(dialect_ != nullptr && dialect_->IsBase64(ticket)),
        session_(session) {}
  // A reply that breaks off must not be taken for a whole one.
  ~Http2ReplyWire() override {
    RefPtr<StreamReceiver> dropped;
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr) return;
    dropped = std::move(stream->receiver);
    if (!stream->status_sent) {
      session_->Reset(stream, Http2Error::kInternalError);
    }
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
    Buffer message = Format(std::move(body));
    if (message.empty()) {
      return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                   "a message of the stream exceeds 4 GiB"));
    }
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    // Its receiver learns of the reset.
    if (stream == nullptr || stream->status_sent) return !session_->closed_;
    // The rest returns when it has left.
    credit_ += cost - Http2Exchange::CreditOf(message.size(), base64_);
    SendHeadOnce(stream);
    session_->session_->SendData(stream, std::move(message));
    if (last) End(stream, flare::Status());
    const bool sent = FlushLocked();
    if (GrpcServerStream* const open = Find()) credit_ += open->TakeCredit();
    return sent;
  }

  bool SendEnd(const flare::Status& status) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr) return !session_->closed_;
    return SendEndLocked(stream, status);
  }
  void SendReset(const flare::Status& why) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = Find();
    if (stream == nullptr) return;
    if (stream->queued() == 0) {
      static_cast<void>(SendEndLocked(stream, why));
      return;
    }
    // The end would have to wait, too, perhaps for ever.
    session_->session_->SendReset(stream, Http2Error::kInternalError);
    static_cast<void>(session_->FlushLocked());
  }

  // Nothing comes from the client behind the one message of its request.
  void SendCredit(std::size_t) override {}
  void HoldInput() override {}
  void ReleaseInput() override {}
  bool has_credits() const override { return true; }
  // The size of its prefix, and of the bytes that base64 may add to the last
  // three.
  std::size_t message_cost() const override {
    if (dialect_ == nullptr) return kMaxVarintSize;
    return base64_ ? kGrpcPrefixSize + 2 : kGrpcPrefixSize;
  }
  std::size_t TakeCredit() override { return std::exchange(credit_, 0); }

  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    if (dialect_ == nullptr) {
      // A failure has it, before the first message. It may come as both.
      const auto challenge = metadata.Get("www-authenticate");
      if (challenge && metadata_.empty()) {
        metadata_.AddReceived("www-authenticate", *challenge);
      }
      return false;
    }
    (place == MetadataPlace::kInitial ? metadata_ : trailers_) = metadata;
    return true;
  }

 private:
  static constexpr std::size_t kMaxVarintSize = 10;

  GrpcServerStream* Find() const FLARE_REQUIRES(session_->lock_) {
    return session_->Find(static_cast<std::int32_t>(ticket_.order));
  }

  bool FlushLocked() FLARE_REQUIRES(session_->lock_) {
    const bool sent = session_->FlushLocked();
    if (GrpcServerStream* const open = Find()) session_->CountWaiting(open);
    return sent;
  }
  bool SendEndLocked(GrpcServerStream* stream, const flare::Status& status)
      FLARE_REQUIRES(session_->lock_) {
    if (stream->status_sent) return true;
    if (dialect_ == nullptr && !stream->head_sent && !status.ok()) {
      session_->SendHttp(
          stream, WithCors(FormatStreamFailure(ticket_, status, metadata_)));
    } else {
      SendHeadOnce(stream);
      End(stream, status);
    }
    return FlushLocked();
  }
  void SendHeadOnce(GrpcServerStream* stream) FLARE_REQUIRES(session_->lock_) {
    if (std::exchange(stream->head_sent, true)) return;
    const Http2Reply reply(WithCors(
        dialect_ != nullptr ? dialect_->FormatStreamHead(ticket_, metadata_)
                            : FormatStreamHead(ticket_, /*delimited=*/true)));
    session_->session_->SendHeaders(stream, reply.fields(), /*end=*/false);
  }
  void End(GrpcServerStream* stream, const flare::Status& status)
      FLARE_REQUIRES(session_->lock_) {
    stream->status_sent = true;
    if (dialect_ == nullptr) {
      const Http2Fields trailers(StreamEndFields(status));
      session_->session_->SendTrailers(stream, trailers.fields());
      return;
    }
    session_->session_->SendData(
        stream, dialect_->FormatStreamEnd(ticket_, status, trailers_));
    session_->session_->SendEnd(stream);
  }
  Buffer WithCors(Buffer&& bytes) const {
    if (ticket_.cors == 0) return std::move(bytes);
    return InsertFields(cors_->FieldsFor(ticket_.cors), std::move(bytes));
  }
  // Empty: it is too large.
  Buffer Format(OutboundBody&& message) const {
    if (dialect_ != nullptr) {
      return dialect_->FormatStreamMessage(ticket_, std::move(message));
    }
    BufferBuilder out;
    const bool binary = ticket_.format == PayloadFormat::kProtobuf;
    if (binary) {
      std::uint8_t size[kMaxVarintSize];
      const std::uint8_t* const end =
          google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(
              message.size(), size);
      out.Append(size, static_cast<std::size_t>(end - size));
    }
    std::move(message).AppendTo(&out);
    if (!binary) out.Append("\n");
    return out.DestructiveGet();
  }

  const HttpTicket ticket_;
  const HttpCors* const cors_;
  const HttpDialect* const dialect_;  // Null: none.
  const bool base64_;
  GrpcServerSession* const session_;
  std::size_t credit_ = 0;  // For its call, which calls one at a time.
  Metadata metadata_;
  Metadata trailers_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_HTTP2_REPLY_WIRE_H_
