// RFC 9112, line by line. How refusals look is in http_bad_input_test.cc.
#include <cstddef>
#include <string>

#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::Call;
using testing::HandlerReply;
using testing::HttpServer;
using testing::ReplyTo;
using ::testing::StartsWith;

// Requests, and the status of the (last) reply to them. Each is followed by
// another request, which is answered unless the status has a star: then the
// connection ends.
struct Case {
  const char* what;
  std::string bytes;
  const char* status;
};

const Case kCases[] = {
    // 2.2, messages
    {"an empty line in front", "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "200"},
    {"a bare LF", "GET / HTTP/1.1\nHost: h\n\n", "400*"},
    {"a bare LF later", "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", "400*"},
    {"a bare CR", "GET / HTTP/1.1\r\nHost: h\rA: b\r\n\r\n", "400*"},
    {"NUL in a value", "GET / HTTP/1.1\r\nHost: h\r\nA: \0\r\n\r\n"s, "400*"},
    {"a blank line start", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", "400*"},
    // 2.3, versions
    {"HTTP/1.0", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200"},
    {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", "200"},
    {"HTTP/2.0", "GET / HTTP/2.0\r\nHost: h\r\n\r\n", "505*"},
    {"HTTP/0.9", "GET / HTTP/0.9\r\nHost: h\r\n\r\n", "505*"},
    {"HTTP/1.10", "GET / HTTP/1.10\r\nHost: h\r\n\r\n", "400*"},
    {"http/1.1", "GET / http/1.1\r\nHost: h\r\n\r\n", "400*"},
    // 3, request lines
    {"no version", "GET /\r\nHost: h\r\n\r\n", "400*"},
    {"no target", "GET  HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"two blanks", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"a blank in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"a blank at the end", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "400*"},
    {"a tab", "GET /\tHTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"bytes above 127", "GET /\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n", "200"},
    {"DEL in the target", "GET /\x7f HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"the absolute form", "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n", "200"},
    {"... of https", "GET https://h/a HTTP/1.1\r\nHost: h\r\n\r\n", "200"},
    {"... without a host", "GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"no form", "GET a HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"an asterisk to get", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", "400*"},
    {"the asterisk form", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "200"},
    {"an unknown method", "BREW / HTTP/1.1\r\nHost: h\r\n\r\n", "501"},
    {"a method with a hyphen", "M-SEARCH * HTTP/1.1\r\nHost: h\r\n\r\n", "501"},
    {"a method of all kinds of bytes",
     "Ab9!#$%&'*+-.^_`|~ / HTTP/1.1\r\nHost: h\r\n\r\n", "501"},
    {"one that begins like one we know", "GET-X / HTTP/1.1\r\nHost: h\r\n\r\n",
     "501"},
    {"CONNECT", "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n", "501*"},
    // 3.2, Host
    {"no Host", "GET / HTTP/1.1\r\n\r\n", "400"},
    {"no Host, absolute form", "GET http://h/ HTTP/1.1\r\n\r\n", "400"},
    {"an empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "200"},
    {"two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "400*"},
    {"a Host with a port", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "200"},
    {"a Host with a word for a port", "GET / HTTP/1.1\r\nHost: h:8x\r\n\r\n",
     "400*"},
    {"a Host with two ports", "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", "400*"},
    {"a Host with a bracket", "GET / HTTP/1.1\r\nHost: ]\r\n\r\n", "400*"},
    {"a list of Hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400*"},
    {"a Host with a user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400*"},
    {"a Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400*"},
    {"a Host above 127", "GET / HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n", "400*"},
    {"a bad Host in HTTP/1.0", "GET / HTTP/1.0\r\nHost: a b\r\n\r\n", "400*"},
    // 5, fields
    {"no blank", "GET / HTTP/1.1\r\nHost:h\r\n\r\n", "200"},
    {"many blanks", "GET / HTTP/1.1\r\nHost: \t h \t\r\n\r\n", "200"},
    {"a blank before the colon", "GET / HTTP/1.1\r\nHost : h\r\n\r\n", "400*"},
    {"a folded field", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
     "400*"},
    {"no colon", "GET / HTTP/1.1\r\nHost: h\r\nA\r\n\r\n", "400*"},
    {"no name", "GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n", "400*"},
    {"a name in brackets", "GET / HTTP/1.1\r\nHost: h\r\n(a): b\r\n\r\n",
     "400*"},
    {"a name above 127", "GET / HTTP/1.1\r\nHost: h\r\n\xc3\xa4: b\r\n\r\n",
     "400*"},
    // 6, bodies
    {"a length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
     "200"},
    {"the same length twice",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
     "Content-Length: 2\r\n\r\nab",
     "200"},
    {"two lengths",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
     "Content-Length: 1\r\n\r\nab",
     "400*"},
    {"a list of lengths",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 2, 2\r\n\r\nab", "400*"},
    {"a sign", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: +2\r\n\r\nab",
     "400*"},
    {"hexadecimal", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x2\r\n\r\n",
     "400*"},
    {"an empty length", "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n",
     "400*"},
    {"a length beyond 64 bits",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: "
     "18446744073709551616\r\n\r\n",
     "400*"},
    {"a length and chunks",
     "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n"
     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "400*"},
    {"two codings",
     "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
     "501*"},
    {"chunks in HTTP/1.0",
     "PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400*"},
    {"an unknown expectation",
     "PUT / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n", "417*"},
};

constexpr char kChunked[] =
    "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n";

// 7.1, chunks
const Case kChunkCases[] = {
    {"chunks", "3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", "200"},
    {"zeros in front", "0003\r\nabc\r\n000\r\n\r\n", "200"},
    {"an extension", "3;a=\"b\"\r\nabc\r\n0;c\r\n\r\n", "200"},
    {"a trailer", "0\r\nA: b\r\nC:\r\n\r\n", "200"},
    {"a trailer without a colon", "0\r\nA\r\n\r\n", "400*"},
    {"a trailer with a blank before the colon", "0\r\nA : b\r\n\r\n", "400*"},
    {"a folded trailer", "0\r\nA: b\r\n c\r\n\r\n", "400*"},
    {"a size with a prefix", "0x3\r\nabc\r\n0\r\n\r\n", "400*"},
    {"a size with a sign", "+3\r\nabc\r\n0\r\n\r\n", "400*"},
    {"blanks behind a size", "3 \r\nabc\r\n0\t ;c\r\n\r\n", "200"},
    {"a blank before a size", " 3\r\nabc\r\n0\r\n\r\n", "400*"},
    {"a blank within a size", "0 3\r\nabc\r\n0\r\n\r\n", "400*"},
    {"a size of nothing", "\r\nabc\r\n0\r\n\r\n", "400*"},
    {"a size that is too large", "fffffffffffffff\r\n", "413*"},
    {"a size beyond 64 bits", "00fffffffffffffffff\r\n", "413*"},
    {"a chunk that is too long", "3\r\nabcd\r\n0\r\n\r\n", "400*"},
    {"a chunk that is too short", "3\r\nab\r\n0\r\n\r\n", "400*"},
    {"a bare LF", "3\nabc\n0\n\n", "400*"},
};

void CheckCase(const Case& c, const std::string& bytes) {
  constexpr char kNext[] = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
  for (std::size_t piece :
       {std::size_t{1}, std::size_t{7}, std::string::npos}) {
    SCOPED_TRACE(std::string(c.what) + ", in pieces of " +
                 std::to_string(piece));
    HttpServer server;
    server.Feed(bytes + kNext, piece);
    server.AnswerAll("body");
    std::string expected = std::string("HTTP/1.1 ") + c.status;
    const bool closes = expected.back() == '*';
    if (closes) expected.back() = ' ';
    EXPECT_THAT(server.sink().Take(), StartsWith(expected));
    EXPECT_EQ(server.sink().closed(), closes);
    EXPECT_EQ(server.count(), closes ? 1u : 2u);
    if (!closes) {
      EXPECT_EQ(HttpOf(server.request(1)).request().uri(), "/next");
    }
  }
}

TEST(HttpConformance, Heads) {
  for (const Case& c : kCases) CheckCase(c, c.bytes);
}

TEST(HttpConformance, ChunkedBodies) {
  for (const Case& c : kChunkCases) CheckCase(c, kChunked + c.bytes);
}

TEST(HttpConformance, CallsNeedNoHost) {
  // The published clients send none.
  EXPECT_THAT(ReplyTo(Call(1, "x")), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(ReplyTo(Call(1, "x"), {.plain = true}),
              StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  // But none that is no good.
  std::string call = Call(1, "x");
  call.insert(call.find("Rpc-SeqNo"), "Host: a b\r\n");
  EXPECT_THAT(ReplyTo(call), StartsWith("HTTP/1.1 400 Bad Request\r\n"));
}

TEST(HttpConformance, Http10NeedsNoHost) {
  EXPECT_THAT(ReplyTo("GET / HTTP/1.0\r\n\r\n"),
              StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpConformance, EmptyLinesInFrontAreFew) {
  const std::string request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
  HttpServer server;
  EXPECT_EQ(server.Feed("\r"), CutResult::kUnsure);
  EXPECT_EQ(server.Feed("\n"), CutResult::kUnsure);
  EXPECT_EQ(server.Feed("\r\n" + request), CutResult::kMessage);
  // Later any number is passed over.
  EXPECT_EQ(server.Feed("\r\n\r\n\r\n\r\n\r\n\r"), CutResult::kUnsure);
  EXPECT_EQ(server.Feed("\n" + request), CutResult::kMessage);
  EXPECT_EQ(server.count(), 2u);

  HttpServer many;
  EXPECT_EQ(many.Feed("\r\n\r\n\r\n" + request), CutResult::kNotMine);
}

TEST(HttpConformance, PipelinedHeadsHaveNoBodies) {
  HttpServer server;
  const std::string head = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";
  server.Feed(head + "GET / HTTP/1.1\r\nHost: h\r\n\r\n" + head);
  server.AnswerAll("body");
  const std::string reply = HandlerReply("body");
  const std::string without_body = reply.substr(0, reply.size() - 4);
  EXPECT_EQ(server.sink().Take(), without_body + reply + without_body);
}

TEST(HttpConformance, Http10KnowsNoInterimReplies) {
  HttpServer server;
  server.Feed(
      "PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(server.sink().Take(), "");
  server.Feed("ab");
  server.AnswerAll("done");
  EXPECT_EQ(server.sink().Take(),
            HandlerReply("done", "Connection: close\r\n"));
}

}  // namespace
}  // namespace flare::rpc
