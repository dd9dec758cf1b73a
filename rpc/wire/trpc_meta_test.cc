#include "flare/rpc/wire/trpc_meta.h"

#include <cstdint>
#include <string>

#include "flare/rpc/wire/meta_testing.h"
#include "gtest/gtest.h"
#include "rpc/wire/trpc_meta.pb.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using PbRequest = testing::trpc::RequestProtocol;
using PbResponse = testing::trpc::ResponseProtocol;

std::string Encode(const TrpcRequestMeta& meta) {
  std::string out(TrpcRequestSize(meta), '\0');
  EXPECT_EQ(EncodeTrpcRequest(meta, out.data()), out.data() + out.size());
  return out;
}

std::string Encode(const TrpcResponseMeta& meta) {
  std::string out(TrpcResponseSize(meta), '\0');
  EXPECT_EQ(EncodeTrpcResponse(meta, out.data()), out.data() + out.size());
  return out;
}

TEST(TrpcMetaTest, EncodesTheDocumentedRequest) {
  TrpcRequestMeta meta;
  meta.request_id = 1;
  meta.timeout = 1000;
  meta.caller = "trpc.test.helloworld.client";
  meta.callee = "trpc.test.helloworld.Greeter";
  meta.service = "trpc.test.helloworld.Greeter";
  meta.method = "SayHello";
  std::string expected = "\x18\x01\x20\xe8\x07\x2a\x1b"s +
                         "trpc.test.helloworld.client" + "\x32\x1c" +
                         "trpc.test.helloworld.Greeter" + "\x3a\x26" +
                         "/trpc.test.helloworld.Greeter/SayHello";
  EXPECT_EQ(expected.size(), 104u);
  EXPECT_EQ(Encode(meta), expected);
}

TEST(TrpcMetaTest, EncodesTheDocumentedResponse) {
  TrpcResponseMeta meta;
  meta.request_id = 1;
  EXPECT_EQ(Encode(meta), "\x18\x01");
}

// The most that each number can take, and texts long enough for long lengths.
TEST(TrpcMetaTest, BoundsHoldForTheLargestValues) {
  constexpr std::uint32_t kMost = 0xffffffff;
  const std::string text(60'000, 'x');
  TrpcRequestMeta request;
  request.version = request.call_type = request.request_id = kMost;
  request.timeout = request.message_type = request.content_type = kMost;
  request.content_encoding = request.attachment_size = kMost;
  request.caller = request.callee = request.service = request.method = text;
  EXPECT_LE(TrpcRequestSize(request), TrpcRequestBound(request));

  PbRequest with_trans_info;
  for (const std::string& entry : {""s, "a"s, text}) {
    with_trans_info.add_trans_info(entry);
  }
  const std::string repeated = with_trans_info.SerializeAsString();
  TrpcResponseMeta response;
  response.version = response.call_type = response.request_id = kMost;
  response.message_type = response.content_type = kMost;
  response.content_encoding = response.attachment_size = kMost;
  response.ret = response.func_ret = -1;
  response.error_msg = text;
  response.request = repeated;
  EXPECT_GT(TrpcResponseSize(response), repeated.size());
  EXPECT_LE(TrpcResponseSize(response), TrpcResponseBound(response));
}

TEST(TrpcMetaTest, SplitsFunc) {
  struct Case {
    std::string_view func, service, method;
  } cases[] = {{"/a.B/C", "a.B", "C"}, {"/B/C", "B", "C"},
               {"/a/b/C", "a/b", "C"}, {"", "", ""},
               {"/", "", ""},          {"//", "", ""},
               {"//C", "", ""},        {"/a.B/", "", ""},
               {"a.B/C", "", ""},      {"/a.B.C", "", ""}};
  for (const Case& c : cases) {
    PbRequest request;
    request.set_func(std::string(c.func));
    std::string bytes = request.SerializeAsString();
    TrpcRequestMeta meta;
    EXPECT_EQ(DecodeTrpcRequest(bytes, &meta), "");
    EXPECT_EQ(meta.func, c.func);
    EXPECT_EQ(meta.service, c.service);
    EXPECT_EQ(meta.method, c.method);
  }
}

TEST(TrpcMetaTest, RepeatsTransInfo) {
  PbRequest request;
  request.set_request_id(5);
  request.add_trans_info("one");
  request.add_trans_info("");
  request.add_trans_info(std::string(300, 'x'));
  // Bytes behind a fault aren't repeated.
  std::string bytes = request.SerializeAsString() + "\x4a\x7f";
  TrpcResponseMeta meta;
  meta.request = bytes;
  PbResponse response;
  ASSERT_TRUE(response.ParseFromString(Encode(meta)));
  ASSERT_EQ(response.trans_info_size(), 3);
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(response.trans_info(i), request.trans_info(i));
  }
}

