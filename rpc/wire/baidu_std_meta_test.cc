#include "flare/rpc/wire/baidu_std_meta.h"

#include <string>

#include "flare/rpc/wire/meta_testing.h"
#include "gtest/gtest.h"
#include "rpc/wire/baidu_std_meta.pb.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using Reference = testing::baidu_std::Meta;

std::string Encode(const BaiduStdMeta& meta) {
  std::string out(BaiduStdMetaSize(meta), '\0');
  char* end = EncodeBaiduStdMeta(meta, out.data());
  EXPECT_EQ(end, out.data() + out.size());
  return out;
}

BaiduStdMeta Decode(std::string_view bytes) {
  BaiduStdMeta meta;
  EXPECT_EQ(DecodeBaiduStdMeta(bytes, &meta), "");
  return meta;
}

TEST(BaiduStdMetaTest, EncodesTheDocumentedRequest) {
  BaiduStdMeta meta;
  meta.has_request = true;
  meta.service_name = "example.protobuf_echo.EchoService";
  meta.method_name = "Echo";
  meta.correlation_id = 1;
  EXPECT_EQ(Encode(meta),
            "\x0a\x29\x0a\x21"
            "example.protobuf_echo.EchoService"
            "\x12\x04"
            "Echo\x18\x00\x20\x01"s);
}

TEST(BaiduStdMetaTest, EncodesTheDocumentedResponse) {
  BaiduStdMeta meta;
  meta.has_response = true;
  meta.correlation_id = 1;
  EXPECT_EQ(Encode(meta), "\x12\x02\x08\x00\x20\x01"s);
}

TEST(BaiduStdMetaTest, DecodesTheExplicitZerosOfAPeer) {
  auto meta =
      Decode("\x12\x02\x08\x00\x18\x00\x20\x01\x50\x00\x58\x00\x62\x00"s);
  EXPECT_TRUE(meta.has_response);
  EXPECT_EQ(meta.error_code, 0);
  EXPECT_EQ(meta.correlation_id, 1u);
  EXPECT_EQ(meta.compress_type, 0);
  EXPECT_EQ(meta.content_type, 0);
}

TEST(BaiduStdMetaTest, NegativeNumbersTakeTenBytes) {
  BaiduStdMeta meta;
  meta.has_response = true;
  meta.error_code = -1;
  meta.correlation_id = 0xffffffffffffffff;
  meta.attachment_size = -5;
  Reference reference;
  ASSERT_TRUE(reference.ParseFromString(Encode(meta)));
  EXPECT_EQ(reference.response().error_code(), -1);
  EXPECT_EQ(reference.correlation_id(), -1);
  EXPECT_EQ(reference.attachment_size(), -5);
  auto read = Decode(Encode(meta));
  EXPECT_EQ(read.error_code, -1);
  EXPECT_EQ(read.correlation_id, 0xffffffffffffffff);
  EXPECT_EQ(read.attachment_size, -5);
}

TEST(BaiduStdMetaTest, EmptyInputHasNothing) {
  auto meta = Decode("");
  EXPECT_FALSE(meta.has_request);
  EXPECT_FALSE(meta.has_response);
  EXPECT_FALSE(meta.has_correlation_id);
  EXPECT_FALSE(meta.has_stream_settings);
}

TEST(BaiduStdMetaTest, KeepsWhatIsInFrontOfAFault) {
  BaiduStdMeta meta;
  EXPECT_EQ(DecodeBaiduStdMeta("\x20\x05\x0a\x7f\x12", &meta),
            "a length runs past the end");
  EXPECT_TRUE(meta.has_correlation_id);
  EXPECT_EQ(meta.correlation_id, 5u);
  EXPECT_FALSE(meta.has_service_name);
}

TEST(BaiduStdMetaTest, RefusesFaultsInSubmessages) {
  for (auto bytes : {"\x0a\x02\x0a\x09"s, "\x0a\x02\x12\x09"s, "\x12\x01\x08"s,
                     "\x12\x02\x12\x01"s, "\x42\x05"s}) {
    BaiduStdMeta meta;
    EXPECT_NE(DecodeBaiduStdMeta(bytes, &meta), "")
        << ::testing::PrintToString(bytes);
    EXPECT_FALSE(meta.has_service_name);
    EXPECT_FALSE(meta.has_method_name);
  }
}

// --- against protobuf's own code -------------------------------------------

