// The `flare` protocol: a header of 16 bytes (four little-endian numbers: the
// magic "CPRF", sizes of meta, body and attachment), then these three parts.
// The meta is an RpcMeta (rpc_meta.h). Many calls at once on a connection,
// replies in any order; streams are in flare_streams.h, calls that their
// callers give up in flare_resets.h.
//
// Requirements on a request, and the outcome otherwise:
//   - A meta of more than 64 KiB, or one without a correlation id: the
//     connection is closed, there is nobody to answer.
//   - More bytes in all than Limits::max_packet_size: answered with
//     STATUS_MALFORMED_DATA, the bytes are skipped as they come, the
//     connection goes on; with more than Limits::max_skipped it is closed.
//   - A malformed meta, an unknown method_type or compression algorithm, no
//     request_meta, no method name, NO_PAYLOAD: STATUS_MALFORMED_DATA.
//   - A stream (method_type 2) to a server that has none: STATUS_NOT_SUPPORTED.
//   - More packets of streams that are over than they account for: the
//     connection is closed (late_frames.h).
// The client judges responses alike: the call they belong to fails with
// STATUS_MALFORMED_DATA and a text.
#ifndef FLARE_RPC_WIRE_FLARE_PROTOCOL_H_
#define FLARE_RPC_WIRE_FLARE_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// The server's record of a call (ReplyTicket).
struct FlareTicket {
  std::uint64_t correlation_id = 0;
  std::int32_t method_type = 1;  // of a single call
};

std::unique_ptr<ServerProtocol> NewFlareServerProtocol(const Limits& limits,
                                                       ReplySink* sink);

// The protocol has no place for `host`.
std::unique_ptr<ClientProtocol> NewFlareClientProtocol(const Limits& limits,
                                                       std::string_view host);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLARE_PROTOCOL_H_
