// The `bolt` protocol: version 1 of the framing of SOFARPC and MOSN
// (bolt_frame.h), carrying protobuf messages (codec 11). Many calls at once on
// a connection, replies in any order. No attachments, no compression.
//
// A call of "a.B.C" is a request of class SofaRequest with the headers
// `service` and `sofa_head_target_service` "a.B:1.0" (to our server one of them
// is enough; as in SOFARPC it goes by the first if they differ, which meshes
// rewrite) and `sofa_head_method_name` "C"; the version is not looked at. The
// reply is a SofaResponse. The form of a failed call's reply depends on the
// caller, which its headers tell; all forms have the exact code in
// `Rpc-Error-Code`, and our client reads all of them:
//   - SOFARPC's clients of Java (`protocol`): status 0, the header
//     `sofa_head_response_error` "true", and the text as the content, as their
//     own servers do, because of other statuses these clients show no text.
//     Only an overloaded server (4) has a status, which they know.
//   - those of node (`sofa_head_target_app` without `protocol`): the same, but
//     with the closest response status (2 for a service's failure), because
//     with 0 they take the content for the message.
//   - SOFARPC's clients that call by Hessian, which is refused: status 0, and a
//     SofaResponse in Hessian that has the text.
//   - others, and all whose headers can't be read: no content, the closest
//     response status, and the text in `Rpc-Error-Reason`.
//
// The server answers heartbeats, runs one-way requests without ever replying,
// and passes over go-away notices. At a stop it sends one to clients that have
// said in a request (`Rpc-Takes-Go-Away`, as ours do in their first) that they
// take it. Requirements on a request, and the outcome otherwise (STATUS_x is
// the answer's status and the value of `Rpc-Error-Code`):
//   - A type other than 1 and 2: the connection is closed. It is closed, too,
//     after more than 20,000 heartbeats and go-aways within a second, on either
//     side.
//   - Version 2: heartbeats are answered in kind, requests
//   STATUS_NOT_SUPPORTED.
//   - More bytes in all than Limits::max_packet_size: STATUS_MALFORMED_DATA,
//     status 18; the bytes are skipped as they come. More than
//     Limits::max_skipped: the connection is closed after that.
//   - Any command but heartbeat, request and go-away, or another codec:
//     STATUS_NOT_SUPPORTED, status 9 (codec Hessian: status 0).
//   - Another class: STATUS_SERVICE_NOT_FOUND, status 6 (no processor), as
//     unknown services and methods.
//   - A malformed header map: STATUS_MALFORMED_DATA, status 18.
//   - No service or no method: STATUS_INVALID_METHOD_NAME, status 6.
//
// The client sends requests, and answers to a server's heartbeats; none of its
// own, as its connections are closed when idle, long before a server would miss
// one. It gives up using a connection on go-away, and closes it on other
// requests. A response that can't be read fails its call with
// STATUS_MALFORMED_DATA.
#ifndef FLARE_RPC_WIRE_BOLT_PROTOCOL_H_
#define FLARE_RPC_WIRE_BOLT_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Which caller is told of a failure.
enum class BoltCaller : std::uint8_t { kOther, kJava, kNode, kHessian };

// The server's record of a call (ReplyTicket).
struct BoltTicket {
  std::uint32_t id = 0;
  std::uint8_t codec = 0;
  BoltCaller caller = BoltCaller::kOther;
  std::uint8_t protocol_version = 0;  // 1 or 2 of a request in v2, else 0
  bool one_way = false;
};

std::unique_ptr<ServerProtocol> NewBoltServerProtocol(const Limits& limits,
                                                      ReplySink* sink);

// The protocol has no place for `host`.
std::unique_ptr<ClientProtocol> NewBoltClientProtocol(const Limits& limits,
                                                      std::string_view host);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BOLT_PROTOCOL_H_
