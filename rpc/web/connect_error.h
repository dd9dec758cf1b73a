// How a call ended, in the words of Connect: names of codes, statuses of HTTP,
// and the JSON of failures and of the end of streams.
//
//   {"code":"not_found","message":"no such key",
//    "details":[{"type":"google.rpc.ErrorInfo","value":"CgR0ZXN0"}]}
//
// Pure and thread-safe; nothing blocks.
#ifndef FLARE_RPC_WEB_CONNECT_ERROR_H_
#define FLARE_RPC_WEB_CONNECT_ERROR_H_

#include <string>
#include <string_view>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/metadata.h"

namespace flare::rpc {

// "not_found". Neither of these is for GrpcCode::kOk.
std::string ConnectCodeName(GrpcCode code);
int ConnectHttpStatus(GrpcCode code);

// The JSON of a failure. Details come from the google.rpc.Status in
// `metadata` (kGrpcStatusDetails), which may be null; a malformed one has none.
std::string ConnectErrorJson(GrpcCode code, std::string_view text,
                             const Metadata* metadata);

// The last message of a stream: the failure, if code isn't kOk, and all
// metadata that comes last.
std::string ConnectEndJson(GrpcCode code, std::string_view text,
                           const Metadata& metadata);

// Base64 with the usual alphabet.
std::string EncodeBase64(std::string_view bytes, bool padded);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEB_CONNECT_ERROR_H_
