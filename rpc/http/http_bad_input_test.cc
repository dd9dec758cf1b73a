// Requests that can't be served: their refusals, and the fate of the
// connection. Violations of RFC 9112 are in http_conformance_test.cc.
#include <cstddef>
#include <string>

#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::Call;
using ::testing::EndsWith;
using testing::HandlerReply;
using ::testing::HasSubstr;
using testing::HttpServer;
using testing::kAllUses;
using testing::SmallLimits;
using ::testing::StartsWith;
using testing::SuccessReply;

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
    EXPECT_EQ(server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
              CutResult::kNeedMore);
    EXPECT_TRUE(server.in().empty());
  }
  return reply;
}

TEST(HttpBadInput, IsAnswered400) {
  for (
      std::string bytes :
      {"GET /\r\n\r\n"s, "GET / HTTP/1.1\n\n"s,
       "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n"s,
       "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n"s,
       "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"s,
       "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n"
       "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"s,
       "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"s,
       "GET  / HTTP/1.1\r\nHost: h\r\n\r\n"s,
       "GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n"s}) {
    EXPECT_THAT(FinalReplyTo(bytes), StartsWith("HTTP/1.1 400 Bad Request\r\n"))
        << bytes;
  }
}

TEST(HttpBadInput, TooLargeIsToldBeforeTheBodyComes) {
  Limits limits = SmallLimits();
  EXPECT_THAT(
      FinalReplyTo("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n"
                   "Expect: 100-continue\r\n\r\n",
                   limits),
      StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  limits.max_skipped = 1999;
  EXPECT_THAT(
      FinalReplyTo("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n",
                   limits),
      StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(FinalReplyTo("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: "
                           "18446744073709551615\r\n\r\n",
                           limits),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(FinalReplyTo("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
                           "chunked\r\n\r\nfff\r\n",
                           limits),
              StartsWith("HTTP/1.1 413 "));
}

TEST(HttpBadInput, TooLargeACallIsToldItsCaller) {
  const std::string bytes = Call(8, std::string(2000, 'x')) + Call(9, "next");
  for (std::size_t piece : {std::size_t{1}, std::size_t{50}, bytes.size()}) {
    HttpServer server(kAllUses, SmallLimits());
    server.Feed(bytes, piece);
    ASSERT_EQ(server.count(), 2u);
    server.AnswerAll("body");
    EXPECT_EQ(server.sink().Take(),
              "HTTP/1.1 413 Content Too Large\r\nContent-Type: text/plain\r\n"
              "Rpc-SeqNo: 8\r\nRpc-Error-Code: 102\r\n"
              "Rpc-Error-Reason: the message has more than 1000 bytes "
              "(flare_rpc_server_max_packet_size)\r\n"
              "Content-Length: 72\r\n\r\n"
              "the message has more than 1000 bytes "
              "(flare_rpc_server_max_packet_size)\n" +
                  SuccessReply(9, "body"));
    EXPECT_FALSE(server.sink().closed());
  }
}

TEST(HttpBadInput, TooLargeABodyIsSkipped) {
  for (const char* close : {"", "Connection: close\r\n"}) {
    HttpServer server(kAllUses, SmallLimits());
    server.Feed("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n" +
                std::string(close) + "\r\n");
    // It is told at once.
    EXPECT_EQ(server.count(), 1u);
    server.AnswerAll();
    EXPECT_THAT(server.sink().Take(), StartsWith("HTTP/1.1 413 "));
    EXPECT_EQ(server.Feed(std::string(1999, 'x')), CutResult::kNeedMore);
    EXPECT_TRUE(server.in().empty());
    server.Feed("xGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    const bool closed = *close != '\0';
    EXPECT_EQ(server.sink().closed(), closed);
    EXPECT_EQ(server.count(), closed ? 1u : 2u);
  }
}

// Where a body in chunks ends isn't known.
TEST(HttpBadInput, TooLargeAHeadOfChunksEndsTheConnection) {
  Limits limits;
  limits.max_packet_size = 100;  // Less than a head may have.
  EXPECT_THAT(FinalReplyTo(
                  "POST /x HTTP/1.1\r\nHost: h\r\nA: " + std::string(100, 'x') +
                      "\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "5\r\nhello\r\n0\r\n\r\n",
                  limits),
              StartsWith("HTTP/1.1 413 "));
}

TEST(HttpBadInput, OtherRefusals) {
  Limits limits = SmallLimits();
  const std::string x(600, 'x');
  for (const std::string& target : {x, x + " HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    EXPECT_THAT(FinalReplyTo("GET /" + target, limits),
                StartsWith("HTTP/1.1 414 URI Too Long\r\n"));
  }
  for (const std::string& fields : {x, "A: b\r\nC: " + x + "\r\n\r\n"}) {
    EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\n" + fields, limits),
                StartsWith("HTTP/1.1 431 "));
  }
  EXPECT_THAT(FinalReplyTo("PRI * HTTP/2.0\r\nA: b\r\n\r\nSM\r\n\r\n"),
              StartsWith("HTTP/1.1 505 "));
  EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n"),
              StartsWith("HTTP/1.1 417 "));
  EXPECT_THAT(
      FinalReplyTo(
          "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n"),
      StartsWith("HTTP/1.1 501 "));
  std::string fields;
  for (int i = 0; i != 101; ++i) fields += "A: b\r\n";
  EXPECT_THAT(FinalReplyTo("GET / HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n"),
              StartsWith("HTTP/1.1 431 "));
}

// A client of HTTP/2 reads the reply as frames: SETTINGS and GOAWAY.
TEST(HttpBadInput, ClientsOfHttp2AreToldByAFrame) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings = "\0\0\x06\4\0\0\0\0\0\0\3\0\0\0\x64"s;
  const std::string text = "only HTTP/1.0 and HTTP/1.1 are spoken";
  for (std::size_t piece = 1; piece <= preface.size(); ++piece) {
    HttpServer server;
    server.Feed(preface + settings, piece);
    ASSERT_EQ(server.count(), 1u);
    server.AnswerAll();
    EXPECT_EQ(server.sink().Take(), "\0\0\0\4\0\0\0\0\0"s +
                                        "\0\0\x2d\7\0\0\0\0\0"s +
                                        "\0\0\0\0\0\0\0\x0d"s + text);
    EXPECT_TRUE(server.sink().closed());
    EXPECT_TRUE(server.in().empty());
  }
  // Behind requests of HTTP/1.1 nobody would read frames.
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n" + preface);
  ASSERT_EQ(server.count(), 2u);
  server.AnswerAll();
  EXPECT_THAT(server.sink().Take(), HasSubstr("\r\n\r\nHTTP/1.1 505 "));
}

// The method is known, if nothing else is.
TEST(HttpBadInput, RefusedHeadsGetNoBody) {
  for (std::string bytes :
       {"HEAD / HTTP/1.1\r\nHost: a b\r\n\r\n"s, "HEAD / HTTP/1.1\n\n"s,
        "\r\nHEAD / HTTP/2.0\r\n\r\n"s, "HEAD /" + std::string(9000, 'x')}) {
    const std::string reply = FinalReplyTo(bytes);
    EXPECT_THAT(reply, EndsWith("\r\n\r\n"));
    EXPECT_EQ(reply.find("\r\n\r\n"), reply.size() - 4);
  }
  EXPECT_THAT(FinalReplyTo("HEADS / HTTP/1.1\r\nHost: a b\r\n\r\n"),
              EndsWith("malformed Host\n"));
}

TEST(HttpBadInput, IsAnsweredBehindEarlierRequests) {
  HttpServer server;
  server.Feed("GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET b\r\n\r\n");
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
  for (int i = 0; i != 10; ++i)
    server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_EQ(server.count(), 4u);
  EXPECT_EQ(server.result(3), ParseResult::kReject);
  server.AnswerAll();
  std::string sent = server.sink().Take();
  EXPECT_THAT(
      sent, StartsWith(HandlerReply("") + HandlerReply("") + HandlerReply("") +
                       "HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_TRUE(server.sink().closed());
}

}  // namespace
}  // namespace flare::rpc
