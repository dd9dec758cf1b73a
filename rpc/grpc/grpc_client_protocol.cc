#include "flare/rpc/grpc/grpc_client_protocol.h"

#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/grpc/grpc_client_session.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/framing.h"

namespace flare::rpc {

namespace {

class GrpcClientStreamWire final : public StreamWire {
 public:
  GrpcClientStreamWire(GrpcClientSession::StreamHead head,
                       GrpcClientSession* session)
      : session_(session), head_(std::move(head)) {}
  ~GrpcClientStreamWire() override {
    if (call_ != nullptr) session_->StreamDrop(call_);
  }

  bool UseCompression(CompressionAlgorithm algorithm) override {
    head_.encoding = GrpcEncodingOf(algorithm);
    return !head_.encoding.empty();
  }
  bool Begin(RefPtr<StreamReceiver> receiver) override {
    call_ = session_->StreamBegin(head_, std::move(receiver));
    return call_ != nullptr;
  }
  bool SendMessage(OutboundBody&& body, bool last) override {
    return Send(std::move(body), /*compressed=*/false, last);
  }
  bool SendCompressed(Buffer&& body, bool last) override {
    return Send(std::move(body), /*compressed=*/true, last);
  }
  bool SendEnd(const flare::Status&) override {
    return session_->StreamSend(call_, Buffer(), /*last=*/true, &credit_);
  }
  void SendReset(const flare::Status&) override {
    if (call_ != nullptr) session_->StreamReset(call_);
  }
  void SendCredit(std::size_t bytes) override {
    session_->StreamCredit(call_, bytes);
  }
  bool has_credits() const override { return true; }
  bool may_be_unprocessed() const override { return true; }
  // The session sees to it that the peer keeps to its window.
  bool enforces_window() const override { return true; }
  std::size_t TakeCredit() override { return std::exchange(credit_, 0); }
  std::size_t message_cost() const override { return kGrpcPrefixSize; }
  void HoldInput() override {}
  void ReleaseInput() override {}

 private:
  bool Send(OutboundBody&& body, bool compressed, bool last) {
    std::optional<Buffer> message =
        MakeGrpcMessage(std::move(body), compressed);
    if (!message) {
      session_->StreamReset(call_);
      return false;
    }
    return session_->StreamSend(call_, *std::move(message), last, &credit_);
  }

  GrpcClientSession* const session_;
  GrpcClientSession::StreamHead head_;
  GrpcClientSession::Call* call_ = nullptr;
  std::size_t credit_ = 0;  // For its call, which calls one at a time.
};

class GrpcClientProtocol final : public ClientProtocol {
 public:
  GrpcClientProtocol(const Limits& limits, std::string_view host)
      : limits_(limits), host_(host) {}

  std::string_view name() const override { return "grpc"; }
  ProtocolTraits traits() const override {
    return {.metadata = true,
            .compression = true,
            .compressions = GrpcCompressions(),
            .attachment_compression = false,
            .translates_codes = true,
            .streams_share = true};
  }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  void SetOutput(StreamOutput* output) override {
    session_ = std::make_unique<GrpcClientSession>(limits_, host_, output);
  }

  // Nothing is left to be sent by the caller. [GC2]
  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    if (!request.attachment.empty()) {
      return flare::Status(STATUS_NOT_SUPPORTED, "grpc carries no attachments");
    }
    const bool compressed =
        IsCompressed(request.compression) && !request.body.empty();
    if (!AppendGrpcMessage(std::move(request.body), compressed, out)) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "the request is too large for a message");
    }
    Buffer message = out->DestructiveGet();
    const auto sent = session_->Send(request, &message, out);
    if (sent == GrpcClientSession::Sent::kYes) [[likely]]
      return {};
    message.Skip(kGrpcPrefixSize);
    request.body = OutboundBody(std::move(message));
    if (sent == GrpcClientSession::Sent::kBadMethod) {
      return BadMethodName(request.method);
    }
    return flare::Status(
        STATUS_FAIL_TO_CONNECT,
        "the server takes no further calls on this connection");
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    *need = 0;
    if (session_->TakeReply(response)) return CutResult::kMessage;
    if (failed_) {
      *error = error_;
      return CutResult::kError;
    }
    if (in.empty()) return CutResult::kNeedMore;
    // Replies that came before the end are handed out.
    failed_ = !session_->Read(in, need, &error_);
    if (session_->TakeReply(response)) return CutResult::kMessage;
    if (!failed_) {
      return in.empty() ? CutResult::kHandled : CutResult::kNeedMore;
    }
    *error = error_;
    return CutResult::kError;
  }
  // Cut() has done it all.
  ParseResult Parse(InboundResponse*) const override {
    return ParseResult::kOk;
  }

  bool Ping() override {
    session_->Ping();
    return true;
  }
  void Abandon(std::uint64_t correlation_id) override {
    session_->Abandon(correlation_id);
  }
  void SendDelayed() override { session_->SendDelayed(); }
  bool has_streams() const override { return true; }
  bool streams_can_share() const override { return true; }
  bool HasOpenStreams() const override { return session_->HasCalls(); }
  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput*) override {
    GrpcClientSession::StreamHead head;
    // A name that isn't a method's gets the answer to an unknown method.
    if (!GrpcPathOf(opening.method, &head.path)) head.path = "/";
    head.timeout_ms = opening.timeout_ms;
    if (opening.metadata != nullptr) head.metadata = *opening.metadata;
    return std::make_unique<GrpcClientStreamWire>(std::move(head),
                                                  session_.get());
  }
  void OnClosed(const flare::Status& why) override { session_->Close(why); }

 private:
  const Limits limits_;
  const std::string host_;
  std::unique_ptr<GrpcClientSession> session_;
  // The reader's.
  bool failed_ = false;
  std::string error_;
};

}  // namespace

std::unique_ptr<ClientProtocol> NewGrpcClientProtocol(const Limits& limits,
                                                      std::string_view host) {
  return std::make_unique<GrpcClientProtocol>(limits, host);
}

}  // namespace flare::rpc