TEST(TrpcMetaTest, KeepsWhatIsInFrontOfAFault) {
  TrpcRequestMeta meta;
  EXPECT_EQ(DecodeTrpcRequest("\x18\x05\x3a\x7f", &meta),
            "a length runs past the end");
  EXPECT_EQ(meta.request_id, 5u);
  TrpcResponseMeta response;
  EXPECT_EQ(DecodeTrpcResponse("\x18\x06\x20", &response),
            "a number is cut off");
  EXPECT_EQ(response.request_id, 6u);
}

// --- against protobuf's own code -------------------------------------------

class TrpcMetaRandom : public testing::MetaRandom {
 protected:
  std::uint32_t Uint32() {
    return Sometimes() ? 0 : static_cast<std::uint32_t>(Number());
  }

  PbRequest RandomRequest() {
    PbRequest request;
    request.set_version(Uint32());
    request.set_call_type(Uint32());
    request.set_request_id(Uint32());
    request.set_timeout(Uint32());
    request.set_caller(Text());
    request.set_callee(Text());
    request.set_func("/a" + Text() + "/Method");
    request.set_message_type(Uint32());
    request.set_content_type(Uint32());
    request.set_content_encoding(Uint32());
    request.set_attachment_size(Uint32());
    return request;
  }

  PbResponse RandomResponse() {
    PbResponse response;
    response.set_version(Uint32());
    response.set_call_type(Uint32());
    response.set_request_id(Uint32());
    response.set_ret(Sometimes() ? 0 : Int32());
    response.set_func_ret(Sometimes() ? 0 : Int32());
    response.set_error_msg(Text());
    response.set_message_type(Uint32());
    response.set_content_type(Uint32());
    response.set_content_encoding(Uint32());
    response.set_attachment_size(Uint32());
    return response;
  }

  static void ExpectSame(const TrpcRequestMeta& meta,
                         const PbRequest& request) {
    EXPECT_EQ(meta.version, request.version());
    EXPECT_EQ(meta.call_type, request.call_type());
    EXPECT_EQ(meta.request_id, request.request_id());
    EXPECT_EQ(meta.timeout, request.timeout());
    EXPECT_EQ(meta.caller, request.caller());
    EXPECT_EQ(meta.callee, request.callee());
    EXPECT_EQ(meta.func, request.func());
    EXPECT_EQ(meta.message_type, request.message_type());
    EXPECT_EQ(meta.content_type, request.content_type());
    EXPECT_EQ(meta.content_encoding, request.content_encoding());
    EXPECT_EQ(meta.attachment_size, request.attachment_size());
  }

  static void ExpectSame(const TrpcResponseMeta& meta,
                         const PbResponse& response) {
    EXPECT_EQ(meta.version, response.version());
    EXPECT_EQ(meta.call_type, response.call_type());
    EXPECT_EQ(meta.request_id, response.request_id());
    EXPECT_EQ(meta.ret, response.ret());
    EXPECT_EQ(meta.func_ret, response.func_ret());
    EXPECT_EQ(meta.error_msg, response.error_msg());
    EXPECT_EQ(meta.message_type, response.message_type());
    EXPECT_EQ(meta.content_type, response.content_type());
    EXPECT_EQ(meta.content_encoding, response.content_encoding());
    EXPECT_EQ(meta.attachment_size, response.attachment_size());
  }

  static bool DecodesRequest(const std::string& bytes, const PbRequest* same) {
    TrpcRequestMeta meta;
    bool valid = DecodeTrpcRequest(bytes, &meta).empty();
    if (valid && same != nullptr) ExpectSame(meta, *same);
    return valid;
  }
  static bool DecodesResponse(const std::string& bytes,
                              const PbResponse* same) {
    TrpcResponseMeta meta;
    bool valid = DecodeTrpcResponse(bytes, &meta).empty();
    if (valid && same != nullptr) ExpectSame(meta, *same);
    return valid;
  }
};

TEST_F(TrpcMetaRandom, BothCodecsAgreeOnValidMetas) {
  for (int i = 0; i != 10000; ++i) {
    PbRequest request = RandomRequest();
    std::string bytes = request.SerializeAsString();
    TrpcRequestMeta meta;
    ASSERT_EQ(DecodeTrpcRequest(bytes, &meta), "");
    ExpectSame(meta, request);
    ASSERT_EQ(Encode(meta), bytes) << request.DebugString();

    PbResponse response = RandomResponse();
    bytes = response.SerializeAsString();
    TrpcResponseMeta response_meta;
    ASSERT_EQ(DecodeTrpcResponse(bytes, &response_meta), "");
    ExpectSame(response_meta, response);
    ASSERT_EQ(Encode(response_meta), bytes) << response.DebugString();
  }
}

TEST_F(TrpcMetaRandom, DamageIsJudgedAsProtobufDoes) {
  const auto request = [this] { return RandomRequest(); };
  CheckTruncations(200, request, DecodesRequest);
  CheckMutations(50000, request, DecodesRequest);
  const auto response = [this] { return RandomResponse(); };
  CheckTruncations(200, response, DecodesResponse);
  CheckMutations(50000, response, DecodesResponse);
}

}  // namespace
}  // namespace flare::rpc
