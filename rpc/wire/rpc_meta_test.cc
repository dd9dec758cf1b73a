#include "flare/rpc/wire/rpc_meta.h"

#include <string>

#include "flare/rpc/wire/meta_testing.h"
#include "gtest/gtest.h"
#include "rpc/wire/rpc_meta.pb.h"

namespace flare::rpc {
namespace {

using Reference = testing::RpcMeta;

std::string Encode(const RpcMeta& meta) {
  std::string out(RpcMetaBound(meta), '\0');
  const char* const end = EncodeRpcMeta(meta, out.data());
  EXPECT_LE(end, out.data() + out.size());
  out.resize(static_cast<std::size_t>(end - out.data()));
  return out;
}

RpcMeta RequestMeta(std::string_view method) {
  RpcMeta meta;
  meta.correlation_id = 1;
  meta.method_type = kMethodTypeSingle;
  meta.has_request = true;
  meta.method_name = method;
  return meta;
}

TEST(RpcMeta, EncodesTheDocumentedRequest) {
  auto meta = RequestMeta("example.protobuf_echo.EchoService.Echo");
  meta.timeout = 2000;
  meta.acceptable_compression_algorithms = 62;
  EXPECT_EQ(Encode(meta), std::string("\x08\x01\x2a\x2d\x12\x26", 6) +
                              "example.protobuf_echo.EchoService.Echo" +
                              std::string("\x20\xd0\x0f\x30\x3e\x38\x01", 7));
}

TEST(RpcMeta, EncodesTheDocumentedResponses) {
  RpcMeta ok;
  ok.correlation_id = 1;
  ok.method_type = kMethodTypeSingle;
  ok.has_response = true;
  EXPECT_EQ(Encode(ok), std::string("\x08\x01\x32\x02\x08\x00\x38\x01", 8));

  RpcMeta failed = ok;
  failed.correlation_id = 7;
  failed.status = 10;
  failed.description = "x";
  EXPECT_EQ(Encode(failed),
            std::string("\x08\x07\x32\x05\x08\x0a\x12\x01\x78\x38\x01", 11));

  RpcMeta end_of_stream = ok;
  end_of_stream.correlation_id = 7;
  end_of_stream.method_type = kMethodTypeStream;
  end_of_stream.flags = kFlagNoPayload | kFlagEndOfStream;
  EXPECT_EQ(Encode(end_of_stream),
            std::string("\x08\x07\x32\x02\x08\x00\x38\x02\x40\x06", 10));
}

TEST(RpcMeta, DecodesWhatItEncodes) {
  auto meta = RequestMeta("a.B.C");
  meta.correlation_id = 0xffffffffffffffff;
  meta.request_id = 0xffffffff;
  meta.timeout = 1;
  meta.tracing_context = std::string_view("\0\x01trace", 7);
  meta.acceptable_compression_algorithms = 1ull << 63;
  meta.flags = 3;
  meta.compression_algorithm = 5;
  meta.attachment_compressed = true;
  std::string bytes = Encode(meta);
  RpcMeta read;
  EXPECT_EQ(DecodeRpcMeta(bytes, &read), "");
  EXPECT_TRUE(read.has_correlation_id);
  EXPECT_EQ(read.correlation_id, meta.correlation_id);
  EXPECT_TRUE(read.has_request);
  EXPECT_TRUE(read.has_method_name);
  EXPECT_FALSE(read.has_response);
  EXPECT_EQ(read.method_name, "a.B.C");
  EXPECT_EQ(read.request_id, meta.request_id);
  EXPECT_EQ(read.timeout, 1u);
  EXPECT_EQ(read.tracing_context, meta.tracing_context);
  EXPECT_EQ(read.acceptable_compression_algorithms, 1ull << 63);
  EXPECT_TRUE(read.has_method_type);
  EXPECT_EQ(read.method_type, kMethodTypeSingle);
  EXPECT_EQ(read.flags, 3u);
  EXPECT_EQ(read.compression_algorithm, 5);
  EXPECT_TRUE(read.attachment_compressed);
}

TEST(RpcMeta, NegativeStatusTakesTenBytes) {
  RpcMeta meta;
  meta.method_type = kMethodTypeSingle;
  meta.has_response = true;
  meta.status = -1;
  std::string bytes = Encode(meta);
  RpcMeta read;
  EXPECT_EQ(DecodeRpcMeta(bytes, &read), "");
  EXPECT_TRUE(read.has_status);
  EXPECT_EQ(read.status, -1);
  Reference reference;
  ASSERT_TRUE(reference.ParseFromString(bytes));
  EXPECT_EQ(reference.response_meta().status(), -1);
}

// The length of a submessage takes one byte, two or three.
TEST(RpcMeta, LongSubmessages) {
  for (std::size_t size : {100u, 127u, 128u, 200u, 16'383u, 16'384u, 30'000u}) {
    const std::string text(size, 'x');
    RpcMeta meta;
    meta.has_request = meta.has_response = true;
    meta.method_name = meta.tracing_context = meta.description = text;
    Reference reference;
    ASSERT_TRUE(reference.ParseFromString(Encode(meta))) << size;
    EXPECT_EQ(reference.request_meta().method_name(), text);
    EXPECT_EQ(reference.request_meta().tracing_context(), text);
    EXPECT_EQ(reference.response_meta().description(), text);
  }
}

TEST(RpcMeta, TheBoundHoldsForAllFieldsAtTheirGreatest) {
  RpcMeta meta;
  meta.correlation_id = meta.flags = meta.acceptable_compression_algorithms =
      std::numeric_limits<std::uint64_t>::max();
  meta.method_type = meta.compression_algorithm = meta.status = -1;
  meta.request_id = meta.timeout = std::numeric_limits<std::uint32_t>::max();
  meta.attachment_compressed = meta.trace_forcibly_sampled = true;
  meta.has_request = meta.has_response = true;
  meta.method_name = meta.tracing_context = meta.description = "text";
  RpcMeta read;
  EXPECT_EQ(DecodeRpcMeta(Encode(meta), &read),
            "");  // Which looks at the bound.
  EXPECT_EQ(read.flags, meta.flags);
  EXPECT_EQ(read.timeout, meta.timeout);
}

TEST(RpcMeta, EmptyInputHasNothing) {
  RpcMeta meta;
  EXPECT_EQ(DecodeRpcMeta("", &meta), "");
  EXPECT_FALSE(meta.has_correlation_id);
  EXPECT_FALSE(meta.has_method_type);
  EXPECT_FALSE(meta.has_request);
}

TEST(RpcMeta, KeepsTheCorrelationIdInFrontOfAFault) {
  RpcMeta meta;
  // correlation_id = 5, then a string that runs past the end.
  EXPECT_EQ(DecodeRpcMeta(std::string_view("\x08\x05\x2a\x7f\x12", 5), &meta),
            "a length runs past the end");
  EXPECT_TRUE(meta.has_correlation_id);
  EXPECT_EQ(meta.correlation_id, 5u);
}

TEST(RpcMeta, ReportsAFaultInsideASubmessage) {
  RpcMeta meta;
  EXPECT_EQ(
      DecodeRpcMeta(std::string_view("\x08\x05\x2a\x02\x12\x09", 6), &meta),
      "a length runs past the end");
  EXPECT_TRUE(meta.has_correlation_id);
  EXPECT_FALSE(meta.has_method_name);
}

TEST(RpcMeta, RefusesBadEncodings) {
  const std::string_view bad[] = {
      {"\x08", 1},      // no value
      {"\x08\x80", 2},  // cut off varint
      {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12},  // 11 bytes
      {"\x00\x01", 2},                                       // field number 0
      {"\x07", 1},                                           // field 0, type 7
      {"\x0b", 1},                                           // group
      {"\x0c", 1},                                           // end of group
      {"\x0e\x01", 2},                                       // wire type 6
      {"\x0f\x01", 2},                                       // wire type 7
      {"\x79\x01\x02", 3},                                   // short fixed64
      {"\x7d\x01\x02", 3},                                   // short fixed32
      {"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},  // huge length
      {"\xff\xff\xff\xff\xff\x01\x00", 7},                   // six-byte tag
      {"\x32\x01\x08", 3},                                   // in response_meta
  };
  for (auto bytes : bad) {
    RpcMeta meta;
    EXPECT_NE(DecodeRpcMeta(bytes, &meta), "")
        << ::testing::PrintToString(bytes);
  }
}

TEST(RpcMeta, SkipsUnknownFieldsOfEachWireType) {
  std::string bytes(
      "\x78\x96\x01"                          // 15: varint
      "\x79\x01\x02\x03\x04\x05\x06\x07\x08"  // 15: fixed64
      "\x7a\x03zzz"                           // 15: bytes
      "\x7d\x01\x02\x03\x04"                  // 15: fixed32
      "\x08\x09",                             // the id
      24);
  RpcMeta meta;
  EXPECT_EQ(DecodeRpcMeta(bytes, &meta), "");
  EXPECT_EQ(meta.correlation_id, 9u);
}

TEST(RpcMeta, LaterFieldsWinAndSubmessagesMerge) {
  Reference first;
  first.mutable_request_meta()->set_method_name("a");
  first.mutable_request_meta()->set_timeout(5);
  first.set_correlation_id(1);
  first.set_method_type(testing::METHOD_TYPE_SINGLE);
  Reference second;
  second.mutable_request_meta()->set_method_name("b");
  second.set_correlation_id(2);
  second.set_method_type(testing::METHOD_TYPE_STREAM);
  std::string bytes = first.SerializeAsString() + second.SerializeAsString();
  RpcMeta meta;
  EXPECT_EQ(DecodeRpcMeta(bytes, &meta), "");
  EXPECT_EQ(meta.correlation_id, 2u);
  EXPECT_EQ(meta.method_name, "b");
  EXPECT_EQ(meta.timeout, 5u);
  EXPECT_EQ(meta.method_type, kMethodTypeStream);
}

TEST(RpcMeta, OrdinaryCallsArePlainlySingle) {
  auto meta = RequestMeta("example.protobuf_echo.EchoService.Echo");
  for (std::uint64_t id : {1ull, 127ull, 128ull, 1ull << 40, ~0ull}) {
    meta.correlation_id = id;
    EXPECT_TRUE(IsPlainlySingle(Encode(meta))) << id;
  }
  RpcMeta reply;
  reply.correlation_id = 300;
  reply.method_type = kMethodTypeSingle;
  reply.has_response = true;
  EXPECT_TRUE(IsPlainlySingle(Encode(reply)));
  meta.method_type = kMethodTypeStream;
  EXPECT_FALSE(IsPlainlySingle(Encode(meta)));
  const std::string bytes = Encode(reply);
  for (std::size_t n = 0; n != bytes.size(); ++n) {
    EXPECT_FALSE(IsPlainlySingle(std::string_view(bytes).substr(0, n))) << n;
  }
}

// --- against protobuf's own code -------------------------------------------

class RpcMetaRandom : public testing::MetaRandom {
 protected:
  Reference RandomReference() {
    Reference meta;
    meta.set_correlation_id(Number());
    meta.set_method_type(static_cast<testing::MethodType>(1 + rng_() % 2));
    if (rng_() % 4 != 0) {
      auto* request = meta.mutable_request_meta();
      request->set_method_name(Text());
      if (auto n = Number(); rng_() % 2) request->set_request_id(n | 1);
      if (auto n = Number(); rng_() % 2) request->set_timeout(n | 1);
      if (rng_() % 2) request->set_tracing_context(Text() + "t");
      if (auto n = Number(); rng_() % 2) {
        request->set_acceptable_compression_algorithms(n | 1);
      }
    }
    if (rng_() % 4 == 0) {
      auto* response = meta.mutable_response_meta();
      response->set_status(static_cast<std::int32_t>(Number()));
      if (rng_() % 2) response->set_description(Text() + "d");
      if (rng_() % 2) response->set_trace_forcibly_sampled(true);
    }
    if (rng_() % 2) meta.set_flags(Number() | 1);
    if (rng_() % 2) {
      meta.set_compression_algorithm(
          static_cast<testing::CompressionAlgorithm>(1 + rng_() % 5));
    }
    if (rng_() % 2) meta.set_attachment_compressed(true);
    return meta;
  }

  static void ExpectSame(const RpcMeta& meta, const Reference& reference) {
    EXPECT_EQ(meta.correlation_id, reference.correlation_id());
    EXPECT_EQ(meta.flags, reference.flags());
    EXPECT_EQ(meta.attachment_compressed, reference.attachment_compressed());
    EXPECT_EQ(meta.has_request, reference.has_request_meta());
    EXPECT_EQ(meta.has_response, reference.has_response_meta());
    const auto& request = reference.request_meta();
    EXPECT_EQ(meta.method_name, request.method_name());
    EXPECT_EQ(meta.request_id, request.request_id());
    EXPECT_EQ(meta.timeout, request.timeout());
    EXPECT_EQ(meta.tracing_context, request.tracing_context());
    EXPECT_EQ(meta.acceptable_compression_algorithms,
              request.acceptable_compression_algorithms());
    const auto& response = reference.response_meta();
    EXPECT_EQ(meta.status, response.status());
    EXPECT_EQ(meta.description, response.description());
    EXPECT_EQ(meta.trace_forcibly_sampled, response.trace_forcibly_sampled());
  }

  static bool Decodes(const std::string& bytes, const Reference* same) {
    EXPECT_FALSE(IsPlainlySingle(bytes) && IsStreamMeta(bytes));
    RpcMeta meta;
    const bool valid = DecodeRpcMeta(bytes, &meta).empty();
    if (!valid || same == nullptr) return valid;
    ExpectSame(meta, *same);
    // An enum value that protobuf doesn't know counts as absent there.
    if (same->has_method_type()) {
      EXPECT_TRUE(meta.has_method_type);
    }
    return true;
  }
};

TEST_F(RpcMetaRandom, BothCodecsAgreeOnValidMetas) {
  for (int i = 0; i != 20000; ++i) {
    Reference reference = RandomReference();
    std::string bytes = reference.SerializeAsString();
    RpcMeta meta;
    ASSERT_EQ(DecodeRpcMeta(bytes, &meta), "");
    ExpectSame(meta, reference);
    ASSERT_EQ(meta.method_type, reference.method_type());
    ASSERT_EQ(IsStreamMeta(bytes), meta.method_type == kMethodTypeStream);
    ASSERT_FALSE(IsPlainlySingle(bytes) && IsStreamMeta(bytes));
    ASSERT_EQ(Encode(meta), bytes) << reference.DebugString();
  }
}

TEST_F(RpcMetaRandom, DamageIsJudgedAsProtobufDoes) {
  const auto make = [this] { return RandomReference(); };
  CheckTruncations(300, make, Decodes);
  CheckMutations(200000, make, Decodes);
}

}  // namespace
}  // namespace flare::rpc
