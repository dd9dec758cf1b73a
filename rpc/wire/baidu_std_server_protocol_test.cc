#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/wire/baidu_std_protocol.h"
#include "flare/rpc/wire/baidu_std_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BaiduStdBytes;
using testing::BaiduStdCall;
using testing::BaiduStdFrameOf;
using testing::BaiduStdSent;
using testing::BigEndian;
using testing::ServerDriver;

std::unique_ptr<ServerProtocol> NewServer(ReplySink* sink) {
  return NewBaiduStdServerProtocol(Limits(), sink);
}

class BaiduStdServer : public ::testing::Test {
 protected:
  // Feeds one bad request; expects that it is answered with this status and a
  // text, and that the connection still works.
  static void ExpectAnswered(const std::string& bytes, int status,
                             const std::string& text) {
    ServerDriver driver(NewServer);
    driver.Feed(bytes);
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result(), ParseResult::kReject);
    EXPECT_EQ(driver.request().reject_reason, text);
    driver.AnswerAll();
    BaiduStdSent sent(driver.sink().Take());
    EXPECT_EQ(sent.meta.correlation_id, 7u);
    EXPECT_EQ(sent.meta.error_code, status);
    EXPECT_EQ(sent.meta.error_text, text);
    EXPECT_EQ(sent.rest, "");

    driver.Feed(testing::kBaiduStdShortRequest);
    ASSERT_EQ(driver.count(), 2u);
    EXPECT_EQ(driver.result(1), ParseResult::kOk);
  }

  ServerDriver driver_{NewServer};
};

TEST_F(BaiduStdServer, ReadsTheDocumentedRequests) {
  EXPECT_EQ(driver_.Feed(testing::kBaiduStdEchoRequest +
                         testing::kBaiduStdShortRequest),
            CutResult::kMessage);
  ASSERT_EQ(driver_.count(), 2u);
  ASSERT_EQ(driver_.result(0), ParseResult::kOk);
  ASSERT_EQ(driver_.result(1), ParseResult::kOk);
  const auto& echo = driver_.request(0);
  EXPECT_EQ(echo.ticket.As<BaiduStdTicket>().correlation_id, 1u);
  EXPECT_EQ(echo.head.method, "example.protobuf_echo.EchoService.Echo");
  EXPECT_EQ(echo.head.timeout_ms, 0u);
  EXPECT_EQ(echo.head.compression, CompressionAlgorithm::kNone);
  EXPECT_EQ(echo.head.format, PayloadFormat::kProtobuf);
  EXPECT_EQ(FlattenSlow(echo.body), "\x0a\x02hi");
  EXPECT_TRUE(echo.attachment.empty());
  EXPECT_EQ(echo.wire_size, testing::kBaiduStdEchoRequest.size());
  EXPECT_EQ(driver_.request(1).head.method, "example.EchoService.Echo");
  EXPECT_EQ(FlattenSlow(driver_.request(1).body), "\x0a\x05hello");
}

TEST_F(BaiduStdServer, WritesTheDocumentedResponse) {
  driver_.Feed(testing::kBaiduStdShortRequest);
  driver_.Answer(0, "\x0a\x05hello");
  EXPECT_EQ(driver_.sink().Take(), testing::kBaiduStdResponse);
}

TEST_F(BaiduStdServer, LeavesOtherProtocolsAlone) {
  for (const char* other :
       {"GET / HTTP/1.1\r\n", "CPRF", "X", "PRPX", "POST / HTTP/1.1\r\n"}) {
    ServerDriver driver(NewServer);
    EXPECT_EQ(driver.Feed(other), CutResult::kNotMine) << other;
    EXPECT_EQ(FlattenSlow(driver.in()), other);
  }
}

TEST_F(BaiduStdServer, AttachmentsComeBehindTheBodyAndCountInTheSize) {
  OutboundResponse response;
  response.body = CreateBufferSlow("body");
  response.attachment = CreateBufferSlow("attached");
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  BaiduStdSent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.attachment_size, 8);
  EXPECT_EQ(sent.rest, "bodyattached");
}

