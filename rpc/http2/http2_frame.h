// The frames of HTTP/2 (RFC 9113, sections 4 and 6): numbers, and the header
// that each begins with.
//
//   const auto header = Http2FrameHeader::Parse(bytes);   // kSize of them
//   header.Store(bytes);
//
// Thread-safe; nothing allocates or blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_FRAME_H_
#define FLARE_RPC_HTTP2_HTTP2_FRAME_H_

#include <cstddef>
#include <cstdint>

#include "flare/rpc/wire/framing.h"

namespace flare::rpc {

// Others may come, which are passed over.
enum class Http2FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

// RFC 9113, section 7.
enum class Http2Error : std::uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kInternalError = 2,
  kFlowControlError = 3,
  kStreamClosed = 5,
  kFrameSizeError = 6,
  kRefusedStream = 7,
  kCancel = 8,
  kCompressionError = 9,
  kEnhanceYourCalm = 11,
  kHttp11Required = 13,
};

// Others may come, which are passed over.
enum class Http2Setting : std::uint16_t {
  kHeaderTableSize = 1,
  kEnablePush = 2,
  kMaxConcurrentStreams = 3,
  kInitialWindowSize = 4,
  kMaxFrameSize = 5,
  kMaxHeaderListSize = 6,
};

// The size of a setting in a frame.
inline constexpr std::size_t kHttp2SettingSize = 6;

// Bits of Http2FrameHeader::flags.
inline constexpr std::uint8_t kHttp2EndStream = 0x1;  // DATA, HEADERS
inline constexpr std::uint8_t kHttp2Ack = 0x1;        // SETTINGS, PING
inline constexpr std::uint8_t kHttp2EndHeaders = 0x4;
inline constexpr std::uint8_t kHttp2Padded = 0x8;
inline constexpr std::uint8_t kHttp2Priority = 0x20;

// The window of a connection and of each stream, before anything else is agreed
// on.
inline constexpr std::int64_t kHttp2InitialWindow = 65535;
inline constexpr std::int64_t kHttp2MaxWindow = 0x7fffffff;

struct Http2FrameHeader {
  static constexpr std::size_t kSize = 9;

  std::uint32_t length = 0;  // The size of the payload behind the header.
  Http2FrameType type = {};
  std::uint8_t flags = 0;
  std::int32_t stream = 0;  // 0: the connection.

  bool Has(std::uint8_t flag) const { return (flags & flag) != 0; }

  static Http2FrameHeader Parse(const char* bytes) {
    return {.length = ReadBigEndian32(bytes) >> 8,
            .type = static_cast<Http2FrameType>(bytes[3]),
            .flags = static_cast<std::uint8_t>(bytes[4]),
            // The highest bit is reserved, and passed over.
            .stream = static_cast<std::int32_t>(ReadBigEndian32(bytes + 5) &
                                                0x7fffffff)};
  }
  void Store(char* bytes) const {
    bytes =
        PutBigEndian32(length << 8 | static_cast<std::uint8_t>(type), bytes);
    *bytes = static_cast<char>(flags);
    PutBigEndian32(static_cast<std::uint32_t>(stream), bytes + 1);
  }
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_FRAME_H_
