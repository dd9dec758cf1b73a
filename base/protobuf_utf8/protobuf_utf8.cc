// Protobuf checks that each `string` of a proto3 message is UTF-8, when it is
// written and when it is parsed. Its function looks at eight bytes at a time,
// which was half of the instructions of calls with large strings. Programs that
// are shipped are linked with --wrap for it: calls come here, where ASCII is
// passed over 64 bytes at a time, and the rest, if there is any, goes to
// protobuf's own (docs/decisions/0036-ascii-before-utf8.md).
//
// Text is UTF-8 if and only if the rest behind its ASCII bytes is, as these are
// sequences of their own. Thread-safe; nothing blocks.

#include <cstddef>
#include <string_view>

#include "flare/base/ascii.h"

// google::protobuf::internal::IsStructurallyValidUTF8(const char*, int): the
// linker's name for the original, and its replacement.
bool CheckOfProtobuf(const char* text, int size) asm(
    "__real__ZN6google8protobuf8internal23IsStructurallyValidUTF8EPKci");
bool CheckInstead(const char* text, int size) asm(
    "__wrap__ZN6google8protobuf8internal23IsStructurallyValidUTF8EPKci");

bool CheckInstead(const char* text, int size) {
  const std::size_t ascii =
      flare::AsciiPrefix({text, static_cast<std::size_t>(size)});
  const int left = size - static_cast<int>(ascii);
  return left == 0 || CheckOfProtobuf(text + ascii, left);
}
