// The messages of calls: parsed from bytes, and serialized.
#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/server_call.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// A request whose message can't take more isn't measured, and one that is
// measured and takes no more isn't counted.
constexpr std::size_t kLittleGrowth = 32 << 10;
constexpr std::size_t kLittleMessage = 8 << 10;

// As the published servers do: an addition of a service for some callers must
// not fail the calls of others.
void DropAttachment(std::string_view protocol, OutboundResponse* response) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a response's attachment of " << response->attachment.size()
                 << " bytes is left out: calls over " << protocol
                 << " can't have one, those over " << kCarriersOfAttachments
                 << " can" << LogThrottle::Note(*left_out);
  }
  response->attachment.Clear();
}

void NoteDroppedMetadata(std::size_t entries, const std::string& why) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a response is sent without its metadata, "
                 << CountOf(entries, "value") << ": " << why
                 << LogThrottle::Note(*left_out);
  }
}

}  // namespace

flare::Status ServerCall::ParseBody() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    const Limits& limits = connection_->state().protocols().limits();
    const std::size_t max_size =
        protocol_->traits().unpacked_within_packet
            ? std::min(limits.max_packet_size, limits.max_decompressed_size)
            : limits.max_decompressed_size;
    flare::Status status = DecompressInPlace(
        head.compression, max_size, "The request's body can't be decompressed",
        &request_->body);
    if (status.ok() && head.attachment_compressed) {
      status =
          DecompressInPlace(head.compression, max_size,
                            "The request's attachment can't be decompressed",
                            &request_->attachment);
    }
    if (!status.ok()) return status;
    controller_.request_compressed_ = true;
    decompressed_bytes_ = request_->body.size() + request_->attachment.size();
    connection_->state().unpacked()->Add(decompressed_bytes_);
  }
  if (!request_->attachment.empty()) {
    controller_.request_attachment_ = std::move(request_->attachment);
    controller_.has_bytes_ = true;
  }
  if (request_->metadata != nullptr) [[unlikely]] {
    controller_.ForMetadata().request = std::move(*request_->metadata);
  }
  controller_.acceptable_compressions_ = head.acceptable_compressions;

  messages_.Acquire(*method_);
  return ParseMessage(head.format, &request_->body);
}

// The request's message, of which no more than `body` is left to read.
flare::Status ServerCall::ParseMessage(PayloadFormat format, Buffer* body) {
  request_bytes_ = body->size();
  const std::size_t growth = request_bytes_ * method_->memory_per_parsed_byte;
  if (growth > kLittleGrowth) [[unlikely]]
    return ParseMuch(format, body, growth);
  flare::Status status = ParsePayload(format, *body, messages_.request());
  body->Clear();
  return status;
}

// A request that is parsed may take many times the bytes that it came in: it is
// counted as it is then. `growth`: an upper bound of that. Kept out of line:
// for few calls.
[[gnu::noinline]] flare::Status ServerCall::ParseMuch(PayloadFormat format,
                                                      Buffer* body,
                                                      std::size_t growth) {
  ServerState& state = connection_->state();
  std::unique_lock alone(state.large_parse(), std::defer_lock);
  if (!state.HasRoomFor(growth)) {
    if (controller_.deadline_ns_ == 0) {
      alone.lock();
    } else {
      static_cast<void>(
          alone.try_lock_until(ToTimePoint(controller_.deadline_ns_)));
    }
    // Requests of those who have left would only hold up the others.
    if (!alone.owns_lock() ||
        connection_->leavers() == CallConnection::Leavers::kAll) {
      body->Clear();
      return flare::Status(OverloadedCode(), kOverloadedText);
    }
  }
  flare::Status status = ParsePayload(format, *body, messages_.request());
  body->Clear();
  const std::size_t bytes = messages_.request()->SpaceUsedLong() +
                            controller_.request_attachment_.size();
  if (bytes <= kLittleMessage && held_bytes_ == 0) return status;
  CountHeld(bytes);
  // The next call gets another message.
  request_bytes_ = std::max(request_bytes_, kMaxKeptBytes + 1);
  if (status.ok() && connection_->IsGreedy()) {
    return flare::Status(OverloadedCode(), kOverloadedText);
  }
  return status;
}

// A reply that has to wait is more to hold.
void ServerCall::CountReply() {
  std::size_t bytes = 0;
  if (messages_.response() != nullptr) {
    bytes += messages_.response()->ByteSizeLong();
  }
  if (controller_.has_bytes_) {
    bytes += controller_.response_attachment_.size();
    bytes += controller_.raw_bytes_.size();
  }
  CountReply(bytes);
}

void ServerCall::CountReply(std::size_t bytes) {
  if (bytes > kMaxKeptBytes) CountHeld(held_bytes_ + bytes);
}

