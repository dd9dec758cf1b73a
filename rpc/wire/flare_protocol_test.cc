#include "flare/rpc/wire/flare_protocol.h"

#include <string>
#include <utility>

#include "flare/rpc/wire/client_protocol_testing.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/rpc_meta.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::ServerDriver;

constexpr std::string_view kEcho = "example.protobuf_echo.EchoService.Echo";

// The documented vectors.
const std::string kUnaryRequest =
    "CPRF\x33\0\0\0\x04\0\0\0\0\0\0\0"s + "\x08\x01\x2a\x2d\x12\x26"s +
    std::string(kEcho) + "\x20\xd0\x0f\x30\x3e\x38\x01"s + "\x0a\x02hi"s;
const std::string kRequestWithAttachment =
    "CPRF\x33\0\0\0\x04\0\0\0\x04\0\0\0"s + kUnaryRequest.substr(16) + "aaaa";
const std::string kSuccessResponse = "CPRF\x08\0\0\0\x04\0\0\0\0\0\0\0"s +
                                     "\x08\x01\x32\x02\x08\0\x38\x01"s +
                                     "\x12\x02hi"s;
const std::string kErrorResponse = "CPRF\x0b\0\0\0\0\0\0\0\0\0\0\0"s +
                                   "\x08\x07\x32\x05\x08\x0a\x12\x01x\x38\x01"s;
const std::string kEndOfStream = "CPRF\x0a\0\0\0\0\0\0\0\0\0\0\0"s +
                                 "\x08\x07\x32\x02\x08\0\x38\x02\x40\x06"s;

std::string LittleEndian(std::uint32_t value) {
  std::string bytes;
  for (int i = 0; i != 4; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return bytes;
}

std::string Frame(std::string_view meta, std::string_view body = "",
                  std::string_view attachment = "") {
  return "CPRF" + LittleEndian(meta.size()) + LittleEndian(body.size()) +
         LittleEndian(attachment.size()) + std::string(meta) +
         std::string(body) + std::string(attachment);
}

RpcMeta SingleCall(std::uint64_t id = 7) {
  RpcMeta meta;
  meta.correlation_id = id;
  meta.method_type = kMethodTypeSingle;
  meta.has_request = true;
  meta.method_name = "a.B.C";
  return meta;
}

std::string Bytes(const RpcMeta& meta) {
  std::string bytes(RpcMetaBound(meta), '\0');
  bytes.resize(static_cast<std::size_t>(EncodeRpcMeta(meta, bytes.data()) -
                                        bytes.data()));
  return bytes;
}

class FlareServer : public ::testing::Test {
 protected:
  static Limits SmallLimits() {
    Limits limits;
    limits.max_packet_size = 1000;
    return limits;
  }

  // Feeds one bad request; expects that it is answered with this status and a
  // text, and that the connection still works.
  void ExpectAnswered(const std::string& bytes, int status,
                      const std::string& text, std::uint64_t id = 7) {
    ServerDriver driver(
        [](auto* sink) { return NewFlareServerProtocol(Limits(), sink); });
    driver.Feed(bytes);
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result(), ParseResult::kReject);
    EXPECT_EQ(driver.request().reject_status, status);
    EXPECT_EQ(driver.request().reject_reason, text);
    driver.AnswerAll();
    std::string sent = driver.sink().Take();
    ASSERT_GT(sent.size(), 16u);
    RpcMeta meta;
    ASSERT_EQ(DecodeRpcMeta(std::string_view(sent).substr(16), &meta), "");
    EXPECT_EQ(meta.correlation_id, id);
    EXPECT_EQ(meta.status, status);
    EXPECT_EQ(meta.description, text);

    driver.Feed(kUnaryRequest);
    ASSERT_EQ(driver.count(), 2u);
    EXPECT_EQ(driver.result(1), ParseResult::kOk);
    EXPECT_FALSE(driver.sink().closed());
  }

  ServerDriver driver_{
      [](auto* sink) { return NewFlareServerProtocol(Limits(), sink); }};
};

