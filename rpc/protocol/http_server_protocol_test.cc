#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "flare/rpc/protocol/http_protocol.h"
#include "flare/rpc/protocol/protocol_testing.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ServerDriver;
using ::testing::StartsWith;

constexpr HttpUses kAllUses{
    .pb = true, .text = true, .json = true, .plain = true};

class HttpServer : public ServerDriver {
 public:
  explicit HttpServer(const HttpUses& uses = kAllUses,
                      const Limits& limits = Limits())
      : ServerDriver([&](auto* sink) {
          return NewHttpServerProtocol(uses, limits, sink);
        }) {}
};

Limits SmallLimits() {
  Limits limits;
  limits.max_packet_size = 1000;
  limits.max_http_header = 500;
  limits.max_http_pipeline = 3;
  return limits;
}

// A call as the published client writes it.
std::string Call(int seq, const std::string& body,
                 const std::string& type = "application/x-protobuf") {
  return "POST /rpc/example.protobuf_echo.EchoService.Echo HTTP/1.1\r\n"
         "Rpc-SeqNo: " +
         std::to_string(seq) +
         "\r\nRpc-Timeout: 2000\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

std::string SuccessReply(int seq, const std::string& body,
                         const std::string& type = "application/x-protobuf") {
  return "HTTP/1.1 200 OK\r\nContent-Type: " + type +
         "\r\nRpc-SeqNo: " + std::to_string(seq) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// What a handler's reply looks like (ServerDriver sets the date).
std::string HandlerReply(const std::string& body,
                         const std::string& connection = "") {
  return "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + connection + "\r\n" + body;
}

std::string ReplyTo(const std::string& request, const HttpUses& uses = kAllUses,
                    const Limits& limits = Limits()) {
  HttpServer server(uses, limits);
  server.Feed(request);
  EXPECT_EQ(server.count(), 1u);
  server.AnswerAll("body");
  return server.sink().Take();
}

// --- calls -----------------------------------------------------------------

TEST(HttpCalls, ReadsTheDocumentedRequest) {
  HttpServer server;
  server.Feed(Call(17, "\x0a\x02hi"));
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  auto& request = server.request();
  EXPECT_FALSE(request.is_http);
  EXPECT_EQ(request.head.correlation_id, 17u);
  EXPECT_EQ(request.head.method, "example.protobuf_echo.EchoService.Echo");
  EXPECT_EQ(request.head.timeout_ms, 2000u);
  EXPECT_EQ(request.head.format, PayloadFormat::kProtobuf);
  EXPECT_EQ(FlattenSlow(request.body), "\x0a\x02hi");
  EXPECT_EQ(request.wire_size, Call(17, "\x0a\x02hi").size());
}

TEST(HttpCalls, WritesTheDocumentedSuccess) {
  for (const char* type : {"application/x-protobuf", "text/x-protobuf",
                           "application/x-proto3-json"}) {
    HttpServer server;
    server.Feed(Call(17, "x", type));
    server.AnswerAll("\x12\x02hi");
    EXPECT_EQ(server.sink().Take(), SuccessReply(17, "\x12\x02hi", type));
  }
}

TEST(HttpCalls, WritesTheDocumentedFailures) {
  struct Case {
    int status;
    std::string line;
  } cases[] = {
      {STATUS_METHOD_NOT_FOUND, "404 Not Found"},
      {STATUS_SERVICE_NOT_FOUND, "404 Not Found"},
      {STATUS_FAILED, "500 Internal Server Error"},
      {STATUS_OVERLOADED, "500 Internal Server Error"},
      {1234, "500 Internal Server Error"},
      {-5, "500 Internal Server Error"},
  };
  for (const Case& c : cases) {
    HttpServer server;
    server.Feed(Call(3, "x"));
    OutboundResponse response;
    response.status = c.status;
    response.description = "some text";
    response.body = CreateBufferSlow("left out");
    server.protocol().Write(server.request().ticket, std::move(response));
    EXPECT_EQ(server.sink().Take(),
              "HTTP/1.1 " + c.line +
                  "\r\nContent-Type: application/x-protobuf\r\n"
                  "Rpc-SeqNo: 3\r\n"
                  "Rpc-Error-Code: " +
                  std::to_string(c.status) +
                  "\r\nRpc-Error-Reason: some text\r\n"
                  "Content-Length: 0\r\n\r\n");
  }
}

TEST(HttpCalls, LeavesOutAnEmptyReason) {
  HttpServer server;
  server.Feed(Call(3, "x"));
  OutboundResponse response;
  response.status = STATUS_FAILED;
  server.protocol().Write(server.request().ticket, std::move(response));
  EXPECT_THAT(server.sink().Take(), Not(HasSubstr("Rpc-Error-Reason")));
}

TEST(HttpCalls, AReasonCantForgeFields) {
  HttpServer server;
  server.Feed(Call(3, "x"));
  OutboundResponse response;
  response.status = STATUS_FAILED;
  std::string evil = "a\r\nContent-Length: 5\r\n\r\nb\0c\x7f"s;
  response.description = evil;
  server.protocol().Write(server.request().ticket, std::move(response));
  EXPECT_THAT(server.sink().Take(),
              HasSubstr("\r\nRpc-Error-Reason: a  Content-Length: 5    b c \r\n"
                        "Content-Length: 0\r\n\r\n"));
}

TEST(HttpCalls, AVeryLongReasonIsCut) {
  HttpServer server;
  server.Feed(Call(3, "x"));
  OutboundResponse response;
  response.status = STATUS_FAILED;
  std::string text(100000, 'x');
  response.description = text;
  server.protocol().Write(server.request().ticket, std::move(response));
  EXPECT_LT(server.sink().Take().size(), 5000u);
}

TEST(HttpCalls, AttachmentsAndCompressionFailInsteadOfGettingLost) {
  for (int i = 0; i != 2; ++i) {
    HttpServer server;
    server.Feed(Call(3, "x"));
    OutboundResponse response;
    if (i == 0) {
      response.attachment = CreateBufferSlow("attachment");
    } else {
      response.compression = CompressionAlgorithm::kGzip;
    }
    server.protocol().Write(server.request().ticket, std::move(response));
    EXPECT_THAT(server.sink().Take(), HasSubstr("Rpc-Error-Code: 101\r\n"));
  }
}

TEST(HttpCalls, WithSeqNoAreAnsweredAsTheyComplete) {
  HttpServer server;
  server.Feed(Call(1, "a") + Call(2, "b") + Call(3, "c"));
  ASSERT_EQ(server.count(), 3u);
  server.Answer(2, "three");
  EXPECT_EQ(server.sink().Take(), SuccessReply(3, "three"));
  server.Answer(0, "one");
  EXPECT_EQ(server.sink().Take(), SuccessReply(1, "one"));
  server.Answer(1, "two");
  EXPECT_EQ(server.sink().Take(), SuccessReply(2, "two"));
}

std::string CallWithoutSeqNo(const std::string& body) {
  return "POST /rpc/m HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(HttpCalls, WithoutSeqNoAreAnsweredInOrder) {
  HttpServer server;
  server.Feed(CallWithoutSeqNo("a") + CallWithoutSeqNo("b") + Call(3, "c") +
              "GET /x HTTP/1.1\r\n\r\n");
  ASSERT_EQ(server.count(), 4u);
  server.Answer(3, "four");
  server.Answer(1, "two");
  EXPECT_EQ(server.sink().Take(), "");
  server.Answer(2, "three");
  EXPECT_EQ(server.sink().Take(), SuccessReply(3, "three"));
  server.Answer(0, "one");
  EXPECT_EQ(
      server.sink().Take(),
      SuccessReply(0, "one") + SuccessReply(0, "two") + HandlerReply("four"));
}

TEST(HttpCalls, ASeqNoOf64BitsIsEchoed) {
  std::string reply = ReplyTo(
      "POST /rpc/m HTTP/1.1\r\nRpc-SeqNo: 18446744073709551615\r\n"
      "Content-Type: application/x-protobuf\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Rpc-SeqNo: 18446744073709551615\r\n"));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpCalls, QueryStringsAreNoPartOfTheMethod) {
  for (const char* target :
       {"/rpc/a.B.C?x=1", "/rpc/a.B.C#x", "http://host:80/rpc/a.B.C?q"}) {
    HttpServer server;
    server.Feed("POST "s + target +
                " HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n\r\n");
    ASSERT_EQ(server.count(), 1u);
    EXPECT_EQ(server.request().head.method, "a.B.C");
  }
}

TEST(HttpCalls, ContentTypesMayHaveParametersAndAnyCase) {
  HttpServer server;
  server.Feed(Call(1, "x", "Application/X-Proto3-JSON ; charset=utf-8"));
  ASSERT_EQ(server.result(), ParseResult::kOk);
  EXPECT_EQ(server.request().head.format, PayloadFormat::kProto3Json);
}

TEST(HttpCalls, ChunkedRequestsAreAccepted) {
  std::string request =
      "POST /rpc/a.B.C HTTP/1.1\r\nRpc-SeqNo: 5\r\n"
      "Content-Type: application/x-protobuf\r\n"
      "Transfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n4;ext\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n";
  for (std::size_t piece = 1; piece <= request.size(); piece += 3) {
    HttpServer server;
    server.Feed(request + Call(6, "next"), piece);
    ASSERT_EQ(server.count(), 2u) << piece;
    EXPECT_EQ(FlattenSlow(server.request(0).body), "abcdefg");
    EXPECT_EQ(server.request(0).head.method, "a.B.C");
    EXPECT_EQ(server.request(0).head.correlation_id, 5u);
    EXPECT_EQ(FlattenSlow(server.request(1).body), "next");
  }
}

TEST(HttpCalls, AnyPiecesGiveTheSame) {
  std::string bytes = Call(1, "body one") + Call(2, "") + Call(3, "three");
  for (std::size_t piece = 1; piece < bytes.size(); ++piece) {
    HttpServer server;
    server.Feed(bytes, piece);
    ASSERT_EQ(server.count(), 3u) << piece;
    EXPECT_EQ(FlattenSlow(server.request(0).body), "body one");
    EXPECT_EQ(server.request(2).head.method,
              "example.protobuf_echo.EchoService.Echo");
  }
  HttpServer server;
  server.Trickle(bytes);
  ASSERT_EQ(server.count(), 3u);
  EXPECT_EQ(FlattenSlow(server.request(2).body), "three");
}

TEST(HttpCalls, HintsHowMuchIsNeeded) {
  HttpServer server;
  std::string call = Call(1, std::string(5000, 'b'));
  EXPECT_EQ(server.Feed(call.substr(0, 1000)), CutResult::kNeedMore);
  EXPECT_EQ(server.need(), call.size());
  EXPECT_EQ(server.Feed(call.substr(1000, 10)), CutResult::kNeedMore);
  EXPECT_EQ(server.need(), call.size());
  EXPECT_EQ(server.Feed(call.substr(1010)), CutResult::kMessage);
}

TEST(HttpCalls, RefusesOtherContentTypesWithText) {
  std::string reply = ReplyTo(Call(9, "x", "application/json"));
  EXPECT_EQ(reply,
            "HTTP/1.1 415 Unsupported Media Type\r\n"
            "Content-Type: text/plain\r\n"
            "Rpc-SeqNo: 9\r\n"
            "Rpc-Error-Code: 101\r\n"
            "Rpc-Error-Reason: the Content-Type must be "
            "application/x-protobuf or text/x-protobuf or "
            "application/x-proto3-json\r\n"
            "Content-Length: 96\r\n\r\n"
            "the Content-Type must be application/x-protobuf or "
            "text/x-protobuf or application/x-proto3-json\n");
}

TEST(HttpCalls, RefusesContentTypesThatArentEnabled) {
  HttpUses only_json;
  only_json.json = true;
  EXPECT_THAT(ReplyTo(Call(9, "x"), only_json), StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(ReplyTo(Call(9, "x", "application/x-proto3-json"), only_json),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ReplyTo("POST /rpc/m HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 415 "));
}

TEST(HttpCalls, RefusesOtherMethods) {
  std::string reply = ReplyTo("GET /rpc/a.B.C HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\nAllow: POST\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\ncalls are made by POST\n"));
  std::string head = ReplyTo("HEAD /rpc/a.B.C HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 23\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
}

TEST(HttpCalls, RefusesNumbersThatArentAndGoesOn) {
  for (const char* field : {"Rpc-SeqNo: x", "Rpc-SeqNo: -1",
                            "Rpc-SeqNo:", "Rpc-SeqNo: 18446744073709551616",
                            "Rpc-Timeout: 1.5", "Rpc-Timeout: "}) {
    HttpServer server;
    server.Feed(
        "POST /rpc/m HTTP/1.1\r\nContent-Type: application/x-protobuf"
        "\r\n"s +
        field + "\r\n\r\n");
    ASSERT_EQ(server.result(), ParseResult::kReject) << field;
    server.Feed(Call(5, "x"));
    ASSERT_EQ(server.count(), 2u);
    EXPECT_EQ(server.result(1), ParseResult::kOk);
    server.AnswerAll();
    EXPECT_THAT(server.sink().Take(), StartsWith("HTTP/1.1 400 "));
    EXPECT_FALSE(server.sink().closed());
  }
}

TEST(HttpCalls, AHugeTimeoutIsTheLargest) {
  HttpServer server;
  server.Feed(
      "POST /rpc/m HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n"
      "Rpc-Timeout: 99999999999\r\n\r\n");
  ASSERT_EQ(server.result(), ParseResult::kOk);
  EXPECT_EQ(server.request().head.timeout_ms, 0xffffffffu);
}

TEST(HttpCalls, PathsBelongToHandlersWhereCallsArentEnabled) {
  HttpUses plain;
  plain.plain = true;
  HttpServer server(plain);
  server.Feed(Call(1, "x"));
  ASSERT_EQ(server.count(), 1u);
  EXPECT_TRUE(server.request().is_http);
}

// --- handlers --------------------------------------------------------------

TEST(HttpHandlers, GetTheWholeRequest) {
  HttpServer server;
  server.Feed(
      "PUT /a/b?c=d HTTP/1.1\r\nHost: here\r\nX-One:  1 \r\nx-one: 2\r\n"
      "Content-Length: 4\r\n\r\nbody",
      5);
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  ASSERT_TRUE(server.request().is_http);
  const HttpRequest& http = server.request().http;
  EXPECT_EQ(http.method(), HttpMethod::Put);
  EXPECT_EQ(http.version(), HttpVersion::kHttp11);
  EXPECT_EQ(http.uri(), "/a/b?c=d");
  EXPECT_EQ(http.path(), "/a/b");
  EXPECT_EQ(http.query(), "c=d");
  EXPECT_EQ(http.headers()->size(), 4u);
  EXPECT_EQ(http.headers()->TryGet("X-ONE"), "1");
  EXPECT_EQ(*http.body(), "body");
}

TEST(HttpHandlers, PipelinedRepliesLeaveInOrder) {
  HttpServer server;
  std::string bytes;
  for (int i = 0; i != 20; ++i) {
    bytes += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  }
  server.Feed(bytes, 7);
  ASSERT_EQ(server.count(), 20u);
  std::string expected;
  for (int i = 19; i >= 0; --i) server.Answer(i, std::to_string(i));
  for (int i = 0; i != 20; ++i) expected += HandlerReply(std::to_string(i));
  EXPECT_EQ(server.sink().Take(), expected);
}

TEST(HttpHandlers, ReplyStatesADate) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\n\r\n");
  HttpResponse response;
  response.set_status(HttpStatus::NotFound);
  response.headers()->Append("X", "y");
  server.protocol().WriteHttp(server.request().ticket, std::move(response));
  std::string sent = server.sink().Take();
  EXPECT_THAT(sent, StartsWith("HTTP/1.1 404 Not Found\r\nX: y\r\nDate: "));
  EXPECT_THAT(sent, EndsWith(" GMT\r\nContent-Length: 0\r\n\r\n"));
}

TEST(HttpHandlers, FramingFieldsOfHandlersAreIgnored) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\n\r\n");
  HttpResponse response;
  response.headers()->Set("Date", "today");
  response.headers()->Append("Content-Length", "1000");
  response.headers()->Append("Transfer-Encoding", "chunked");
  response.headers()->Append("Connection", "keep-alive");
  response.set_body("abc");
  server.protocol().WriteHttp(server.request().ticket, std::move(response));
  EXPECT_EQ(server.sink().Take(), HandlerReply("abc"));
}