TEST_F(BaiduStdServer, FailuresAreSentWithoutBodies) {
  for (int status : {11, 99, 1008, 70000, -1}) {
    ReplyTicket ticket;
    ticket.Emplace<BaiduStdTicket>().correlation_id = 0xfedcba9876543210;
    OutboundResponse response;
    response.status = status;
    response.description = "why \xff";
    response.body = CreateBufferSlow("body");
    response.attachment = CreateBufferSlow("attached");
    driver_.protocol().Write(ticket, std::move(response));
    BaiduStdSent sent(driver_.sink().Take());
    EXPECT_EQ(sent.meta.error_code, status);
    EXPECT_EQ(sent.meta.error_text, "why ?");
    EXPECT_EQ(sent.meta.correlation_id, 0xfedcba9876543210);
    EXPECT_EQ(sent.meta.attachment_size, 0);
    EXPECT_EQ(sent.rest, "");
  }
}

TEST_F(BaiduStdServer, KnowsTheCompressionsOfTheDocument) {
  struct Case {
    int number;
    CompressionAlgorithm algorithm;
  } cases[] = {{0, CompressionAlgorithm::kNone},
               {1, CompressionAlgorithm::kSnappy},
               {2, CompressionAlgorithm::kGzip},
               {3, CompressionAlgorithm::kZlib}};
  for (const Case& c : cases) {
    auto meta = BaiduStdCall();
    meta.compress_type = c.number;
    ServerDriver driver(NewServer);
    driver.Feed(BaiduStdFrameOf(BaiduStdBytes(meta), "b"));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.compression, c.algorithm);
    EXPECT_FALSE(driver.request().head.attachment_compressed);
    // None, gzip, snappy and zlib, and no others.
    EXPECT_EQ(driver.request().head.acceptable_compressions, 0x56u);

    OutboundResponse response;
    response.compression = c.algorithm;
    response.body = CreateBufferSlow("packed");
    driver.protocol().Write(ReplyTicket(), std::move(response));
    EXPECT_EQ(BaiduStdSent(driver.sink().Take()).meta.compress_type, c.number);
  }
  EXPECT_FALSE(driver_.protocol().traits().attachment_compression);
}

TEST_F(BaiduStdServer, NothingIsNotCalledCompressed) {
  OutboundResponse response;
  response.compression = CompressionAlgorithm::kGzip;
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  EXPECT_EQ(BaiduStdSent(driver_.sink().Take()).meta.compress_type, 0);
}

TEST_F(BaiduStdServer, AnswersInTheFormatOfTheRequest) {
  struct Case {
    int number;
    PayloadFormat format;
  } cases[] = {{0, PayloadFormat::kProtobuf},
               {2, PayloadFormat::kLenientJson},
               {3, PayloadFormat::kProtobufText}};
  for (const Case& c : cases) {
    auto meta = BaiduStdCall();
    meta.content_type = c.number;
    ServerDriver driver(NewServer);
    driver.Feed(BaiduStdFrameOf(BaiduStdBytes(meta)));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.format, c.format);
    driver.AnswerAll();
    EXPECT_EQ(BaiduStdSent(driver.sink().Take()).meta.content_type, c.number);
  }
}

// Missing services and methods have brpc's code, with ours beside it.
TEST_F(BaiduStdServer, TellsCallersOfBrpcInTheirCodes) {
  struct Case {
    int status;
    FailureDetail detail;
    int code;
  } cases[] = {
      {STATUS_METHOD_NOT_FOUND, FailureDetail::kNone, 1002},
      {STATUS_METHOD_NOT_FOUND, FailureDetail::kNoService, 1001},
      {STATUS_SERVICE_NOT_FOUND, FailureDetail::kNone, 1001},
  };
  for (const Case& c : cases) {
    OutboundResponse response;
    response.status = c.status;
    response.detail = c.detail;
    response.description = "why";
    driver_.protocol().Write(ReplyTicket(), std::move(response));
    BaiduStdSent sent(driver_.sink().Take());
    EXPECT_EQ(sent.meta.error_code, c.code);
    EXPECT_EQ(sent.meta.error_text, "why");
    EXPECT_EQ(sent.meta.own_error_code, c.status);
  }
  // Byte for byte.
  OutboundResponse response;
  response.status = STATUS_METHOD_NOT_FOUND;
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  EXPECT_EQ(driver_.sink().Take(),
            BaiduStdFrameOf("\x12\x03\x08\xea\x07\x20\x00\x4a\x14\x0a\x0e"s +
                            "Rpc-Error-Code" + "\x12\x02" + "10"));
  // Other codes are sent unchanged, and alone.
  response = OutboundResponse();
  response.status = STATUS_MALFORMED_DATA;
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  EXPECT_EQ(driver_.sink().Take(),
            BaiduStdFrameOf("\x12\x02\x08\x66\x20\x00"s));
}

