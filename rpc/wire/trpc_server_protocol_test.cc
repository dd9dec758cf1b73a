#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "flare/rpc/wire/trpc_meta.h"
#include "flare/rpc/wire/trpc_protocol.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BigEndian;
using testing::ServerDriver;

// The documented vectors.
const std::string kRequest =
    "\x09\x30\0\0\0\0\0\x7f\0\x68\0\0\0\0\0\0"
    "\x18\x01\x20\xe8\x07\x2a\x1b"s +
    "trpc.test.helloworld.client" + "\x32\x1c" +
    "trpc.test.helloworld.Greeter" + "\x3a\x26" +
    "/trpc.test.helloworld.Greeter/SayHello" + "\x0a\x05hello";
const std::string kResponse =
    "\x09\x30\0\0\0\0\0\x19\0\x02\0\0\0\0\0\0\x18\x01\x0a\x05hello"s;

std::string Frame(std::string_view meta, std::string_view rest = "") {
  return "\x09\x30\0\0"s + BigEndian(16 + meta.size() + rest.size(), 4) +
         BigEndian(meta.size(), 2) + std::string(6, '\0') + std::string(meta) +
         std::string(rest);
}

std::string Bytes(const TrpcRequestMeta& meta) {
  std::string bytes(TrpcRequestSize(meta), '\0');
  EncodeTrpcRequest(meta, bytes.data());
  return bytes;
}

TrpcRequestMeta Call(std::uint32_t id = 7) {
  TrpcRequestMeta meta;
  meta.request_id = id;
  meta.service = "a.B";
  meta.method = "C";
  return meta;
}

// A frame that was sent, taken apart.
struct Sent {
  explicit Sent(std::string bytes_sent) : bytes(std::move(bytes_sent)) {
    EXPECT_GE(bytes.size(), 16u);
    EXPECT_EQ(bytes.substr(0, 8), "\x09\x30\0\0"s + BigEndian(bytes.size(), 4));
    std::size_t size = static_cast<std::uint8_t>(bytes[9]) +
                       256 * static_cast<std::uint8_t>(bytes[8]);
    head = bytes.substr(16, size);
    EXPECT_EQ(DecodeTrpcResponse(head, &meta), "");
    rest = bytes.substr(16 + size);
  }

  std::string bytes;
  std::string head;
  TrpcResponseMeta meta;
  std::string rest;
};

std::unique_ptr<ServerProtocol> NewServer(ReplySink* sink) {
  return NewTrpcServerProtocol(Limits(), sink);
}

class TrpcServer : public ::testing::Test {
 protected:
  // Feeds one bad request; expects that it is answered, and that the
  // connection still works.
  static void ExpectAnswered(const std::string& bytes, int ret,
                             const std::string& text) {
    ServerDriver driver(NewServer);
    driver.Feed(bytes);
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result(), ParseResult::kReject);
    EXPECT_EQ(driver.request().reject_reason, text);
    driver.AnswerAll();
    Sent sent(driver.sink().Take());
    EXPECT_EQ(sent.meta.request_id, 7u);
    EXPECT_EQ(sent.meta.ret, ret);
    EXPECT_EQ(sent.meta.func_ret, 0);
    EXPECT_EQ(sent.meta.error_msg, text);
    EXPECT_EQ(sent.rest, "");
    driver.Feed(kRequest);
    ASSERT_EQ(driver.count(), 2u);
    EXPECT_EQ(driver.result(1), ParseResult::kOk);
  }

  ServerDriver driver_{NewServer};
};

TEST_F(TrpcServer, ReadsTheDocumentedRequestInAnyPieces) {
  ASSERT_EQ(kRequest.size(), 127u);
  for (std::size_t piece = 1; piece <= kRequest.size(); ++piece) {
    ServerDriver driver(NewServer);
    driver.Feed(kRequest + kRequest, piece);
    ASSERT_EQ(driver.count(), 2u);
    ASSERT_EQ(driver.result(1), ParseResult::kOk);
    const auto& request = driver.request(1);
    EXPECT_EQ(request.ticket.As<TrpcTicket>().request_id, 1u);
    EXPECT_EQ(request.head.method, "trpc.test.helloworld.Greeter.SayHello");
    EXPECT_EQ(request.head.timeout_ms, 1000u);
    EXPECT_EQ(request.head.compression, CompressionAlgorithm::kNone);
    EXPECT_EQ(FlattenSlow(request.body), "\x0a\x05hello");
    EXPECT_EQ(request.wire_size, 127u);
    driver.Answer(1, "\x0a\x05hello");
    EXPECT_EQ(driver.sink().Take(), kResponse);
  }
}

