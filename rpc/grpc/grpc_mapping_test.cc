#include "flare/rpc/grpc/grpc_mapping.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Result = GrpcMessageCutter::Result;

TEST(GrpcPath, ComesAndGoes) {
  std::string text;
  EXPECT_TRUE(GrpcPathOf("a.b.Service.Method", &text));
  EXPECT_EQ(text, "/a.b.Service/Method");
  EXPECT_TRUE(MethodOfGrpcPath("/a.b.Service/Method", &text));
  EXPECT_EQ(text, "a.b.Service.Method");
  for (const char* bad : {"", "Method", ".Method", "Service.", "a b.c", "a/b.c",
                          "a?b.c", "a.b\n"}) {
    EXPECT_FALSE(GrpcPathOf(bad, &text)) << bad;
  }
  for (const char* bad :
       {"", "/", "//", "Service/Method", "/Method", "/Service/", "*"}) {
    EXPECT_FALSE(MethodOfGrpcPath(bad, &text)) << bad;
  }
}

TEST(GrpcContentType, KnowsWhatIsGrpcs) {
  EXPECT_EQ(ParseGrpcContentType("application/grpc"), PayloadFormat::kProtobuf);
  EXPECT_EQ(ParseGrpcContentType("Application/grpc+proto; charset=utf-8"),
            PayloadFormat::kProtobuf);
  EXPECT_EQ(ParseGrpcContentType("application/grpc+json"),
            PayloadFormat::kProto3Json);
  EXPECT_EQ(ParseGrpcContentType("application/grpc+thrift"), std::nullopt);
  EXPECT_TRUE(IsGrpcContentType("application/grpc+thrift"));
  for (const char* other :
       {"", "application/grpc-web", "application/json", "application/grpcx"}) {
    EXPECT_FALSE(IsGrpcContentType(other)) << other;
    EXPECT_EQ(ParseGrpcContentType(other), std::nullopt) << other;
  }
}

TEST(GrpcTimeoutText, HasAtMostEightDigits) {
  EXPECT_EQ(GrpcTimeout(1), "1m");
  EXPECT_EQ(GrpcTimeout(99'999'999), "99999999m");
  EXPECT_EQ(GrpcTimeout(100'000'000), "100000S");
  EXPECT_EQ(GrpcTimeout(100'000'001), "100001S");  // Never less than asked.
  EXPECT_EQ(GrpcTimeout(std::numeric_limits<std::uint32_t>::max()), "4294968S");
}

