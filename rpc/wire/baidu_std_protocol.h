// The `baidu-std` protocol, brpc's own: a header of 12 bytes (the magic "PRPC",
// then two big-endian numbers: the size of all that follows, and of the meta
// alone), then meta, body and attachment. The meta is a BaiduStdMeta
// (baidu_std_meta.h). Many calls at once on a connection, replies in any order.
// Streaming calls are described in baidu_std_streams.h.
//
//   - The method "package.Service.Method" is sent as service and method. A
//     service may be called without its package, if only one has that name.
//   - error_code is the status code itself, in both directions, except that
//     callers of brpc are told of a service that isn't there by 1001, and of a
//     method by 1002. Our own code is in user_fields then, as "Rpc-Error-Code",
//     which our client reads. The codes of brpc itself begin at 1001. Among
//     these, 1001 (no service), 1002 (no method), 1011 (overcrowded), 2003 (the
//     server stops) and 2004 (a limit is reached) don't count as a service's
//     own: a call may be retried. A failed call's reply has neither body nor
//     attachment. Our servers say 2003, too, for calls that they don't begin as
//     they stop.
//   - Bodies are compressed with snappy, gzip or zlib or not at all,
//     attachments never. Our replies are in the format of the request:
//     protobuf, its text format or its JSON (content_type 0, 3, 2; fields of
//     JSON that the message lacks are passed over). Our requests are protobuf.
//   - Our clients ask in their first requests for a notice of the server's stop
//     (field 1000 of the meta, which brpc passes over), and are sent one: a
//     reply to no call with that field. Others are sent none.
//   - A timeout_ms is sent and heeded. A CRC32C of the body, or of body and
//     attachment, is heeded, but not sent; checksums of other kinds are
//     ignored, as are credentials, log and trace ids and user fields.
//
// Requirements on a request, and the outcome otherwise:
//   - A meta of more than 64 KiB or larger than its packet: the connection is
//     closed. A malformed meta without a correlation id closes it, too.
//   - More bytes in all than Limits::max_packet_size: answered with
//     STATUS_MALFORMED_DATA, the bytes are skipped as they come, the
//     connection goes on; with more than Limits::max_skipped it is closed.
//   - A malformed meta, no request in it, no service or method, an unknown
//     compress_type or content_type, an impossible attachment_size, a wrong
//     checksum: STATUS_MALFORMED_DATA.
//   - A request that opens a stream and has an attachment:
//     STATUS_NOT_SUPPORTED.
//   - A malformed meta of a stream's frame: the connection is closed.
// The client judges responses alike: the call they belong to fails with
// STATUS_MALFORMED_DATA and a text.
#ifndef FLARE_RPC_WIRE_BAIDU_STD_PROTOCOL_H_
#define FLARE_RPC_WIRE_BAIDU_STD_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// The server's record of a call (ReplyTicket).
struct BaiduStdTicket {
  std::uint64_t correlation_id = 0;
  PayloadFormat format = PayloadFormat::kProtobuf;
  bool is_parsed = false;  // By Cut(), as it begins a stream.
};

std::unique_ptr<ServerProtocol> NewBaiduStdServerProtocol(const Limits& limits,
                                                          ReplySink* sink);

// The protocol has no place for `host`.
std::unique_ptr<ClientProtocol> NewBaiduStdClientProtocol(
    const Limits& limits, std::string_view host);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BAIDU_STD_PROTOCOL_H_
