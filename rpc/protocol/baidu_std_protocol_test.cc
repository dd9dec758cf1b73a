#include "flare/rpc/protocol/baidu_std_protocol.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "flare/rpc/protocol/baidu_std_meta.h"
#include "flare/rpc/protocol/protocol_testing.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::ServerDriver;
using testing::SlicedBuffer;

// The documented vectors.
const std::string kEchoRequest = "PRPC\0\0\0\x33\0\0\0\x2f\x0a\x29\x0a\x21"s +
                                 "example.protobuf_echo.EchoService" +
                                 "\x12\x04"s + "Echo" +
                                 "\x18\x00\x20\x01\x0a\x02hi"s;
const std::string kShortRequest = "PRPC\0\0\0\x26\0\0\0\x1f\x0a\x1b\x0a\x13"s +
                                  "example.EchoService" + "\x12\x04"s + "Echo" +
                                  "\x20\x01\x0a\x05hello"s;
const std::string kResponse =
    "PRPC\0\0\0\x0d\0\0\0\x06\x12\x02\x08\x00\x20\x01\x0a\x05hello"s;
// As brpc itself writes it.
const std::string kResponseWithZeros =
    "PRPC\0\0\0\x15\0\0\0\x0e\x12\x02\x08\x00\x18\x00\x20\x01"
    "\x50\x00\x58\x00\x62\x00\x0a\x05hello"s;

std::string BigEndian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift));
  }
  return bytes;
}

std::string Frame(std::string_view meta, std::string_view rest = "") {
  return "PRPC" + BigEndian(meta.size() + rest.size()) +
         BigEndian(meta.size()) + std::string(meta) + std::string(rest);
}

std::string Bytes(const BaiduStdMeta& meta) {
  std::string bytes(BaiduStdMetaSize(meta), '\0');
  EncodeBaiduStdMeta(meta, bytes.data());
  return bytes;
}

BaiduStdMeta Call(std::uint64_t id = 7) {
  BaiduStdMeta meta;
  meta.correlation_id = id;
  meta.has_request = true;
  meta.service_name = "a.B";
  meta.method_name = "C";
  return meta;
}

// A frame that was sent, taken apart.
struct Sent {
  explicit Sent(std::string bytes_sent) : bytes(std::move(bytes_sent)) {
    EXPECT_GE(bytes.size(), 12u);
    EXPECT_EQ(bytes.substr(4, 4), BigEndian(bytes.size() - 12));
    std::size_t meta_size = static_cast<std::uint8_t>(bytes[11]) +
                            256 * static_cast<std::uint8_t>(bytes[10]);
    EXPECT_EQ(DecodeBaiduStdMeta(std::string_view(bytes).substr(12, meta_size),
                                 &meta),
              "");
    rest = bytes.substr(12 + meta_size);
  }

  std::string bytes;
  BaiduStdMeta meta;
  std::string rest;
};

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
    Sent sent(driver.sink().Take());
    EXPECT_EQ(sent.meta.correlation_id, 7u);
    EXPECT_EQ(sent.meta.error_code, status);
    EXPECT_EQ(sent.meta.error_text, text);
    EXPECT_EQ(sent.rest, "");

    driver.Feed(kShortRequest);
    ASSERT_EQ(driver.count(), 2u);
    EXPECT_EQ(driver.result(1), ParseResult::kOk);
  }

  ServerDriver driver_{NewServer};
};

