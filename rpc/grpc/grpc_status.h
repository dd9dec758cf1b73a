// gRPC's status codes, and how they map to ours (rpc_status.h). The tables are
// in docs/grpc.md.
//
// A service answers with a code that only gRPC has by
//
//   controller->SetFailed(rpc::StatusFromGrpc(rpc::GrpcCode::kNotFound),
//                         "no such key");
//
// and a caller recognises it by
//
//   if (controller.ErrorCode() ==
//       rpc::StatusFromGrpc(rpc::GrpcCode::kNotFound)) ...
//
// Such codes lie above STATUS_RESERVED_MAX, as a service's own do, and every
// protocol carries them. All functions are pure, thread-safe and never block.
#ifndef FLARE_RPC_GRPC_GRPC_STATUS_H_
#define FLARE_RPC_GRPC_GRPC_STATUS_H_

#include <cstdint>
#include <string_view>

namespace flare::rpc {

enum class GrpcCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// The code n that only gRPC has is the status kGrpcStatusBase + n.
inline constexpr int kGrpcStatusBase = 1'000'000;

// Our status for gRPC's code. An unknown code counts as GrpcCode::kUnknown.
int StatusFromGrpc(GrpcCode code);

// gRPC's code for our status. A service's own status is GrpcCode::kUnknown.
GrpcCode GrpcFromStatus(int status);

// Whether StatusFromGrpc(GrpcFromStatus(status)) is another status, so that our
// peers are told `status` beside gRPC's code.
bool IsLostInGrpc(int status);

// "NOT_FOUND" for GrpcCode::kNotFound; "UNKNOWN" for an unknown code.
std::string_view GrpcCodeName(GrpcCode code);

// The meaning of a response without grpc-status, by its HTTP status.
GrpcCode GrpcFromHttpStatus(int http_status);

// The meaning of a stream that the peer has reset, by the error code of HTTP/2.
GrpcCode GrpcFromHttp2Error(std::uint32_t error);

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_STATUS_H_
