#include <string>
#include <utility>

#include "flare/rpc/wire/client_protocol_testing.h"
#include "flare/rpc/wire/stop_notice.h"
#include "flare/rpc/wire/trpc_meta.h"
#include "flare/rpc/wire/trpc_protocol.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;

// The documented vector.
const std::string kResponse =
    "\x09\x30\0\0\0\0\0\x19\0\x02\0\0\0\0\0\0\x18\x01\x0a\x05hello"s;

std::string Frame(std::string_view meta, std::string_view rest = "") {
  std::size_t size = 16 + meta.size() + rest.size();
  return "\x09\x30\0\0\0\0"s + static_cast<char>(size >> 8) +
         static_cast<char>(size) + '\0' + static_cast<char>(meta.size()) +
         std::string(6, '\0') + std::string(meta) + std::string(rest);
}

class TrpcClient : public testing::ClientProtocolTest<> {
 protected:
  TrpcClient() : ClientProtocolTest(NewTrpcClientProtocol(Limits(), "")) {}
};

// The documented request without the caller, which we don't name.
TEST_F(TrpcClient, WritesRequests) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "trpc.test.helloworld.Greeter.SayHello";
  request.timeout_ms = 1000;
  request.body = CreateBufferSlow("\x0a\x05hello");
  EXPECT_EQ(Write(std::move(request)),
            "\x09\x30\0\0\0\0\0\x62\0\x4b\0\0\0\0\0\0"
            "\x18\x01\x20\xe8\x07\x32\x1c"s +
                "trpc.test.helloworld.Greeter" + "\x3a\x26" +
                "/trpc.test.helloworld.Greeter/SayHello" + "\x0a\x05hello");
}

TEST_F(TrpcClient, WritesAttachmentsBehindCompressedBodies) {
  OutboundRequest request;
  request.correlation_id = 0xffffffff;
  request.method = "a.B.C";
  request.compression = CompressionAlgorithm::kLz4Frame;
  request.body = CreateBufferSlow("bb");
  request.attachment = CreateBufferSlow("aaaa");
  request.one_way = true;
  std::string bytes = Write(std::move(request));
  TrpcRequestMeta meta;
  ASSERT_EQ(DecodeTrpcRequest(
                std::string_view(bytes).substr(16, bytes.size() - 22), &meta),
            "");
  EXPECT_EQ(meta.request_id, 0xffffffff);
  EXPECT_EQ(meta.call_type, kTrpcOneWay);
  EXPECT_EQ(meta.content_encoding, 6u);
  EXPECT_EQ(meta.attachment_size, 4u);
  EXPECT_EQ(bytes.substr(bytes.size() - 6), "bbaaaa");
}

TEST_F(TrpcClient, RefusesWhatItCannotWrite) {
  std::string huge(40000, 'm');
  std::string too_long = huge + "." + huge;
  struct Case {
    std::string_view method;
    std::uint64_t id;
    int status;
  } cases[] = {{"Echo", 1, STATUS_INVALID_METHOD_NAME},
               {too_long, 1, STATUS_SERIALIZE_REQUEST},
               {"a.B.C", 1ull << 32, STATUS_SERIALIZE_REQUEST}};
  for (const Case& c : cases) {
    OutboundRequest request;
    request.correlation_id = c.id;
    request.method = c.method;
    BufferBuilder out;
    EXPECT_EQ(protocol_->Write(std::move(request), &out).code(), c.status);
    EXPECT_EQ(out.ByteSize(), 0u);
  }
}

TEST_F(TrpcClient, ReadsTheDocumentedResponse) {
  for (std::size_t piece = 1; piece <= kResponse.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Cut(kResponse, &response, piece), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 1u);
    EXPECT_EQ(response.status, STATUS_SUCCESS);
    EXPECT_EQ(FlattenSlow(response.body), "\x0a\x05hello");
  }
}