TEST_F(FlareServer, ReadsTheDocumentedRequest) {
  EXPECT_EQ(driver_.Feed(kUnaryRequest), CutResult::kMessage);
  ASSERT_EQ(driver_.count(), 1u);
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  auto& request = driver_.request();
  EXPECT_EQ(request.ticket.As<FlareTicket>().correlation_id, 1u);
  EXPECT_EQ(request.head.method, kEcho);
  EXPECT_EQ(request.head.timeout_ms, 2000u);
  EXPECT_EQ(request.head.acceptable_compressions, 62u);
  EXPECT_EQ(request.head.compression, CompressionAlgorithm::kNone);
  EXPECT_FALSE(request.head.attachment_compressed);
  EXPECT_EQ(request.head.format, PayloadFormat::kProtobuf);
  EXPECT_EQ(FlattenSlow(request.body), "\x0a\x02hi");
  EXPECT_TRUE(request.attachment.empty());
  EXPECT_EQ(request.wire_size, kUnaryRequest.size());
  EXPECT_FALSE(request.own);
  EXPECT_TRUE(driver_.in().empty());
}

TEST_F(FlareServer, ReadsTheDocumentedAttachment) {
  driver_.Feed(kRequestWithAttachment);
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(FlattenSlow(driver_.request().body), "\x0a\x02hi");
  EXPECT_EQ(FlattenSlow(driver_.request().attachment), "aaaa");
}

TEST_F(FlareServer, WritesTheDocumentedResponses) {
  driver_.Feed(kUnaryRequest);
  driver_.Answer(0, "\x12\x02hi");
  EXPECT_EQ(driver_.sink().Take(), kSuccessResponse);

  ReplyTicket ticket;
  ticket.Emplace<FlareTicket>().correlation_id = 7;
  OutboundResponse response;
  response.status = STATUS_METHOD_NOT_FOUND;
  response.description = "x";
  driver_.protocol().Write(ticket, std::move(response));
  EXPECT_EQ(driver_.sink().Take(), kErrorResponse);
}

