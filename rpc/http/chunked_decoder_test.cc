#include "flare/rpc/http/chunked_decoder.h"

#include <cstdio>
#include <random>
#include <string>

#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::SlicedBuffer;

struct Decoded {
  ChunkedDecoder::Result result;
  std::string body;
  std::string rest;
};

Decoded Decode(const std::string& bytes, std::size_t piece,
               std::size_t max_body = 1 << 20, std::size_t max_line = 100) {
  ChunkedDecoder decoder;
  decoder.Start(max_body, max_line);
  Buffer in = SlicedBuffer(bytes, piece);
  Buffer body;
  auto result = decoder.Feed(in, &body);
  return {result, FlattenSlow(body), FlattenSlow(in)};
}

TEST(ChunkedDecoder, JoinsChunksInAnyPieces) {
  std::string bytes =
      "4\r\nWiki\r\n6;a=\"b\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n"
      "0\r\nTrailer: x\r\nOther: y\r\n\r\nrest";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    Decoded decoded = Decode(bytes, piece);
    EXPECT_EQ(decoded.result, ChunkedDecoder::Result::kDone);
    EXPECT_EQ(decoded.body, "Wikipedia in \r\n\r\nchunks.");
    EXPECT_EQ(decoded.rest, "rest");
  }
}

TEST(ChunkedDecoder, PassesOverBlanksBehindASize) {
  std::string bytes =
      "4 ;a=b\r\nWiki\r\n5   \r\npedia\r\n1\t \t; c = d \r\n!\r\n"
      "0  \r\n\r\nrest";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    Decoded decoded = Decode(bytes, piece);
    EXPECT_EQ(decoded.result, ChunkedDecoder::Result::kDone);
    EXPECT_EQ(decoded.body, "Wikipedia!");
    EXPECT_EQ(decoded.rest, "rest");
  }
}

TEST(ChunkedDecoder, EveryTruncationNeedsMore) {
  std::string bytes = "4;x\r\nWiki\r\n0\r\nA: b\r\n\r\n";
  for (std::size_t size = 0; size != bytes.size(); ++size) {
    Decoded decoded = Decode(bytes.substr(0, size), 1000);
    EXPECT_EQ(decoded.result, ChunkedDecoder::Result::kNeedMore) << size;
    EXPECT_EQ(decoded.rest, "");
  }
}

TEST(ChunkedDecoder, GoesOnByteByByte) {
  std::string bytes = "a\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n";
  ChunkedDecoder decoder;
  decoder.Start(100, 100);
  Buffer body;
  for (std::size_t i = 0; i != bytes.size(); ++i) {
    Buffer in = CreateBufferSlow(bytes.substr(i, 1));
    EXPECT_EQ(decoder.Feed(in, &body), i + 1 == bytes.size()
                                           ? ChunkedDecoder::Result::kDone
                                           : ChunkedDecoder::Result::kNeedMore);
  }
  EXPECT_EQ(FlattenSlow(body), "0123456789x");
}

TEST(ChunkedDecoder, RefusesMalformedFraming) {
  for (const std::string& bytes : {"\r\n"s,
                                   ";x\r\n"s,
                                   "x\r\n"s,
                                   "-1\r\n"s,
                                   "+1\r\n"s,
                                   " 1\r\n"s,
                                   "\t1\r\n"s,
                                   "1 1\r\n"s,
                                   "1\t1\r\n"s,
                                   "1 x\r\n"s,
                                   "1 \n"s,
                                   "1 \rx"s,
                                   "1 \v\r\n"s,
                                   "1 \0\r\n"s,
                                   " ;x\r\n"s,
                                   "0x1\r\n"s,
                                   "1\n"s,
                                   "1\r\r\n"s,
                                   "1\rx"s,
                                   "1\r\nab"s,
                                   "1\r\na\n"s,
                                   "1\r\na\rx"s,
                                   "1;\x01\r\n"s,
                                   "1;a\n"s,
                                   "0\r\n\rx"s,
                                   "0\r\n\n"s,
                                   "0\r\n A: b\r\n\r\n"s,
                                   "0\r\nA: b\n\r\n"s,
                                   "0\r\nA: b\rx"s,
                                   "0\r\nA: \x01\r\n"s,
                                   "0\r\nA\r\n\r\n"s,
                                   "0\r\nA : b\r\n\r\n"s,
                                   "0\r\n: b\r\n\r\n"s,
                                   "1\0\r\n"s}) {
    for (std::size_t piece : {1, 2, 1000}) {
      EXPECT_EQ(Decode(bytes, piece).result, ChunkedDecoder::Result::kError)
          << ::testing::PrintToString(bytes);
    }
  }
}

TEST(ChunkedDecoder, EnforcesTheLimitOnAnnouncement) {
  EXPECT_EQ(Decode("65\r\n", 1, 100).result, ChunkedDecoder::Result::kTooLarge);
  EXPECT_EQ(Decode("64\r\n", 1, 100).result, ChunkedDecoder::Result::kNeedMore);
  EXPECT_EQ(Decode("2\r\nab\r\n63\r\n", 1, 100).result,
            ChunkedDecoder::Result::kTooLarge);
  EXPECT_EQ(Decode("ffffffffffffffff\r\n", 1, 100).result,
            ChunkedDecoder::Result::kTooLarge);
  EXPECT_EQ(Decode("fffffffffffffffff\r\n", 1, ~std::size_t{0}).result,
            ChunkedDecoder::Result::kError);
  EXPECT_EQ(Decode("000000000000000000005\r\nhello\r\n0\r\n\r\n", 3).result,
            ChunkedDecoder::Result::kDone);
}