TEST_F(BaiduStdServer, HeedsATimeout) {
  auto meta = BaiduStdCall();
  meta.timeout_ms = 250;
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(meta)));
  meta.timeout_ms = -5;
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(meta)));
  EXPECT_EQ(driver_.request(0).head.timeout_ms, 250u);
  EXPECT_EQ(driver_.request(1).head.timeout_ms, 0u);
}

TEST_F(BaiduStdServer, IgnoresCredentialsAndUserFields) {
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(BaiduStdCall()) +
                               "\x3a\x02me\x4a\x06\x0a\x01k\x12\x01v"));
  EXPECT_EQ(driver_.result(), ParseResult::kOk);
}

TEST_F(BaiduStdServer, MarksServicesWithoutAPackage) {
  auto meta = BaiduStdCall();
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(meta)));
  meta.service_name = "B";
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(meta)));
  EXPECT_FALSE(driver_.request(0).head.short_service);
  EXPECT_TRUE(driver_.request(1).head.short_service);
  EXPECT_EQ(driver_.request(1).head.method, "B.C");
}

// Fields 11, 12 and 13. The CRC32C of "123456789" is e3069283, c78ab0e5 when
// masked; that of nothing is a282ead8.
TEST_F(BaiduStdServer, HoldsBodiesToTheirChecksum) {
  const std::string kOfDigits = "\x58\x01\x62\x04\xc7\x8a\xb0\xe5"s;
  const std::string kOfNothing = "\x58\x01\x62\x04\xa2\x82\xea\xd8"s;
  const std::string kWithAttachment = "\x68\x01";
  struct Case {
    std::string fields;
    std::string rest;
    int attachment_size;
    bool right;
  } cases[] = {
      {kOfDigits, "123456789", 0, true},
      {kOfDigits, "123456780", 0, false},
      {kOfDigits, "123456789more", 4, true},
      {kOfDigits, "123456789more", 0, false},
      {kOfDigits + kWithAttachment, "123456789", 4, true},
      {kOfDigits + kWithAttachment, "123456789more", 4, false},
      {kOfNothing, "", 0, true},
      {kOfNothing, "more", 4, true},
      {"\x58\x01", "", 0, false},
      {"\x58\x01\x62\x05\xa2\x82\xea\xd8\x00"s, "", 0, false},
      // A compression that we don't know.
      {"\x58\x02\x62\x01x", "body", 0, true},
  };
  for (const Case& c : cases) {
    auto meta = BaiduStdCall();
    meta.attachment_size = c.attachment_size;
    const std::string frame =
        BaiduStdFrameOf(BaiduStdBytes(meta) + c.fields, c.rest);
    for (std::size_t piece : {frame.size(), std::size_t{1}}) {
      ServerDriver driver(NewServer);
      driver.Feed(frame, piece);
      EXPECT_EQ(driver.result() == ParseResult::kOk, c.right) << c.rest;
    }
    if (!c.right) {
      ExpectAnswered(frame, STATUS_MALFORMED_DATA,
                     "the checksum is of other bytes");
    }
  }
}

