// Which failed calls may be made again: for retries, hedged calls and
// SelectiveChannel.
#ifndef FLARE_RPC_REPEATABLE_H_
#define FLARE_RPC_REPEATABLE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// Whether `code` says that no server has run the call: it found none, or was
// turned away. So it may be made again, whatever its method does.
inline bool WasNotRun(int code) {
  switch (code) {
    case STATUS_CHANNEL_SHUTDOWN:
    case STATUS_FAIL_TO_CONNECT:
    case STATUS_OVERLOADED:
    case STATUS_NO_PEER:
    case STATUS_INVALID_CHANNEL:
      return true;
    default:
      return false;
  }
}

// Whether `code` leaves open whether a server has run the call: its connection
// broke, or something between the two has given up.
inline bool MayHaveRun(int code) {
  return code == STATUS_IO_ERROR || code == STATUS_OUT_OF_SERVICE;
}

// Whether the .proto says that a method may run twice:
//   rpc Get(Key) returns (Value) { option idempotency_level = IDEMPOTENT; }
inline bool IsIdempotent(const google::protobuf::MethodDescriptor& method) {
  return method.options().idempotency_level() !=
         google::protobuf::MethodOptions::IDEMPOTENCY_UNKNOWN;
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_REPEATABLE_H_
