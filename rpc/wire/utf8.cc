#include "flare/rpc/wire/utf8.h"

#include <algorithm>
#include <cstddef>

#include "flare/base/ascii.h"
#include "flare/base/string.h"

namespace flare::rpc {

namespace {

std::string ToUtf8(std::string_view text, std::string_view other) {
  std::string result;
  while (!text.empty()) {
    const std::size_t size = Utf8SequenceLength(text);
    result.append(size == 0 ? other : text.substr(0, size));
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

}  // namespace

std::string_view NonEmptyAsUtf8(std::string_view text, std::string* scratch,
                                std::string_view other) {
  if (AsciiPrefix(text) == text.size()) return text;
  *scratch = ToUtf8(text, other);
  return *scratch;
}

std::string_view CutUtf8(std::string_view text, std::size_t max_size) {
  if (text.size() <= max_size) return text;
  std::size_t size = max_size;
  const auto splits = [&] { return (text[size] & 0xc0) == 0x80; };
  while (size != 0 && max_size - size != 3 && splits()) --size;
  return text.substr(0, size);
}

}  // namespace flare::rpc
