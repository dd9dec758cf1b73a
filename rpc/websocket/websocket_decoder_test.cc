#include "flare/rpc/websocket/websocket_decoder.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Result = WebSocketDecoder::Result;

constexpr WebSocketMask kOddMask = {0x11, 0x00, 0xfe, 0x80};
constexpr int kFinal = 0x80;
enum : int { kContinuation, kText, kBinary, kClose = 8, kPing, kPong };

// One frame, whatever the rules say.
std::string Frame(int first, std::string payload, bool masked = true) {
  std::string frame(1, static_cast<char>(first));
  const int mask_bit = masked ? 0x80 : 0;
  const std::size_t n = payload.size();
  if (n <= 125) {
    frame += static_cast<char>(mask_bit | static_cast<int>(n));
  } else {
    const int bytes = n <= 0xffff ? 2 : 8;
    frame += static_cast<char>(mask_bit | (bytes == 2 ? 126 : 127));
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) {
      frame += static_cast<char>(n >> shift & 0xff);
    }
  }
  if (masked) {
    frame.append(reinterpret_cast<const char*>(kOddMask.data()),
                 kOddMask.size());
    ApplyWebSocketMask(kOddMask, 0, payload.data(), n, payload.data());
  }
  return frame + payload;
}

std::string CloseFrame(int code, const std::string& reason = "") {
  return Frame(kFinal | kClose, std::string{static_cast<char>(code >> 8),
                                            static_cast<char>(code & 0xff)} +
                                    reason);
}

// The events that a decoder makes of bytes: "text:...", "ping:...",
// "broken:1002", ... `step`: so many bytes come at a time.
std::vector<std::string> Decode(const std::string& bytes, std::size_t step,
                                WebSocketDecoder decoder) {
  std::vector<std::string> events;
  Buffer in;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    in.Append(std::string_view(bytes).substr(at, step));
    for (;;) {
      const Result result = decoder.Next(in);
      if (result == Result::kNeedMore) break;
      switch (result) {
        case Result::kMessage: {
          const std::string kind = decoder.is_text() ? "text:" : "binary:";
          events.push_back(kind + FlattenSlow(decoder.TakeMessage()));
          break;
        }
        case Result::kPing:
          events.push_back("ping:" + decoder.control());
          break;
        case Result::kPong:
          events.push_back("pong:" + decoder.control());
          break;
        case Result::kClose:
          events.push_back("close:" + std::to_string(decoder.close_code()) +
                           std::string(decoder.close_reason()));
          return events;
        default:
          EXPECT_FALSE(decoder.fault().empty());
          events.push_back("broken:" + std::to_string(decoder.fault_code()));
          // It stays so.
          EXPECT_EQ(decoder.Next(in), Result::kBroken);
          return events;
      }
    }
  }
  return events;
}

constexpr WebSocketDecoder::Limits kLimits{.max_message_size = 1 << 20,
                                           .max_fragments = 1000};

// In one piece, and byte by byte, or nearly so if that is much.
std::vector<std::string> Decode(const std::string& bytes, bool masked = true,
                                WebSocketDecoder::Limits limits = kLimits) {
  const auto events =
      Decode(bytes, bytes.size(), WebSocketDecoder(masked, limits));
  const std::size_t step = bytes.size() < 2000 ? 1 : 997;
  EXPECT_EQ(Decode(bytes, step, WebSocketDecoder(masked, limits)), events);
  return events;
}

using Events = std::vector<std::string>;

