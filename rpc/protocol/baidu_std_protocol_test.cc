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

std::unique_ptr<ServerProtocol> NewSmallServer(ReplySink* sink) {
  Limits limits;
  limits.max_packet_size = 1000;
  return NewBaiduStdServerProtocol(limits, sink);
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

TEST_F(BaiduStdServer, CutsMessagesInAnyPieces) {
  auto meta = Call();
  meta.attachment_size = 4;
  std::string two = kEchoRequest + Frame(Bytes(meta), "bodyaaaa");
  for (std::size_t piece = 1; piece <= two.size(); ++piece) {
    ServerDriver driver(NewServer);
    driver.Feed(two, piece);
    ASSERT_EQ(driver.count(), 2u) << piece;
    ASSERT_EQ(driver.result(0), ParseResult::kOk);
    ASSERT_EQ(driver.result(1), ParseResult::kOk);
    EXPECT_EQ(driver.request(0).head.method,
              "example.protobuf_echo.EchoService.Echo");
    EXPECT_EQ(driver.request(1).head.method, "a.B.C");
    EXPECT_EQ(FlattenSlow(driver.request(1).body), "body");
    EXPECT_EQ(FlattenSlow(driver.request(1).attachment), "aaaa");
  }
}

TEST_F(BaiduStdServer, TellsWhatEveryPrefixIs) {
  for (std::size_t size = 0; size != kEchoRequest.size(); ++size) {
    ServerDriver driver(NewServer);
    CutResult result = driver.Feed(kEchoRequest.substr(0, size));
    EXPECT_EQ(result, size < 4 ? CutResult::kUnsure : CutResult::kNeedMore);
    if (size >= 4) {
      EXPECT_EQ(driver.need(), size < 12 ? 12 : kEchoRequest.size());
    }
    EXPECT_EQ(driver.in().size(), size);
  }
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
               {2, CompressionAlgorithm::kGzip}};
  for (const Case& c : cases) {
    auto meta = Call();
    meta.compress_type = c.number;
    ServerDriver driver(NewServer);
    driver.Feed(Frame(Bytes(meta), "b"));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.compression, c.algorithm);
    EXPECT_FALSE(driver.request().head.attachment_compressed);
    // None, gzip and snappy, and no others.
    EXPECT_EQ(driver.request().head.acceptable_compressions, 0x16u);

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

TEST_F(BaiduStdServer, IgnoresCredentialsChecksumsAndUserFields) {
  driver_.Feed(Frame(Bytes(Call()) + "\x3a\x02me\x58\x01\x62\x04"
                                     "1234\x4a\x06\x0a\x01k\x12\x01v"));
  EXPECT_EQ(driver_.result(), ParseResult::kOk);
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
  for (int number : {3, 4, 77, -1}) {
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
            "baidu-std: malformed meta: a length runs past the end");
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

TEST_F(BaiduStdServer, AnswersAnOversizedMessageBeforeItsBodyHasCome) {
  ServerDriver driver(NewSmallServer);
  std::string frame = Frame(Bytes(Call()), std::string(2000, 'b'));
  std::size_t head = 12 + BaiduStdMetaSize(Call());
  EXPECT_EQ(driver.Feed(frame.substr(0, head - 1)), CutResult::kNeedMore);
  EXPECT_EQ(driver.need(), head);
  driver.Feed(frame.substr(head - 1, 1));
  ASSERT_EQ(driver.count(), 1u);
  EXPECT_EQ(driver.result(), ParseResult::kReject);
  EXPECT_EQ(driver.request().reject_reason,
            "a message of " + std::to_string(frame.size()) +
                " bytes exceeds the limit of 1000");
  EXPECT_EQ(driver.request().ticket.correlation_id, 7u);
  for (std::size_t at = head; at < frame.size(); at += 100) {
    driver.Feed(frame.substr(at, 100));
    EXPECT_TRUE(driver.in().empty());
  }
  driver.Feed(kEchoRequest);
  ASSERT_EQ(driver.count(), 2u);
  EXPECT_EQ(driver.result(1), ParseResult::kOk);
}

TEST_F(BaiduStdServer, TheLimitItselfIsAllowed) {
  ServerDriver driver(NewSmallServer);
  std::size_t head = 12 + BaiduStdMetaSize(Call());
  driver.Feed(Frame(Bytes(Call()), std::string(1000 - head, 'b')));
  driver.Feed(Frame(Bytes(Call()), std::string(1001 - head, 'b')));
  ASSERT_EQ(driver.count(), 2u);
  EXPECT_EQ(driver.result(0), ParseResult::kOk);
  EXPECT_EQ(driver.result(1), ParseResult::kReject);
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
  EXPECT_EQ(sent.meta.compress_type, kBaiduStdSnappy);
  EXPECT_EQ(sent.meta.attachment_size, 4);
  EXPECT_EQ(sent.rest, "bbaaaa");
}

TEST_F(BaiduStdClient, SmallRequestsAreOneSlice) {
  BufferBuilder out;
  for (int i = 0; i != 5; ++i) {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = "a.B.C";
    request.body = CreateBufferSlow("hi");
    ASSERT_TRUE(protocol_->Write(std::move(request), &out).ok());
  }
  EXPECT_EQ(out.DestructiveGet().SliceCount(), 1u);
}

TEST_F(BaiduStdClient, RefusesAMethodWithoutService) {
  for (const char* name : {"", "Echo"}) {
    OutboundRequest request;
    request.method = name;
    BufferBuilder out;
    EXPECT_EQ(protocol_->Write(std::move(request), &out).code(),
              STATUS_INVALID_METHOD_NAME);
    EXPECT_EQ(out.ByteSize(), 0u);
  }
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
      {"\x12\x00\x20\x07\x18\x03"s, "a response with an unknown compress_type"},
      {"\x12\x00\x20\x07\x50\x01"s, "a response that isn't protobuf"},
      {"\x12\x00\x20\x07\x28\x05"s,
       "a response without room for its attachment_size"},
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

TEST_F(BaiduStdClient, ClosesOnForeignBytes) {
  InboundResponse response;
  EXPECT_EQ(Cut("HTTP/1.1 200 OK\r\n", &response), CutResult::kError);
  EXPECT_EQ(error_, "baidu-std: the peer's bytes are no baidu-std response");
}

TEST_F(BaiduStdClient, WaitsForTheRest) {
  InboundResponse response;
  EXPECT_EQ(Cut("PR", &response), CutResult::kNeedMore);
  EXPECT_EQ(Cut(kResponse.substr(2, 15), &response), CutResult::kNeedMore);
  EXPECT_EQ(need_, kResponse.size());
  EXPECT_EQ(Cut(kResponse.substr(17), &response), CutResult::kMessage);
}

TEST_F(BaiduStdClient, FailsTheCallOfAnOversizedResponse) {
  Limits limits;
  limits.max_packet_size = 100;
  protocol_ = NewBaiduStdClientProtocol(limits, "");
  InboundResponse response;
  ASSERT_EQ(Cut(Frame("\x12\x00\x20\x07"s, std::string(1000, 'b')) + kResponse,
                &response),
            CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_EQ(response.description,
            "a message of 1016 bytes exceeds the limit of 100");
  response.Clear();
  ASSERT_EQ(Cut("", &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 1u);
}

TEST_F(BaiduStdClient, SpeaksWithTheServer) {
  std::mt19937 rng(5);
  ServerDriver server(NewServer);
  for (int i = 1; i <= 500; ++i) {
    std::string body(rng() % 3000, static_cast<char>(rng()));
    std::string attachment(rng() % 300, static_cast<char>(rng()));
    OutboundRequest request;
    request.correlation_id = i;
    request.method = "example.EchoService.Echo";
    request.body = CreateBufferSlow(body);
    request.attachment = CreateBufferSlow(attachment);
    server.Feed(Write(std::move(request)), 1 + rng() % 200);
    auto& received = server.request(i - 1);
    ASSERT_EQ(server.result(i - 1), ParseResult::kOk);
    EXPECT_EQ(received.head.method, "example.EchoService.Echo");
    EXPECT_EQ(FlattenSlow(received.body), body);
    EXPECT_EQ(FlattenSlow(received.attachment), attachment);
    server.Answer(i - 1, body);
    InboundResponse response;
    ASSERT_EQ(Cut(server.sink().Take(), &response, 1 + rng() % 200),
              CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, static_cast<unsigned>(i));
    EXPECT_EQ(FlattenSlow(response.body), body);
  }
}

}  // namespace
}  // namespace flare::rpc