TEST_F(TrpcServer, RepeatsWhatTheDocumentSays) {
  auto meta = Call();
  meta.version = 3;
  meta.message_type = 0x11;
  meta.content_type = 2u;
  driver_.Feed(Frame(Bytes(meta) + "\x4a\x06\x0a\x01k\x12\x01v", "{}"));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  EXPECT_EQ(driver_.request().head.format, PayloadFormat::kVerboseJson);
  driver_.AnswerAll("{}");
  Sent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.version, 3u);
  EXPECT_EQ(sent.meta.message_type, 0x11u);
  EXPECT_EQ(sent.meta.content_type, 2u);
  EXPECT_NE(sent.head.find("\x42\x06\x0a\x01k\x12\x01v"), std::string::npos);
}

// Some callers know replies by nothing else, those of refused calls as well.
TEST_F(TrpcServer, RepeatsNumberAndVersionOfTheFrame) {
  auto bad_format = Call();
  bad_format.content_type = 99;
  const std::string requests[] = {
      Frame(Bytes(Call()), "body"), Frame(Bytes(bad_format)),
      Frame("\x18\x07\x3a\x7f"),                      // malformed
      Frame(Bytes(Call()), std::string(1000, 'b'))};  // too large
  for (const std::string& numbers :
       {"\0\0\0\7\1\0"s, "\xff\xfe\xfd\xfc\2\0"s, std::string(6, '\0')}) {
    for (std::string request : requests) {
      request.replace(10, 6, numbers);
      request[15] = '\x55';  // Has no meaning, and isn't repeated.
      ServerDriver driver([](ReplySink* sink) {
        return NewTrpcServerProtocol({.max_packet_size = 500}, sink);
      });
      driver.Feed(request);
      ASSERT_EQ(driver.count(), 1u);
      driver.AnswerAll("body");
      EXPECT_EQ(Sent(driver.sink().Take()).bytes.substr(10, 6), numbers);
      OutboundResponse failure;
      failure.status = 4711;
      driver.protocol().Write(driver.request().ticket, std::move(failure));
      EXPECT_EQ(Sent(driver.sink().Take()).bytes.substr(10, 6), numbers);
    }
  }
}

TEST_F(TrpcServer, NeverAnswersOneWayCalls) {
  auto meta = Call();
  meta.call_type = kTrpcOneWay;
  driver_.Feed(Frame(Bytes(meta), "body"));
  meta.content_type = 99;
  driver_.Feed(Frame(Bytes(meta), "body"));
  ASSERT_EQ(driver_.count(), 2u);
  EXPECT_EQ(driver_.result(0), ParseResult::kOk);
  EXPECT_EQ(driver_.result(1), ParseResult::kReject);
  driver_.AnswerAll("body");
  EXPECT_EQ(driver_.sink().Take(), "");
  EXPECT_FALSE(driver_.sink().aborted());
}

TEST_F(TrpcServer, TranslatesFailuresAndSendsNoBodies) {
  struct Case {
    int status, ret, func_ret;
  } cases[] = {{STATUS_MALFORMED_DATA, 1, 0},
               {STATUS_SERIALIZE_RESPONSE, 2, 0},
               {STATUS_SERVICE_NOT_FOUND, 11, 0},
               {STATUS_METHOD_NOT_FOUND, 12, 0},
               {STATUS_TIMEOUT, 21, 0},
               {STATUS_OVERLOADED, 22, 0},
               {STATUS_OUT_OF_SERVICE, 31, 0},
               {STATUS_FAILED, 0, 99},
               {STATUS_FROM_USER, 0, 100},
               {4711, 0, 4711},
               {-1, 0, -1},
               {-4711, 0, -4711}};
  for (const Case& c : cases) {
    OutboundResponse response;
    response.status = c.status;
    response.description = "why \xff";
    response.body = CreateBufferSlow("body");
    response.attachment = CreateBufferSlow("attached");
    ReplyTicket ticket;
    ticket.Emplace<TrpcTicket>().request_id = 7;
    driver_.protocol().Write(ticket, std::move(response));
    Sent sent(driver_.sink().Take());
    EXPECT_EQ(sent.meta.ret, c.ret);
    EXPECT_EQ(sent.meta.func_ret, c.func_ret);
    EXPECT_EQ(sent.meta.error_msg, "why ?");
    EXPECT_EQ(sent.meta.attachment_size, 0u);
    EXPECT_EQ(sent.rest, "");
  }
}

