// The messages of calls: serialized to bytes, and parsed. client_call.cc has
// the rules of access.
#include <google/protobuf/message.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// Milliseconds until the deadline, as sent to the server: the time left now,
// instead of the controller's. Rounded up, for 0 means no limit.
std::uint32_t WireTimeout(std::int64_t deadline_ns, std::int64_t now_ns) {
  const std::int64_t left = (deadline_ns - now_ns - 1) / kNsPerMs + 1;
  constexpr auto kMax = std::numeric_limits<std::uint32_t>::max();
  return left >= kMax ? kMax : static_cast<std::uint32_t>(left < 1 ? 1 : left);
}

void NoteUncompressed(CompressionAlgorithm algorithm,
                      const std::string& protocol) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a request isn't compressed: protocol " << protocol
                 << " doesn't have " << ToString(algorithm)
                 << LogThrottle::Note(*left_out);
  }
}

}  // namespace

// Fills in body_ and attachment_. With raw bytes `request` may be null.
flare::Status ClientCall::Serialize(const google::protobuf::Message* request) {
  if (controller_->has_request_raw_bytes_) {
    body_ = controller_->GetRequestRawBytes();
  } else {
    const flare::Status status = SerializePayload(format_, *request, &body_);
    if (!status.ok()) {
      return flare::Status(STATUS_SERIALIZE_REQUEST, status.message());
    }
    // The caller's message is there until the first attempt has been sent.
    if (attempts_left_ > 1) body_ = std::move(body_).ToBuffer();
  }
  if (controller_->bytes_ != nullptr) [[unlikely]] {
    flare::Status status = CheckMetadata();
    if (!status.ok()) return status;
  }
  if (controller_->bytes_ != nullptr &&
      !controller_->GetRequestAttachment().empty()) {
    if (!route_->traits().attachments) {
      return flare::Status(STATUS_NOT_SUPPORTED,
                           route_->protocol() + " doesn't carry attachments; " +
                               std::string(kCarriersOfAttachments) + " do");
    }
    attachment_ = controller_->GetRequestAttachment();
  }
  set_compression(CompressionAlgorithm::kNone);
  attachment_compressed_ = false;
  if (!IsCompressed(controller_->compression_)) return {};
  if (route_->traits().Compresses(controller_->compression_)) {
    return CompressParts();
  }
  NoteUncompressed(controller_->compression_, route_->protocol());
  return {};
}

flare::Status ClientCall::CheckMetadata() const {
  const RpcClientController::Bytes& bytes = *controller_->bytes_;
  if (!bytes.metadata_error.empty()) {
    return flare::Status(STATUS_NOT_SUPPORTED, bytes.metadata_error);
  }
  if (!bytes.request_metadata.empty() && !route_->traits().metadata) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         route_->protocol() + " doesn't carry metadata");
  }
  return {};
}

flare::Status ClientCall::CompressParts() {
  set_compression(controller_->compression_);
  const bool both = route_->traits().attachment_compression;
  Buffer body = std::move(body_).ToBuffer();
  for (Buffer* part : {&body, &attachment_}) {
    if (part == &attachment_ && !both) continue;
    flare::Status status =
        CompressInPlace(compression(), STATUS_SERIALIZE_REQUEST,
                        "can't compress the request", part);
    if (!status.ok()) return status;
  }
  body_ = std::move(body);
  attachment_compressed_ = both && !attachment_.empty();
  return {};
}

// For each attempt, as the credential may have been renewed.
flare::Status ClientCall::AddCredentials() {
  if (!route_->traits().metadata) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         route_->protocol() + " doesn't carry metadata");
  }
  RpcClientController::Bytes& bytes = controller_->ForBytes();
  bytes.sent_metadata = bytes.request_metadata;
  return route_->credentials()->AddTo(&bytes.sent_metadata);
}