TEST(HttpHandlers, HeadHasNoBody) {
  HttpServer server;
  server.Feed("HEAD / HTTP/1.1\r\n\r\n");
  server.AnswerAll("body");
  EXPECT_EQ(server.sink().Take(),
            "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 4\r\n\r\n");
}

TEST(HttpHandlers, SomeStatusesHaveNoBody) {
  for (HttpStatus status : {HttpStatus::NoContent, HttpStatus::NotModified}) {
    HttpServer server;
    server.Feed("GET / HTTP/1.1\r\n\r\n");
    HttpResponse response;
    response.set_status(status);
    response.set_body("not sent");
    server.protocol().WriteHttp(server.request().ticket, std::move(response));
    std::string sent = server.sink().Take();
    EXPECT_THAT(sent, Not(HasSubstr("Content-Length")));
    EXPECT_THAT(sent, EndsWith("\r\n\r\n"));
  }
}

TEST(HttpHandlers, ImpossibleStatusesBecome500) {
  for (int status : {0, 99, 100, 101, 1000, -1}) {
    HttpServer server;
    server.Feed("GET / HTTP/1.1\r\n\r\n");
    HttpResponse response;
    response.set_status(static_cast<HttpStatus>(status));
    server.protocol().WriteHttp(server.request().ticket, std::move(response));
    EXPECT_THAT(server.sink().Take(), StartsWith("HTTP/1.1 500 "));
  }
}

