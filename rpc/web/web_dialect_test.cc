#include "flare/rpc/web/web_dialect.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/compression.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::HttpServer;
using ::testing::Not;
using ::testing::StartsWith;

// As if there were such a method, and no other.
class WebPaths : public HttpCallPaths {
 public:
  bool Read(std::string_view path, std::string* method) const override {
    if (path != "/a.B/C") return false;
    if (method != nullptr) *method = "a.B.C";
    return true;
  }
  bool MayGet(std::string_view path) const override {
    return Read(path, nullptr);
  }
};

HttpUses WebUses() {
  static const WebPaths paths;
  HttpUses uses = testing::kAllUses;
  uses.paths = &paths;
  uses.dialect = WebDialect();
  return uses;
}

std::string WebCall(const std::string& type, const std::string& body,
                    const std::string& fields = "") {
  return "POST /a.B/C HTTP/1.1\r\nHost: h\r\nContent-Type: " + type + "\r\n" +
         fields + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

constexpr char kVersion[] = "Connect-Protocol-Version: 1\r\n";

std::string Frame(char flag, std::string_view text) {
  return flag + "\0\0\0"s + static_cast<char>(text.size()) + std::string(text);
}

std::string Body(const std::string& reply) {
  return reply.substr(reply.find("\r\n\r\n") + 4);
}

std::string WebReply(const std::string& request, OutboundResponse&& response) {
  HttpServer server(WebUses());
  server.Feed(request);
  EXPECT_EQ(server.count(), 1u);
  if (server.result() == ParseResult::kReject) {
    server.protocol().WriteRejection(server.request());
  } else {
    server.protocol().Write(server.request().ticket, std::move(response));
  }
  return server.sink().Take();
}

std::string WebSuccess(const std::string& request,
                       const std::string& message = "body") {
  OutboundResponse response;
  response.body = CreateBufferSlow(message);
  return WebReply(request, std::move(response));
}

std::string WebFailure(const std::string& request, int status,
                       std::string_view text,
                       FailureDetail detail = FailureDetail::kNone) {
  OutboundResponse response;
  response.detail = detail;
  response.status = status;
  response.description = text;
  return WebReply(request, std::move(response));
}

// --- Connect, unary ---

TEST(ConnectUnary, IsReadAndAnswered) {
  for (const auto& [type, format] :
       {std::pair("application/proto", PayloadFormat::kProtobuf),
        std::pair("application/json", PayloadFormat::kLenientJson),
        std::pair("application/json; charset=utf-8",
                  PayloadFormat::kLenientJson)}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}}) {
      HttpServer server(WebUses());
      server.Feed(WebCall(type, "{}",
                          kVersion + "Connect-Timeout-Ms: 2500\r\nX-Y: z\r\n"s),
                  piece);
      ASSERT_EQ(server.count(), 1u);
      ASSERT_EQ(server.result(), ParseResult::kOk);
      EXPECT_EQ(server.request().head.method, "a.B.C");
      EXPECT_EQ(server.request().head.format, format);
      EXPECT_EQ(server.request().head.timeout_ms, 2500u);
      EXPECT_EQ(FlattenSlow(server.request().body), "{}");
      ASSERT_NE(server.request().metadata, nullptr);
      EXPECT_EQ(*server.request().metadata->Get("x-y"), "z");
      server.AnswerAll("body");
      EXPECT_EQ(server.sink().Take(),
                "HTTP/1.1 200 OK\r\nContent-Type: " +
                    std::string(type).substr(0, std::string(type).find(';')) +
                    "\r\nContent-Length: 4\r\n\r\nbody");
    }
  }
}

TEST(ConnectUnary, MayComeInChunks) {
  HttpServer server(WebUses());
  server.Feed(
      "POST /a.B/C HTTP/1.1\r\nHost: h\r\nContent-Type: "
      "application/json\r\n"s +
      kVersion +
      "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
      "\r\n");
  ASSERT_EQ(server.count(), 1u);
  EXPECT_EQ(server.request().head.format, PayloadFormat::kLenientJson);
  server.AnswerAll("{}");
  EXPECT_EQ(server.sink().Take(),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            "Content-Length: 2\r\n\r\n{}");
}