TEST_F(TrpcServer, KnowsTheCompressionsOfTheDocument) {
  struct Case {
    std::uint32_t in;
    CompressionAlgorithm algorithm;
    std::uint32_t out;
  } cases[] = {{0, CompressionAlgorithm::kNone, 0},
               {1, CompressionAlgorithm::kGzip, 1},
               {2, CompressionAlgorithm::kSnappy, 5},
               {3, CompressionAlgorithm::kZlib, 3},
               {5, CompressionAlgorithm::kSnappy, 5},
               {6, CompressionAlgorithm::kLz4Frame, 6}};
  for (const Case& c : cases) {
    auto meta = Call();
    meta.content_encoding = c.in;
    meta.attachment_size = 2;
    ServerDriver driver(NewServer);
    driver.Feed(Frame(Bytes(meta), "bbaa"));
    ASSERT_EQ(driver.result(), ParseResult::kOk);
    EXPECT_EQ(driver.request().head.compression, c.algorithm);
    EXPECT_FALSE(driver.request().head.attachment_compressed);
    EXPECT_EQ(FlattenSlow(driver.request().attachment), "aa");
    OutboundResponse response;
    response.compression = c.algorithm;
    response.body = CreateBufferSlow("packed");
    response.attachment = CreateBufferSlow("att");
    driver.protocol().Write(driver.request().ticket, std::move(response));
    Sent sent(driver.sink().Take());
    EXPECT_EQ(sent.meta.content_encoding, c.out);
    EXPECT_EQ(sent.meta.attachment_size, 3u);
    EXPECT_EQ(sent.rest, "packedatt");
  }
}

TEST_F(TrpcServer, RepliesWhoseHeaderWouldExceed65535BytesLeaveTransInfoOut) {
  driver_.Feed(
      Frame(Bytes(Call()) + "\x4a\xe0\xd4\x03" + std::string(60000, 't')));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  std::string text(6000, 'e');
  OutboundResponse response;
  response.status = 4711;
  response.description = text;
  driver_.protocol().Write(driver_.request().ticket, std::move(response));
  Sent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.request_id, 7u);
  EXPECT_EQ(sent.meta.func_ret, 4711);
  EXPECT_EQ(sent.meta.error_msg, text);
  EXPECT_EQ(sent.head.find("tttt"), std::string::npos);
}

// A reply's sizes take more room than the request's `func`.
TEST_F(TrpcServer, AReplyThatCannotSayItAllIsAFailure) {
  std::string meta = "\x18\x07\x3a\x04/a/b\x4a\xf3\xff\x03";
  const std::size_t size = 65535 - meta.size();
  ASSERT_EQ(size, 0xfff3u);
  driver_.Feed(Frame(meta + std::string(size, 't')));
  ASSERT_EQ(driver_.result(), ParseResult::kOk);
  OutboundResponse response;
  response.body = CreateBufferSlow(std::string(1000, 'b'));
  response.attachment = CreateBufferSlow(std::string(3'000'000, 'a'));
  response.compression = CompressionAlgorithm::kGzip;
  driver_.protocol().Write(driver_.request().ticket, std::move(response));
  Sent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.request_id, 7u);
  EXPECT_EQ(sent.meta.ret, kTrpcEncodeError);
  EXPECT_EQ(sent.meta.attachment_size, 0u);
  EXPECT_EQ(sent.meta.content_encoding, 0u);
  EXPECT_TRUE(sent.rest.empty());
}

TEST_F(TrpcServer, ACallWhoseTimeIsOverHasItsOwnCode) {
  OutboundResponse response;
  response.status = STATUS_OVERLOADED;
  response.detail = FailureDetail::kExpired;
  driver_.protocol().Write(ReplyTicket(), std::move(response));
  Sent sent(driver_.sink().Take());
  EXPECT_EQ(sent.meta.ret, kTrpcBudgetSpent);
  EXPECT_EQ(sent.meta.func_ret, 0);
}

// --- bad requests ----------------------------------------------------------

