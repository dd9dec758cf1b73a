// Protobuf messages <-> payload bytes, in the formats that protocols carry.
//
// Both functions are thread-safe and don't block. Neither touches compression.
#ifndef FLARE_RPC_PROTOCOL_PAYLOAD_H_
#define FLARE_RPC_PROTOCOL_PAYLOAD_H_

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/protocol.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

// Replaces *message by what `payload` says. Fails with STATUS_MALFORMED_DATA
// and a text: bad syntax, a required field missing, nested too deeply.
flare::Status ParsePayload(PayloadFormat format, const Buffer& payload,
                           google::protobuf::Message* message);

// Makes `message` *body, which may refer to it. Fails with
// STATUS_SERIALIZE_RESPONSE and a text (a required field missing, over 2 GiB).
flare::Status SerializePayload(PayloadFormat format,
                               const google::protobuf::Message& message,
                               OutboundBody* body);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_PAYLOAD_H_
