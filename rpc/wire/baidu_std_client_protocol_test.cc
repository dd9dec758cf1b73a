#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/baidu_std_protocol.h"
#include "flare/rpc/wire/baidu_std_testing.h"
#include "flare/rpc/wire/client_protocol_testing.h"
#include "flare/rpc/wire/stop_notice.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BaiduStdBytes;
using testing::BaiduStdCall;
using testing::BaiduStdFrameOf;
using testing::BaiduStdSent;

class BaiduStdClient : public testing::ClientProtocolTest<> {
 protected:
  BaiduStdClient()
      : ClientProtocolTest(NewBaiduStdClientProtocol(Limits(), "")) {}
};

TEST_F(BaiduStdClient, WritesTheDocumentedRequest) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "example.protobuf_echo.EchoService.Echo";
  request.body = CreateBufferSlow("\x0a\x02hi");
  EXPECT_EQ(Write(std::move(request)), testing::kBaiduStdEchoRequest);
}

TEST_F(BaiduStdClient, SendsTheTimeout) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "example.EchoService.Echo";
  request.timeout_ms = 2000;
  EXPECT_EQ(Write(std::move(request)),
            "PRPC\0\0\0\x24\0\0\0\x24\x0a\x1e\x0a\x13"s +
                "example.EchoService" + "\x12\x04"s + "Echo" +
                "\x40\xd0\x0f\x18\x00\x20\x01"s);
  // The field is signed.
  request = OutboundRequest();
  request.method = "a.B.C";
  request.timeout_ms = 0xffffffff;
  EXPECT_EQ(BaiduStdSent(Write(std::move(request))).meta.timeout_ms,
            0x7fffffff);
}

TEST_F(BaiduStdClient, CountsTheAttachmentInTheSize) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "a.B.C";
  request.compression = CompressionAlgorithm::kSnappy;
  request.body = CreateBufferSlow("bb");
  request.attachment = CreateBufferSlow("aaaa");
  BaiduStdSent sent(Write(std::move(request)));
  EXPECT_EQ(sent.meta.service_name, "a.B");
  EXPECT_EQ(sent.meta.method_name, "C");
  EXPECT_EQ(sent.meta.compress_type, 1);
  EXPECT_EQ(sent.meta.attachment_size, 4);
  EXPECT_EQ(sent.rest, "bbaaaa");
}

TEST_F(BaiduStdClient, ReadsTheDocumentedResponses) {
  for (const std::string& bytes :
       {testing::kBaiduStdResponse, testing::kBaiduStdResponseWithZeros}) {
    for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
      InboundResponse response;
      ASSERT_EQ(Cut(bytes, &response, piece), CutResult::kMessage);
      ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
      EXPECT_EQ(response.correlation_id, 1u);
      EXPECT_EQ(response.status, STATUS_SUCCESS);
      EXPECT_EQ(FlattenSlow(response.body), "\x0a\x05hello");
      EXPECT_EQ(response.wire_size, bytes.size());
    }
  }
}

TEST_F(BaiduStdClient, PassesErrorCodesOn) {
  for (int code : {10, 1001, 2004, -3}) {
    BaiduStdMeta meta;
    meta.has_response = true;
    meta.correlation_id = 7;
    meta.error_code = code;
    meta.error_text = "why";
    meta.compress_type = 99;  // of no body
    InboundResponse response;
    ASSERT_EQ(Cut(BaiduStdFrameOf(BaiduStdBytes(meta)), &response),
              CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, code);
    EXPECT_EQ(response.description, "why");
    EXPECT_TRUE(response.body.empty());
    EXPECT_EQ(response.compression, CompressionAlgorithm::kNone);
  }
}

