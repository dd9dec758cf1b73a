// Protobuf's JSON -> messages, within bounds that hold for any input.
// (protobuf's own reader keeps events for each level of Any whose "@type" comes
// late, joins paths of FieldMask to the square of their size, and goes on after
// each of millions of errors.)
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_WIRE_JSON_READER_H_
#define FLARE_RPC_WIRE_JSON_READER_H_

#include <string>
#include <string_view>

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

// Fills *message, an empty one, from `json`; required fields may be missing.
// With `ignore_unknown`, members that the message doesn't have and names that
// an enum doesn't have are passed over. False if that fails, and *why says the
// fault and its place. Nests up to kMaxJsonNesting levels (well_known_types.h).
bool ReadJson(std::string_view json, bool ignore_unknown,
              google::protobuf::Message* message, std::string* why);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_JSON_READER_H_