TEST(ConnectUnary, NeedsItsVersionSinceOthersHaveTheTypes) {
  HttpServer server(WebUses());
  server.Feed(WebCall("application/json", "{}"));
  EXPECT_EQ(server.request().head.format, PayloadFormat::kVerboseJson);
  const std::string reply = WebSuccess(
      WebCall("application/json", "{}", "Connect-Protocol-Version: 2\r\n"));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 400 Bad Request\r\n"
                                "Content-Type: application/json\r\n"));
  EXPECT_EQ(Body(reply), R"({"code":"invalid_argument","message":)"
                         R"("Connect-Protocol-Version must be 1, not 2"})");
}

TEST(ConnectUnary, NeedsTheUseOfItsFormat) {
  HttpUses uses = WebUses();
  uses.pb = false;
  HttpServer server(uses);
  server.Feed(WebCall("application/proto", "", kVersion));
  server.AnswerAll();
  EXPECT_THAT(server.sink().Take(), StartsWith("HTTP/1.1 415 "));
}

TEST(ConnectUnary, FailuresAreJsonWithTheStatusOfTheirCode) {
  for (const char* type : {"application/proto", "application/json"}) {
    const std::string call = WebCall(type, "", kVersion);
    EXPECT_EQ(WebFailure(call, StatusFromGrpc(GrpcCode::kNotFound), "no key"),
              "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
              "Content-Length: 39\r\n\r\n"
              R"({"code":"not_found","message":"no key"})");
    EXPECT_EQ(WebFailure(call, 1234, "own"),
              "HTTP/1.1 500 Internal Server Error\r\n"
              "Content-Type: application/json\r\nRpc-Error-Code: 1234\r\n"
              "Content-Length: 34\r\n\r\n"
              R"({"code":"unknown","message":"own"})");
    EXPECT_THAT(WebFailure(call, STATUS_OVERLOADED, "much"),
                StartsWith("HTTP/1.1 429 "));
    EXPECT_THAT(WebFailure(call, STATUS_METHOD_NOT_FOUND, "none"),
                EndsWith(R"({"code":"unimplemented","message":"none"})"));
    EXPECT_THAT(WebFailure(call, StatusFromGrpc(GrpcCode::kCancelled), "c"),
                StartsWith("HTTP/1.1 499 "));
    for (const int unread : {STATUS_MALFORMED_DATA, STATUS_PARSE_REQUEST}) {
      const std::string reply =
          WebFailure(call, unread, "bad", FailureDetail::kUnreadRequest);
      EXPECT_THAT(reply, StartsWith("HTTP/1.1 400 "));
      EXPECT_THAT(reply, EndsWith(R"({"code":"invalid_argument",)"
                                  R"("message":"bad"})"));
      // A method has it from a server that it has called.
      EXPECT_THAT(WebFailure(call, unread, "bad"), StartsWith("HTTP/1.1 500 "));
    }
    EXPECT_THAT(WebFailure(call, STATUS_SERIALIZE_RESPONSE, "large"),
                StartsWith("HTTP/1.1 500 "));
  }
}

TEST(ConnectUnary, MethodsWithStreamsSayWhichTypeTheyNeed) {
  const auto failure = [](const std::string& request) {
    OutboundResponse response;
    response.status = STATUS_MALFORMED_DATA;
    response.detail = FailureDetail::kMediaType;
    response.description = "why";
    return WebReply(request, std::move(response));
  };
  EXPECT_EQ(failure(WebCall("application/proto", "", kVersion)),
            "HTTP/1.1 415 Unsupported Media Type\r\n"
            "Content-Type: application/json\r\n"
            "Accept-Post: application/connect+proto, "
            "application/connect+json\r\nContent-Length: 40\r\n\r\n"
            R"({"code":"unimplemented","message":"why"})");
  EXPECT_THAT(failure("GET /a.B/C?connect=v1&encoding=json&message=%7B%7D "
                      "HTTP/1.1\r\nHost: h\r\n\r\n"),
              StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"
                         "Content-Type: application/json\r\nAllow: POST\r\n"));
}