TEST_F(BaiduStdClient, ReadsOurOwnCodes) {
  const std::string fields =
      "\x12\x0a\x08\xe9\x07\x12\x05short\x20\x07"s;  // error_code 1001
  const std::string key = "\x0a\x0eRpc-Error-Code"s;
  struct Case {
    std::string entry;
    int status;
  } cases[] = {
      {"\x4a\x14" + key + "\x12\x02"s + "10", 10},
      {"\x4a\x03\x0a\x01k\x4a\x14"s + key + "\x12\x02" + "10", 10},
      {"\x4a\x10" + key, 1001},                // no value
      {"\x4a\x13" + key + "\x12\x01x", 1001},  // no number
      {"\x4a\x02\x0a\x09"s, 1001},             // malformed
      {"\x4a\x14\x0a\x0eRpc-error-code\x12\x02"s + "10", 1001},
  };
  for (const auto& [entry, status] : cases) {
    InboundResponse response;
    ASSERT_EQ(Cut(BaiduStdFrameOf(fields + entry), &response),
              CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.status, status) << ::testing::PrintToString(entry);
    EXPECT_EQ(response.description, "short");
  }
}

TEST_F(BaiduStdClient, FailsTheCallOfAMalformedResponse) {
  struct Case {
    std::string meta;
    std::string_view text;
  } cases[] = {
      {BaiduStdBytes(BaiduStdCall()), "a request in place of a response"},
      {"\x12\x00\x20\x07\x18\x04"s, "a response with an unknown compress_type"},
      {"\x12\x00\x20\x07\x50\x01"s, "a response that isn't protobuf"},
      {"\x12\x00\x20\x07\x28\x05"s,
       "a response without room for its attachment_size"},
      {"\x12\x00\x20\x07\x58\x01"s,
       "a response with the checksum of other bytes"},
      {"\x20\x07\x12\x7f"s,
       "a response with a malformed meta: a length runs past the end"},
  };
  for (const Case& c : cases) {
    InboundResponse response;
    ASSERT_EQ(Cut(BaiduStdFrameOf(c.meta, "four"), &response),
              CutResult::kMessage);
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
    EXPECT_EQ(response.description, c.text);
  }
}

// It answers no call.
TEST_F(BaiduStdClient, TakesTheNoticeOfAStop) {
  BaiduStdMeta meta;
  meta.has_response = true;
  meta.notice = kStopNotice;
  InboundResponse response;
  ASSERT_EQ(Cut(BaiduStdFrameOf(BaiduStdBytes(meta)), &response),
            CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_TRUE(response.last_on_connection);
  EXPECT_TRUE(response.is_notice);
  EXPECT_EQ(response.correlation_id, 0u);
}

class NoMessages : public StreamReceiver {
 public:
  void OnMessage(Buffer&&, bool) override {}
  void OnEnd(const flare::Status&) override {}
  void OnCredit(std::size_t) override {}
  void OnReset(const flare::Status&) override {}
  void Drop() override {}
  void OnInputLost(const flare::Status&) override {}
};

// By a fiber, while the reader has the reply in its hands.
TEST_F(BaiduStdClient, TellsOfACancellationThatMeetsTheReply) {
  testing::RecordingSink output;
  protocol_->SetOutput(&output);
  std::unique_ptr<StreamWire> wire = protocol_->OpenStream(
      {.method = "a.B.C", .client_streams = true}, &output);
  ASSERT_TRUE(wire->Begin(MakeRefCounted<NoMessages>()));
  const BaiduStdSent call(output.Take());
  wire->SendReset(flare::Status(STATUS_FAILED, "cancelled"));
  BaiduStdMeta reply;
  reply.has_response = true;
  reply.correlation_id = call.meta.correlation_id;
  reply.has_stream_settings = true;
  reply.stream_id = 9;
  InboundResponse response;
  EXPECT_EQ(Cut(BaiduStdFrameOf(BaiduStdBytes(reply)), &response),
            CutResult::kNeedMore);
  // RST for stream 9.
  EXPECT_EQ(output.Take(), "STRM\0\0\0\x04\0\0\0\x04\x08\x09\x18\x01"s);
}

TEST_F(BaiduStdClient, ClosesOnAResponseOfNobody) {
  InboundResponse response;
  ASSERT_EQ(Cut(BaiduStdFrameOf("\x12\x02\x08\x00"s), &response),
            CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kClose);
  EXPECT_FALSE(response.description.empty());
}

}  // namespace
}  // namespace flare::rpc
