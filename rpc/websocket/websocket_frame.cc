#include "flare/rpc/websocket/websocket_frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {
namespace {

constexpr unsigned char kFinal = 0x80;
constexpr unsigned char kMasked = 0x80;
constexpr std::size_t kMaxShort = 125;
constexpr std::size_t kMaxMedium = 0xffff;

void AppendBigEndian(std::uint64_t value, int bytes, BufferBuilder* out) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) {
    out->Append(static_cast<char>(value >> shift & 0xff));
  }
}

void AppendLength(std::size_t size, unsigned char masked, BufferBuilder* out) {
  if (size <= kMaxShort) {
    return out->Append(static_cast<char>(masked | size));
  }
  if (size <= kMaxMedium) {
    out->Append(static_cast<char>(masked | 126));
    return AppendBigEndian(size, 2, out);
  }
  out->Append(static_cast<char>(masked | 127));
  AppendBigEndian(size, 8, out);
}

void AppendMasked(const WebSocketMask& mask, std::size_t phase,
                  const Buffer& payload, BufferBuilder* out) {
  out->ExpectBytes(payload.size());
  for (std::string_view slice : payload) {
    while (!slice.empty()) {
      const std::size_t n = std::min(slice.size(), out->SizeAvailable());
      ApplyWebSocketMask(mask, phase, slice.data(), n, out->data());
      out->MarkWritten(n);
      slice.remove_prefix(n);
      phase += n;
    }
  }
}

}  // namespace

bool MaySendWebSocketCode(int code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
         (code >= 3000 && code <= 4999);
}

void ApplyWebSocketMask(const WebSocketMask& mask, std::size_t phase,
                        const char* from, std::size_t size, char* to) {
  unsigned char turned[8];
  for (std::size_t i = 0; i != sizeof(turned); ++i) {
    turned[i] = mask[(phase + i) % mask.size()];
  }
  std::uint64_t word;
  std::memcpy(&word, turned, sizeof(word));
  std::size_t at = 0;
  for (; size - at >= sizeof(word); at += sizeof(word)) {
    std::uint64_t bytes;
    std::memcpy(&bytes, from + at, sizeof(bytes));
    bytes ^= word;
    std::memcpy(to + at, &bytes, sizeof(bytes));
  }
  for (std::size_t i = 0; at != size; ++at, ++i) {
    to[at] =
        static_cast<char>(static_cast<unsigned char>(from[at]) ^ turned[i]);
  }
}

Buffer MaskedWebSocketPayload(const WebSocketMask& mask, std::size_t phase,
                              const Buffer& payload) {
  BufferBuilder out;
  AppendMasked(mask, phase, payload, &out);
  return out.DestructiveGet();
}

Buffer MakeWebSocketFrame(WebSocketOpcode opcode, Buffer payload,
                          const WebSocketMask* mask, bool deflated) {
  BufferBuilder out;
  out.Append(static_cast<char>(kFinal | (deflated ? kWebSocketDeflated : 0) |
                               static_cast<unsigned char>(opcode)));
  AppendLength(payload.size(), mask == nullptr ? 0 : kMasked, &out);
  if (mask == nullptr) {
    out.Append(std::move(payload));
  } else {
    out.Append(mask->data(), mask->size());
    AppendMasked(*mask, 0, payload, &out);
  }
  return out.DestructiveGet();
}

Buffer MakeWebSocketClosePayload(int code, std::string_view reason) {
  if (code == kWebSocketNoCode) return Buffer();
  BufferBuilder out;
  AppendBigEndian(static_cast<std::uint64_t>(code), 2, &out);
  out.Append(CutUtf8(reason, kMaxWebSocketControl - 2));
  return out.DestructiveGet();
}

}  // namespace flare::rpc