flare::Status ClientCall::WriteRequest(std::int64_t now_ns) {
  OutboundRequest request;
  request.correlation_id = id_;
  request.method = method_->full_name();
  request.timeout_ms = WireTimeout(deadline_ns_, now_ns);
  request.compression = compression();
  request.attachment_compressed = attachment_compressed_;
  if (controller_->bytes_ != nullptr &&
      !controller_->bytes_->request_metadata.empty()) [[unlikely]] {
    request.metadata = &controller_->bytes_->request_metadata;
  }
  if (route_->credentials() != nullptr) [[unlikely]] {
    if (flare::Status added = AddCredentials(); !added.ok()) return added;
    request.metadata = &controller_->bytes_->sent_metadata;
  }
  if (attempts_left_ > 0 || kept_) {
    request.body = body_;
    request.attachment = attachment_;
  } else {
    request.body = std::move(body_);
    request.attachment = std::move(attachment_);
    parts_sent_ = true;
  }
  BufferBuilder builder;
  flare::Status status =
      connection_->protocol().Write(std::move(request), &builder);
  if (!status.ok()) [[unlikely]] {
    if (status.code() == STATUS_FAIL_TO_CONNECT) TakeBack(&request);
    return status;
  }
  controller_->sent_ns_ = now_ns;
  return Send(builder.DestructiveGet());
}

// The server takes no further calls on this connection, and of this one it
// knows nothing: another connection gets it.
void ClientCall::TakeBack(OutboundRequest* request) {
  if (parts_sent_) {
    body_ = std::move(request->body);
    attachment_ = std::move(request->attachment);
    parts_sent_ = false;
  }
  if (!route_kept_) KeepRoute();
  turned_away_ = true;
  connection_->Retire();
}

flare::Status ClientCall::ReadReply() {
  controller_->received_ns_ = received_ns_;
  if (inbound_->metadata != nullptr) [[unlikely]] {
    controller_->ForBytes().response_metadata = std::move(inbound_->metadata);
  }
  if (inbound_->status != STATUS_SUCCESS) return ReadFailure();
  flare::Status status = ReadAttachment();
  if (status.ok()) status = ReadBody();
  if (!status.ok()) {
    unreadable_ = true;
    // Nothing is left of a reply that can't be read in full.
    if (!controller_->accept_raw_response_) response_->Clear();
    if (controller_->bytes_ != nullptr) {
      controller_->bytes_->response_attachment.Clear();
    }
  }
  return status;
}

// Unreadable metadata of a failure is left out: that says less than the failure
// itself.
flare::Status ClientCall::ReadFailure() {
  const InboundResponse& reply = *inbound_;
  unreadable_ = reply.unreadable;
  oversized_ = reply.oversized;
  unprocessed_ = reply.unprocessed;
  if (connection_->protocol().traits().failures_have_messages) {
    if (!reply.attachment.empty()) (void)ReadAttachment();
    if (!reply.body.empty()) (void)ReadBody();
  }
  return flare::Status(reply.status, std::string(reply.description));
}

flare::Status ClientCall::DecompressPart(CompressionAlgorithm algorithm,
                                         Buffer* part) {
  if (algorithm == CompressionAlgorithm::kNone || part->empty()) return {};
  auto bytes = Decompress(algorithm, *part,
                          connection_->settings().max_decompressed_size);
  if (!bytes) {
    oversized_ = bytes.error().code() == EMSGSIZE;
    return flare::Status(
        STATUS_MALFORMED_DATA,
        "the reply can't be decompressed: " + bytes.error().message());
  }
  *part = *std::move(bytes);
  return {};
}

flare::Status ClientCall::ReadAttachment() {
  InboundResponse& reply = *inbound_;
  if (reply.attachment_compressed) {
    flare::Status status = DecompressPart(reply.compression, &reply.attachment);
    if (!status.ok()) return status;
  }
  if (!reply.attachment.empty()) {
    controller_->ForBytes().response_attachment = std::move(reply.attachment);
  }
  return {};
}

// If it can't be read the response is empty.
flare::Status ClientCall::ReadBody() {
  InboundResponse& reply = *inbound_;
  if (controller_->accept_raw_response_) {
    controller_->ForBytes().response_raw_bytes = std::move(reply.body);
    return {};
  }
  flare::Status status = DecompressPart(reply.compression, &reply.body);
  if (status.ok()) {
    status = ParsePayload(format_, reply.body, response_);
    if (!status.ok()) oversized_ = false;
  }
  if (!status.ok()) response_->Clear();
  controller_->parsed_ns_ = NowNs();
  return status;
}

}  // namespace flare::rpc