TEST_F(TrpcClient, TranslatesFailures) {
  struct Case {
    int ret, func_ret, status;
  } cases[] = {{1, 0, STATUS_MALFORMED_DATA},
               {2, 0, STATUS_SERIALIZE_RESPONSE},
               {11, 0, STATUS_SERVICE_NOT_FOUND},
               {12, 0, STATUS_METHOD_NOT_FOUND},
               {21, 0, STATUS_TIMEOUT},
               {22, 0, STATUS_OVERLOADED},
               {23, 0, STATUS_OVERLOADED},
               {24, 0, STATUS_TIMEOUT},
               {31, 0, STATUS_FAILED},
               {41, 0, STATUS_FAILED},
               {-9, 0, STATUS_FAILED},
               {12, 4711, STATUS_METHOD_NOT_FOUND},
               {0, 4711, 4711},
               {0, 99, 99},
               {0, 3, STATUS_FROM_USER},
               {0, -3, -3}};
  for (const Case& c : cases) {
    TrpcResponseMeta meta;
    meta.request_id = 7;
    meta.ret = c.ret;
    meta.func_ret = c.func_ret;
    meta.error_msg = "why";
    meta.content_encoding = 99;  // of no body
    std::string head(TrpcResponseSize(meta), '\0');
    EncodeTrpcResponse(meta, head.data());
    InboundResponse response;
    ASSERT_EQ(Cut(Frame(head), &response), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, c.status) << c.ret << " " << c.func_ret;
    EXPECT_EQ(response.description, "why");
    EXPECT_TRUE(response.body.empty());
  }
}

// Else nobody could tell the server's answer.
TEST_F(TrpcClient, SaysTheCodeOfAFailureWithoutAText) {
  struct Case {
    int ret, func_ret;
    std::string_view text;
  } cases[] = {{41, 0, "trpc: ret 41"},
               {-9, 0, "trpc: ret -9"},
               {12, 4711, "trpc: ret 12"},
               {0, 3, "trpc: func_ret 3"},
               {0, 4711, ""},
               {0, -3, ""}};
  for (const Case& c : cases) {
    TrpcResponseMeta meta;
    meta.request_id = 7;
    meta.ret = c.ret;
    meta.func_ret = c.func_ret;
    std::string head(TrpcResponseSize(meta), '\0');
    EncodeTrpcResponse(meta, head.data());
    for (std::size_t piece : {1, 1000}) {
      InboundResponse response;
      ASSERT_EQ(Cut(Frame(head), &response, piece), CutResult::kMessage);
      ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
      EXPECT_NE(response.status, STATUS_SUCCESS);
      EXPECT_EQ(response.description, c.text);
    }
  }
}

TEST_F(TrpcClient, FailsTheCallOfAMalformedResponse) {
  struct Case {
    std::string meta;
    std::string_view text;
  } cases[] = {
      {"\x18\x07\x48\x02", "a response that isn't protobuf"},
      {"\x18\x07\x50\x04", "a response with an unknown content_encoding"},
      {"\x18\x07\x60\x05", "a response without room for its attachment_size"},
      {"\x18\x07\x32\x7f",
       "a response with a malformed meta: a length runs past the end"},
  };
  for (const Case& c : cases) {
    InboundResponse response;
    ASSERT_EQ(Cut(Frame(c.meta, "four"), &response), CutResult::kMessage);
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
    EXPECT_EQ(response.description, c.text);
  }
}

// It answers no call.
TEST_F(TrpcClient, TakesTheNoticeOfAStop) {
  TrpcResponseMeta meta;
  meta.notice = kStopNotice;
  std::string bytes(TrpcResponseSize(meta), '\0');
  EncodeTrpcResponse(meta, bytes.data());
  InboundResponse response;
  ASSERT_EQ(Cut(Frame(bytes), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_TRUE(response.last_on_connection);
  EXPECT_TRUE(response.is_notice);
  EXPECT_EQ(response.correlation_id, 0u);
}

TEST_F(TrpcClient, ClosesOnWhatBelongsToNoCall) {
  InboundResponse response;
  ASSERT_EQ(Cut(Frame(""), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kClose);
  EXPECT_EQ(response.description, "trpc: a response without a correlation id");
  EXPECT_EQ(Cut("\x09\x30\x01\x02\0\0\0\x10\0\0\0\0\0\x01\0\0"s, &response),
            CutResult::kError);
  EXPECT_EQ(error_, "trpc: a frame of a stream, of which there is none");
  in_.Clear();
  EXPECT_EQ(Cut("HTTP/1.1 200 OK\r\n", &response), CutResult::kError);
  EXPECT_EQ(error_, "trpc: the peer's bytes are no trpc response");
}

}  // namespace
}  // namespace flare::rpc
