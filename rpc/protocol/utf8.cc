#include "flare/rpc/protocol/utf8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace flare::rpc {

namespace {

bool IsAscii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<std::uint8_t>(c) >= 0x80;
  });
}

// Length of the UTF-8 sequence at the start of `text`; 0 if there is none.
std::size_t Utf8SequenceSize(std::string_view text) {
  auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0u;
  };
  auto continues = [&](std::size_t i) { return (at(i) & 0xc0) == 0x80; };
  if (at(0) < 0x80) return 1;
  if (at(0) >= 0xc2 && at(0) <= 0xdf) return continues(1) ? 2 : 0;
  if (at(0) >= 0xe0 && at(0) <= 0xef) {
    bool overlong = at(0) == 0xe0 && at(1) < 0xa0;
    bool surrogate = at(0) == 0xed && at(1) > 0x9f;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (at(0) >= 0xf0 && at(0) <= 0xf4) {
    bool overlong = at(0) == 0xf0 && at(1) < 0x90;
    bool beyond = at(0) == 0xf4 && at(1) > 0x8f;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond
               ? 4
               : 0;
  }
  return 0;
}

std::string ToUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::size_t size = Utf8SequenceSize(text);
    if (size == 0) {
      result.push_back('?');
      size = 1;
    } else {
      result.append(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace

std::string_view AsUtf8(std::string_view text, std::string* scratch) {
  if (IsAscii(text)) return text;
  *scratch = ToUtf8(text);
  return *scratch;
}

}  // namespace flare::rpc
