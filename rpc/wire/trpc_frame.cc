#include "flare/rpc/wire/trpc_frame.h"

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/trpc_meta.h"

namespace flare::rpc {

namespace {

// STATUS_FAILED, too: a service fails with it that doesn't say why.
bool IsServicesOwn(int status) {
  return IsFromService(status) || status == STATUS_FAILED;
}

}  // namespace

CutResult TrpcFrame::Read(std::string_view bytes, std::size_t* need,
                          std::string* error) {
  const CutResult result = MatchHeader(bytes, kMagic, kHeaderSize, need);
  if (result != CutResult::kMessage) return result;
  type = static_cast<std::uint8_t>(bytes[2]);
  stream_type = static_cast<std::uint8_t>(bytes[3]);
  size = ReadBigEndian32(bytes.data() + 4);
  meta_size = ReadBigEndian16(bytes.data() + 8);
  stream_id = ReadBigEndian32(bytes.data() + 10);
  version = static_cast<std::uint8_t>(bytes[14]);
  if (type != kUnary && type != kStream) {
    *error = "unknown kind of frame " + std::to_string(type);
    return CutResult::kError;
  }
  if (size < kept_size()) {
    *error = "a frame of " + std::to_string(size) + " bytes with a head of " +
             std::to_string(kept_size());
    return CutResult::kError;
  }
  return CutResult::kMessage;
}

char* PutTrpcHeader(const TrpcFrame& frame, char* out) {
  for (char c : TrpcFrame::kMagic) *out++ = c;
  *out++ = static_cast<char>(frame.type);
  *out++ = static_cast<char>(frame.stream_type);
  out = PutBigEndian32(frame.size, out);
  out = PutBigEndian16(frame.meta_size, out);
  out = PutBigEndian32(frame.stream_id, out);
  *out++ = static_cast<char>(frame.version);
  *out++ = 0;
  return out;
}

TrpcCodes StatusToTrpc(int status, FailureDetail detail) {
  if (detail == FailureDetail::kExpired) return {.ret = kTrpcBudgetSpent};
  if (detail == FailureDetail::kNoService) return {.ret = kTrpcNoService};
  // Callers try another server then.
  if (detail == FailureDetail::kStopping) return {.ret = kTrpcOverloaded};
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
