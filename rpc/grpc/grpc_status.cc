#include "flare/rpc/grpc/grpc_status.h"

#include <array>
#include <cstddef>

#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

namespace {

constexpr std::array<std::string_view, 17> kGrpcCodeNames{"OK",
                                                          "CANCELLED",
                                                          "UNKNOWN",
                                                          "INVALID_ARGUMENT",
                                                          "DEADLINE_EXCEEDED",
                                                          "NOT_FOUND",
                                                          "ALREADY_EXISTS",
                                                          "PERMISSION_DENIED",
                                                          "RESOURCE_EXHAUSTED",
                                                          "FAILED_PRECONDITION",
                                                          "ABORTED",
                                                          "OUT_OF_RANGE",
                                                          "UNIMPLEMENTED",
                                                          "INTERNAL",
                                                          "UNAVAILABLE",
                                                          "DATA_LOSS",
                                                          "UNAUTHENTICATED"};

static_assert(STATUS_PERMISSION_DENIED ==
              kGrpcStatusBase + static_cast<int>(GrpcCode::kPermissionDenied));
static_assert(STATUS_UNAUTHENTICATED ==
              kGrpcStatusBase + static_cast<int>(GrpcCode::kUnauthenticated));

bool IsGrpcCode(GrpcCode code) {
  return static_cast<std::size_t>(code) < kGrpcCodeNames.size();
}

}  // namespace

int StatusFromGrpc(GrpcCode code) {
  if (!IsGrpcCode(code)) return STATUS_FAILED;
  switch (code) {
    case GrpcCode::kOk:
      return STATUS_SUCCESS;
    case GrpcCode::kUnknown:
      return STATUS_FAILED;
    case GrpcCode::kDeadlineExceeded:
      return STATUS_TIMEOUT;
    case GrpcCode::kResourceExhausted:
      return STATUS_OVERLOADED;
    case GrpcCode::kUnimplemented:
      return STATUS_METHOD_NOT_FOUND;
    case GrpcCode::kUnavailable:
      return STATUS_OUT_OF_SERVICE;
    default:
      return kGrpcStatusBase + static_cast<int>(code);
  }
}

GrpcCode GrpcFromStatus(int status) {
  switch (status) {
    case STATUS_SUCCESS:
      return GrpcCode::kOk;
    case STATUS_TIMEOUT:
      return GrpcCode::kDeadlineExceeded;
    case STATUS_OVERLOADED:
      return GrpcCode::kResourceExhausted;
    case STATUS_INVALID_METHOD_NAME:
    case STATUS_SERVICE_NOT_FOUND:
    case STATUS_METHOD_NOT_FOUND:
    case STATUS_NOT_SUPPORTED:
      return GrpcCode::kUnimplemented;
    case STATUS_SERIALIZE_REQUEST:
    case STATUS_PARSE_REQUEST:
    case STATUS_SERIALIZE_RESPONSE:
    case STATUS_PARSE_RESPONSE:
    case STATUS_INVALID_TRANSFER_MODE:
    case STATUS_MALFORMED_DATA:
      return GrpcCode::kInternal;
    case STATUS_CHANNEL_SHUTDOWN:
    case STATUS_FAIL_TO_CONNECT:
    case STATUS_OUT_OF_SERVICE:
    case STATUS_GET_ROUTE:
    case STATUS_NO_PEER:
    case STATUS_GET_ROUTE_ALL_DISABLED:
    case STATUS_INVALID_CHANNEL:
    case STATUS_IO_ERROR:
      return GrpcCode::kUnavailable;
    default:
      break;
  }
  // Neither kOk, which would make a success of a failure.
  if (status > kGrpcStatusBase &&
      IsGrpcCode(static_cast<GrpcCode>(status - kGrpcStatusBase))) {
    return static_cast<GrpcCode>(status - kGrpcStatusBase);
  }
  return GrpcCode::kUnknown;
}

bool IsLostInGrpc(int status) {
  return StatusFromGrpc(GrpcFromStatus(status)) != status;
}

std::string_view GrpcCodeName(GrpcCode code) {
  return kGrpcCodeNames[static_cast<std::size_t>(
      IsGrpcCode(code) ? code : GrpcCode::kUnknown)];
}

GrpcCode GrpcFromHttpStatus(int http_status) {
  switch (http_status) {
    case 400:
      return GrpcCode::kInternal;
    case 401:
      return GrpcCode::kUnauthenticated;
    case 403:
      return GrpcCode::kPermissionDenied;
    case 404:
      return GrpcCode::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return GrpcCode::kUnavailable;
    default:
      return GrpcCode::kUnknown;
  }
}

GrpcCode GrpcFromHttp2Error(std::uint32_t error) {
  switch (error) {
    case 0x7:  // REFUSED_STREAM
      return GrpcCode::kUnavailable;
    case 0x8:  // CANCEL
      return GrpcCode::kCancelled;
    case 0xb:  // ENHANCE_YOUR_CALM
      return GrpcCode::kResourceExhausted;
    case 0xc:  // INADEQUATE_SECURITY
      return GrpcCode::kPermissionDenied;
    default:
      return GrpcCode::kInternal;
  }
}

}  // namespace flare::rpc