TEST(GrpcTimeoutText, IsReadInAllUnits) {
  EXPECT_EQ(ParseGrpcTimeout("1n"), 1);
  EXPECT_EQ(ParseGrpcTimeout("2u"), 2'000);
  EXPECT_EQ(ParseGrpcTimeout("3m"), 3'000'000);
  EXPECT_EQ(ParseGrpcTimeout("4S"), 4'000'000'000);
  EXPECT_EQ(ParseGrpcTimeout("5M"), 300'000'000'000);
  EXPECT_EQ(ParseGrpcTimeout("6H"), 21'600'000'000'000);
  EXPECT_EQ(ParseGrpcTimeout("99999999H"),
            std::numeric_limits<std::int64_t>::max());
  for (const char* bad : {"", "1", "m", "-1m", "+1m", "1s", "1.5S",
                          "123456789m", " 1m", "1m ", "0x1m"}) {
    EXPECT_EQ(ParseGrpcTimeout(bad), std::nullopt) << bad;
  }
}

TEST(GrpcTimeoutText, IsNeverReadAsLessThanItWas) {
  std::mt19937 random(1);
  for (int i = 0; i != 10'000; ++i) {
    const auto ms = static_cast<std::uint32_t>(random() >> random() % 32);
    const auto ns = ParseGrpcTimeout(GrpcTimeout(ms));
    ASSERT_TRUE(ns.has_value()) << ms;
    EXPECT_GE(*ns, std::int64_t{ms} * 1'000'000);
    EXPECT_LT(*ns, (std::int64_t{ms} + 1'000) * 1'000'000);
  }
}

TEST(GrpcMessageText, EncodesAllButPrintableAscii) {
  EXPECT_EQ(EncodeGrpcMessage("no such key: 50% of \"a\""),
            "no such key: 50%25 of \"a\"");
  EXPECT_EQ(EncodeGrpcMessage("\t\xe2\x98\xba\n"), "%09%E2%98%BA%0A");
  EXPECT_EQ(EncodeGrpcMessage(" cannot open:  "), "%20cannot open: %20");
  EXPECT_EQ(EncodeGrpcMessage(" "), "%20");
  EXPECT_EQ(DecodeGrpcMessage("%09%e2%98%BA%0A"), "\t\xe2\x98\xba\n");
  EXPECT_EQ(DecodeGrpcMessage("100%"), "100%");
  EXPECT_EQ(DecodeGrpcMessage("%zz %4"), "%zz %4");
  EXPECT_EQ(DecodeGrpcMessage("%%41"), "%A");
}

TEST(GrpcMessageText, AnyBytesComeBack) {
  std::mt19937 random(2);
  for (int i = 0; i != 2'000; ++i) {
    std::string text(random() % 40, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string encoded = EncodeGrpcMessage(text);
    for (const char c : encoded) EXPECT_TRUE(c >= ' ' && c <= '~');
    EXPECT_EQ(DecodeGrpcMessage(encoded), text);
  }
}

TEST(GrpcStatusFields, TheExactStatusCountsIfItFits) {
  EXPECT_EQ(StatusOfGrpcFields("0", ""), STATUS_SUCCESS);
  EXPECT_EQ(StatusOfGrpcFields("5", ""), StatusFromGrpc(GrpcCode::kNotFound));
  EXPECT_EQ(StatusOfGrpcFields("2", "12345"), 12345);
  EXPECT_EQ(StatusOfGrpcFields("14", "104"), STATUS_IO_ERROR);
  // One that isn't of that code, and none at all.
  EXPECT_EQ(StatusOfGrpcFields("2", "104"), STATUS_FAILED);
  EXPECT_EQ(StatusOfGrpcFields("2", "0"), STATUS_FAILED);
  EXPECT_EQ(StatusOfGrpcFields("0", "104"), STATUS_SUCCESS);
  EXPECT_EQ(StatusOfGrpcFields("2", "x"), STATUS_FAILED);
  for (const char* bad : {"", "x", "17", "-1", "99999999999"}) {
    EXPECT_EQ(StatusOfGrpcFields(bad, ""), STATUS_FAILED) << bad;
  }
}

TEST(GrpcEncodings, HaveTheNamesOfGrpc) {
  EXPECT_EQ(ParseGrpcEncoding("identity"), CompressionAlgorithm::kNone);
  EXPECT_EQ(ParseGrpcEncoding("gzip"), CompressionAlgorithm::kGzip);
  EXPECT_EQ(ParseGrpcEncoding("deflate"), CompressionAlgorithm::kZlib);
  EXPECT_EQ(ParseGrpcEncoding("br"), std::nullopt);
  EXPECT_EQ(GrpcEncodingOf(CompressionAlgorithm::kZstd), "zstd");
  EXPECT_EQ(GrpcEncodingOf(CompressionAlgorithm::kLz4Frame), "");
  const std::uint64_t accepted = ParseGrpcAcceptEncoding("gzip, br ,deflate");
  EXPECT_EQ(accepted, 1u << static_cast<int>(CompressionAlgorithm::kNone) |
                          1u << static_cast<int>(CompressionAlgorithm::kGzip) |
                          1u << static_cast<int>(CompressionAlgorithm::kZlib));
  EXPECT_EQ(GrpcCompressions() & accepted, accepted);
}

// Messages of all sizes, in pieces of all sizes.
TEST(GrpcMessages, AreCutWhereverTheyAreSplit) {
  std::mt19937 random(3);
  for (int round = 0; round != 300; ++round) {
    std::vector<std::pair<bool, std::string>> sent;
    BufferBuilder builder;
    for (std::size_t i = 0, n = random() % 6; i != n; ++i) {
      sent.emplace_back(
          random() % 2 == 0,
          std::string(random() % 2 == 0 ? random() % 8 : random() % 3000,
                      static_cast<char>('a' + i)));
      ASSERT_TRUE(AppendGrpcMessage(CreateBufferSlow(sent.back().second),
                                    sent.back().first, &builder));
    }
    Buffer bytes = builder.DestructiveGet();
    GrpcMessageCutter cutter(3000, "limit");
    GrpcMessage message;
    flare::Status error;
    std::size_t next = 0;
    while (!bytes.empty()) {
      const std::size_t piece =
          std::min<std::size_t>(1 + random() % 700, bytes.size());
      if (random() % 2 == 0) {
        cutter.Add(bytes.Cut(piece));
      } else {
        cutter.Add(FlattenSlow(bytes.Cut(piece)));
      }
      while (cutter.Next(&message, &error) == Result::kMessage) {
        ASSERT_LT(next, sent.size());
        EXPECT_EQ(message.compressed, sent[next].first);
        EXPECT_EQ(FlattenSlow(message.body), sent[next].second);
        ++next;
      }
    }
    EXPECT_EQ(next, sent.size());
    EXPECT_EQ(cutter.missing(), 0u);
    EXPECT_TRUE(cutter.empty());
    EXPECT_EQ(cutter.Next(&message, &error), Result::kNeedMore);
  }
}

TEST(GrpcMessages, SayWhatTheyLack) {
  GrpcMessageCutter cutter(10, "some_option");
  EXPECT_EQ(cutter.missing(), 0u);
  cutter.Add(std::string_view("\0\0\0", 3));
  EXPECT_EQ(cutter.missing(), 2u);
  cutter.Add(std::string_view("\0\x07xyz", 5));
  EXPECT_EQ(cutter.missing(), 4u);
  cutter.Add("abcd");
  EXPECT_EQ(cutter.missing(), 0u);
}

TEST(GrpcMessages, WhatIsTooLargeIsRefusedByItsPrefix) {
  GrpcMessageCutter cutter(10, "some_option");
  GrpcMessage message;
  flare::Status error;
  cutter.Add(std::string_view("\0\0\0\0\x0b", 5));
  EXPECT_EQ(cutter.Next(&message, &error), Result::kTooLarge);
  EXPECT_EQ(GrpcFromStatus(error.code()), GrpcCode::kResourceExhausted);
  EXPECT_NE(error.message().find("some_option"), std::string::npos);
}

TEST(GrpcMessages, AnUnknownFlagIsMalformed) {
  GrpcMessageCutter cutter(10, "some_option");
  GrpcMessage message;
  flare::Status error;
  cutter.Add(std::string_view("\2\0\0\0\0", 5));
  EXPECT_EQ(cutter.Next(&message, &error), Result::kError);
  EXPECT_EQ(error.code(), STATUS_MALFORMED_DATA);
}

TEST(GrpcMessages, FlagWithoutEncodingIsAnError) {
  const auto check = [](bool compressed,
                        std::optional<CompressionAlgorithm> encoding) {
    return GrpcFromStatus(
        CheckGrpcCompression(
            {.compressed = compressed, .body = CreateBufferSlow("x")}, encoding)
            .code());
  };
  EXPECT_EQ(check(true, CompressionAlgorithm::kNone), GrpcCode::kInternal);
  EXPECT_EQ(check(true, std::nullopt), GrpcCode::kUnimplemented);
  EXPECT_EQ(check(true, CompressionAlgorithm::kGzip), GrpcCode::kOk);
  EXPECT_EQ(check(false, CompressionAlgorithm::kNone), GrpcCode::kOk);
  EXPECT_EQ(check(false, std::nullopt), GrpcCode::kOk);
}

TEST(GrpcMetadata, AnyValuesComeBack) {
  Metadata sent;
  const std::string bytes("\0\xff,=\x01", 5);
  ASSERT_TRUE(sent.Add("x-name", "a, b").ok());
  ASSERT_TRUE(sent.Add("x-name", "c").ok());
  ASSERT_TRUE(sent.Add("x-bytes-bin", bytes).ok());
  GrpcMetadataReader reader{MetadataLimits()};
  reader.Add(":path", "/a/b");
  reader.Add("user-agent", "grpc");
  reader.Add("grpc-timeout", "1m");
  reader.Add("content-type", "application/grpc");
  reader.Add("te", "trailers");
  ForEachGrpcField(sent,
                   [&reader](std::string_view name, std::string_view value) {
                     reader.Add(name, value);
                   });
  std::unique_ptr<Metadata> read;
  EXPECT_EQ(reader.Take(&read), "");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->size(), 3u);
  EXPECT_EQ(read->GetAll("x-name"),
            (std::vector<std::string_view>{"a, b", "c"}));
  EXPECT_EQ(read->Get("x-bytes-bin"), bytes);
}

TEST(GrpcMetadata, BinaryValuesMayBePaddedAndJoined) {
  GrpcMetadataReader reader{MetadataLimits()};
  reader.Add("a-bin", "Zg==,Zm8, Zm9v");
  std::unique_ptr<Metadata> read;
  EXPECT_EQ(reader.Take(&read), "");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->GetAll("a-bin"),
            (std::vector<std::string_view>{"f", "fo", "foo"}));
}

TEST(GrpcMetadata, NothingIsNoObject) {
  GrpcMetadataReader reader{MetadataLimits()};
  reader.Add("te", "trailers");
  std::unique_ptr<Metadata> read;
  EXPECT_EQ(reader.Take(&read), "");
  EXPECT_EQ(read, nullptr);
}

TEST(GrpcMetadata, LimitsHold) {
  GrpcMetadataReader reader{MetadataLimits{.entries = 2, .bytes = 100}};
  std::unique_ptr<Metadata> read;
  for (int i = 0; i != 3; ++i) reader.Add("a", "b");
  EXPECT_EQ(reader.Take(&read), "metadata of 3 entries exceeds the limit of 2");
  EXPECT_EQ(read, nullptr);
  reader.Add("a", std::string(100, 'x'));
  EXPECT_EQ(reader.Take(&read),
            "metadata of 101 bytes exceeds the limit of 100");
  reader.Add("a", "b");
  EXPECT_EQ(reader.Take(&read), "");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->size(), 1u);
}

// As a value that came over another protocol may be.
TEST(GrpcMetadata, ControlBytesBecomeBlanks) {
  Metadata sent;
  ASSERT_TRUE(sent.AddReceived("a", "b\r\nc"));
  std::string scratch;
  EXPECT_EQ(GrpcFieldValue(*sent.begin(), &scratch), "b  c");
  // None is at an edge, where no field may have one.
  for (const char* value : {" b\n", "\tb", "b  "}) {
    Metadata edged;
    ASSERT_TRUE(edged.AddReceived("a", value));
    EXPECT_EQ(GrpcFieldValue(*edged.begin(), &scratch), "b") << value;
  }
}

}  // namespace
}  // namespace flare::rpc