TEST(ConnectUnary, RefusalsAreJson) {
  const std::string reply = WebSuccess(
      WebCall("application/proto", "", kVersion + "Content-Encoding: br\r\n"s));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 415 Unsupported Media Type\r\n"));
  EXPECT_THAT(Body(reply), StartsWith(R"({"code":"unimplemented","message":)"
                                      R"("the Content-Encoding must be )"));
  for (const char* timeout : {"x", "", "-1", "12345678901", "1.5"}) {
    EXPECT_THAT(
        Body(WebSuccess(
            WebCall("application/proto", "",
                    kVersion + "Connect-Timeout-Ms: "s + timeout + "\r\n"))),
        HasSubstr("Connect-Timeout-Ms must be a number of at most ten"));
  }
  HttpServer server(WebUses(), testing::SmallLimits());
  server.Feed(WebCall("application/proto", std::string(2000, 'x'), kVersion));
  server.AnswerAll();
  EXPECT_THAT(server.sink().Take(),
              HasSubstr(R"({"code":"resource_exhausted","message":"the mess)"));
}

TEST(ConnectUnary, MetadataIsFieldsAndTrailersHaveAPrefix) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("a", "1").ok());
  Metadata trailers;
  ASSERT_TRUE(trailers.Add("b-bin", "\xff").ok());
  OutboundResponse response;
  response.metadata = &metadata;
  response.trailers = &trailers;
  EXPECT_EQ(
      WebReply(WebCall("application/proto", "", kVersion), std::move(response)),
      "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\na: 1\r\n"
      "Trailer-b-bin: /w\r\nContent-Length: 0\r\n\r\n");
}

TEST(ConnectUnary, PackedRepliesSaySo) {
  OutboundResponse response;
  response.compression = CompressionAlgorithm::kGzip;
  response.body = CreateBufferSlow("packed");
  EXPECT_THAT(WebReply(WebCall("application/proto", "",
                               kVersion + "Accept-Encoding: gzip\r\n"s),
                       std::move(response)),
              HasSubstr("\r\nContent-Encoding: gzip\r\n"));
  OutboundResponse empty;
  empty.compression = CompressionAlgorithm::kGzip;
  EXPECT_THAT(WebReply(WebCall("application/proto", "",
                               kVersion + "Accept-Encoding: gzip\r\n"s),
                       std::move(empty)),
              Not(HasSubstr("Content-Encoding")));
}

// --- messages with a prefix ---

struct Framed {
  const char* type;
  PayloadFormat format;
  std::string end;  // A success's end.
};
const Framed kFramed[] = {
    {"application/connect+proto", PayloadFormat::kProtobuf, Frame(2, "{}")},
    {"application/connect+json", PayloadFormat::kLenientJson, Frame(2, "{}")},
    {"application/grpc-web", PayloadFormat::kProtobuf,
     Frame('\x80', "grpc-status: 0\r\n")},
    {"application/grpc-web+proto", PayloadFormat::kProtobuf,
     Frame('\x80', "grpc-status: 0\r\n")},
    {"application/grpc-web+json", PayloadFormat::kLenientJson,
     Frame('\x80', "grpc-status: 0\r\n")},
};