TEST(ChunkedDecoder, BoundsLinesAndTrailers) {
  EXPECT_EQ(Decode("1;" + std::string(200, 'x'), 7).result,
            ChunkedDecoder::Result::kError);
  EXPECT_EQ(Decode("1" + std::string(200, ' '), 7).result,
            ChunkedDecoder::Result::kError);
  EXPECT_EQ(Decode(std::string(200, '0'), 7).result,
            ChunkedDecoder::Result::kError);
  std::string trailers = "0\r\n";
  for (int i = 0; i != 50; ++i) trailers += "A: b\r\n";
  EXPECT_EQ(Decode(trailers + "\r\n", 7).result,
            ChunkedDecoder::Result::kError);
  // Lines of chunks are bounded one by one.
  std::string many;
  for (int i = 0; i != 500; ++i) many += "1;extension\r\nx\r\n";
  EXPECT_EQ(Decode(many + "0\r\n\r\n", 7).result,
            ChunkedDecoder::Result::kDone);
}

TEST(ChunkedDecoder, BoundsExtensionsByThePayload) {
  // `count` chunks of that size with extensions of that size.
  const auto decode = [](int count, std::size_t chunk, std::size_t extension) {
    char size[17];
    std::snprintf(size, sizeof(size), "%zx;", chunk);
    std::string bytes;
    for (int i = 0; i != count; ++i) {
      bytes += size + std::string(extension, 'e') + "\r\n" +
               std::string(chunk, 'x') + "\r\n";
    }
    return Decode(bytes + "0\r\n\r\n", 1000).result;
  };
  using Result = ChunkedDecoder::Result;
  EXPECT_EQ(decode(1, 1, 90), Result::kDone);
  EXPECT_EQ(decode(3, 1, 90), Result::kError);
  EXPECT_EQ(decode(1000, 1, 14), Result::kDone);
  EXPECT_EQ(decode(1000, 1, 15), Result::kError);
  EXPECT_EQ(decode(1000, 100, 90), Result::kDone);
  // Zeros are no better.
  std::string zeros;
  for (int i = 0; i != 3; ++i) zeros += std::string(90, '0') + "1\r\nx\r\n";
  EXPECT_EQ(Decode(zeros, 1000).result, Result::kError);
}

TEST(ChunkedDecoder, OneByteChunksDontBloatTheBody) {
  std::string bytes;
  for (int i = 0; i != 20000; ++i) bytes += "1\r\nx\r\n";
  ChunkedDecoder decoder;
  decoder.Start(1 << 20, 100);
  Buffer in = CreateBufferSlow(bytes + "0\r\n\r\n");
  Buffer body;
  ASSERT_EQ(decoder.Feed(in, &body), ChunkedDecoder::Result::kDone);
  EXPECT_EQ(body.size(), 20000u);
  EXPECT_LE(body.SliceCount(), 30u);
}

// A chunk that trickles in, between other things that are built and read.
TEST(ChunkedDecoder, PiecesDontBloatTheBody) {
  constexpr std::size_t kSize = 1 << 20;
  for (const std::size_t piece : {64, 1448}) {
    ChunkedDecoder decoder;
    decoder.Start(kSize, 100);
    Buffer in = CreateBufferSlow("100000\r\n");
    Buffer body;
    Buffer others;
    while (body.size() + piece <= kSize) {
      ASSERT_EQ(decoder.Feed(in, &body), ChunkedDecoder::Result::kNeedMore);
      ASSERT_LE(body.SliceCount(), 33 + body.size() / 2048);
      in = CreateBufferSlow(std::string(piece, 'x'));
      others.Append("between");
    }
  }
}

TEST(ChunkedDecoder, LargeChunksAreLinked) {
  std::string data(100000, 'd');
  Buffer in = CreateBufferSlow("186a0\r\n");
  in.Append(MakeForeignBuffer(std::string(data)));
  in.Append("\r\n0\r\n\r\n");
  ChunkedDecoder decoder;
  decoder.Start(1 << 20, 100);
  Buffer body;
  ASSERT_EQ(decoder.Feed(in, &body), ChunkedDecoder::Result::kDone);
  EXPECT_EQ(body.SliceCount(), 1u);
  EXPECT_EQ(FlattenSlow(body), data);
}

TEST(ChunkedDecoder, RandomBodies) {
  std::mt19937 rng(11);
  for (int i = 0; i != 300; ++i) {
    std::string body;
    std::string bytes;
    for (int chunks = rng() % 10; chunks != 0; --chunks) {
      std::string chunk(1 + rng() % 3000, static_cast<char>(rng()));
      char size[16];
      snprintf(size, sizeof(size), rng() % 2 ? "%zx" : "%zX", chunk.size());
      bytes += size + "\r\n"s + chunk + "\r\n";
      body += chunk;
    }
    Decoded decoded = Decode(bytes + "0\r\n\r\nrest", 1 + rng() % 4000);
    ASSERT_EQ(decoded.result, ChunkedDecoder::Result::kDone);
    ASSERT_EQ(decoded.body, body);
    ASSERT_EQ(decoded.rest, "rest");
  }
}

}  // namespace
}  // namespace flare::rpc