TEST_F(BaiduStdServer, ServesARequestWithoutCorrelationId) {
  driver_.Feed(
      BaiduStdFrameOf("\x0a\x08\x0a\x03"
                      "a.B\x12\x01"
                      "C"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  driver_.AnswerAll();
  EXPECT_EQ(driver_.sink().Take(),
            "PRPC\0\0\0\x06\0\0\0\x06\x12\x02\x08\x00\x20\x00"s);
}

// --- bad requests ----------------------------------------------------------

TEST_F(BaiduStdServer, AnswersAResponse) {
  ExpectAnswered(BaiduStdFrameOf("\x12\x02\x08\x00\x20\x07"s),
                 STATUS_MALFORMED_DATA, "the meta has no request");
}

TEST_F(BaiduStdServer, AnswersMissingNames) {
  ExpectAnswered(BaiduStdFrameOf("\x0a\x03\x12\x01"
                                 "C\x20\x07"),
                 STATUS_MALFORMED_DATA, "the request has no service_name");
  ExpectAnswered(BaiduStdFrameOf("\x0a\x05\x0a\x03"
                                 "a.B\x20\x07"),
                 STATUS_MALFORMED_DATA, "the request has no method_name");
}

TEST_F(BaiduStdServer, AnswersUnknownCompression) {
  for (int number : {4, 77, -1}) {
    auto meta = BaiduStdCall();
    meta.compress_type = number;
    ExpectAnswered(BaiduStdFrameOf(BaiduStdBytes(meta), "b"),
                   STATUS_MALFORMED_DATA,
                   "unknown compress_type " + std::to_string(number));
  }
}

TEST_F(BaiduStdServer, AnswersUnknownContent) {
  auto meta = BaiduStdCall();
  meta.content_type = 1;
  ExpectAnswered(BaiduStdFrameOf(BaiduStdBytes(meta), "{}"),
                 STATUS_MALFORMED_DATA, "unknown content_type 1");
}

TEST_F(BaiduStdServer, AnswersImpossibleAttachmentSizes) {
  for (int size : {-1, 5, 0x7fffffff}) {
    auto meta = BaiduStdCall();
    meta.attachment_size = size;
    ExpectAnswered(BaiduStdFrameOf(BaiduStdBytes(meta), "four"),
                   STATUS_MALFORMED_DATA,
                   "no room for an attachment_size of " + std::to_string(size));
  }
}

TEST_F(BaiduStdServer, AllOfTheRestMayBeAttachment) {
  auto meta = BaiduStdCall();
  meta.attachment_size = 4;
  driver_.Feed(BaiduStdFrameOf(BaiduStdBytes(meta), "four"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  EXPECT_TRUE(driver_.request().body.empty());
  EXPECT_EQ(FlattenSlow(driver_.request().attachment), "four");
}

TEST_F(BaiduStdServer, RefusesStreams) {
  ExpectAnswered(
      BaiduStdFrameOf(BaiduStdBytes(BaiduStdCall()) + "\x42\x02\x08\x01"),
      STATUS_NOT_SUPPORTED, "this server has no streams");
}

TEST_F(BaiduStdServer, AnswersAMetaThatIsMalformedBehindTheId) {
  ExpectAnswered(BaiduStdFrameOf("\x20\x07\x0a\x7f"), STATUS_MALFORMED_DATA,
                 "malformed meta: a length runs past the end");
}

TEST_F(BaiduStdServer, ClosesOnAMalformedMetaWithoutId) {
  driver_.Feed(BaiduStdFrameOf("\x0a\x7f"));
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(driver_.result(), ParseResult::kClose);
  EXPECT_EQ(driver_.request().reject_reason,
            "baidu-std: a request without a correlation id: a length runs past "
            "the end");
}

TEST_F(BaiduStdServer, ClosesOnImpossibleSizes) {
  EXPECT_EQ(driver_.Feed("PRPC" + BigEndian(4, 4) + BigEndian(5, 4)),
            CutResult::kError);
  EXPECT_EQ(driver_.error(), "baidu-std: a meta of 5 bytes in a packet with 4");
  ServerDriver other(NewServer);
  EXPECT_EQ(other.Feed("PRPC" + BigEndian(0xffffffff, 4) + BigEndian(65537, 4)),
            CutResult::kError);
  EXPECT_EQ(other.error(),
            "baidu-std: a meta of 65537 bytes exceeds the limit of 65536");
}

}  // namespace
}  // namespace flare::rpc