TEST_F(TrpcServer, AnswersBadRequests) {
  auto meta = Call();
  meta.call_type = 2;
  ExpectAnswered(Frame(Bytes(meta)), 1, "unknown call_type 2");
  meta = Call();
  meta.content_type = 4;
  ExpectAnswered(Frame(Bytes(meta)), 1, "unknown content_type 4");
  meta = Call();
  meta.content_encoding = 4;
  ExpectAnswered(Frame(Bytes(meta)), 1, "unknown content_encoding 4");
  meta = Call();
  meta.attachment_size = 5;
  ExpectAnswered(Frame(Bytes(meta), "four"), 1,
                 "no room for an attachment_size of 5");
  ExpectAnswered(Frame("\x18\x07\x3a\x03/ab"), 12,
                 "func isn't /package.Service/Method: /ab");
  ExpectAnswered(Frame("\x18\x07\x3a\x7f"), 1,
                 "malformed meta: a length runs past the end");
}

TEST_F(TrpcServer, ClosesWhereNobodyCanBeAnswered) {
  driver_.Feed(Frame("\x3a\x7f"));
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(driver_.result(), ParseResult::kClose);
  EXPECT_EQ(
      driver_.request().reject_reason,
      "trpc: a request without a correlation id: a length runs past the end");
}

TEST_F(TrpcServer, ClosesOnImpossibleHeaders) {
  EXPECT_EQ(driver_.Feed("\x09\x30\0\0\0\0\0\x14\0\x05\0\0\0\0\0\0"s),
            CutResult::kError);
  EXPECT_EQ(driver_.error(), "trpc: a frame of 20 bytes with a head of 21");
  ServerDriver other(NewServer);
  EXPECT_EQ(other.Feed("\x09\x30\x02\0\0\0\0\x14\0\0\0\0\0\0\0\0"s),
            CutResult::kError);
  EXPECT_EQ(other.error(), "trpc: unknown kind of frame 2");
}

TEST_F(TrpcServer, ResetsStreams) {
  // INIT of /a.S/M, to a sink without streams.
  driver_.Feed(
      "\x09\x30\x01\x01\0\0\0\x1a\0\0\x01\x02\x03\x04\x01\0"
      "\x0a\x08\x1a\x06/a.S/M"s +
      kRequest);
  ASSERT_EQ(driver_.count(), 2u);
  EXPECT_EQ(driver_.result(0), ParseResult::kReject);
  EXPECT_EQ(driver_.request().reject_status, STATUS_NOT_SUPPORTED);
  EXPECT_EQ(driver_.result(1), ParseResult::kOk);
  driver_.Answer(0);
  EXPECT_EQ(driver_.sink().Take(),
            "\x09\x30\x01\x04\0\0\0\x30\0\0\x01\x02\x03\x04\x01\0"
            "\x08\x01\x10\x1f\x1a\x1a"s +
                "this server has no streams");
}

TEST_F(TrpcServer, ResetsStreamsThatItCannotRead) {
  driver_.Feed("\x09\x30\x01\x01\0\0\0\x13\0\0\x01\x02\x03\x04\x01\0xyz"s);
  ASSERT_EQ(driver_.count(), 1u);
  EXPECT_EQ(driver_.result(0), ParseResult::kReject);
  EXPECT_EQ(driver_.request().reject_status, STATUS_MALFORMED_DATA);
  driver_.Answer(0);
  EXPECT_EQ(driver_.sink().Take(),
            "\x09\x30\x01\x04\0\0\0\x29\0\0\x01\x02\x03\x04\x01\0"
            "\x08\x01\x10\x01\x1a\x13"s +
                "a number is cut off");
}

// Or two servers like us would reset each other's resets for ever.
TEST_F(TrpcServer, SaysNothingToTheEndOfAStream) {
  for (char kind : {'\3', '\4'}) {
    driver_.Feed("\x09\x30\x01"s + kind +
                 "\0\0\0\x13\0\0\x01\x02\x03\x04\0\0xyz"s);
  }
  ASSERT_EQ(driver_.count(), 2u);
  driver_.AnswerAll();
  EXPECT_EQ(driver_.sink().Take(), "");
}

TEST_F(TrpcServer, EndsOfStreamsHaveAnEnd) {
  std::string bytes;
  for (int i = 0; i != 3 * FloodGuard::kMaxNotices; ++i) {
    bytes += "\x09\x30\x01\x03\0\0\0\x13\0\0\x01\x02\x03\x04\0\0xyz"s;
  }
  EXPECT_EQ(driver_.Feed(bytes), CutResult::kError);
  EXPECT_EQ(driver_.error(), "trpc: frames of streams without end");
  EXPECT_LE(driver_.count(), 2u * FloodGuard::kMaxNotices + 1);
}

}  // namespace
}  // namespace flare::rpc