class BaiduStdMetaRandom : public testing::MetaRandom {
 protected:
  // With `unwritten`, fields too that the library never writes.
  Reference RandomReference(bool unwritten) {
    Reference meta;
    if (Sometimes()) {
      auto* request = meta.mutable_request();
      request->set_service_name(Text());
      request->set_method_name(Text());
      if (Sometimes()) request->set_timeout_ms(Int32() | 1);
      if (unwritten && Sometimes()) request->set_log_id(Number());
      meta.set_compress_type(Int32());
    } else {
      auto* response = meta.mutable_response();
      response->set_error_code(Int32());
      if (Sometimes()) response->set_error_text(Text() + "e");
      if (Sometimes()) meta.set_compress_type(Int32() | 1);
    }
    meta.set_correlation_id(static_cast<std::int64_t>(Number()));
    if (Sometimes()) meta.set_attachment_size(Int32() | 1);
    if (Sometimes()) meta.set_content_type(Int32() | 1);
    if (unwritten && Sometimes()) meta.set_authentication_data(Text());
    if (Sometimes()) {
      auto* settings = meta.mutable_stream_settings();
      settings->set_stream_id(static_cast<std::int64_t>(Number()));
      if (Sometimes()) settings->set_need_feedback(true);
      if (Sometimes()) settings->set_writable(true);
      if (Sometimes())
        settings->set_window(static_cast<std::uint32_t>(Number()) | 1);
    }
    if (Sometimes()) meta.set_notice(static_cast<std::uint32_t>(Number()) | 1);
    if (unwritten && Sometimes()) {
      meta.set_checksum_type(Int32());
      meta.set_checksum_value(Text());
      meta.set_checksum_with_attachment(Sometimes());
    }
    return meta;
  }

  static void ExpectSame(const BaiduStdMeta& meta, const Reference& reference) {
    EXPECT_EQ(meta.has_request, reference.has_request());
    EXPECT_EQ(meta.has_response, reference.has_response());
    EXPECT_EQ(meta.has_correlation_id, reference.has_correlation_id());
    EXPECT_EQ(meta.has_stream_settings, reference.has_stream_settings());
    EXPECT_EQ(static_cast<std::int64_t>(meta.correlation_id),
              reference.correlation_id());
    EXPECT_EQ(meta.compress_type, reference.compress_type());
    EXPECT_EQ(meta.attachment_size, reference.attachment_size());
    EXPECT_EQ(meta.content_type, reference.content_type());
    EXPECT_EQ(meta.checksum_type, reference.checksum_type());
    EXPECT_EQ(meta.checksum_value, reference.checksum_value());
    EXPECT_EQ(meta.checksum_with_attachment,
              reference.checksum_with_attachment());
    const auto& request = reference.request();
    EXPECT_EQ(meta.has_service_name, request.has_service_name());
    EXPECT_EQ(meta.has_method_name, request.has_method_name());
    EXPECT_EQ(meta.service_name, request.service_name());
    EXPECT_EQ(meta.method_name, request.method_name());
    EXPECT_EQ(meta.timeout_ms, request.timeout_ms());
    EXPECT_EQ(meta.error_code, reference.response().error_code());
    EXPECT_EQ(meta.error_text, reference.response().error_text());
    const auto& settings = reference.stream_settings();
    EXPECT_EQ(static_cast<std::int64_t>(meta.stream_id), settings.stream_id());
    EXPECT_EQ(meta.stream_needs_feedback, settings.need_feedback());
    EXPECT_EQ(meta.stream_writable, settings.writable());
    EXPECT_EQ(meta.stream_window, settings.window());
    EXPECT_EQ(meta.notice, reference.notice());
  }

  static bool Decodes(const std::string& bytes, const Reference* same) {
    BaiduStdMeta meta;
    const bool valid = DecodeBaiduStdMeta(bytes, &meta).empty();
    if (valid && same != nullptr) ExpectSame(meta, *same);
    return valid;
  }
};

TEST_F(BaiduStdMetaRandom, BothCodecsAgreeOnValidMetas) {
  for (int i = 0; i != 20000; ++i) {
    Reference reference = RandomReference(/*unwritten=*/i % 2 == 0);
    std::string bytes = reference.SerializeAsString();
    BaiduStdMeta meta;
    ASSERT_EQ(DecodeBaiduStdMeta(bytes, &meta), "");
    ExpectSame(meta, reference);
    if (i % 2 == 1) {
      ASSERT_EQ(Encode(meta), bytes) << reference.DebugString();
    }
  }
}

TEST_F(BaiduStdMetaRandom, DamageIsJudgedAsProtobufDoes) {
  const auto make = [this] { return RandomReference(/*unwritten=*/true); };
  CheckTruncations(300, make, Decodes);
  CheckMutations(100000, make, Decodes);
}

}  // namespace
}  // namespace flare::rpc
