#include "flare/rpc/websocket/websocket_frame.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr WebSocketMask kSampleMask = {0x37, 0xfa, 0x21, 0x3d};

std::string FrameOf(WebSocketOpcode opcode, std::string payload,
                    const WebSocketMask* mask = nullptr) {
  return FlattenSlow(
      MakeWebSocketFrame(opcode, CreateBufferSlow(payload), mask));
}

// RFC 6455, 5.7.
TEST(WebSocketFrameTest, WritesTheExamplesOfTheStandard) {
  EXPECT_EQ(FrameOf(WebSocketOpcode::kText, "Hello"), "\x81\x05Hello");
  EXPECT_EQ(FrameOf(WebSocketOpcode::kText, "Hello", &kSampleMask),
            "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
  EXPECT_EQ(FrameOf(WebSocketOpcode::kPong, "Hello", &kSampleMask),
            "\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
  EXPECT_EQ(FrameOf(WebSocketOpcode::kBinary, std::string(256, 'x')),
            std::string("\x82\x7e\x01\x00", 4) + std::string(256, 'x'));
  EXPECT_EQ(
      FrameOf(WebSocketOpcode::kBinary, std::string(65536, 'x')),
      std::string("\x82\x7f\0\0\0\0\0\x01\0\0", 10) + std::string(65536, 'x'));
}

TEST(WebSocketFrameTest, LengthsTakeAsFewBytesAsTheyNeed) {
  const auto header = [](std::size_t n) {
    return FrameOf(WebSocketOpcode::kBinary, std::string(n, 'x')).size() - n;
  };
  EXPECT_EQ(header(0), 2u);
  EXPECT_EQ(header(125), 2u);
  EXPECT_EQ(header(126), 4u);
  EXPECT_EQ(header(65535), 4u);
  EXPECT_EQ(header(65536), 10u);
}

TEST(WebSocketFrameTest, MasksFromAnyPhase) {
  std::string text(100, '\0');
  for (std::size_t i = 0; i != text.size(); ++i) {
    text[i] = static_cast<char>(i * 7);
  }
  for (std::size_t phase = 0; phase != 9; ++phase) {
    for (std::size_t size = 0; size != text.size(); ++size) {
      std::string masked(size, '\0');
      ApplyWebSocketMask(kSampleMask, phase, text.data(), size, masked.data());
      for (std::size_t i = 0; i != size; ++i) {
        ASSERT_EQ(
            static_cast<unsigned char>(masked[i]),
            static_cast<unsigned char>(text[i]) ^ kSampleMask[(phase + i) % 4]);
      }
      // In place, back again.
      ApplyWebSocketMask(kSampleMask, phase, masked.data(), size,
                         masked.data());
      ASSERT_EQ(masked, text.substr(0, size));
    }
  }
}

TEST(WebSocketFrameTest, MasksAcrossSlicesAndLeavesThePayloadAlone) {
  Buffer payload;
  std::string text;
  for (std::size_t n : {1u, 300u, 2u, 70'000u, 3u}) {
    const std::string piece(n, static_cast<char>('a' + n % 26));
    text += piece;
    payload.Append(MakeForeignBuffer(std::string(piece)));
  }
  const Buffer masked = MaskedWebSocketPayload(kSampleMask, 3, payload);
  EXPECT_EQ(FlattenSlow(payload), text);
  EXPECT_EQ(FlattenSlow(MaskedWebSocketPayload(kSampleMask, 3, masked)), text);
}

TEST(WebSocketFrameTest, CodesThatMayBeSent) {
  for (const int code : {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011,
                         1012, 1013, 1014, 3000, 3999, 4000, 4999}) {
    EXPECT_TRUE(MaySendWebSocketCode(code)) << code;
  }
  for (const int code :
       {0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535}) {
    EXPECT_FALSE(MaySendWebSocketCode(code)) << code;
  }
}

TEST(WebSocketFrameTest, CloseFramesHaveACodeAndAReason) {
  const auto payload = [](int code, std::string_view reason) {
    return FlattenSlow(MakeWebSocketClosePayload(code, reason));
  };
  EXPECT_EQ(payload(1000, ""), "\x03\xe8");
  EXPECT_EQ(payload(4999, "bye"),
            "\x13\x87"
            "bye");
  EXPECT_EQ(payload(kWebSocketNoCode, "bye"), "");
  EXPECT_EQ(payload(1000, std::string(200, 'x')).size(), 125u);
  // A sequence stays whole.
  EXPECT_EQ(payload(1000, std::string(122, 'x') + "\xc3\xa4"),
            "\x03\xe8" + std::string(122, 'x'));
}

}  // namespace
}  // namespace flare::rpc
