#include "flare/rpc/server/call_compression.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

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

// A message that grows by it, or fails, goes uncompressed.
void CompressUnasked(const ReplyCompression& how, OutboundResponse* response) {
  if (how.unasked_from == 0 || response->body.size() < how.unasked_from ||
      !IsCompressed(how.unasked)) {
    return;
  }
  Buffer body = std::move(response->body).ToBuffer();
  auto compressed = Compress(how.unasked, body);
  if (compressed && compressed->size() < body.size()) {
    response->compression = how.unasked;
    body = *std::move(compressed);
  }
  response->body = std::move(body);
}

}  // namespace

flare::Status DecompressRequest(const Limits& limits,
                                const ProtocolTraits& traits,
                                InboundRequest* request) {
  const RequestHead& head = request->head;
  const std::size_t max_size =
      traits.unpacked_within_packet
          ? std::min(limits.max_packet_size, limits.max_decompressed_size)
          : limits.max_decompressed_size;
  flare::Status status = DecompressInPlace(
      head.compression, max_size, "The request's body can't be decompressed",
      &request->body);
  if (!status.ok() || !head.attachment_compressed) return status;
  return DecompressInPlace(head.compression, max_size,
                           "The request's attachment can't be decompressed",
                           &request->attachment);
}

flare::Status CompressReply(const ServerProtocol& protocol,
                            const ReplyCompression& how,
                            OutboundResponse* response) {
  const ProtocolTraits traits = protocol.traits();
  if (!traits.attachments && !response->attachment.empty()) {
    DropAttachment(protocol.name(), response);
  }
  if (!IsCompressed(how.algorithm)) {
    CompressUnasked(how, response);
    return flare::Status();
  }
  const bool usable =
      how.acceptable[how.algorithm] && traits.Compresses(how.algorithm);
  if (how.attachment_precompressed && !response->attachment.empty() &&
      !(usable && traits.attachment_compression)) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         "The response's attachment is compressed in a way "
                         "that the caller can't read.");
  }
  if (!usable) return flare::Status();
  response->compression = how.algorithm;
  const auto compress = [&how](Buffer* bytes) {
    return CompressInPlace(how.algorithm, STATUS_SERIALIZE_RESPONSE,
                           "The response can't be compressed", bytes);
  };
  Buffer body = std::move(response->body).ToBuffer();
  flare::Status status = compress(&body);
  response->body = std::move(body);
  if (status.ok() && traits.attachment_compression &&
      !response->attachment.empty()) {
    response->attachment_compressed = true;
    if (!how.attachment_precompressed) {
      status = compress(&response->attachment);
    }
  }
  return status;
}

}  // namespace flare::rpc
