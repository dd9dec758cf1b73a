#include "flare/rpc/protocol/utf8.h"

#include <algorithm>
#include <cstddef>

#include "flare/base/ascii.h"
#include "flare/base/string.h"

namespace flare::rpc {

namespace {

std::string ToUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t size = Utf8SequenceLength(text);
    result.append(size == 0 ? "?" : text.substr(0, size));
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return result;
}

}  // namespace

std::string_view AsUtf8(std::string_view text, std::string* scratch) {
  if (AsciiPrefix(text) == text.size()) return text;
  *scratch = ToUtf8(text);
  return *scratch;
}

}  // namespace flare::rpc