TEST_F(FlareServer, ReportsCompression) {
  auto meta = SingleCall();
  meta.compression_algorithm = 5;
  meta.attachment_compressed = true;
  driver_.Feed(Frame(Bytes(meta), "b", "a"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  EXPECT_EQ(driver_.request().head.compression, CompressionAlgorithm::kZstd);
  EXPECT_TRUE(driver_.request().head.attachment_compressed);
}

TEST_F(FlareServer, EchoesA64BitCorrelationId) {
  driver_.Feed(Frame(Bytes(SingleCall(0xfedcba9876543210))));
  driver_.AnswerAll();
  RpcMeta meta;
  std::string sent = driver_.sink().Take();
  ASSERT_EQ(DecodeRpcMeta(std::string_view(sent).substr(16), &meta), "");
  EXPECT_EQ(meta.correlation_id, 0xfedcba9876543210);
}

// --- streams ---------------------------------------------------------------

RpcMeta StreamPacket(std::uint64_t id, std::uint64_t flags) {
  RpcMeta meta = SingleCall(id);
  meta.method_type = kMethodTypeStream;
  meta.flags = flags;
  return meta;
}

TEST_F(FlareServer, PacketsOfStreamsThatHaveEndedHaveAnEnd) {
  // Refused, as the sink has no streams.
  std::string bytes = Frame(Bytes(StreamPacket(7, kFlagStartOfStream)));
  const std::string late = Frame(Bytes(StreamPacket(7, 0)), "message");
  // That many may come within a second, which the test takes less than.
  for (int i = 0; i != 10 * FloodGuard::kMaxNotices; ++i) bytes += late;
  EXPECT_EQ(driver_.Feed(bytes), CutResult::kError);
  EXPECT_EQ(driver_.error(),
            "flare: packets without end of streams that have ended");
  EXPECT_EQ(driver_.count(), 1u);
}

// --- requests that crash or are dropped by the published implementation ----

TEST_F(FlareServer, AnswersMethodType0) {
  auto meta = SingleCall();
  meta.method_type = 0;
  ExpectAnswered(Frame(Bytes(meta)), STATUS_MALFORMED_DATA,
                 "unknown method_type 0");
}

TEST_F(FlareServer, AnswersUnknownMethodTypes) {
  for (int type : {3, 200, -1}) {
    auto meta = SingleCall();
    meta.method_type = type;
    ExpectAnswered(Frame(Bytes(meta)), STATUS_MALFORMED_DATA,
                   "unknown method_type " + std::to_string(type));
  }
}

TEST_F(FlareServer, AnswersAMissingMethodType) {
  ExpectAnswered(Frame("\x08\x07\x2a\x03\x12\x01m"), STATUS_MALFORMED_DATA,
                 "the meta has no method_type");
}

TEST_F(FlareServer, AnswersAMissingRequestMeta) {
  auto meta = SingleCall();
  meta.has_request = false;
  ExpectAnswered(Frame(Bytes(meta), "body"), STATUS_MALFORMED_DATA,
                 "the meta has no request_meta");
}

TEST_F(FlareServer, AnswersAResponse) {
  // Only a confused peer sends one.
  ExpectAnswered(kErrorResponse, STATUS_MALFORMED_DATA,
                 "the meta has no request_meta");
}

TEST_F(FlareServer, AnswersAMissingMethodName) {
  ExpectAnswered(Frame("\x08\x07\x2a\x02\x20\x05\x38\x01"),
                 STATUS_MALFORMED_DATA, "the meta has no method_name");
}

TEST_F(FlareServer, AnswersNoPayloadOnASingleCall) {
  auto meta = SingleCall();
  meta.flags = kFlagNoPayload;
  ExpectAnswered(Frame(Bytes(meta)), STATUS_MALFORMED_DATA,
                 "NO_PAYLOAD in a call that isn't a stream");
}

TEST_F(FlareServer, AnswersUnknownCompression) {
  auto meta = SingleCall();
  meta.compression_algorithm = 6;
  ExpectAnswered(Frame(Bytes(meta)), STATUS_MALFORMED_DATA,
                 "unknown compression algorithm 6");
}

TEST_F(FlareServer, AnswersAMetaThatIsMalformedBehindTheId) {
  ExpectAnswered(Frame("\x08\x07\x2a\x7fxx"), STATUS_MALFORMED_DATA,
                 "malformed meta: a length runs past the end");
}

TEST_F(FlareServer, RefusesStreamsInTheirOwnForm) {
  auto meta = SingleCall();
  meta.method_type = kMethodTypeStream;
  meta.flags = kFlagStartOfStream | kFlagEndOfStream;
  driver_.Feed(Frame(Bytes(meta)));
  ASSERT_EQ(driver_.result(), ParseResult::kReject);
  EXPECT_EQ(driver_.request().reject_status, STATUS_NOT_SUPPORTED);
  driver_.AnswerAll();
  std::string sent = driver_.sink().Take();
  RpcMeta reply;
  ASSERT_EQ(DecodeRpcMeta(std::string_view(sent).substr(16), &reply), "");
  EXPECT_EQ(reply.method_type, kMethodTypeStream);
  EXPECT_EQ(reply.flags,
            kFlagStartOfStream | kFlagEndOfStream | kFlagNoPayload);
  EXPECT_EQ(reply.status, STATUS_NOT_SUPPORTED);
}

TEST_F(FlareServer, RefusesAnEndOfStreamWithoutPayload) {
  auto meta = SingleCall();
  meta.method_type = kMethodTypeStream;
  meta.flags = 7;
  driver_.Feed(Frame(Bytes(meta)));
  EXPECT_EQ(driver_.result(), ParseResult::kReject);
  EXPECT_EQ(driver_.request().reject_status, STATUS_NOT_SUPPORTED);
}

TEST_F(FlareServer, ClosesWithAReasonWhereNobodyCanBeAnswered) {
  struct Case {
    std::string meta;
    std::string detail;
  } cases[] = {{"", ""},
               {"\x38\x01", ""},
               {"garbage", ": a field has an unknown wire type"},
               {"\x08", ": a number is cut off"}};
  for (const auto& [meta, detail] : cases) {
    ServerDriver driver(
        [](auto* sink) { return NewFlareServerProtocol(Limits(), sink); });
    driver.Feed(Frame(meta));
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result(), ParseResult::kClose);
    EXPECT_EQ(driver.request().reject_reason,
              "flare: a request without a correlation id" + detail);
  }
}

// --- sizes -----------------------------------------------------------------

TEST_F(FlareServer, LargestSizesDoNotOverflow) {
  std::string header = "CPRF" + LittleEndian(4) + LittleEndian(0xffffffff) +
                       LittleEndian(0xffffffff);
  driver_.Feed(header + "\x08\x07\x38\x01");
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(driver_.result(), ParseResult::kReject);
  EXPECT_EQ(driver_.request().wire_size, 20 + 2 * std::size_t{0xffffffff});
}

TEST_F(FlareServer, ClosesOnAHugeMetaAtOnce) {
  std::string header =
      "CPRF" + LittleEndian(0xffffffff) + LittleEndian(0) + LittleEndian(0);
  EXPECT_EQ(driver_.Feed(header), CutResult::kError);
  EXPECT_EQ(driver_.error(),
            "flare: a meta of 4294967295 bytes exceeds the limit of 65536");
}

TEST_F(FlareServer, ErrorTextsBecomeUtf8) {
  OutboundResponse response;
  response.status = STATUS_FAILED;
  response.description =
      "caf\xc3\xa9 \xff\xc0\x80 \xed\xa0\x80 \xf0\x9f\x98\x80";
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  std::string sent = driver_.sink().Take();
  RpcMeta meta;
  ASSERT_EQ(DecodeRpcMeta(std::string_view(sent).substr(16), &meta), "");
  EXPECT_EQ(meta.description, "caf\xc3\xa9 ??? ??? \xf0\x9f\x98\x80");
}

// --- calls that are given up -----------------------------------------------

// With an id that is 7 as text, and in front of it the question for resets.
const std::string kAsking =
    Frame("\xb8\x3f\x01" + Bytes(SingleCall()), "\x0a\x02hi");
// "I heed resets."
const std::string kHeeds = Frame("\xb8\x3f\x01\x08\x00\x38\x01"s);

std::string ResetOf(std::uint64_t id) {
  RpcMeta meta;
  meta.correlation_id = id;
  meta.method_type = kMethodTypeSingle;
  meta.reset = STATUS_FAILED;
  return Frame(Bytes(meta));
}

TEST_F(FlareServer, TellsTheOneThatAsksThatItHeedsResets) {
  driver_.Feed(kUnaryRequest);
  EXPECT_EQ(driver_.sink().Take(), "");
  driver_.Feed(kAsking);
  EXPECT_EQ(driver_.sink().Take(), kHeeds);
  driver_.Feed(kAsking);
  EXPECT_EQ(driver_.sink().Take(), "") << "once";
  ASSERT_EQ(driver_.count(), 3u);
  for (std::size_t i = 0; i != 3; ++i) {
    EXPECT_EQ(driver_.result(i), ParseResult::kOk);
  }
  EXPECT_EQ(driver_.request(1).head.method, "a.B.C");
  EXPECT_EQ(FlattenSlow(driver_.request(1).body), "\x0a\x02hi");
}

TEST_F(FlareServer, ForgetsTheReplyToACallThatIsGivenUp) {
  for (const std::uint64_t id : {7, 8, 9, 7 + 1024}) {
    driver_.Feed(Frame(Bytes(SingleCall(id))));
  }
  ASSERT_EQ(driver_.count(), 4u);
  const auto left = [&](std::size_t i) {
    return driver_.protocol().CallerLeft(driver_.request(i).ticket);
  };
  EXPECT_FALSE(left(0));
  EXPECT_EQ(driver_.Trickle(ResetOf(7)), CutResult::kHandled);
  EXPECT_EQ(driver_.Feed(ResetOf(9)), CutResult::kHandled);
  EXPECT_EQ(driver_.count(), 4u);
  EXPECT_TRUE(left(0));
  EXPECT_FALSE(left(1));
  EXPECT_TRUE(left(2));
  EXPECT_FALSE(left(3)) << "another one of the same slot";
  for (const std::size_t i : {0, 2}) {
    driver_.Answer(i);
    EXPECT_EQ(driver_.sink().Take(), "");
    EXPECT_FALSE(left(i)) << "it is over";
  }
  for (const std::size_t i : {1, 3}) {
    driver_.Answer(i);
    EXPECT_NE(driver_.sink().Take(), "");
  }
}

// The ids have come around.
TEST_F(FlareServer, ForgetsLateResetsWhenTheIdsBeginAnew) {
  for (const std::uint64_t id : {6, 7, 8}) driver_.Feed(ResetOf(id));
  EXPECT_EQ(driver_.count(), 0u);
  driver_.Feed(kAsking);
  for (const std::uint64_t id : {6, 8}) {
    driver_.Feed(Frame(Bytes(SingleCall(id))));
  }
  ASSERT_EQ(driver_.count(), 3u);
  const auto left = [&](std::size_t i) {
    return driver_.protocol().CallerLeft(driver_.request(i).ticket);
  };
  EXPECT_FALSE(left(0));
  EXPECT_TRUE(left(1)) << "from before";
  EXPECT_FALSE(left(2));
}

TEST_F(FlareServer, PassesOverResetsWithoutEnd) {
  std::string many;
  for (int i = 0; i != FloodGuard::kMaxNotices + 100; ++i) many += ResetOf(7);
  EXPECT_EQ(driver_.Feed(many + kUnaryRequest), CutResult::kMessage);
  EXPECT_EQ(driver_.count(), 1u);
}

// --- client ----------------------------------------------------------------

class FlareClient : public testing::ClientProtocolTest<> {
 protected:
  FlareClient() : ClientProtocolTest(NewFlareClientProtocol(Limits(), "")) {}
};

TEST_F(FlareClient, WritesTheDocumentedRequests) {
  for (const std::string& expected : {kUnaryRequest, kRequestWithAttachment}) {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = kEcho;
    request.timeout_ms = 2000;
    request.body = CreateBufferSlow("\x0a\x02hi");
    if (expected == kRequestWithAttachment) {
      request.attachment = CreateBufferSlow("aaaa");
    }
    EXPECT_EQ(Write(std::move(request)), expected);
  }
}

TEST_F(FlareClient, StatesCompressionAsThePublishedClient) {
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = "m";
  request.compression = CompressionAlgorithm::kSnappy;
  std::string bytes = Write(std::move(request));
  RpcMeta meta;
  ASSERT_EQ(DecodeRpcMeta(std::string_view(bytes).substr(16), &meta), "");
  EXPECT_EQ(meta.compression_algorithm, 4);
  EXPECT_TRUE(meta.attachment_compressed);
}

class FlareClientResets : public FlareClient {
 protected:
  FlareClientResets() { protocol_->SetOutput(&output_); }

  // Whether the request asks for resets.
  bool Asks(std::uint64_t id) {
    OutboundRequest request;
    request.correlation_id = id;
    request.method = kEcho;
    request.body = CreateBufferSlow("\x0a\x02hi");
    const std::string bytes = Write(std::move(request));
    RpcMeta meta;
    const std::size_t size = static_cast<unsigned char>(bytes[4]);
    EXPECT_EQ(DecodeRpcMeta(std::string_view(bytes).substr(16, size), &meta),
              "");
    EXPECT_EQ(meta.method_name, kEcho);
    EXPECT_EQ(bytes.substr(16 + size), "\x0a\x02hi");
    return meta.heeds_resets;
  }

  testing::RecordingSink output_;
};

// Without the answer nothing is sent.
TEST_F(FlareClientResets, AreSentWhenTheServerHasSaidThatItHeedsThem) {
  EXPECT_TRUE(Asks(1));
  EXPECT_TRUE(Asks(16));
  EXPECT_FALSE(Asks(17));
  protocol_->Abandon(1);
  protocol_->Abandon(4);
  EXPECT_EQ(output_.Take(), "");
  InboundResponse response;
  ASSERT_EQ(Cut(kHeeds, &response), CutResult::kMessage);
  EXPECT_EQ(output_.Take(), ResetOf(1) + ResetOf(4));
  ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_TRUE(response.is_notice);
  EXPECT_EQ(response.correlation_id, 0u);
  EXPECT_TRUE(response.body.empty());
  protocol_->Abandon(5);
  EXPECT_EQ(output_.Take(), ResetOf(5));
  EXPECT_FALSE(Asks(17));
  // The ids have come around, and calls may still have the first ones.
  for (const std::uint64_t id : {1, 2, 16}) EXPECT_TRUE(Asks(id));
}

// The connection sends bodies of notices back.
TEST_F(FlareClientResets, ComeWithNoNoticeThatHasABodyOrARequest) {
  const auto is_notice = [this](const RpcMeta& meta, std::string_view body) {
    InboundResponse response;
    EXPECT_EQ(Cut(Frame(Bytes(meta), body), &response), CutResult::kMessage);
    const ParseResult result = protocol_->Parse(&response);
    EXPECT_EQ(result,
              response.is_notice ? ParseResult::kOk : ParseResult::kReject);
    EXPECT_EQ(response.last_on_connection, response.is_notice);
    return response.is_notice;
  };
  RpcMeta meta;
  meta.method_type = kMethodTypeSingle;
  meta.notice = kNoticeStopping;
  EXPECT_TRUE(is_notice(meta, ""));
  EXPECT_FALSE(is_notice(meta, "body"));
  meta.has_request = true;
  meta.method_name = "m";
  EXPECT_FALSE(is_notice(meta, ""));
}

TEST_F(FlareClientResets, ThatWaitAreBounded) {
  for (int i = 1; i != 1000; ++i) protocol_->Abandon(i);
  InboundResponse response;
  ASSERT_EQ(Cut(kHeeds, &response), CutResult::kMessage);
  EXPECT_EQ(output_.Take().size(), 64 * ResetOf(1).size());
}

TEST_F(FlareClientResets, EndTheConnectionThatSpeaksOfThemWithoutEnd) {
  InboundResponse first;
  ASSERT_EQ(Cut(kHeeds, &first), CutResult::kMessage);
  InboundResponse second;
  EXPECT_EQ(Cut(kHeeds, &second), CutResult::kError);
  EXPECT_EQ(error_, "flare: the server says twice that it heeds resets");
}

TEST_F(FlareClient, ReadsTheDocumentedSuccess) {
  for (std::size_t piece = 1; piece <= kSuccessResponse.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Cut(kSuccessResponse, &response, piece), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 1u);
    EXPECT_EQ(response.status, STATUS_SUCCESS);
    EXPECT_EQ(FlattenSlow(response.body), "\x12\x02hi");
    EXPECT_EQ(response.wire_size, kSuccessResponse.size());
  }
}

