#include "flare/rpc/grpc/grpc_server_session.h"

#include <array>
#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http2/field_text.h"
#include "flare/rpc/http2/http1_text.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// The limit of a failure's text, in bytes.
constexpr std::size_t kMaxText = 4096;

}  // namespace

std::vector<Http2Field> GrpcFieldsOf(
    const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<Http2Field> fields;
  fields.reserve(entries.size());
  for (const auto& [name, value] : entries) {
    fields.push_back(
        {name, value,
         IsSecretField(name) ? HpackIndexing::kNever : HpackIndexing::kOmit});
  }
  return fields;
}

GrpcServerSession::~GrpcServerSession() {
  ScopedLock guard(lock_);
  session_.reset();
  while (!streams_.empty()) delete streams_.PopFront();
}

std::vector<RefPtr<StreamReceiver>> GrpcServerSession::Receivers() const {
  std::vector<RefPtr<StreamReceiver>> receivers;
  for (const Stream& stream : streams_) {
    if (stream.receiver != nullptr) receivers.push_back(stream.receiver);
  }
  return receivers;
}

void GrpcServerSession::SetKept(Stream* stream, std::size_t bytes) {
  const std::size_t before = std::exchange(stream->kept, bytes);
  // A streaming call's are counted with its stream: see CountWaiting().
  if (bytes == before || stream->phase == Phase::kStreaming) return;
  // relaxed, both: writers have lock_, and readers want a hint.
  kept_.store(kept_.load(std::memory_order_relaxed) + bytes - before,
              std::memory_order_relaxed);
}

void GrpcServerSession::Take(Stream* stream, Phase phase) {
  // relaxed: as in SetKept().
  incomplete_.store(incomplete_.load(std::memory_order_relaxed) + 1,
                    std::memory_order_relaxed);
  stream->round = round_;
  stream->phase = phase;
}

void GrpcServerSession::Leave(Stream* stream, Phase phase) {
  if (stream->phase == Phase::kUnary || stream->phase == Phase::kHttp ||
      stream->phase == Phase::kRefused) {
    // relaxed: as in SetKept().
    incomplete_.store(incomplete_.load(std::memory_order_relaxed) - 1,
                      std::memory_order_relaxed);
    if (stream->round != round_) --earlier_;
  }
  // The stream may last long: until the client takes what waits to be sent.
  stream->messages.Clear();
  SetKept(stream, 0);
  if (stream->counted != 0) [[unlikely]]
    CountWaiting(stream);
  stream->phase = phase;
}

void GrpcServerSession::SendHead(Stream* stream,
                                 CompressionAlgorithm compression,
                                 const std::vector<Http2Field>& metadata) {
  stream->head_sent = true;
  const std::array<Http2Field, 3> fields = {{
      {":status", "200"},
      {"content-type", GrpcContentTypeOf(*stream->head.format)},
      {"grpc-encoding", GrpcEncodingOf(compression)},
  }};
  session_->SendHeaders(
      stream,
      Join(std::span(fields).first(IsCompressed(compression) ? 3 : 2),
           metadata),
      /*end=*/false);
}

void GrpcServerSession::SendStatus(Stream* stream, int status,
                                   std::string_view text,
                                   const std::vector<Http2Field>& metadata) {
  if (std::exchange(stream->status_sent, true)) return;
  const GrpcCode code = GrpcFromStatus(status);
  std::array<Http2Field, 5> fields;
  std::size_t count = 0;
  if (!stream->head_sent) {
    fields[count++] = {":status", "200"};
    fields[count++] = {"content-type",
                       GrpcContentTypeOf(stream->head.format.value_or(
                           PayloadFormat::kProtobuf))};
  }
  std::string number;
  std::string exact;
  std::string message;
  if (code == GrpcCode::kOk) [[likely]] {
    fields[count++] = {"grpc-status", "0"};
  } else {
    number = std::to_string(static_cast<int>(code));
    fields[count++] = {"grpc-status", number};
    message = EncodeGrpcMessage(text.substr(0, kMaxText));
    if (!message.empty()) {
      fields[count++] = {"grpc-message", message, HpackIndexing::kOmit};
    }
    if (IsLostInGrpc(status)) {
      exact = std::to_string(status);
      fields[count++] = {kGrpcExactStatusField, exact};
    }
  }
  const auto joined = Join(std::span(fields).first(count), metadata);
  if (stream->head_sent) return session_->SendTrailers(stream, joined);
  stream->head_sent = true;
  session_->SendHeaders(stream, joined, /*end=*/true);
}

void GrpcServerSession::SendHttp(Stream* stream, Buffer&& http1) {
  Http2Reply reply(std::move(http1));
  stream->head_sent = true;
  stream->status_sent = true;
  const bool whole = reply.body.empty();
  session_->SendHeaders(stream, reply.fields(), whole);
  if (whole) return;
  session_->SendData(stream, std::move(reply.body));
  session_->SendEnd(stream);
}

std::span<const Http2Field> GrpcServerSession::Join(
    std::span<const Http2Field> fields,
    const std::vector<Http2Field>& metadata) {
  if (metadata.empty()) [[likely]]
    return fields;
  joined_.assign(fields.begin(), fields.end());
  joined_.insert(joined_.end(), metadata.begin(), metadata.end());
  return joined_;
}

bool GrpcServerSession::FlushLocked() {
  Buffer out = session_->Flush();
  if (session_->failed()) [[unlikely]] {
    output_->Abort(flare::Status::Lenient(STATUS_IO_ERROR, session_->error()));
    return false;
  }
  return out.empty() ? !closed_ : output_->WriteSoon(std::move(out));
}

bool GrpcServerSession::FlushReply(std::int32_t id) {
  Buffer out = session_->Flush();
  if (session_->failed()) [[unlikely]]
    return FlushLocked();  // Closes the connection.
  const bool sent = out.empty() ? !closed_ : output_->Write(std::move(out));
  // The peer's windows are full. Its streams bound how many replies wait.
  if (Stream* const waiting = Find(id)) CountWaiting(waiting);
  return sent;
}

void GrpcServerSession::Reset(Stream* stream, Http2Error error) noexcept {
  try {
    session_->SendReset(stream, error);
    static_cast<void>(FlushLocked());
  } catch (const std::bad_alloc&) {
    output_->Abort(flare::Status(STATUS_IO_ERROR));
  }
}

void GrpcServerSession::Wake(Stream* stream) {
  if (stream->http == nullptr) return;
  if (ReplyTurnWaiter* const waiter =
          std::exchange(stream->http->waiter, nullptr)) {
    waiter->OnTurn();
  }
}

}  // namespace flare::rpc
