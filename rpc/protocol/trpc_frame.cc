#include "flare/rpc/protocol/trpc_frame.h"

#include "flare/rpc/protocol/framing.h"
#include "flare/rpc/protocol/trpc_meta.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

namespace {

constexpr std::uint64_t Bit(CompressionAlgorithm algorithm) {
  return std::uint64_t{1} << static_cast<int>(algorithm);
}

bool IsServicesOwn(int status) {
  return status > STATUS_RESERVED_MAX || status == STATUS_FAILED ||
         status == STATUS_FROM_USER;
}

}  // namespace

constexpr ProtocolTraits kTrpcTraits{
    .attachments = true,
    .compression = true,
    .multiplexed = true,
    .compressions = Bit(CompressionAlgorithm::kNone) |
                    Bit(CompressionAlgorithm::kGzip) |
                    Bit(CompressionAlgorithm::kSnappy) |
                    Bit(CompressionAlgorithm::kLz4Frame),
    .attachment_compression = false};

void TrpcFrame::Read(const char* header) {
  type = static_cast<std::uint8_t>(header[2]);
  stream_type = static_cast<std::uint8_t>(header[3]);
  size = ReadBigEndian32(header + 4);
  meta_size = static_cast<std::uint8_t>(header[8]) * 256u +
              static_cast<std::uint8_t>(header[9]);
  stream_id = ReadBigEndian32(header + 10);
}

std::string TrpcFrame::Check() const {
  if (type != kUnary && type != kStream) {
    return "unknown kind of frame " + std::to_string(type);
  }
  if (size >= head_size()) return std::string();
  return "a frame of " + std::to_string(size) + " bytes with a head of " +
         std::to_string(head_size());
}

char* PutTrpcHeader(const TrpcFrame& frame, char* out) {
  for (char c : TrpcFrame::kMagic) *out++ = c;
  *out++ = static_cast<char>(frame.type);
  *out++ = static_cast<char>(frame.stream_type);
  out = PutBigEndian32(frame.size, out);
  *out++ = static_cast<char>(frame.meta_size >> 8);
  *out++ = static_cast<char>(frame.meta_size);
  out = PutBigEndian32(frame.stream_id, out);
  *out++ = 0;
  *out++ = 0;
  return out;
}

bool TooLargeForTrpc(const Buffer& body, const Buffer& attachment) {
  return body.size() + attachment.size() > std::size_t{2'000'000'000};
}

std::optional<CompressionAlgorithm> CompressionFromTrpc(std::uint32_t number) {
  switch (number) {
    case 0:
      return CompressionAlgorithm::kNone;
    case kTrpcGzip:
      return CompressionAlgorithm::kGzip;
    case kTrpcSnappyOld:
    case kTrpcSnappyBlock:
      return CompressionAlgorithm::kSnappy;
    case kTrpcLz4Frame:
      return CompressionAlgorithm::kLz4Frame;
    default:
      return std::nullopt;
  }
}

std::uint32_t CompressionToTrpc(CompressionAlgorithm algorithm,
                                const Buffer& body) {
  if (body.empty()) return 0;
  switch (algorithm) {
    case CompressionAlgorithm::kGzip:
      return kTrpcGzip;
    case CompressionAlgorithm::kSnappy:
      return kTrpcSnappyBlock;
    case CompressionAlgorithm::kLz4Frame:
      return kTrpcLz4Frame;
    default:
      return 0;
  }
}

std::optional<PayloadFormat> FormatFromTrpc(std::uint32_t content_type) {
  if (content_type == kTrpcProtobuf) return PayloadFormat::kProtobuf;
  if (content_type == kTrpcJson) return PayloadFormat::kProto3Json;
  return std::nullopt;
}

std::uint32_t FormatToTrpc(PayloadFormat format) {
  return format == PayloadFormat::kProto3Json ? kTrpcJson : kTrpcProtobuf;
}

TrpcCodes StatusToTrpc(int status) {
  if (IsServicesOwn(status)) return {.ret = 0, .func_ret = status};
  switch (status) {
    case STATUS_SUCCESS:
      return {};
    case STATUS_MALFORMED_DATA:
    case STATUS_PARSE_REQUEST:
      return {.ret = kTrpcDecodeError};
    case STATUS_SERIALIZE_RESPONSE:
      return {.ret = kTrpcEncodeError};
    case STATUS_SERVICE_NOT_FOUND:
      return {.ret = kTrpcNoService};
    case STATUS_METHOD_NOT_FOUND:
      return {.ret = kTrpcNoMethod};
    case STATUS_TIMEOUT:
      return {.ret = kTrpcTimeout};
    case STATUS_OVERLOADED:
      return {.ret = kTrpcOverloaded};
    default:
      return {.ret = kTrpcSystemError};
  }
}

int StatusFromTrpc(TrpcCodes codes) {
  switch (codes.ret) {
    case 0:
      break;
    case kTrpcDecodeError:
      return STATUS_MALFORMED_DATA;
    case kTrpcEncodeError:
      return STATUS_SERIALIZE_RESPONSE;
    case kTrpcNoService:
      return STATUS_SERVICE_NOT_FOUND;
    case kTrpcNoMethod:
      return STATUS_METHOD_NOT_FOUND;
    case kTrpcTimeout:
    case kTrpcBudgetSpent:
      return STATUS_TIMEOUT;
    case kTrpcOverloaded:
    case kTrpcRateLimited:
      return STATUS_OVERLOADED;
    default:
      return STATUS_FAILED;
  }
  if (codes.func_ret == 0 || IsServicesOwn(codes.func_ret)) {
    return codes.func_ret;
  }
  return STATUS_FROM_USER;
}

}  // namespace flare::rpc
