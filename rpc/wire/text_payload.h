// Protobuf messages <-> protobuf's text format, within bounds that hold for
// any input:
//
//   std::string why;
//   if (!ReadText(body, &message, &why)) Refuse(why);
//
// Messages nest up to kMaxTextNesting levels, the same number both ways. A
// level is a pair of braces: a message in a message, an entry of a map, the
// value of an Any in its long form, a group.
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_WIRE_TEXT_PAYLOAD_H_
#define FLARE_RPC_WIRE_TEXT_PAYLOAD_H_

#include <string>

#include "flare/base/buffer.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

// Protobuf's text parser recurses and takes almost 2 KiB of stack per level; a
// fiber has 128 KiB.
inline constexpr int kMaxTextNesting = 32;

// Replaces *message by the content of `text`; required fields may be missing.
// False if that fails, and *why names the fault and its place: bad syntax, a
// field that the message doesn't have, nested too deeply, a string of proto3
// that isn't UTF-8, too many Any values in their long form.
bool ReadText(const Buffer& text, google::protobuf::Message* message,
              std::string* why);

// Makes *text the form of `message` in one line. Fields and values of enums
// that the message's type doesn't have are left out: no text parser takes them.
// False if that fails, and *why names the fault: nested too deeply, or larger
// than MaxConvertedSize() (payload_bounds.h) allows.
bool WriteText(const google::protobuf::Message& message, Buffer* text,
               std::string* why);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_TEXT_PAYLOAD_H_