TEST(WebSocketDecoderTest, ReadsMessagesOfAllSizes) {
  for (const std::size_t n :
       {0u, 1u, 124u, 125u, 126u, 127u, 65535u, 65536u, 65537u, 300'000u}) {
    const std::string payload(n, 'x');
    for (const bool masked : {true, false}) {
      EXPECT_EQ(Decode(Frame(kFinal | kText, payload, masked) +
                           Frame(kFinal | kBinary, payload, masked),
                       masked),
                (Events{"text:" + payload, "binary:" + payload}))
          << n;
    }
  }
}

TEST(WebSocketDecoderTest, ReadsItsOwnWritersFrames) {
  for (const std::size_t n : {0u, 125u, 126u, 65535u, 65536u}) {
    const std::string payload(n, '\xfe');
    const Buffer frame = MakeWebSocketFrame(
        WebSocketOpcode::kBinary, CreateBufferSlow(payload), &kOddMask);
    EXPECT_EQ(Decode(FlattenSlow(frame)), Events{"binary:" + payload});
  }
}

TEST(WebSocketDecoderTest, PutsFragmentsTogether) {
  EXPECT_EQ(
      Decode(Frame(kText, "a") + Frame(kContinuation, "") +
             Frame(kContinuation, "bc") + Frame(kFinal | kContinuation, "d") +
             Frame(kFinal | kBinary, "e")),
      (Events{"text:abcd", "binary:e"}));
}

TEST(WebSocketDecoderTest, ControlFramesMayComeBetweenFragments) {
  const std::string most(125, 'p');
  EXPECT_EQ(Decode(Frame(kText, "a") + Frame(kFinal | kPing, most) +
                   Frame(kContinuation, "b") + Frame(kFinal | kPong, "") +
                   Frame(kFinal | kContinuation, "c")),
            (Events{"ping:" + most, "pong:", "text:abc"}));
  EXPECT_EQ(Decode(Frame(kText, "a") + CloseFrame(1000)), Events{"close:1000"});
}

TEST(WebSocketDecoderTest, MasksMustBeAsTheRolesSay) {
  for (const int opcode : {kText, kPing}) {
    EXPECT_EQ(Decode(Frame(kFinal | opcode, "a", /*masked=*/false), true),
              Events{"broken:1002"});
    EXPECT_EQ(Decode(Frame(kFinal | opcode, "a", /*masked=*/true), false),
              Events{"broken:1002"});
  }
}

TEST(WebSocketDecoderTest, RefusesReservedBitsAndOpcodes) {
  for (const int bit : {0x40, 0x20, 0x10}) {
    EXPECT_EQ(Decode(Frame(kFinal | bit | kText, "a")), Events{"broken:1002"});
    EXPECT_EQ(Decode(Frame(kFinal | bit | kPing, "a")), Events{"broken:1002"});
  }
  for (const int opcode : {3, 4, 5, 6, 7, 11, 12, 13, 14, 15}) {
    EXPECT_EQ(Decode(Frame(kFinal | opcode, "a")), Events{"broken:1002"});
  }
  // The first byte says it.
  Buffer in = CreateBufferSlow("\xc1");
  WebSocketDecoder decoder(true, kLimits);
  EXPECT_EQ(decoder.Next(in), Result::kBroken);
}

TEST(WebSocketDecoderTest, RefusesWrongOrders) {
  EXPECT_EQ(Decode(Frame(kFinal | kContinuation, "a")), Events{"broken:1002"});
  EXPECT_EQ(Decode(Frame(kText, "a") + Frame(kFinal | kText, "b")),
            Events{"broken:1002"});
  EXPECT_EQ(Decode(Frame(kText, "a") + Frame(kFinal | kContinuation, "b") +
                   Frame(kContinuation, "c")),
            (Events{"text:ab", "broken:1002"}));
}

TEST(WebSocketDecoderTest, RefusesWrongControlFrames) {
  for (const int opcode : {kClose, kPing, kPong}) {
    EXPECT_EQ(Decode(Frame(opcode, "")),
              Events{"broken:1002"});  // It isn't final.
    EXPECT_EQ(Decode(Frame(kFinal | opcode, std::string(126, 'x'))),
              Events{"broken:1002"});
  }
}

TEST(WebSocketDecoderTest, RefusesLengthsThatArentMinimal) {
  const std::string mask(4, '\0');
  EXPECT_EQ(Decode("\x82\xfe" + std::string("\0\x7d", 2) + mask),
            Events{"broken:1002"});
  EXPECT_EQ(Decode("\x82\xff" + std::string("\0\0\0\0\0\0\xff\xff", 8) + mask),
            Events{"broken:1002"});
  EXPECT_EQ(Decode("\x82\xff" + std::string(8, '\xff') + mask),
            Events{"broken:1002"});
}

TEST(WebSocketDecoderTest, RefusesMessagesThatAreTooLarge) {
  const WebSocketDecoder::Limits limits{.max_message_size = 10,
                                        .max_fragments = 1000};
  EXPECT_EQ(Decode(Frame(kFinal | kText, "0123456789"), true, limits),
            Events{"text:0123456789"});
  EXPECT_EQ(Decode(Frame(kFinal | kText, "0123456789a"), true, limits),
            Events{"broken:1009"});
  EXPECT_EQ(Decode(Frame(kText, "01234") + Frame(kContinuation, "56789") +
                       Frame(kFinal | kContinuation, "a"),
                   true, limits),
            Events{"broken:1009"});
  // By the header: nothing of it is kept.
  EXPECT_EQ(
      Decode("\x82\xff" + std::string("\0\0\0\0\x7f\0\0\0", 8), true, limits),
      Events{"broken:1009"});
  // Control frames aren't part of it.
  EXPECT_EQ(Decode(Frame(kText, "0123456789") +
                       Frame(kFinal | kPing, std::string(20, 'x')) +
                       Frame(kFinal | kContinuation, ""),
                   true, limits),
            (Events{"ping:" + std::string(20, 'x'), "text:0123456789"}));
}

TEST(WebSocketDecoderTest, RefusesTooManyFragments) {
  const WebSocketDecoder::Limits limits{.max_message_size = 10,
                                        .max_fragments = 3};
  const std::string two = Frame(kText, "") + Frame(kContinuation, "");
  EXPECT_EQ(Decode(two + Frame(kFinal | kContinuation, ""), true, limits),
            Events{"text:"});
  EXPECT_EQ(
      Decode(two + Frame(kContinuation, "") + Frame(kFinal | kContinuation, ""),
             true, limits),
      Events{"broken:1008"});
}

TEST(WebSocketDecoderTest, TextMustBeUtf8) {
  EXPECT_EQ(Decode(Frame(kFinal | kText, "\xe2\x82\xac")),
            Events{"text:\xe2\x82\xac"});
  // Split over fragments, with a control frame in between.
  EXPECT_EQ(Decode(Frame(kText, "\xe2\x82") + Frame(kFinal | kPing, "\xff") +
                   Frame(kFinal | kContinuation, "\xac")),
            (Events{"ping:\xff", "text:\xe2\x82\xac"}));
  EXPECT_EQ(
      Decode(Frame(kText, "\xe2\x82") + Frame(kFinal | kContinuation, "\x41")),
      Events{"broken:1007"});
  // Open at the end.
  EXPECT_EQ(Decode(Frame(kFinal | kText, "\xe2\x82")), Events{"broken:1007"});
  EXPECT_EQ(
      Decode(Frame(kText, "\xe2\x82") + Frame(kFinal | kContinuation, "")),
      Events{"broken:1007"});
  // The next message begins anew.
  EXPECT_EQ(Decode(Frame(kFinal | kText, "a") + Frame(kFinal | kText, "\x80")),
            (Events{"text:a", "broken:1007"}));
  EXPECT_EQ(Decode(Frame(kFinal | kBinary, "\xff\xfe")),
            Events{"binary:\xff\xfe"});
}

// --- permessage-deflate ------------------------------------------------------

constexpr int kDeflated = kWebSocketDeflated;
constexpr WebSocketDecoder::Limits kInflates{
    .max_message_size = 100, .max_fragments = 1000, .inflates = true};

std::string Deflated(const std::string& text) {
  return FlattenSlow(*DeflateMessage(CreateBufferSlow(text), 15));
}

TEST(WebSocketDecoderTest, InflatesMessages) {
  const std::string packed = Deflated("hello, hello, hello");
  EXPECT_EQ(Decode(Frame(kFinal | kDeflated | kText, packed) +
                       Frame(kFinal | kText, "as it is") +
                       Frame(kDeflated | kBinary, packed.substr(0, 3)) +
                       Frame(kFinal | kPing, "") + Frame(kContinuation, "") +
                       Frame(kFinal | kContinuation, packed.substr(3)) +
                       Frame(kFinal | kDeflated | kBinary, Deflated("")),
                   true, kInflates),
            (Events{"text:hello, hello, hello", "text:as it is",
                    "ping:", "binary:hello, hello, hello", "binary:"}));
}

TEST(WebSocketDecoderTest, RefusesThatBitWhereItMustNotBe) {
  const std::string packed = Deflated("hello");
  for (const std::string& frames :
       {Frame(kFinal | kDeflated | kPing, ""),
        Frame(kFinal | kDeflated | kClose, ""),
        Frame(kDeflated | kText, packed) +
            Frame(kFinal | kDeflated | kContinuation, ""),
        Frame(kFinal | 0x20 | kText, ""), Frame(kFinal | 0x60 | kText, "")}) {
    EXPECT_EQ(Decode(frames, true, kInflates), Events{"broken:1002"});
  }
  EXPECT_EQ(Decode(Frame(kFinal | kDeflated | kText, packed)),
            Events{"broken:1002"});
}

// Once nobody reads them.
TEST(WebSocketDecoderTest, DroppedMessagesArentInflated) {
  WebSocketDecoder decoder(true, kInflates);
  decoder.DropMessages();
  EXPECT_EQ(
      Decode(Frame(kFinal | kDeflated | kBinary, "no deflate") +
                 Frame(kFinal | kText, "text") + Frame(kFinal | kPing, ""),
             1000, decoder),
      (Events{"binary:", "text:", "ping:"}));
}

TEST(WebSocketDecoderTest, WhatInflatesIsChecked) {
  const auto decode = [](const std::string& payload) {
    return Decode(Frame(kFinal | kDeflated | kText, payload), true, kInflates);
  };
  EXPECT_EQ(decode(Deflated(std::string(100, 'x'))),
            Events{"text:" + std::string(100, 'x')});
  EXPECT_EQ(decode(Deflated(std::string(101, 'x'))), Events{"broken:1009"});
  // A bomb.
  EXPECT_EQ(decode(Deflated(std::string(90'000, 'x')).substr(0, 100)),
            Events{"broken:1009"});
  EXPECT_EQ(decode("no deflate"), Events{"broken:1002"});
  EXPECT_EQ(decode(Deflated("hello") + "!"), Events{"broken:1002"});
  EXPECT_EQ(decode(Deflated("hello").substr(0, 4)), Events{"broken:1002"});
  EXPECT_EQ(decode(Deflated("\xff")), Events{"broken:1007"});
  EXPECT_EQ(decode(Deflated("\xe2\x82")), Events{"broken:1007"});
}

TEST(WebSocketDecoderTest, BadTextIsFoundBeforeItsFrameEnds) {
  const std::string frame = Frame(kText, "\xce\xba\xf4\x90 and more");
  Buffer in = CreateBufferSlow(frame.substr(0, 6 + 4));
  WebSocketDecoder decoder(true, kLimits);
  EXPECT_EQ(decoder.Next(in), Result::kBroken);
  EXPECT_EQ(decoder.fault_code(), 1007);
}

TEST(WebSocketDecoderTest, ReadsCloseFrames) {
  EXPECT_EQ(Decode(Frame(kFinal | kClose, "")), Events{"close:1005"});
  EXPECT_EQ(Decode(CloseFrame(1000, "bye")), Events{"close:1000bye"});
  EXPECT_EQ(Decode(CloseFrame(4999, std::string(123, 'x'))),
            Events{"close:4999" + std::string(123, 'x')});
  EXPECT_EQ(Decode(Frame(kFinal | kClose, "\x03")), Events{"broken:1002"});
  for (const int code : {0, 999, 1004, 1005, 1006, 1015, 1016, 2000, 5000}) {
    EXPECT_EQ(Decode(CloseFrame(code)), Events{"broken:1002"}) << code;
  }
  EXPECT_EQ(Decode(CloseFrame(1000, "\xff")), Events{"broken:1007"});
}

TEST(WebSocketDecoderTest, TellsHowMuchIsToCome) {
  WebSocketDecoder decoder(false, kLimits);
  const std::string frame = Frame(kBinary, std::string(1000, 'x'), false);
  Buffer in = CreateBufferSlow(frame.substr(0, 3));
  EXPECT_EQ(decoder.Next(in), Result::kNeedMore);
  EXPECT_FALSE(decoder.within_frame());
  EXPECT_EQ(in.size(), 3u);  // An incomplete header stays.
  in.Append(frame.substr(3, 101));
  EXPECT_EQ(decoder.Next(in), Result::kNeedMore);
  EXPECT_TRUE(in.empty());
  EXPECT_TRUE(decoder.within_frame());
  EXPECT_EQ(decoder.need(), 900u);
  EXPECT_EQ(decoder.kept(), 100u);
  in.Append(frame.substr(104));
  EXPECT_EQ(decoder.Next(in), Result::kNeedMore);
  EXPECT_FALSE(decoder.within_frame());  // Between two fragments.
  EXPECT_EQ(decoder.kept(), 1000u);
}

// Many pieces of few bytes don't keep a block each.
TEST(WebSocketDecoderTest, ManySmallFragmentsTakeLittleMemory) {
  WebSocketDecoder decoder(
      false, {.max_message_size = 1 << 20, .max_fragments = 100'000});
  Buffer in;
  for (int i = 0; i != 20'000; ++i) {
    in.Append(Frame(i == 0 ? kText : kContinuation, "x", false));
    ASSERT_EQ(decoder.Next(in), Result::kNeedMore);
  }
  in.Append(Frame(kFinal | kContinuation, "", false));
  ASSERT_EQ(decoder.Next(in), Result::kMessage);
  const Buffer message = decoder.TakeMessage();
  EXPECT_EQ(message.size(), 20'000u);
  EXPECT_LT(message.SliceCount(), 200u);
}

}  // namespace
}  // namespace flare::rpc
