// The status codes of a call, as they are on the wire and as
// `flare::Status::code()` / `RpcClientController::ErrorCode()` return them.
//
//   if (controller.ErrorCode() == flare::rpc::STATUS_OVERLOADED) { ... }
//
// Codes up to STATUS_RESERVED_MAX belong to the framework, larger ones to the
// user. All functions here are pure, thread-safe and never block.
#ifndef FLARE_RPC_RPC_STATUS_H_
#define FLARE_RPC_RPC_STATUS_H_

#include <string_view>

namespace flare::rpc {

// Note that `flare::Status` (code and text) is another type.
enum Status : int {
  STATUS_SUCCESS = 0,
  STATUS_CHANNEL_SHUTDOWN = 1,
  STATUS_FAIL_TO_CONNECT = 2,
  STATUS_TIMEOUT = 3,
  STATUS_SERIALIZE_REQUEST = 4,
  STATUS_PARSE_REQUEST = 5,
  STATUS_SERIALIZE_RESPONSE = 6,
  STATUS_PARSE_RESPONSE = 7,
  STATUS_INVALID_METHOD_NAME = 8,
  STATUS_SERVICE_NOT_FOUND = 9,
  STATUS_METHOD_NOT_FOUND = 10,
  STATUS_OVERLOADED = 11,
  STATUS_INVALID_TRANSFER_MODE = 12,
  STATUS_FROM_USER_FEEDBACK = 13,
  STATUS_OUT_OF_SERVICE = 14,
  STATUS_GET_ROUTE = 15,
  STATUS_NO_PEER = 16,
  STATUS_GET_ROUTE_ALL_DISABLED = 17,
  STATUS_FAILED = 99,  // the service failed without saying why
  STATUS_FROM_USER = 100,
  STATUS_NOT_SUPPORTED = 101,
  STATUS_MALFORMED_DATA = 102,
  STATUS_INVALID_CHANNEL = 103,
  STATUS_IO_ERROR = 104,
  STATUS_RESERVED_MAX = 1000,
  // Calls that their caller may not make, and calls whose caller hasn't shown
  // good credentials (access_control.h). As codes of a service they are final:
  // no other server is tried. They are gRPC's 7 and 16 (StatusFromGrpc()).
  STATUS_PERMISSION_DENIED = 1'000'007,
  STATUS_UNAUTHENTICATED = 1'000'016,
};

// Whether a service itself has failed a call that has this code. Services of
// other frameworks may use negative ones.
constexpr bool IsFromService(int code) {
  return code > STATUS_RESERVED_MAX || code < 0 || code == STATUS_FROM_USER;
}

// "STATUS_TIMEOUT" for 3; "STATUS_USER" for codes above STATUS_RESERVED_MAX,
// "STATUS_UNKNOWN" for reserved codes without a meaning.
std::string_view StatusName(int code);

}  // namespace flare::rpc

#endif  // FLARE_RPC_RPC_STATUS_H_