TEST_F(FlareClient, ReadsTheDocumentedFailure) {
  InboundResponse response;
  ASSERT_EQ(Cut(kErrorResponse, &response), CutResult::kMessage);
  ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_EQ(response.status, STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(response.description, "x");
  EXPECT_TRUE(response.body.empty());
}

TEST_F(FlareClient, ReadsLongDescriptions) {
  const std::string text(70'000, 't');
  RpcMeta meta;
  meta.correlation_id = 7;
  meta.method_type = kMethodTypeSingle;
  meta.has_response = true;
  meta.status = 1001;
  meta.description = text;
  std::string encoded(RpcMetaBound(meta), 0);
  encoded.resize(EncodeRpcMeta(meta, encoded.data()) - encoded.data());
  protocol_ = NewFlareClientProtocol(ClientLimits(1 << 20), "");
  InboundResponse response;
  ASSERT_EQ(Cut("CPRF" + LittleEndian(encoded.size()) + LittleEndian(0) +
                    LittleEndian(0) + encoded,
                &response),
            CutResult::kMessage);
  ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.status, 1001);
  EXPECT_EQ(response.description, text);
}

TEST_F(FlareClient, FailsTheCallThatIsAnsweredByAStream) {
  InboundResponse response;
  ASSERT_EQ(Cut(kEndOfStream, &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
}

TEST_F(FlareClient, FailsTheCallOfAMalformedResponse) {
  struct Case {
    std::string meta;
    std::string_view text;
  } cases[] = {
      {"\x08\x07\x38\x01", "a response without response_meta"},
      {"\x08\x07\x32\x00\x38\x01"s, "a response without status"},
      {"\x08\x07\x32\x02\x08\x00\x38\x01\x48\x09"s,
       "a response compressed with an unknown algorithm"},
      {"\x08\x07\x32\x7f",
       "a response with a malformed meta: a length runs past the end"},
  };
  for (const Case& c : cases) {
    InboundResponse response;
    ASSERT_EQ(Cut(Frame(c.meta), &response), CutResult::kMessage);
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
    EXPECT_EQ(response.description, c.text);
  }
}

TEST_F(FlareClient, AnUnknownCompressionHidesNoFailure) {
  InboundResponse response;
  ASSERT_EQ(
      Cut(Frame("\x08\x07\x32\x03\x08\xe7\x24\x38\x01\x48\x09"), &response),
      CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_EQ(response.status, 4711);
  EXPECT_EQ(response.compression, CompressionAlgorithm::kUnknown);
}

TEST_F(FlareClient, ClosesOnAResponseOfNobody) {
  InboundResponse response;
  ASSERT_EQ(Cut(Frame("\x38\x01"), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kClose);
}

// --- streams of clients ------------------------------------------------------

class RecordingReceiver final : public StreamReceiver {
 public:
  void OnMessage(Buffer&&, bool) override { ++messages; }
  void OnEnd(const flare::Status&) override { ++ends; }
  void OnCredit(std::size_t bytes) override { credit += bytes; }
  void OnReset(const flare::Status&) override { ++resets; }
  void Drop() override {}
  void OnInputLost(const flare::Status&) override {}
  void OnWindow(std::size_t bytes) override { window += bytes; }

  int messages = 0;
  int ends = 0;
  int resets = 0;
  std::size_t credit = 0;
  std::size_t window = 0;
};

class RecordingOutput final : public StreamOutput {
 public:
  bool WriteSoon(Buffer&& bytes) override {
    sent += FlattenSlow(bytes);
    return true;
  }
  void Abort(const flare::Status&) override { ADD_FAILURE(); }
  void HoldInput() override {}
  void ReleaseInput() override {}
  std::string sent;
};

class FlareClientStream : public FlareClient {
 protected:
  void Open(bool shared) {
    wire_ =
        protocol_->OpenStream({.method = "a.B.C", .shared = shared}, &output_);
    ASSERT_TRUE(wire_->Begin(receiver_));
    ASSERT_TRUE(wire_->SendMessage(Buffer(), false));
    ASSERT_EQ(DecodeRpcMeta(std::string_view(output_.sent).substr(16), &sent_),
              "");
  }
  // From the server.
  void Feed(std::uint64_t flags, std::uint32_t window, std::uint32_t credit) {
    RpcMeta meta;
    meta.correlation_id = sent_.correlation_id;
    meta.method_type = kMethodTypeStream;
    meta.has_response = true;
    meta.flags = flags;
    meta.hello = true;
    meta.window = window;
    meta.credit = credit;
    EXPECT_EQ(CutAll(Frame(Bytes(meta))), CutResult::kNeedMore);
  }
  CutResult CutAll(const std::string& bytes) {
    InboundResponse response;
    return Cut(bytes, &response);
  }

  RecordingOutput output_;
  RefPtr<RecordingReceiver> receiver_ = MakeRefCounted<RecordingReceiver>();
  std::unique_ptr<StreamWire> wire_;
  RpcMeta sent_;
};

TEST_F(FlareClientStream, HasTheWindowThatTheServerAnnounces) {
  Open(/*shared=*/true);
  EXPECT_TRUE(sent_.hello);
  EXPECT_EQ(sent_.window, StreamWindow::kInitial);
  EXPECT_TRUE(wire_->has_credits());
  // 64 KiB of it were assumed.
  Feed(kFlagStartOfStream, 100'000, 0);
  EXPECT_EQ(receiver_->credit, 100'000 - StreamWindow::kInitial);
  Feed(0, 0, 5000);
  EXPECT_EQ(receiver_->credit, 105'000 - StreamWindow::kInitial);
  EXPECT_EQ(receiver_->window, 0u);
}

TEST_F(FlareClientStream, HasNoWindowOfItsOwnConnectionUntilItIsTold) {
  Open(/*shared=*/false);
  EXPECT_EQ(sent_.window, StreamWindow::kInitial);
  EXPECT_FALSE(wire_->has_credits());
  Feed(kFlagNoPayload, 100'000, 0);
  EXPECT_EQ(receiver_->window, 100'000u);
  EXPECT_EQ(receiver_->credit, 0u);
  EXPECT_EQ(receiver_->messages, 0);
}

TEST_F(FlareClientStream, PassesOverABoundedNumberOfLatePackets) {
  Open(/*shared=*/true);
  wire_ = nullptr;
  RpcMeta meta;
  meta.correlation_id = sent_.correlation_id;
  meta.method_type = kMethodTypeStream;
  meta.has_response = true;
  const std::string late = Frame(Bytes(meta), "message");
  std::string bytes;
  for (int i = 0; i != 1000; ++i) bytes += late;
  EXPECT_EQ(CutAll(bytes), CutResult::kNeedMore);
  // From then on each counts as a reply that nobody has asked for.
  bool bounded = false;
  for (int i = 0; !bounded && i != 300; ++i) {
    bounded = CutAll(bytes) == CutResult::kMessage;
  }
  EXPECT_TRUE(bounded);
}

}  // namespace
}  // namespace flare::rpc
