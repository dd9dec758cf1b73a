// The `trpc` protocol, unary and one-way calls: a header of 16 bytes (the magic
// 09 30, the kind of frame, then big-endian numbers: the size of all, and of
// the protobuf header), then protobuf header (trpc_meta.h), body and
// attachment. Many calls at once on a connection, replies in any order.
//
//   - The method "package.Service.Method" is sent as "/package.Service/Method",
//     its service as the callee; there is no caller.
//   - Our replies repeat version, call_type, message_type, trans_info and the
//     format of the request, protobuf or JSON. Our requests are protobuf.
//   - JSON is that of tRPC's own servers: fields that the message lacks are
//     passed over; replies have the names of the .proto file, enums as numbers,
//     and 0, "" or [] where nothing is set (messages are left out).
//   - Bytes 10 to 13 of the header, the stream's number, and 14, its version,
//     are repeated, too, in replies of whatever outcome: tRPC-Go's clients
//     write the call's id there, and version 1, and some of those that
//     multiplex know replies by that alone. Byte 15 is 0. Our requests are of
//     version 0, with 0 as the number.
//   - Our clients ask in their first requests for a notice of the server's stop
//     (field 1000 of the protobuf header, which other peers pass over), and are
//     sent one: a reply with that field and without request_id.
//   - Bodies are compressed with gzip, snappy, zlib or lz4 or not at all,
//     attachments never.
//   - A service's own failures (codes above 1000 and below 0, STATUS_FAILED,
//     STATUS_FROM_USER) are in func_ret as they are. Others are translated: ret
//     1 STATUS_MALFORMED_DATA (and STATUS_PARSE_REQUEST), 2
//     STATUS_SERIALIZE_RESPONSE, 11 STATUS_SERVICE_NOT_FOUND, 12
//     STATUS_METHOD_NOT_FOUND, 21 STATUS_TIMEOUT, 22 STATUS_OVERLOADED (and a
//     server that stops), 24 a call whose timeout was over before it began, 31
//     all the rest. The client translates back; tRPC-Cpp's servers mean an
//     unknown service by 12, too, so neither code is more than "not there", and
//     both are retried; 23 is STATUS_OVERLOADED there, 24 STATUS_TIMEOUT,
//     another ret STATUS_FAILED, and a func_ret that isn't a service's code
//     here STATUS_FROM_USER. If such a failure has no text, its code is the
//     text. A failed call's reply has neither body nor attachment.
//
// Requirements on a request, and the outcome otherwise:
//   - Impossible sizes, an unknown kind of frame: the connection is closed.
//     Likewise after a malformed header without a request_id.
//   - More bytes in all than Limits::max_packet_size, a malformed header, an
//     unknown call_type, content_type or content_encoding, an attachment_size
//     beyond the end: STATUS_MALFORMED_DATA; the connection goes on, unless
//     more than Limits::max_skipped is to come.
//   - A func that isn't /service/method: STATUS_METHOD_NOT_FOUND.
//   - A frame of a stream: the stream is reset, unless the frame ends it, or
//     says that there is room for more.
// One-way calls are never answered, nor are bad ones. A reply whose header
// would exceed the 65,535 bytes that a frame can state becomes
// STATUS_SERIALIZE_RESPONSE; a failure keeps its code, without trans_info. The
// client judges responses as the server judges requests: their calls fail with
// STATUS_MALFORMED_DATA and a text.
#ifndef FLARE_RPC_WIRE_TRPC_PROTOCOL_H_
#define FLARE_RPC_WIRE_TRPC_PROTOCOL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// The server's record of a call (ReplyTicket).
struct TrpcTicket {
  std::uint32_t request_id = 0;
  std::uint32_t stream_id = 0;  // this and `version`: of the frame's header
  std::uint8_t version = 0;
  bool is_stream = false;  // the frame belongs to a stream
  std::uint8_t stream_type = 0;
  bool one_way = false;
  // The protobuf header of a request whose reply repeats parts of it.
  std::string_view request_header;
};

std::unique_ptr<ServerProtocol> NewTrpcServerProtocol(const Limits& limits,
                                                      ReplySink* sink);

// The protocol has no place for `host`.
std::unique_ptr<ClientProtocol> NewTrpcClientProtocol(const Limits& limits,
                                                      std::string_view host);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_TRPC_PROTOCOL_H_