TEST(WebFrames, AreReadAndAnswered) {
  for (const auto& [type, format, end] : kFramed) {
    HttpServer server(WebUses());
    server.Feed(WebCall(type, Frame(0, "{}"), "X-Grpc-Web: 1\r\n"));
    ASSERT_EQ(server.count(), 1u);
    ASSERT_EQ(server.result(), ParseResult::kOk) << type;
    EXPECT_EQ(server.request().head.method, "a.B.C");
    EXPECT_EQ(server.request().head.format, format);
    EXPECT_EQ(FlattenSlow(server.request().body), "{}");
    server.AnswerAll("body");
    const std::string body = Frame(0, "body") + end;
    EXPECT_EQ(server.sink().Take(),
              "HTTP/1.1 200 OK\r\nContent-Type: "s + type +
                  "\r\nContent-Length: " + std::to_string(body.size()) +
                  "\r\n\r\n" + body);
  }
}

TEST(WebFrames, OfTextAreBase64) {
  for (const char* type :
       {"application/grpc-web-text", "application/grpc-web-text+proto"}) {
    HttpServer server(WebUses());
    server.Feed(WebCall(type, "AAAAAAJoaQ=="));
    ASSERT_EQ(server.result(), ParseResult::kOk);
    EXPECT_EQ(FlattenSlow(server.request().body), "hi");
    server.AnswerAll("hi");
    EXPECT_EQ(server.sink().Take(),
              "HTTP/1.1 200 OK\r\nContent-Type: "s + type +
                  "\r\nContent-Length: 40\r\n\r\n"
                  "AAAAAAJoaYAAAAAQZ3JwYy1zdGF0dXM6IDANCg==");
  }
}