TEST_F(BaiduStdServer, ReadsTheDocumentedRequests) {
  EXPECT_EQ(driver_.Feed(kEchoRequest + kShortRequest), CutResult::kMessage);
  ASSERT_EQ(driver_.count(), 2u);
  ASSERT_EQ(driver_.result(0), ParseResult::kOk);
  ASSERT_EQ(driver_.result(1), ParseResult::kOk);
  const auto& echo = driver_.request(0);
  EXPECT_EQ(echo.head.correlation_id, 1u);
  EXPECT_EQ(echo.head.method, "example.protobuf_echo.EchoService.Echo");
  EXPECT_EQ(echo.head.timeout_ms, 0u);
  EXPECT_EQ(echo.head.compression, CompressionAlgorithm::kNone);
  EXPECT_EQ(echo.head.format, PayloadFormat::kProtobuf);
  EXPECT_EQ(FlattenSlow(echo.body), "\x0a\x02hi");
  EXPECT_TRUE(echo.attachment.empty());
  EXPECT_EQ(echo.wire_size, kEchoRequest.size());
  EXPECT_EQ(driver_.request(1).head.method, "example.EchoService.Echo");
  EXPECT_EQ(FlattenSlow(driver_.request(1).body), "\x0a\x05hello");
}

TEST_F(BaiduStdServer, WritesTheDocumentedResponse) {
  driver_.Feed(kShortRequest);
  driver_.Answer(0, "\x0a\x05hello");
  EXPECT_EQ(driver_.sink().Take(), kResponse);
}

TEST_F(BaiduStdServer, LeavesOtherProtocolsAlone) {
  for (const char* other : {"GET / HTTP/1.1\r\n", "CPRF", "X", "PRPX",
                            "STRM\1\1\1\1\1\1\1\1", "POST / HTTP/1.1\r\n"}) {
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
  Sent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.attachment_size, 8);
  EXPECT_EQ(sent.rest, "bodyattached");
}

TEST_F(BaiduStdServer, FailuresAreSentWithoutBodies) {
  for (int status : {10, 99, 1008, 70000, -1}) {
    ReplyTicket ticket;
    ticket.correlation_id = 0xfedcba9876543210;
    OutboundResponse response;
    response.status = status;
    response.description = "why \xff";
    response.body = CreateBufferSlow("body");
    response.attachment = CreateBufferSlow("attached");
    driver_.protocol().Write(ticket, std::move(response));
    Sent sent(driver_.sink().Take());
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
    auto meta = Call();
    meta.compress_type = c.number;
    ServerDriver driver(NewServer);
    driver.Feed(Frame(Bytes(meta), "b"));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.compression, c.algorithm);
    EXPECT_FALSE(driver.request().head.attachment_compressed);
    // None, gzip, snappy and zlib, and no others.
    EXPECT_EQ(driver.request().head.acceptable_compressions, 0x56u);

    OutboundResponse response;
    response.compression = c.algorithm;
    response.body = CreateBufferSlow("packed");
    driver.protocol().Write(ReplyTicket(), std::move(response));
    EXPECT_EQ(Sent(driver.sink().Take()).meta.compress_type, c.number);
  }
  EXPECT_FALSE(driver_.protocol().traits().attachment_compression);
}

TEST_F(BaiduStdServer, NothingIsNotCalledCompressed) {
  OutboundResponse response;
  response.compression = CompressionAlgorithm::kGzip;
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  EXPECT_EQ(Sent(driver_.sink().Take()).meta.compress_type, 0);
}

TEST_F(BaiduStdServer, AnswersInTheFormatOfTheRequest) {
  struct Case {
    int number;
    PayloadFormat format;
  } cases[] = {{0, PayloadFormat::kProtobuf},
               {2, PayloadFormat::kProto3Json},
               {3, PayloadFormat::kProtobufText}};
  for (const Case& c : cases) {
    auto meta = Call();
    meta.content_type = c.number;
    ServerDriver driver(NewServer);
    driver.Feed(Frame(Bytes(meta)));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.format, c.format);
    driver.AnswerAll();
    EXPECT_EQ(Sent(driver.sink().Take()).meta.content_type, c.number);
  }
}

TEST_F(BaiduStdServer, HeedsATimeout) {
  auto meta = Call();
  meta.timeout_ms = 250;
  driver_.Feed(Frame(Bytes(meta)));
  meta.timeout_ms = -5;
  driver_.Feed(Frame(Bytes(meta)));
  EXPECT_EQ(driver_.request(0).head.timeout_ms, 250u);
  EXPECT_EQ(driver_.request(1).head.timeout_ms, 0u);
}