flare::Status ServerCall::FillResponse(OutboundResponse* response) {
  if (controller_.has_bytes_ && controller_.has_raw_bytes_) {
    response->body = std::move(controller_.raw_bytes_);
  } else {
    flare::Status status =
        SerializePayload(format_, *messages_.response(), &response->body);
    if (status.ok()) {
      response_bytes_ = response->body.size();
    } else if (!controller_.Failed()) {
      return status;  // Nobody expects a message from a failed call.
    }
  }
  if (controller_.has_bytes_) {
    response->attachment = std::move(controller_.response_attachment_);
    if (controller_.metadata_ != nullptr) TakeMetadata(response);
  }
  if (response->attachment.empty() && !IsCompressed(controller_.compression_) &&
      unasked_compression_ == CompressionAlgorithm::kNone) [[likely]] {
    return flare::Status();
  }
  return FitToCaller(response);
}

void ServerCall::TakeMetadata(OutboundResponse* response) {
  Metadata& metadata = controller_.metadata_->response;
  if (const Metadata& trailing = controller_.metadata_->trailing;
      !trailing.empty()) {
    // The caller's limits are those of both together.
    if (protocol_->HasTrailers(ticket()) && !controller_.Failed() &&
        metadata.size() + trailing.size() <= Metadata::kMaxEntries &&
        metadata.byte_size() + trailing.byte_size() <= Metadata::kMaxBytes) {
      response->trailers = &trailing;
    } else {
      JoinTrailers();
    }
  }
  if (metadata.empty()) return;
  if (protocol_->traits().metadata) {
    response->metadata = &metadata;
  } else {
    NoteDroppedMetadata(metadata.size(),
                        std::string(protocol_->name()) + " doesn't carry any");
  }
}

// Where there is one place for all metadata. Entries beyond the limits are
// dropped.
void ServerCall::JoinTrailers() {
  RpcServerController::CallMetadata& all = *controller_.metadata_;
  if (all.trailing.empty()) return;
  std::size_t dropped = 0;
  for (const auto [name, value] : all.trailing) {
    if (!all.response.Add(name, value).ok()) ++dropped;
  }
  all.trailing.Clear();
  if (dropped != 0) {
    NoteDroppedMetadata(dropped, "with its trailers it exceeds the limits");
  }
}

// Compresses for a caller that takes it, where it is worth it, though the
// service doesn't ask for it. A message that grows by it, or fails, goes
// uncompressed. Kept out of line: for few calls.
[[gnu::noinline]] void ServerCall::CompressForCaller(
    OutboundResponse* response) const {
  const std::size_t from =
      connection_->state().protocols().limits().compress_unasked_from;
  if (from == 0 || response->body.size() < from || controller_.Failed() ||
      !IsCompressed(unasked_compression_)) {
    return;
  }
  Buffer body = std::move(response->body).ToBuffer();
  auto compressed = Compress(unasked_compression_, body);
  if (compressed && compressed->size() < body.size()) {
    response->compression = unasked_compression_;
    body = *std::move(compressed);
  }
  response->body = std::move(body);
}

// Leaves out or refuses the parts that the protocol or the caller can't have;
// compresses the rest as the service wants it. Kept out of line: for few calls.
[[gnu::noinline]] flare::Status ServerCall::FitToCaller(
    OutboundResponse* response) {
  const ProtocolTraits traits = protocol_->traits();
  if (!traits.attachments && !response->attachment.empty()) {
    DropAttachment(protocol_->name(), response);
  }
  const CompressionAlgorithm algorithm = controller_.compression_;
  if (!IsCompressed(algorithm)) {
    CompressForCaller(response);
    return flare::Status();
  }
  const bool acceptable =
      controller_.GetAcceptableCompressionAlgorithms()[algorithm];
  const bool usable = acceptable && traits.Compresses(algorithm);
  if (controller_.attachment_precompressed_ && !response->attachment.empty() &&
      !(usable && traits.attachment_compression)) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         "The response's attachment is compressed in a way "
                         "that the caller can't read.");
  }
  if (!usable) return flare::Status();
  response->compression = algorithm;
  const auto compress = [algorithm](Buffer* bytes) {
    return CompressInPlace(algorithm, STATUS_SERIALIZE_RESPONSE,
                           "The response can't be compressed", bytes);
  };
  Buffer body = std::move(response->body).ToBuffer();
  flare::Status status = compress(&body);
  response->body = std::move(body);
  if (status.ok() && traits.attachment_compression &&
      !response->attachment.empty()) {
    response->attachment_compressed = true;
    if (!controller_.attachment_precompressed_) {
      status = compress(&response->attachment);
    }
  }
  return status;
}

void ServerCall::ReleaseMessages() {
  const google::protobuf::Message* const response = messages_.response();
  if (response == nullptr) return;
  // It was not serialized if the call failed or answered with bytes.
  messages_.Release(request_bytes_, response_bytes_ != kUnknown
                                        ? response_bytes_
                                        : response->ByteSizeLong());
  response_bytes_ = kUnknown;
}

}  // namespace flare::rpc
