// The frames of WebSocket (RFC 6455, 5), to be written.
//
//   byte 0   FIN, three reserved bits, 4 bits of opcode. The first reserved
//   bit:
//            the message is deflated (RFC 7692)
//   byte 1   MASK, 7 bits of length: 126: two bytes of it follow; 127: eight
//   4 bytes  the mask, in frames of clients: payload byte n is XORed with
//            mask byte n % 4
//   payload
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_FRAME_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/base/buffer.h"

namespace flare::rpc {

enum class WebSocketOpcode : std::uint8_t {
  kContinuation = 0,
  kText = 1,
  kBinary = 2,
  kClose = 8,
  kPing = 9,
  kPong = 10,
};

constexpr bool IsControl(WebSocketOpcode opcode) {
  return opcode >= WebSocketOpcode::kClose;
}

// In byte 0 of a message's first frame: it is deflated.
inline constexpr unsigned kWebSocketDeflated = 0x40;

// The longest payload of close, ping and pong.
inline constexpr std::size_t kMaxWebSocketControl = 125;

// Codes of close frames (RFC 6455, 7.4).
enum : int {
  kWebSocketNormal = 1000,
  kWebSocketGoingAway = 1001,
  kWebSocketProtocolError = 1002,
  kWebSocketNoCode = 1005,   // Never sent: the frame had none.
  kWebSocketLost = 1006,     // Never sent: there was no close frame.
  kWebSocketBadText = 1007,  // It isn't UTF-8.
  kWebSocketPolicy = 1008,
  kWebSocketTooLarge = 1009,
  kWebSocketFailed = 1011,
};

// Whether a close frame may have that code: one that is defined to be sent, or
// one of libraries and applications, 3000 to 4999.
bool MaySendWebSocketCode(int code);

using WebSocketMask = std::array<unsigned char, 4>;

// XORs `size` bytes at `from` with the mask, from its byte `phase` % 4 on, and
// puts them to `to`, which may be `from`.
void ApplyWebSocketMask(const WebSocketMask& mask, std::size_t phase,
                        const char* from, std::size_t size, char* to);

// A copy of `payload` with the mask applied, likewise.
Buffer MaskedWebSocketPayload(const WebSocketMask& mask, std::size_t phase,
                              const Buffer& payload);

// A final frame. `mask`: null, for a server, shares the payload; else it is
// copied. `deflated`: by permessage-deflate.
Buffer MakeWebSocketFrame(WebSocketOpcode opcode, Buffer payload,
                          const WebSocketMask* mask, bool deflated = false);

// The payload of a close frame. kWebSocketNoCode: none. The reason is cut off,
// in front of a UTF-8 sequence, where it is too long.
Buffer MakeWebSocketClosePayload(int code, std::string_view reason);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_FRAME_H_