TEST(WebFrames, MalformedBodiesAreRefused) {
  struct Case {
    std::string body;
    const char* why;
  } cases[] = {
      {"", "the body has no whole message"},
      {Frame(0, "hi").substr(0, 6), "the body has no whole message"},
      {Frame(0, "hi") + Frame(0, "ho"), "more than one message"},
      {Frame(1, "hi"), "a compressed message without the field"},
      {Frame(4, "hi"), "a message whose first byte is 4"},
      {"\0\x7f\0\0\0"s, "exceeds the limit"},
  };
  for (const auto& [body, why] : cases) {
    const std::string connect =
        WebSuccess(WebCall("application/connect+proto", body));
    EXPECT_THAT(connect, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_EQ(Body(connect)[0], 2);
    EXPECT_THAT(connect, HasSubstr(why));
    const std::string web = WebSuccess(WebCall("application/grpc-web", body));
    EXPECT_EQ(Body(web)[0], '\x80');
    EXPECT_THAT(web, HasSubstr("\r\ngrpc-message: "));
    EXPECT_THAT(web, HasSubstr(why));
  }
  EXPECT_EQ(
      Body(WebSuccess(WebCall("application/grpc-web-text", "*"))).substr(0, 2),
      "gA");
}

TEST(WebFrames, FailuresAreInTheLastFrame) {
  EXPECT_EQ(Body(WebFailure(WebCall("application/grpc-web+proto", Frame(0, "")),
                            StatusFromGrpc(GrpcCode::kNotFound), "no %key\n")),
            Frame('\x80', "grpc-status: 5\r\ngrpc-message: no %25key%0A\r\n"));
  EXPECT_EQ(Body(WebFailure(WebCall("application/grpc-web+proto", Frame(0, "")),
                            1234, "own")),
            Frame('\x80',
                  "grpc-status: 2\r\ngrpc-message: own\r\n"
                  "rpc-error-code: 1234\r\n"));
  EXPECT_EQ(Body(WebFailure(WebCall("application/connect+json", Frame(0, "{}")),
                            STATUS_TIMEOUT, "late")),
            Frame(2, R"({"error":{"code":"deadline_exceeded",)"
                     R"("message":"late"}})"));
  // Requests that can't be read: each in the words of its protocol.
  EXPECT_EQ(Body(WebFailure(WebCall("application/connect+json", Frame(0, "{}")),
                            STATUS_MALFORMED_DATA, "bad",
                            FailureDetail::kUnreadRequest)),
            Frame(2, R"({"error":{"code":"invalid_argument",)"
                     R"("message":"bad"}})"));
  EXPECT_EQ(Body(WebFailure(WebCall("application/connect+json", Frame(0, "{}")),
                            STATUS_MALFORMED_DATA, "bad")),
            Frame(2, R"({"error":{"code":"internal","message":"bad"}})"));
  EXPECT_THAT(Body(WebFailure(WebCall("application/grpc-web", Frame(0, "")),
                              STATUS_MALFORMED_DATA, "bad",
                              FailureDetail::kUnreadRequest)),
              HasSubstr("grpc-status: 13\r\n"));
}

TEST(WebFrames, TimeoutsAndCompressionHaveFields) {
  const std::string packed = FlattenSlow(
      *Compress(CompressionAlgorithm::kGzip, CreateBufferSlow("hi")));
  for (const auto& [type, fields] :
       {std::pair("application/grpc-web",
                  "grpc-timeout: 1500100u\r\ngrpc-encoding: gzip\r\n"),
        std::pair("application/connect+proto",
                  "Connect-Timeout-Ms: 1501\r\n"
                  "Connect-Content-Encoding: gzip\r\n")}) {
    HttpServer server(WebUses());
    server.Feed(WebCall(type, Frame(1, packed), fields) +
                WebCall(type, Frame(0, "hi"), fields));
    ASSERT_EQ(server.count(), 2u);
    for (const std::size_t i : {0u, 1u}) {
      EXPECT_EQ(server.result(i), ParseResult::kOk);
      EXPECT_EQ(server.request(i).head.timeout_ms, 1501u);
      EXPECT_EQ(
          server.request(i).head.compression,
          i == 0 ? CompressionAlgorithm::kGzip : CompressionAlgorithm::kNone);
      EXPECT_EQ(FlattenSlow(server.request(i).body), i == 0 ? packed : "hi");
    }
  }
}

TEST(WebFrames, FieldsThatSayNothingAreRefused) {
  for (const auto& [type, field] :
       {std::pair("application/grpc-web", "grpc-timeout: 1x"),
        std::pair("application/grpc-web", "grpc-encoding: br"),
        std::pair("application/grpc-web", "Content-Encoding: gzip"),
        std::pair("application/connect+proto", "Content-Encoding: gzip"),
        std::pair("application/connect+proto", "Connect-Timeout-Ms: 1x"),
        std::pair("application/connect+proto",
                  "Connect-Content-Encoding: br")}) {
    const std::string reply =
        WebSuccess(WebCall(type, Frame(0, ""), field + "\r\n"s), "served");
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n")) << field;
    EXPECT_THAT(Body(reply), Not(HasSubstr("served"))) << field;
    EXPECT_NE(Body(reply)[0], 0) << field;
  }
}

TEST(WebFrames, RepliesAreNotPackedAsAWhole) {
  HttpServer server(WebUses());
  server.Feed(WebCall("application/grpc-web", Frame(0, ""),
                      "Accept-Encoding: gzip, deflate, br\r\n"));
  EXPECT_EQ(server.request().head.acceptable_compressions, 0u);
  EXPECT_EQ(server.request().head.unasked_compression,
            CompressionAlgorithm::kNone);
}

TEST(WebFrames, MetadataIsInHeadAndLastFrame) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("a", "1").ok());
  Metadata trailers;
  ASSERT_TRUE(trailers.Add("b", "2").ok());
  for (const auto& [type, end] :
       {std::pair("application/grpc-web", "grpc-status: 0\r\nb: 2\r\n"),
        std::pair("application/connect+json", R"({"metadata":{"b":["2"]}})")}) {
    OutboundResponse response;
    response.metadata = &metadata;
    response.trailers = &trailers;
    const std::string reply =
        WebReply(WebCall(type, Frame(0, "")), std::move(response));
    EXPECT_THAT(reply, HasSubstr("\r\na: 1\r\n"));
    EXPECT_THAT(reply, EndsWith(end));
  }
}

}  // namespace
}  // namespace flare::rpc