TEST_F(BaiduStdServer, IgnoresCredentialsAndUserFields) {
  driver_.Feed(Frame(Bytes(Call()) + "\x3a\x02me\x4a\x06\x0a\x01k\x12\x01v"));
  EXPECT_EQ(driver_.result(), ParseResult::kOk);
}

TEST_F(BaiduStdServer, MarksServicesWithoutAPackage) {
  auto meta = Call();
  driver_.Feed(Frame(Bytes(meta)));
  meta.service_name = "B";
  driver_.Feed(Frame(Bytes(meta)));
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
      // Of a kind that we don't know.
      {"\x58\x02\x62\x01x", "body", 0, true},
  };
  for (const Case& c : cases) {
    auto meta = Call();
    meta.attachment_size = c.attachment_size;
    const std::string frame = Frame(Bytes(meta) + c.fields, c.rest);
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
      Frame("\x0a\x08\x0a\x03"
            "a.B\x12\x01"
            "C"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  driver_.AnswerAll();
  EXPECT_EQ(driver_.sink().Take(),
            "PRPC\0\0\0\x06\0\0\0\x06\x12\x02\x08\x00\x20\x00"s);
}

// --- bad requests ----------------------------------------------------------

TEST_F(BaiduStdServer, AnswersAResponse) {
  ExpectAnswered(Frame("\x12\x02\x08\x00\x20\x07"s), STATUS_MALFORMED_DATA,
                 "the meta has no request");
}

TEST_F(BaiduStdServer, AnswersMissingNames) {
  ExpectAnswered(Frame("\x0a\x03\x12\x01"
                       "C\x20\x07"),
                 STATUS_MALFORMED_DATA, "the request has no service_name");
  ExpectAnswered(Frame("\x0a\x05\x0a\x03"
                       "a.B\x20\x07"),
                 STATUS_MALFORMED_DATA, "the request has no method_name");
}

TEST_F(BaiduStdServer, AnswersUnknownCompression) {
  for (int number : {4, 77, -1}) {
    auto meta = Call();
    meta.compress_type = number;
    ExpectAnswered(Frame(Bytes(meta), "b"), STATUS_MALFORMED_DATA,
                   "unknown compress_type " + std::to_string(number));
  }
}

TEST_F(BaiduStdServer, AnswersUnknownContent) {
  auto meta = Call();
  meta.content_type = 1;
  ExpectAnswered(Frame(Bytes(meta), "{}"), STATUS_MALFORMED_DATA,
                 "unknown content_type 1");
}

TEST_F(BaiduStdServer, AnswersImpossibleAttachmentSizes) {
  for (int size : {-1, 5, 0x7fffffff}) {
    auto meta = Call();
    meta.attachment_size = size;
    ExpectAnswered(Frame(Bytes(meta), "four"), STATUS_MALFORMED_DATA,
                   "no room for an attachment_size of " + std::to_string(size));
  }
}

TEST_F(BaiduStdServer, AllOfTheRestMayBeAttachment) {
  auto meta = Call();
  meta.attachment_size = 4;
  driver_.Feed(Frame(Bytes(meta), "four"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  EXPECT_TRUE(driver_.request().body.empty());
  EXPECT_EQ(FlattenSlow(driver_.request().attachment), "four");
}

TEST_F(BaiduStdServer, RefusesStreams) {
  ExpectAnswered(Frame(Bytes(Call()) + "\x42\x02\x08\x01"),
                 STATUS_NOT_SUPPORTED, "this server has no streams");
}

TEST_F(BaiduStdServer, AnswersAMetaThatIsMalformedBehindTheId) {
  ExpectAnswered(Frame("\x20\x07\x0a\x7f"), STATUS_MALFORMED_DATA,
                 "malformed meta: a length runs past the end");
}

TEST_F(BaiduStdServer, ClosesOnAMalformedMetaWithoutId) {
  driver_.Feed(Frame("\x0a\x7f"));
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(driver_.result(), ParseResult::kClose);
  EXPECT_EQ(driver_.request().reject_reason,
            "baidu-std: a request without a correlation id: a length runs past "
            "the end");
}

TEST_F(BaiduStdServer, ClosesOnImpossibleSizes) {
  EXPECT_EQ(driver_.Feed("PRPC" + BigEndian(4) + BigEndian(5)),
            CutResult::kError);
  EXPECT_EQ(driver_.error(), "baidu-std: a meta of 5 bytes in a packet with 4");
  ServerDriver other(NewServer);
  EXPECT_EQ(other.Feed("PRPC" + BigEndian(0xffffffff) + BigEndian(65537)),
            CutResult::kError);
  EXPECT_EQ(other.error(),
            "baidu-std: a meta of 65537 bytes exceeds the limit of 65536");
}

// --- client ----------------------------------------------------------------

class BaiduStdClient : public ::testing::Test {
 protected:
  CutResult Cut(std::string_view bytes, InboundResponse* response,
                std::size_t piece = std::string::npos) {
    in_.Append(SlicedBuffer(bytes, piece));
    return protocol_->Cut(in_, response, &need_, &error_);
  }

  std::string Write(OutboundRequest&& request) {
    BufferBuilder out;
    EXPECT_TRUE(protocol_->Write(std::move(request), &out).ok());
    return FlattenSlow(out.DestructiveGet());
  }

  std::unique_ptr<ClientProtocol> protocol_ =
      NewBaiduStdClientProtocol(Limits(), "");
  Buffer in_;
  std::size_t need_ = 0;
  std::string error_;
};

TEST_F(BaiduStdClient, WritesTheDocumentedRequest) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "example.protobuf_echo.EchoService.Echo";
  request.timeout_ms = 2000;  // isn't sent
  request.body = CreateBufferSlow("\x0a\x02hi");
  EXPECT_EQ(Write(std::move(request)), kEchoRequest);
}

TEST_F(BaiduStdClient, CountsTheAttachmentInTheSize) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "a.B.C";
  request.compression = CompressionAlgorithm::kSnappy;
  request.body = CreateBufferSlow("bb");
  request.attachment = CreateBufferSlow("aaaa");
  Sent sent(Write(std::move(request)));
  EXPECT_EQ(sent.meta.service_name, "a.B");
  EXPECT_EQ(sent.meta.method_name, "C");
  EXPECT_EQ(sent.meta.compress_type, 1);
  EXPECT_EQ(sent.meta.attachment_size, 4);
  EXPECT_EQ(sent.rest, "bbaaaa");
}

TEST_F(BaiduStdClient, ReadsTheDocumentedResponses) {
  for (const std::string& bytes : {kResponse, kResponseWithZeros}) {
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
    ASSERT_EQ(Cut(Frame(Bytes(meta)), &response), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, code);
    EXPECT_EQ(response.description, "why");
    EXPECT_TRUE(response.body.empty());
    EXPECT_EQ(response.compression, CompressionAlgorithm::kNone);
  }
}

TEST_F(BaiduStdClient, FailsTheCallOfAMalformedResponse) {
  struct Case {
    std::string meta;
    std::string_view text;
  } cases[] = {
      {Bytes(Call()), "a request in place of a response"},
      {"\x12\x00\x20\x07\x18\x04"s, "a response with an unknown compress_type"},
      {"\x12\x00\x20\x07\x50\x01"s, "a response that isn't protobuf"},
      {"\x12\x00\x20\x07\x28\x05"s,
       "a response without room for its attachment_size"},
      {"\x12\x00\x20\x07\x58\x01"s,
       "a response with the checksum of other bytes"},
      {"\x20\x07\x12\x7f"s, "a length runs past the end"},
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

TEST_F(BaiduStdClient, ClosesOnAResponseOfNobody) {
  InboundResponse response;
  ASSERT_EQ(Cut(Frame("\x12\x02\x08\x00"s), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kClose);
  EXPECT_FALSE(response.description.empty());
}

}  // namespace
}  // namespace flare::rpc
