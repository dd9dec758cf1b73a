// Protobuf messages -> protobuf's JSON, within bounds that hold for any
// message. (protobuf's own writer recurses for each Any in an Any, copies its
// bytes at each level, and writes without end where they are malformed.)
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_WIRE_JSON_WRITER_H_
#define FLARE_RPC_WIRE_JSON_WRITER_H_

#include <string>

#include "flare/base/buffer.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

enum class JsonStyle {
  kProto3,  // lowerCamelCase, names of enums, only fields that are set.
  kTrpc,    // Names as in .proto files, numbers of enums, fields with defaults.
};

// Makes *json the form of `message`. Unknown fields and extensions are left
// out, as are a proto2 enum's unknown values. False if that fails, and *why
// names the fault:
// - it nests deeper than kMaxJsonNesting levels (well_known_types.h)
// - it would be larger than MaxConvertedSize() allows (payload_bounds.h)
// - a string isn't UTF-8
// - the value of an Any is malformed, or of a type that isn't known
// - a well-known type has a value that JSON can't say
bool WriteJson(JsonStyle style, const google::protobuf::Message& message,
               Buffer* json, std::string* why);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_JSON_WRITER_H_