TEST(HttpHandlers, UnknownMethodsAreAnswered501) {
  HttpServer server;
  server.Feed("PROPFIND / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  server.AnswerAll();
  EXPECT_THAT(server.sink().Take(),
              StartsWith("HTTP/1.1 501 Not Implemented\r\n"));
  EXPECT_FALSE(server.sink().closed());
}

TEST(HttpHandlers, AbsentWhereOnlyCallsAreEnabled) {
  HttpUses calls;
  calls.pb = true;
  EXPECT_THAT(ReplyTo("GET / HTTP/1.1\r\n\r\n", calls),
              StartsWith("HTTP/1.1 404 Not Found\r\n"));
}

TEST(HttpHandlers, BodiesOfAnyMethodAreTaken) {
  HttpServer server;
  server.Feed(
      "GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
      "OPTIONS * HTTP/1.1\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  EXPECT_EQ(*server.request(0).http.body(), "abc");
  EXPECT_EQ(server.request(1).http.method(), HttpMethod::Options);
}

TEST(HttpHandlers, EmptyLinesBetweenRequestsAreSkipped) {
  HttpServer server;
  server.Trickle("GET /a HTTP/1.1\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  EXPECT_EQ(server.request(1).http.uri(), "/b");
}

// --- the end of a connection -----------------------------------------------

TEST(HttpConnection, CloseIsHonoured) {
  HttpServer server;
  server.Feed(
      "GET /a HTTP/1.1\r\n\r\n"
      "GET /b HTTP/1.1\r\nConnection: close\r\n\r\n"
      "GET /c HTTP/1.1\r\n\r\n");
  // What comes behind it isn't read.
  ASSERT_EQ(server.count(), 2u);
  EXPECT_TRUE(server.in().empty());
  server.Answer(1, "b");
  EXPECT_FALSE(server.sink().closed());
  server.Answer(0, "a");
  EXPECT_EQ(server.sink().Take(),
            HandlerReply("a") + HandlerReply("b", "Connection: close\r\n"));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpConnection, CloseIsHonouredForCalls) {
  HttpServer server;
  std::string last = Call(2, "b");
  last.insert(last.find("Rpc-SeqNo"), "Connection: close\r\n");
  server.Feed(Call(1, "a") + last);
  ASSERT_EQ(server.count(), 2u);
  server.Answer(1, "two");
  // The other call was accepted before: it is answered first, since nothing
  // may follow a reply that says "close".
  EXPECT_FALSE(server.sink().closed());
  EXPECT_EQ(server.sink().Take(), "");
  server.Answer(0, "one");
  EXPECT_EQ(server.sink().Take(),
            SuccessReply(1, "one") +
                "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
                "Rpc-SeqNo: 2\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
                "two");
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpConnection, HandlersCanClose) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\n\r\n");
  HttpResponse response;
  response.headers()->Set("Date", "today");
  response.headers()->Set("connection", "Close");
  server.protocol().WriteHttp(server.request().ticket, std::move(response));
  EXPECT_EQ(server.sink().Take(), HandlerReply("", "Connection: close\r\n"));
  EXPECT_TRUE(server.sink().closed());
  EXPECT_EQ(server.Feed("GET / HTTP/1.1\r\n\r\n"), CutResult::kNeedMore);
  EXPECT_EQ(server.count(), 1u);
}

TEST(HttpConnection, Http10ClosesUnlessAskedNotTo) {
  HttpServer one;
  one.Feed("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(one.request().http.version(), HttpVersion::kHttp10);
  one.AnswerAll("x");
  EXPECT_EQ(one.sink().Take(), HandlerReply("x", "Connection: close\r\n"));
  EXPECT_TRUE(one.sink().closed());

  HttpServer two;
  two.Feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  two.AnswerAll("x");
  EXPECT_EQ(two.sink().Take(), HandlerReply("x", "Connection: keep-alive\r\n"));
  EXPECT_FALSE(two.sink().closed());
}

TEST(HttpConnection, ExpectContinueIsAnsweredBeforeTheBody) {
  HttpServer server;
  std::string head =
      "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
  EXPECT_EQ(server.Feed(head), CutResult::kNeedMore);
  EXPECT_EQ(server.sink().Take(), "HTTP/1.1 100 Continue\r\n\r\n");
  server.Feed("bo");
  EXPECT_EQ(server.sink().Take(), "");
  server.Feed("dy");
  server.AnswerAll("done");
  EXPECT_EQ(server.sink().Take(), HandlerReply("done"));
  // The next one gets its own.
  server.Feed(head);
  EXPECT_EQ(server.sink().Take(), "HTTP/1.1 100 Continue\r\n\r\n");
}

TEST(HttpConnection, ContinueWaitsForItsTurn) {
  HttpServer server;
  server.Feed(
      "GET /slow HTTP/1.1\r\n\r\n"
      "POST / HTTP/1.1\r\nExpect: 100-continue\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(server.sink().Take(), "");
  server.Answer(0, "slow");
  EXPECT_EQ(server.sink().Take(),
            HandlerReply("slow") + "HTTP/1.1 100 Continue\r\n\r\n");
  server.Feed("1\r\nx\r\n0\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  server.Answer(1, "y");
  EXPECT_EQ(server.sink().Take(), HandlerReply("y"));
}

TEST(HttpConnection, NoContinueIfTheBodyIsThere) {
  HttpServer server;
  server.Feed(
      "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab");
  ASSERT_EQ(server.count(), 1u);
  EXPECT_EQ(server.sink().Take(), "");
}

// --- bad input -------------------------------------------------------------

// The reply, and that the connection ends with it.
std::string FinalReplyTo(const std::string& bytes,
                         const Limits& limits = Limits()) {
  std::string reply;
  for (std::size_t piece : {std::size_t{1}, std::size_t{50}, bytes.size()}) {
    HttpServer server(kAllUses, limits);
    server.Feed(bytes, piece);
    EXPECT_EQ(server.count(), 1u) << bytes;
    server.AnswerAll();
    reply = server.sink().Take();
    EXPECT_THAT(reply, HasSubstr("Connection: close\r\n"));
    EXPECT_TRUE(server.sink().closed());
    EXPECT_EQ(server.Feed("GET / HTTP/1.1\r\n\r\n"), CutResult::kNeedMore);
    EXPECT_TRUE(server.in().empty());
  }
  return reply;
}

TEST(HttpBadInput, IsAnswered400) {
  for (std::string bytes :
       {"GET /\r\n\r\n"s, "GET / HTTP/1.1\n\n"s,
        "GET / HTTP/1.1\r\nA : b\r\n\r\n"s,
        "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n"s,
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"s,
        "POST / HTTP/1.1\r\nContent-Length: 1\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"s,
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"s,
        "GET  / HTTP/1.1\r\n\r\n"s, "GET / HTTP/1.1\r\nA: b\rc\r\n\r\n"s}) {
    EXPECT_THAT(FinalReplyTo(bytes), StartsWith("HTTP/1.1 400 Bad Request\r\n"))
        << bytes;
  }
}

TEST(HttpBadInput, TooLargeIsToldBeforeTheBodyComes) {
  Limits limits = SmallLimits();
  EXPECT_THAT(
      FinalReplyTo("POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n", limits),
      StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  EXPECT_THAT(
      FinalReplyTo(
          "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
          limits),
      StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(
      FinalReplyTo(
          "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
          limits),
      StartsWith("HTTP/1.1 413 "));
}

TEST(HttpBadInput, TooLargeACallIsToldItsCaller) {
  std::string reply =
      FinalReplyTo(Call(8, std::string(2000, 'x')), SmallLimits());
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(reply, HasSubstr("Rpc-SeqNo: 8\r\nRpc-Error-Code: 102\r\n"));
}

TEST(HttpBadInput, OtherRefusals) {
  Limits limits = SmallLimits();
  EXPECT_THAT(FinalReplyTo("GET /" + std::string(600, 'x'), limits),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(FinalReplyTo("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
              StartsWith("HTTP/1.1 505 "));
  EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\nExpect: tea\r\n\r\n"),
              StartsWith("HTTP/1.1 417 "));
  EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  std::string fields;
  for (int i = 0; i != 101; ++i) fields += "A: b\r\n";
  EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\n" + fields + "\r\n"),
              StartsWith("HTTP/1.1 431 "));
}

TEST(HttpBadInput, IsAnsweredBehindEarlierRequests) {
  HttpServer server;
  server.Feed("GET /a HTTP/1.1\r\n\r\nGET b\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  server.Answer(1);
  EXPECT_EQ(server.sink().Take(), "");
  server.Answer(0, "a");
  EXPECT_THAT(server.sink().Take(),
              StartsWith(HandlerReply("a") + "HTTP/1.1 400 Bad Request"));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpBadInput, TooManyPipelinedRequests) {
  HttpServer server(kAllUses, SmallLimits());
  for (int i = 0; i != 10; ++i) server.Feed("GET / HTTP/1.1\r\n\r\n");
  ASSERT_EQ(server.count(), 4u);
  EXPECT_EQ(server.result(3), ParseResult::kReject);
  server.AnswerAll();
  std::string sent = server.sink().Take();
  EXPECT_THAT(
      sent, StartsWith(HandlerReply("") + HandlerReply("") + HandlerReply("") +
                       "HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_TRUE(server.sink().closed());
}

// --- recognition -----------------------------------------------------------

CutResult Recognise(const std::string& bytes) {
  HttpServer server;
  CutResult result = server.Feed(bytes);
  if (result == CutResult::kNotMine || result == CutResult::kUnsure) {
    EXPECT_EQ(FlattenSlow(server.in()), bytes);
  }
  return result;
}

TEST(HttpRecognition, EveryPrefixOfARequest) {
  std::string bytes = "DELETE / HTTP/1.1\r\nA: b\r\n\r\n";
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    EXPECT_EQ(Recognise(bytes.substr(0, size)), size <= 6 ? CutResult::kUnsure
                                                : size < bytes.size()
                                                    ? CutResult::kNeedMore
                                                    : CutResult::kMessage)
        << size;
  }
}

TEST(HttpRecognition, UnknownMethodsByTheirVersion) {
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1"), CutResult::kUnsure);
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1\r"), CutResult::kNeedMore);
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1\r\n\r\n"), CutResult::kMessage);
  EXPECT_EQ(Recognise("BREW /pot\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("BREW " + std::string(3000, 'x')), CutResult::kNotMine);
}

TEST(HttpRecognition, OtherProtocolsAreLeftAlone) {
  EXPECT_EQ(Recognise("CPRF\x20\0\0\0"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("CPRF\x33\0\0\0"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("PRPC\0\0\0\x26"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("\x16\x03\x01"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("get / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise(" GET / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("\r\nGET / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise(std::string(30, 'A')), CutResult::kNotMine);
  EXPECT_EQ(Recognise("GET\t/ HTTP/1.1\r\n"), CutResult::kNotMine);
}

TEST(HttpServerProtocolTest, RandomMixesKeepTheirOrders) {
  std::mt19937 rng(17);
  for (int round = 0; round != 100; ++round) {
    HttpServer server;
    std::string bytes;
    std::vector<bool> ordered;
    for (int i = 0; i != 30; ++i) {
      ordered.push_back(rng() % 2);
      std::string body(rng() % 600, 'b');
      bytes += ordered.back() ? CallWithoutSeqNo(body) : Call(i, body);
    }
    server.Feed(bytes, 1 + rng() % 300);
    ASSERT_EQ(server.count(), 30u);
    std::vector<int> order(30);
    for (int i = 0; i != 30; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng);
    std::string sent;
    for (int i : order) {
      server.Answer(i, "<" + std::to_string(i) + ">");
      std::string now = server.sink().Take();
      if (!ordered[i]) {
        EXPECT_EQ(now, SuccessReply(i, "<" + std::to_string(i) + ">"));
      } else {
        sent += now;
      }
    }
    std::string expected;
    for (int i = 0; i != 30; ++i) {
      if (ordered[i]) {
        expected += SuccessReply(0, "<" + std::to_string(i) + ">");
      }
    }
    EXPECT_TRUE(sent == expected);
  }
}

}  // namespace
}  // namespace flare::rpc
