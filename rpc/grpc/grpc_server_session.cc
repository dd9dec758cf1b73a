#include "flare/rpc/grpc/grpc_server_session.h"

#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// Of a failure's text, in bytes.
constexpr std::size_t kMaxText = 4096;

}  // namespace

std::vector<Http2Field> GrpcFieldsOf(
    const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<Http2Field> fields;
  fields.reserve(entries.size());
  for (const auto& [name, value] : entries) fields.push_back({name, value});
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
  kept_.fetch_add(bytes - stream->kept, std::memory_order_relaxed);
  stream->kept = bytes;
}

void GrpcServerSession::Take(Stream* stream, Phase phase) {
  incomplete_.fetch_add(1, std::memory_order_relaxed);
  stream->phase = phase;
}

void GrpcServerSession::Leave(Stream* stream, Phase phase) {
  if (stream->phase == Phase::kUnary || stream->phase == Phase::kHttp ||
      stream->phase == Phase::kRefused) {
    incomplete_.fetch_sub(1, std::memory_order_relaxed);
  }
  SetKept(stream, 0);
  stream->phase = phase;
}

void GrpcServerSession::SendHead(Stream* stream,
                                 CompressionAlgorithm compression,
                                 const std::vector<Http2Field>& metadata) {
  stream->head_sent = true;
  std::vector<Http2Field> fields;
  fields.reserve(3 + metadata.size());
  fields.push_back({":status", "200"});
  fields.push_back({"content-type", GrpcContentTypeOf(*stream->format)});
  if (IsCompressed(compression)) {
    fields.push_back({"grpc-encoding", GrpcEncodingOf(compression)});
  }
  fields.insert(fields.end(), metadata.begin(), metadata.end());
  session_->SendHeaders(stream, fields, /*end=*/false);
}

void GrpcServerSession::SendStatus(Stream* stream, int status,
                                   std::string_view text,
                                   const std::vector<Http2Field>& metadata) {
  if (std::exchange(stream->status_sent, true)) return;
  const GrpcCode code = GrpcFromStatus(status);
  const std::string number = std::to_string(static_cast<int>(code));
  std::string exact;
  std::string message;
  std::vector<Http2Field> fields;
  fields.reserve(5 + metadata.size());
  if (!stream->head_sent) {
    fields.push_back({":status", "200"});
    fields.push_back({"content-type", GrpcContentTypeOf(stream->format.value_or(
                                          PayloadFormat::kProtobuf))});
  }
  fields.push_back({"grpc-status", number});
  if (code != GrpcCode::kOk) {
    message = EncodeGrpcMessage(text.substr(0, kMaxText));
    if (!message.empty()) fields.push_back({"grpc-message", message});
    if (IsLostInGrpc(status)) {
      exact = std::to_string(status);
      fields.push_back({kGrpcExactStatusField, exact});
    }
  }
  fields.insert(fields.end(), metadata.begin(), metadata.end());
  if (stream->head_sent) return session_->SendTrailers(stream, fields);
  stream->head_sent = true;
  session_->SendHeaders(stream, fields, /*end=*/true);
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
  if (Stream* const waiting = Find(id);
      waiting != nullptr && waiting->queued() != waiting->counted)
      [[unlikely]] {
    output_->CountHeld(waiting->counted, waiting->queued());
    waiting->counted = waiting->queued();
  }
  return sent;
}

void GrpcServerSession::Wake(Stream* stream) {
  if (stream->http == nullptr) return;
  if (ReplyTurnWaiter* const waiter =
          std::exchange(stream->http->waiter, nullptr)) {
    waiter->OnTurn();
  }
}

}  // namespace flare::rpc
