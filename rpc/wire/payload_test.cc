#include "flare/rpc/wire/payload.h"

#include <google/protobuf/empty.pb.h>

#include <random>
#include <string>
#include <utility>

#include "flare/base/testing/rounds.h"
#include "flare/rpc/wire/payload_testing.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"
#include "rpc/wire/old_messages.pb.h"
#include "rpc/wire/rpc_meta.pb.h"

namespace flare::rpc {
namespace {

using testing::OnASmallStack;
using testing::Repeated;
using testing::RequiredPayload;
using testing::SlicedBuffer;
using testing::TestPayload;

constexpr PayloadFormat kFormats[] = {
    PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
    PayloadFormat::kProto3Json, PayloadFormat::kLenientJson};

std::string Serialize(PayloadFormat format,
                      const google::protobuf::Message& message) {
  OutboundBody body;
  flare::Status status = SerializePayload(format, message, &body);
  EXPECT_TRUE(status.ok()) << status;
  return FlattenSlow(std::move(body).ToBuffer());
}

flare::Status Parse(PayloadFormat format, std::string_view bytes,
                    google::protobuf::Message* message, std::size_t piece = 7) {
  return ParsePayload(format, SlicedBuffer(bytes, piece), message);
}

TEST(Payload, HasTheDocumentedForms) {
  TestPayload message;
  message.set_text("hi");
  message.set_big_number(5);
  EXPECT_EQ(Serialize(PayloadFormat::kProtobuf, message), "\x0a\x02hi\x10\x05");
  EXPECT_EQ(Serialize(PayloadFormat::kProtobufText, message),
            "text: \"hi\" big_number: 5");
  for (auto format :
       {PayloadFormat::kProto3Json, PayloadFormat::kLenientJson}) {
    EXPECT_EQ(Serialize(format, message),
              "{\"text\":\"hi\",\"bigNumber\":\"5\"}");
  }
}

// Some callers read it without the message's descriptor.
TEST(Payload, TrpcHasJsonOfItsOwn) {
  testing::TestReply message;
  message.set_user_name("x");
  message.set_kind(testing::TEST_KIND_BIG);
  message.add_other_kinds(testing::TEST_KIND_NONE);
  EXPECT_EQ(Serialize(PayloadFormat::kVerboseJson, message),
            "{\"user_name\":\"x\",\"kind\":2,\"count\":0,\"other_kinds\":[0]}");
  EXPECT_EQ(Serialize(PayloadFormat::kProto3Json, message),
            "{\"userName\":\"x\",\"kind\":\"TEST_KIND_BIG\","
            "\"otherKinds\":[\"TEST_KIND_NONE\"]}");
  EXPECT_EQ(Serialize(PayloadFormat::kVerboseJson, testing::TestReply()),
            "{\"user_name\":\"\",\"kind\":0,\"count\":0,\"other_kinds\":[]}");
  // Either is understood.
  for (auto written :
       {PayloadFormat::kProto3Json, PayloadFormat::kVerboseJson}) {
    for (auto format :
         {PayloadFormat::kProto3Json, PayloadFormat::kVerboseJson}) {
      testing::TestReply read;
      ASSERT_TRUE(Parse(format, Serialize(written, message), &read).ok());
      EXPECT_EQ(read.user_name(), "x");
      EXPECT_EQ(read.kind(), testing::TEST_KIND_BIG);
      ASSERT_EQ(read.other_kinds_size(), 1);
      EXPECT_EQ(read.other_kinds(0), testing::TEST_KIND_NONE);
    }
  }
}

TEST(Payload, RoundTripsInAllFormats) {
  std::mt19937 rng(1);
  for (int i = 0; i != flare::testing::Rounds(200); ++i) {
    TestPayload message;
    message.set_text(std::string(rng() % 5000, 'a' + rng() % 26));
    message.set_big_number(static_cast<std::int64_t>(rng()) << 20);
    for (int n = rng() % 10; n != 0; --n) message.add_numbers(rng());
    message.set_raw(std::string(rng() % 100, static_cast<char>(rng())));
    if (rng() % 2) message.mutable_nested()->set_text("inner");
    for (auto format : kFormats) {
      std::string bytes = Serialize(format, message);
      for (std::size_t piece :
           {std::size_t{1}, std::size_t{1000}, bytes.size()}) {
        TestPayload read;
        read.set_text("from before");
        ASSERT_TRUE(Parse(format, bytes, &read, piece).ok());
        EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
      }
    }
  }
}

TEST(Payload, ALargeMessageIsWrittenInBlocks) {
  TestPayload message;
  message.set_text(std::string(1 << 20, 'x'));
  BufferBuilder out;
  out.Append("head");
  OutboundBody body;
  ASSERT_TRUE(SerializePayload(PayloadFormat::kProtobuf, message, &body).ok());
  EXPECT_EQ(body.size(), message.ByteSizeLong());
  std::move(body).AppendTo(&out);
  out.Append("tail");
  EXPECT_EQ(FlattenSlow(out.DestructiveGet()),
            "head" + message.SerializeAsString() + "tail");
}

TEST(Payload, AnEmptyMessageIsEmpty) {
  TestPayload message;
  EXPECT_EQ(Serialize(PayloadFormat::kProtobuf, message), "");
  EXPECT_EQ(Serialize(PayloadFormat::kProtobufText, message), "");
  EXPECT_EQ(Serialize(PayloadFormat::kProto3Json, message), "{}");
  EXPECT_TRUE(Parse(PayloadFormat::kProtobuf, "", &message).ok());
  EXPECT_TRUE(Parse(PayloadFormat::kProtobufText, "", &message).ok());
  // No JSON text at all isn't an object.
  EXPECT_EQ(Parse(PayloadFormat::kProto3Json, "", &message).code(),
            STATUS_MALFORMED_DATA);
}

TEST(Payload, SaysWhatIsMalformed) {
  struct Case {
    PayloadFormat format;
    const char* bytes;
  } cases[] = {
      {PayloadFormat::kProtobuf, "\x0a\x7fhi"},
      {PayloadFormat::kProtobuf, "\xff"},
      {PayloadFormat::kProtobufText, "text: "},
      {PayloadFormat::kProtobufText, "unknown: 1"},
      {PayloadFormat::kProtobufText, "}"},
      {PayloadFormat::kProto3Json, "{"},
      {PayloadFormat::kProto3Json, "{\"unknown\":1}"},
      {PayloadFormat::kProto3Json, "[]"},
      {PayloadFormat::kProto3Json, "{\"bigNumber\":\"x\"}"},
      {PayloadFormat::kLenientJson, "{\"unknown\":}"},
      {PayloadFormat::kLenientJson, "{\"bigNumber\":\"x\"}"},
  };
  for (const Case& c : cases) {
    TestPayload message;
    flare::Status status = Parse(c.format, c.bytes, &message);
    EXPECT_EQ(status.code(), STATUS_MALFORMED_DATA) << c.bytes;
    EXPECT_EQ(
        status.message().find("can't read a flare.rpc.testing.TestPayload: "),
        0u)
        << status;
  }
}

TEST(Payload, LenientJsonMayHaveOtherFields) {
  for (auto format :
       {PayloadFormat::kLenientJson, PayloadFormat::kVerboseJson}) {
    TestPayload message;
    EXPECT_TRUE(Parse(format,
                      "{\"text\":\"hi\",\"later\":{\"x\":[1,{}]},\"nested\":"
                      "{\"later\":null,\"text\":\"in\"},\"big_number\":\"5\"}",
                      &message)
                    .ok());
    EXPECT_EQ(message.text(), "hi");
    EXPECT_EQ(message.nested().text(), "in");
    EXPECT_EQ(message.big_number(), 5);
  }
}

// It may stand for any message, whose fields would be lost.
TEST(Payload, LenientJsonOfAMessageWithoutFieldsHasNone) {
  for (auto format :
       {PayloadFormat::kLenientJson, PayloadFormat::kVerboseJson}) {
    google::protobuf::Empty message;
    EXPECT_TRUE(Parse(format, "{}", &message).ok());
    EXPECT_FALSE(Parse(format, "{\"later\":1}", &message).ok());
  }
}

TEST(Payload, TextFaultsHaveAPlace) {
  TestPayload message;
  EXPECT_NE(
      Parse(PayloadFormat::kProtobufText, "text: \"a\"\nnope: 1", &message)
          .message()
          .find("2:"),
      std::string::npos);
}

TEST(Payload, RequiredFieldsAreRequired) {
  RequiredPayload message;
  EXPECT_EQ(Parse(PayloadFormat::kProtobuf, "", &message).message(),
            "can't read a flare.rpc.testing.RequiredPayload: missing must");
  EXPECT_EQ(Parse(PayloadFormat::kProtobufText, "", &message).code(),
            STATUS_MALFORMED_DATA);
  EXPECT_EQ(Parse(PayloadFormat::kProto3Json, "{}", &message).code(),
            STATUS_MALFORMED_DATA);
  for (auto format : kFormats) {
    OutboundBody body;
    flare::Status status = SerializePayload(format, message, &body);
    EXPECT_EQ(status.code(), STATUS_SERIALIZE_RESPONSE);
    EXPECT_TRUE(body.empty());
    EXPECT_NE(status.message().find("missing must"), std::string::npos);
  }
}

// Their explanations must not grow with the input, be it by much more.
TEST(Payload, ExplanationsAreShort) {
  // Thousands of lacking fields, each with a long path.
  std::string leafs = Repeated(testing::BytesField(11, ""), 1000);
  for (int i = 0; i != 60; ++i) leafs = testing::BytesField(8, leafs);
  testing::OldTypes message;
  const std::string missing =
      Parse(PayloadFormat::kProtobuf, leafs, &message).message();
  EXPECT_NE(missing.find("missing nested.nested."), std::string::npos);
  EXPECT_LT(missing.size(), 700u);
  const flare::Status one = Parse(
      PayloadFormat::kProtobuf,
      testing::BytesField(11, "\x08\x01\x10\x01") + testing::BytesField(11, ""),
      &message);
  EXPECT_EQ(one.message(),
            "can't read a flare.rpc.testing.OldTypes: missing needs[1].first");

  const std::string word(1 << 20, 'x');
  for (auto [format, input] :
       {std::pair(PayloadFormat::kProtobufText, word + ": 1"),
        std::pair(PayloadFormat::kProtobufText, "big_number: " + word),
        std::pair(PayloadFormat::kProto3Json, "{\"" + word + "\":1}"),
        std::pair(PayloadFormat::kProto3Json,
                  "{\"bigNumber\":\"" + word + "\"}")}) {
    TestPayload payload;
    const flare::Status status = Parse(format, input, &payload);
    EXPECT_EQ(status.code(), STATUS_MALFORMED_DATA);
    EXPECT_LT(status.message().size(), 700u);
  }
}

std::string NestedBinary(int depth) {
  std::string bytes;
  for (int i = 0; i != depth; ++i) {
    std::string size;
    for (auto n = bytes.size();; n >>= 7) {
      size.push_back(static_cast<char>(n >= 0x80 ? (n | 0x80) : n));
      if (n < 0x80) break;
    }
    bytes = "\x2a" + size + bytes;
  }
  return bytes;
}

// Whatever is sent must not overflow the stack.
TEST(Payload, DeepNestingIsRefused) {
  std::string binary = NestedBinary(200);
  std::string text = Repeated("nested{", 100000);
  std::string json = Repeated("{\"nested\":", 100000);
  std::string brackets = "{\"numbers\":" + std::string(100000, '[');
  std::string unknown = Repeated("{\"later\":", 100000);
  std::string unknown_brackets = "{\"later\":" + std::string(100000, '[');
  OnASmallStack([&] {
    TestPayload message;
    EXPECT_FALSE(Parse(PayloadFormat::kProtobuf, binary, &message, 9999).ok());
    EXPECT_FALSE(
        Parse(PayloadFormat::kProtobufText, text, &message, 9999).ok());
    EXPECT_FALSE(Parse(PayloadFormat::kProto3Json, json, &message, 9999).ok());
    EXPECT_FALSE(
        Parse(PayloadFormat::kProto3Json, brackets, &message, 9999).ok());
    for (const auto& deep : {json, brackets, unknown, unknown_brackets}) {
      EXPECT_FALSE(
          Parse(PayloadFormat::kLenientJson, deep, &message, 9999).ok());
    }
  });
}

TEST(Payload, TheNestingThatIsAllowedFits) {
  auto round_trip = [](PayloadFormat format, int depth) {
    TestPayload message;
    ASSERT_TRUE(message.ParseFromString(NestedBinary(depth)));
    TestPayload read;
    EXPECT_TRUE(Parse(format, Serialize(format, message), &read, 999).ok());
    // Fields that aren't set are 0 in tRPC's JSON.
    if (format == PayloadFormat::kVerboseJson) return;
    EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
  };
  OnASmallStack([&] {
    round_trip(PayloadFormat::kProtobuf, 99);
    round_trip(PayloadFormat::kProtobufText, 30);
    round_trip(PayloadFormat::kProto3Json, 64);
    round_trip(PayloadFormat::kVerboseJson, 64);
  });
}

TEST(Payload, IsCompressedAndDecompressedInPlace) {
  const std::string text(1000, 'a');
  Buffer bytes = SlicedBuffer(text, 99);
  const auto gzip = CompressionAlgorithm::kGzip;
  ASSERT_TRUE(CompressInPlace(gzip, 7, "", &bytes).ok());
  EXPECT_LT(bytes.size(), 100u);
  Buffer copy = bytes;
  ASSERT_TRUE(DecompressInPlace(gzip, 1000, "", &bytes).ok());
  EXPECT_EQ(FlattenSlow(bytes), text);

  const auto too_large = DecompressInPlace(gzip, 999, "no", &copy);
  EXPECT_EQ(too_large.code(), STATUS_MALFORMED_DATA);
  EXPECT_TRUE(too_large.message().starts_with("no: ")) << too_large;
  const auto unknown =
      CompressInPlace(CompressionAlgorithm::kUnknown, 7, "no", &bytes);
  EXPECT_EQ(unknown.code(), 7);
  EXPECT_TRUE(unknown.message().starts_with("no: ")) << unknown;
}

TEST(Payload, NoBytesStayNoneInPlace) {
  Buffer none;
  const auto unknown = CompressionAlgorithm::kUnknown;
  EXPECT_TRUE(CompressInPlace(unknown, 7, "no", &none).ok());
  EXPECT_TRUE(DecompressInPlace(unknown, 1, "no", &none).ok());
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace flare::rpc
