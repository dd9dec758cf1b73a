#include "flare/rpc/websocket/utf8_checker.h"

#include <cstddef>
#include <cstring>

namespace flare::rpc {
namespace {

// The length of the ASCII that `bytes` begin with, or less.
std::size_t AsciiPrefix(std::string_view bytes) {
  std::size_t size = 0;
  for (; bytes.size() - size >= sizeof(std::uint64_t);
       size += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + size, sizeof(word));
    if ((word & 0x8080808080808080) != 0) break;
  }
  return size;
}

}  // namespace

bool Utf8Checker::Feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (left_ == 0) {
      bytes.remove_prefix(AsciiPrefix(bytes));
      if (bytes.empty()) break;
    }
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    if (left_ == 0) {
      if (!Begin(byte)) return false;
      continue;
    }
    if (byte < min_ || byte > max_) return false;
    --left_;
    min_ = 0x80;
    max_ = 0xbf;
  }
  return true;
}

// RFC 3629, 4: the second byte of some sequences has narrower bounds.
bool Utf8Checker::Begin(unsigned char byte) {
  if (byte < 0x80) return true;
  if (byte < 0xc2 || byte > 0xf4) return false;
  left_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  if (byte == 0xe0) min_ = 0xa0;
  if (byte == 0xed) max_ = 0x9f;
  if (byte == 0xf0) min_ = 0x90;
  if (byte == 0xf4) max_ = 0x8f;
  return true;
}

bool IsUtf8(const Buffer& text) {
  Utf8Checker checker;
  for (const std::string_view slice : text) {
    if (!checker.Feed(slice)) return false;
  }
  return checker.complete();
}

bool IsUtf8(std::string_view text) {
  Utf8Checker checker;
  return checker.Feed(text) && checker.complete();
}

}  // namespace flare::rpc
