// The messages of one streaming call to its client, by gRPC. Thread-safe as
// StreamWire says; nothing blocks.
#ifndef FLARE_RPC_GRPC_GRPC_SERVER_WIRE_H_
#define FLARE_RPC_GRPC_GRPC_SERVER_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_server_session.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class GrpcServerWire final : public StreamWire {
 public:
  GrpcServerWire(std::int32_t id, GrpcServerSession* session)
      : id_(id), session_(session) {}
  ~GrpcServerWire() override {
    RefPtr<StreamReceiver> dropped;
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr) {
      if (begun_) --session_->orphans_;  // [GS8]
      return;
    }
    stream->has_wire = false;
    dropped = std::move(stream->receiver);
    session_->Leave(stream, GrpcServerStream::Phase::kAnswered);
    if (!stream->status_sent) session_->Reset(stream, Http2Error::kCancel);
  }

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr || session_->closed_) return false;
    stream->receiver = std::move(receiver);
    stream->has_wire = begun_ = true;
    return true;
  }

  bool UseCompression(CompressionAlgorithm algorithm) override {
    ScopedLock guard(session_->lock_);
    const GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr || !stream->Accepts(algorithm)) return false;
    compression_ = algorithm;
    return true;
  }

  bool SendMessage(OutboundBody&& body, bool last) override {
    return Send(std::move(body), /*compressed=*/false, last);
  }
  bool SendCompressed(Buffer&& body, bool last) override {
    return Send(std::move(body), /*compressed=*/true, last);
  }

  bool SendEnd(const flare::Status& status) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr) return !session_->closed_;
    return SendEndLocked(stream, status);
  }

  void SendReset(const flare::Status& why) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr) return;
    if (stream->queued() == 0) {
      static_cast<void>(SendEndLocked(stream, why));
      return;
    }
    // The status would have to wait, too, perhaps for ever.
    session_->session_->SendReset(stream, Http2Error::kCancel);
    static_cast<void>(session_->FlushLocked());
  }

  void SendCredit(std::size_t bytes) override {
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    if (stream == nullptr || stream->ended) return;
    const std::size_t early = std::min(bytes, stream->advanced);
    stream->advanced -= early;
    bytes -= early;
    stream->ungranted -= std::min(bytes, stream->ungranted);
    session_->session_->Grant(stream, bytes);
    static_cast<void>(session_->FlushLocked());
  }
  bool has_credits() const override { return true; }
  // The session sees to it that the peer keeps to its window.
  bool enforces_window() const override { return true; }
  std::size_t message_cost() const override { return kGrpcPrefixSize; }
  std::size_t TakeCredit() override { return std::exchange(credit_, 0); }
  void HoldInput() override {}
  void ReleaseInput() override {}

  bool AddMetadata(MetadataPlace place, const Metadata& metadata) override {
    auto& entries = place == MetadataPlace::kInitial ? initial_ : trailing_;
    ForEachGrpcField(metadata,
                     [&](std::string_view name, std::string_view value) {
                       entries.emplace_back(name, value);
                     });
    return true;
  }

 private:
  bool Send(OutboundBody&& body, bool compressed, bool last) {
    std::optional<Buffer> message =
        MakeGrpcMessage(std::move(body), compressed);
    if (!message) {
      return SendEnd(flare::Status(STATUS_SERIALIZE_RESPONSE,
                                   "a message of the stream exceeds 4 GiB"));
    }
    ScopedLock guard(session_->lock_);
    GrpcServerStream* const stream = session_->Find(id_);
    // Its receiver learns of the reset.
    if (stream == nullptr || stream->status_sent) return !session_->closed_;
    SendHeadOnce(stream);
    session_->session_->SendData(stream, *std::move(message));
    if (last) End(stream, flare::Status());
    const bool sent = session_->FlushLocked();
    if (GrpcServerStream* const open = session_->Find(id_)) {
      session_->CountWaiting(open);
      credit_ += open->TakeCredit();
    }
    return sent;
  }

  bool SendEndLocked(GrpcServerStream* stream, const flare::Status& status)
      FLARE_REQUIRES(session_->lock_) {
    // A failure without messages has it all in its head.
    if (status.ok() || !initial_.empty()) SendHeadOnce(stream);
    End(stream, status);
    return session_->FlushLocked();
  }

  void SendHeadOnce(GrpcServerStream* stream) FLARE_REQUIRES(session_->lock_) {
    if (stream->head_sent) return;
    session_->SendHead(stream, compression_, GrpcFieldsOf(initial_));
  }
  void End(GrpcServerStream* stream, const flare::Status& status)
      FLARE_REQUIRES(session_->lock_) {
    session_->SendStatus(stream, status.code(), status.message(),
                         GrpcFieldsOf(trailing_));
  }

  const std::int32_t id_;
  GrpcServerSession* const session_;
  CompressionAlgorithm compression_ = CompressionAlgorithm::kNone;
  bool begun_ = false;      // Its stream is told.
  std::size_t credit_ = 0;  // For its call, which calls one at a time.
  std::vector<std::pair<std::string, std::string>> initial_;
  std::vector<std::pair<std::string, std::string>> trailing_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_SERVER_WIRE_H_
