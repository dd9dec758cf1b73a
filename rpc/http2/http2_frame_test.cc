#include "flare/rpc/http2/http2_frame.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::string_view kBytes("\x01\x02\x03\x01\x25\x00\x00\x01\x05", 9);

TEST(Http2FrameTest, ReadsAndWritesHeaders) {
  const auto header = Http2FrameHeader::Parse(kBytes.data());
  EXPECT_EQ(header.length, 0x010203u);
  EXPECT_EQ(header.type, Http2FrameType::kHeaders);
  EXPECT_TRUE(header.Has(kHttp2EndStream));
  EXPECT_TRUE(header.Has(kHttp2EndHeaders));
  EXPECT_TRUE(header.Has(kHttp2Priority));
  EXPECT_FALSE(header.Has(kHttp2Padded));
  EXPECT_EQ(header.stream, 261);
  std::string bytes(Http2FrameHeader::kSize, 'x');
  header.Store(bytes.data());
  EXPECT_EQ(bytes, kBytes);
}

TEST(Http2FrameTest, TheReservedBitIsPassedOver) {
  std::string bytes(kBytes);
  bytes[5] = '\x80';
  EXPECT_EQ(Http2FrameHeader::Parse(bytes.data()).stream, 261);
}

}  // namespace
}  // namespace flare::rpc
