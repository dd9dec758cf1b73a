// Protobuf messages <-> payload bytes, in the formats that protocols carry, and
// these <-> their compressed form.
//
// All functions are thread-safe, and none blocks.
#ifndef FLARE_RPC_WIRE_PAYLOAD_H_
#define FLARE_RPC_WIRE_PAYLOAD_H_

#include <cstddef>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/status.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

// Replaces *message by the content of `payload`. Fails with
// STATUS_MALFORMED_DATA and a text: bad syntax, a required field missing,
// nested too deeply, in text and kProto3Json a field that the message doesn't
// have.
flare::Status ParsePayload(PayloadFormat format, const Buffer& payload,
                           google::protobuf::Message* message);

// Makes `message` *body, which may refer to it. Fails with
// STATUS_SERIALIZE_RESPONSE and a text (a required field missing, over 2 GiB).
flare::Status SerializePayload(PayloadFormat format,
                               const google::protobuf::Message& message,
                               OutboundBody* body);

// Compresses *bytes, unless there are none. Fails with `code` and a text:
// `failure`, a colon and the reason.
flare::Status CompressInPlace(CompressionAlgorithm algorithm, int code,
                              std::string_view failure, Buffer* bytes);

// Decompresses *bytes, unless there are none, to at most `max_size`. Fails with
// STATUS_MALFORMED_DATA and a text: `failure`, a colon and the reason.
flare::Status DecompressInPlace(CompressionAlgorithm algorithm,
                                std::size_t max_size, std::string_view failure,
                                Buffer* bytes);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_PAYLOAD_H_
