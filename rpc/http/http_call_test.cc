#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::Call;
using testing::CallWithoutSeqNo;
using ::testing::EndsWith;
using testing::HandlerReply;
using ::testing::HasSubstr;
using testing::HttpServer;
using ::testing::Not;
using testing::ReplyTo;
using ::testing::StartsWith;
using testing::SuccessReply;

TEST(HttpCalls, ReadsTheDocumentedRequest) {
  HttpServer server;
  server.Feed(Call(17, "\x0a\x02hi"));
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  auto& request = server.request();
  EXPECT_FALSE(request.own);
  EXPECT_EQ(TicketOf(&request).correlation_id, 17u);
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
      {STATUS_OVERLOADED, "503 Service Unavailable"},
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

TEST(HttpCalls, WithoutSeqNoAreAnsweredInOrder) {
  HttpServer server;
  server.Feed(CallWithoutSeqNo("a") + CallWithoutSeqNo("b") + Call(3, "c") +
              "GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
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
       {"/rpc/a.B.C?x=1", "/rpc/a.B.C#x", "http://host:80/rpc/a.B.C?q",
        "https://host/rpc/a.B.C"}) {
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
    EXPECT_EQ(server.facts(0).id, 5u);
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
  std::string reply = ReplyTo(Call(9, "x", "text/html"));
  EXPECT_EQ(reply,
            "HTTP/1.1 415 Unsupported Media Type\r\n"
            "Content-Type: text/plain\r\n"
            "Rpc-SeqNo: 9\r\n"
            "Rpc-Error-Code: 101\r\n"
            "Rpc-Error-Reason: the Content-Type must be "
            "application/x-protobuf or text/x-protobuf or "
            "application/x-proto3-json, not text/html\r\n"
            "Content-Length: 111\r\n\r\n"
            "the Content-Type must be application/x-protobuf or "
            "text/x-protobuf or application/x-proto3-json, not text/html\n");
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

// A call with one more field.
std::string CallWith(const std::string& field, const std::string& body = "x",
                     const std::string& type = "application/x-protobuf") {
  std::string call = Call(9, body, type);
  return call.insert(call.find("Rpc-SeqNo"), field + "\r\n");
}

TEST(HttpCalls, RefusesUnknownContentEncodings) {
  const auto with_coding = [](const std::string& coding) {
    return CallWith("Content-encoding: " + coding);
  };
  for (const char* coding : {"", "identity", "Identity , identity"}) {
    EXPECT_THAT(ReplyTo(with_coding(coding)), StartsWith("HTTP/1.1 200 "));
  }
  for (const char* coding : {"zstd", "identity, br", "x", "gzip, gzip"}) {
    EXPECT_EQ(ReplyTo(with_coding(coding)),
              "HTTP/1.1 415 Unsupported Media Type\r\n"
              "Content-Type: text/plain\r\n"
              "Rpc-SeqNo: 9\r\n"
              "Rpc-Error-Code: 101\r\n"
              "Rpc-Error-Reason: the Content-Encoding must be gzip or deflate "
              "or identity\r\n"
              "Content-Length: 57\r\n\r\n"
              "the Content-Encoding must be gzip or deflate or identity\n");
  }
  // Handlers may know what to do with it.
  EXPECT_THAT(ReplyTo("PUT / HTTP/1.1\r\nHost: h\r\n"
                      "Content-Encoding: gzip\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
}

TEST(HttpCalls, ReadsHowBodiesAreCompressed) {
  for (const auto& [coding, algorithm] :
       {std::pair("gzip", CompressionAlgorithm::kGzip),
        std::pair("X-GZIP", CompressionAlgorithm::kGzip),
        std::pair("identity, deflate", CompressionAlgorithm::kZlib)}) {
    HttpServer server;
    server.Feed(CallWith("Content-Encoding: "s + coding));
    ASSERT_EQ(server.result(), ParseResult::kOk) << coding;
    EXPECT_EQ(server.request().head.compression, algorithm) << coding;
  }
}

std::string CompressedReply(const std::string& request,
                            CompressionAlgorithm algorithm,
                            const std::string& body = "zipped") {
  HttpServer server;
  server.Feed(request);
  OutboundResponse response;
  response.compression = algorithm;
  response.body = CreateBufferSlow(body);
  server.protocol().Write(server.request().ticket, std::move(response));
  return server.sink().Take();
}

TEST(HttpCalls, SaysHowARepliesBodyIsCompressed) {
  EXPECT_EQ(CompressedReply(CallWith("Accept-Encoding: gzip"),
                            CompressionAlgorithm::kGzip),
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
            "Rpc-SeqNo: 9\r\nContent-Encoding: gzip\r\n"
            "Content-Length: 6\r\n\r\nzipped");
  EXPECT_THAT(CompressedReply(CallWith("Accept-Encoding: br, *;q=0.5"),
                              CompressionAlgorithm::kZlib),
              HasSubstr("\r\nContent-Encoding: deflate\r\n"));
  // Nothing is nothing.
  EXPECT_EQ(CompressedReply(CallWith("Accept-Encoding: gzip"),
                            CompressionAlgorithm::kGzip, ""),
            SuccessReply(9, ""));
}

TEST(HttpCalls, NeverCompressesWhatTheCallerCannotRead) {
  for (const char* field :
       {"Accept: */*", "Accept-Encoding: deflate", "Accept-Encoding: gzip;q=0",
        "Accept-Encoding: *, gzip; Q=0.00"}) {
    EXPECT_THAT(CompressedReply(CallWith(field), CompressionAlgorithm::kGzip),
                HasSubstr("Rpc-Error-Code: 101\r\n"))
        << field;
  }
}

TEST(HttpCalls, ReadsTheTypesOfOtherFrameworks) {
  struct Case {
    const char* type;
    PayloadFormat format;
  } cases[] = {
      {"application/json", PayloadFormat::kVerboseJson},
      {"application/proto", PayloadFormat::kProtobuf},
      {"application/protobuf", PayloadFormat::kProtobuf},
      {"application/pb", PayloadFormat::kProtobuf},
      {"application/octet-stream", PayloadFormat::kProtobuf},
  };
  for (const auto& [type, format] : cases) {
    HttpServer server;
    server.Feed(Call(1, "x", type) + Call(2, "y", type + "; charset=utf-8"s));
    ASSERT_EQ(server.count(), 2u) << type;
    EXPECT_EQ(server.request(1).head.format, format) << type;
    server.AnswerAll("body");
    EXPECT_EQ(server.sink().Take(),
              SuccessReply(1, "body", type) + SuccessReply(2, "body", type));
  }
}

TEST(HttpCalls, FailuresOfCallsInJsonAreJson) {
  for (const char* type : {"application/json", "application/x-proto3-json"}) {
    HttpServer server;
    server.Feed(Call(3, "{}", type));
    OutboundResponse response;
    response.status = 1234;
    response.description = "no \"such\"\r\n\\user \xc3\xa4\xff\x01";
    server.protocol().Write(server.request().ticket, std::move(response));
    EXPECT_EQ(server.sink().Take(),
              "HTTP/1.1 500 Internal Server Error\r\nContent-Type: "s + type +
                  "\r\nRpc-SeqNo: 3\r\nRpc-Error-Code: 1234\r\n"
                  "Rpc-Error-Reason: no \"such\"  \\user \xc3\xa4\xff \r\n"
                  "Content-Length: 61\r\n\r\n"
                  R"({"code":1234,"message":"no \"such\"\u000d\n\\user )"
                  "\xc3\xa4?\\u0001\"}");
  }
}

TEST(HttpCalls, RefusalsOfCallsInJsonAreJson) {
  const std::string reply =
      ReplyTo(CallWith("Content-Encoding: br", "{}", "application/json"));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 415 Unsupported Media Type\r\n"
                                "Content-Type: application/json\r\n"
                                "Rpc-SeqNo: 9\r\nRpc-Error-Code: 101\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\nContent-Length: 81\r\n\r\n"
                              R"({"code":101,"message":"the Content-Encoding )"
                              R"(must be gzip or deflate or identity"})"));
  // So are those of the size, which is known before the format.
  for (const char* end : {"Content-Length: 1000000\r\n\r\n",
                          "Transfer-Encoding: chunked\r\n\r\nfffff\r\n"}) {
    const std::string large = ReplyTo(
        "POST /rpc/m HTTP/1.1\r\nContent-Type: application/json\r\n"s + end,
        testing::kAllUses, testing::SmallLimits());
    EXPECT_THAT(large, StartsWith("HTTP/1.1 413 "));
    EXPECT_THAT(large, HasSubstr(R"({"code":102,"message":"the message has )"));
  }
}

// As if there were such a method, and no other.
class OnePath : public HttpCallPaths {
 public:
  bool Read(std::string_view path, std::string* method) const override {
    if (path != "/a.B/C") return false;
    if (method != nullptr) *method = "a.B.C";
    return true;
  }
};

TEST(HttpCalls, PathsOfOtherFrameworksAreCalls) {
  const OnePath paths;
  HttpUses uses = testing::kAllUses;
  uses.paths = &paths;
  for (const char* target : {"/a.B/C", "/a.B/C?x=1", "http://h/a.B/C"}) {
    const std::string bytes = "POST "s + target +
                              " HTTP/1.1\r\nContent-Type: application/json\r\n"
                              "Content-Length: 2\r\n\r\n{}";
    for (const std::size_t piece : {std::size_t{1}, bytes.size()}) {
      HttpServer server(uses);
      server.Feed(bytes, piece);
      ASSERT_EQ(server.count(), 1u) << target;
      ASSERT_EQ(server.result(), ParseResult::kOk) << target;
      EXPECT_EQ(server.request().head.method, "a.B.C");
      server.AnswerAll("{}");
      EXPECT_EQ(server.sink().Take(),
                SuccessReply(0, "{}", "application/json"));
    }
  }
}

TEST(HttpCalls, OtherPathsAndMethodsAreNot) {
  const OnePath paths;
  HttpUses uses = testing::kAllUses;
  uses.paths = &paths;
  for (const char* start : {"GET /a.B/C", "POST /a.B/D", "OPTIONS /a.B/C"}) {
    HttpServer server(uses);
    server.Feed(start + " HTTP/1.1\r\nHost: h\r\n\r\n"s);
    ASSERT_EQ(server.count(), 1u) << start;
    EXPECT_TRUE(server.request().own) << start;
  }
  uses.pb = uses.text = uses.json = false;
  HttpServer server(uses);
  server.Feed("POST /a.B/C HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(server.request().own);
}

TEST(HttpCalls, RepliesToPagesOfKnownOriginsSaySo) {
  const HttpCors cors = *HttpCors::FromText("http://a, http://b:8080");
  HttpUses uses = testing::kAllUses;
  uses.cors = &cors;
  const std::string lines =
      "Access-Control-Allow-Origin: http://b:8080\r\n"
      "Access-Control-Expose-Headers: Rpc-SeqNo, Rpc-Error-Code, "
      "Rpc-Error-Reason, Grpc-Status, Grpc-Message, "
      "Grpc-Status-Details-Bin, Content-Encoding, "
      "Connect-Content-Encoding, *\r\nVary: Origin\r\n";
  std::string reply = SuccessReply(9, "body");
  reply.insert(reply.find("\r\n") + 2, lines);
  EXPECT_EQ(ReplyTo(CallWith("Origin: http://b:8080"), uses), reply);
  // Refusals can be read, too; and replies to others are as ever.
  EXPECT_THAT(
      ReplyTo(CallWith("Origin: http://b:8080", "x", "text/html"), uses),
      StartsWith("HTTP/1.1 415 Unsupported Media Type\r\n" + lines));
  for (const char* origin : {"http://b", "http://a/", "null", ""}) {
    EXPECT_EQ(ReplyTo(CallWith("Origin: "s + origin), uses),
              SuccessReply(9, "body"));
  }
  EXPECT_EQ(ReplyTo(CallWith("Origin: http://a")), SuccessReply(9, "body"));
}

TEST(HttpCalls, BrowsersMayAskBefore) {
  const HttpCors cors = *HttpCors::FromText("*");
  HttpUses uses;
  uses.pb = true;
  uses.cors = &cors;
  HttpServer server(uses);
  server.Feed("OPTIONS /rpc/a.B.C HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_EQ(server.count(), 1u);
  EXPECT_TRUE(server.request().own);
  EXPECT_TRUE(HttpOf(server.request()).preflight());
  // Without leave for anyone it is refused as other methods are.
  const HttpCors none = *HttpCors::FromText("");
  uses.cors = &none;
  EXPECT_THAT(ReplyTo("OPTIONS /rpc/a.B.C HTTP/1.1\r\nHost: h\r\n\r\n", uses),
              StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
}

TEST(HttpCalls, RefusesOtherMethods) {
  std::string reply = ReplyTo("GET /rpc/a.B.C HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\nAllow: POST\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\ncalls are made by POST, not by GET\n"));
  std::string head = ReplyTo("HEAD /rpc/a.B.C HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 36\r\n"));
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
  server.Feed("POST /rpc/m HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  ASSERT_EQ(server.count(), 1u);
  EXPECT_TRUE(server.request().own);
}

}  // namespace
}  // namespace flare::rpc
