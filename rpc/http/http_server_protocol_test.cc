#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::Call;
using testing::CallWithoutSeqNo;
using ::testing::EndsWith;
using testing::HandlerReply;
using ::testing::HasSubstr;
using testing::HttpServer;
using testing::LastReply;
using ::testing::Not;
using testing::ReplyTo;
using ::testing::StartsWith;
using testing::SuccessReply;

// --- handlers --------------------------------------------------------------

TEST(HttpHandlers, GetTheWholeRequest) {
  HttpServer server;
  server.Feed(
      "PUT /a/b?c=d HTTP/1.1\r\nHost: here\r\nX-One:  1 \r\nx-one: 2\r\n"
      "Content-Length: 4\r\n\r\nbody",
      5);
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  ASSERT_TRUE(server.request().own);
  const HttpRequest& http = HttpOf(server.request()).request();
  EXPECT_EQ(http.method(), HttpMethod::Put);
  EXPECT_EQ(http.version(), HttpVersion::kHttp11);
  EXPECT_EQ(http.uri(), "/a/b?c=d");
  EXPECT_EQ(http.path(), "/a/b");
  EXPECT_EQ(http.query(), "c=d");
  EXPECT_EQ(http.headers()->size(), 4u);
  EXPECT_EQ(http.headers()->TryGet("X-ONE"), "1");
  EXPECT_EQ(*http.body(), "body");
}

TEST(HttpHandlers, AHostInTheTargetOverridesTheField) {
  struct Case {
    const char* request;
    const char* host;
  } cases[] = {
      {"GET http://target:80/a HTTP/1.1\r\nHost: field\r\n\r\n", "target:80"},
      {"GET https://target?q HTTP/1.1\r\nhost: field\r\n\r\n", "target"},
      {"GET HTTP://[::1] HTTP/1.0\r\n\r\n", "[::1]"},
      {"GET /http://target HTTP/1.1\r\nHost: field\r\n\r\n", "field"},
      {"OPTIONS * HTTP/1.1\r\nHost: field\r\n\r\n", "field"},
  };
  for (const auto& [request, host] : cases) {
    HttpServer server;
    server.Feed(request);
    ASSERT_EQ(server.count(), 1u);
    const HttpHeaders& fields = *HttpOf(server.request()).request().headers();
    EXPECT_EQ(fields.TryGetMultiple("Host"),
              std::vector<std::string_view>{host})
        << request;
  }
}

TEST(HttpHandlers, PipelinedRepliesLeaveInOrder) {
  HttpServer server;
  std::string bytes;
  for (int i = 0; i != 20; ++i) {
    bytes += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
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
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpResponse response;
  response.set_status(HttpStatus::NotFound);
  response.headers()->Append("X", "y");
  server.Reply(0, std::move(response));
  std::string sent = server.sink().Take();
  EXPECT_THAT(sent, StartsWith("HTTP/1.1 404 Not Found\r\nX: y\r\nDate: "));
  EXPECT_THAT(sent, EndsWith(" GMT\r\nContent-Length: 0\r\n\r\n"));
}

TEST(HttpHandlers, FramingFieldsOfHandlersAreIgnored) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpResponse response;
  response.headers()->Set("Date", "today");
  response.headers()->Append("Content-Length", "1000");
  response.headers()->Append("Transfer-Encoding", "chunked");
  response.headers()->Append("Connection", "keep-alive");
  response.set_body("abc");
  server.Reply(0, std::move(response));
  EXPECT_EQ(server.sink().Take(), HandlerReply("abc"));
}

TEST(HttpHandlers, HeadHasNoBody) {
  HttpServer server;
  server.Feed("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
  server.AnswerAll("body");
  EXPECT_EQ(server.sink().Take(),
            "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 4\r\n\r\n");
}

std::string ReplyToHead(const std::vector<std::string>& lengths,
                        std::string_view body) {
  HttpServer server;
  server.Feed("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpResponse response;
  response.headers()->Set("Date", "today");
  for (const std::string& length : lengths) {
    response.headers()->Append("content-length", length);
  }
  response.set_body(body);
  server.Reply(0, std::move(response));
  return server.sink().Take();
}

TEST(HttpHandlers, HeadMayTellItsLengthWithoutABody) {
  const std::string start = "HTTP/1.1 200 OK\r\nDate: today\r\n";
  for (const char* length : {"0", "1000", "18446744073709551615"}) {
    EXPECT_EQ(ReplyToHead({length}, ""),
              start + "Content-Length: " + length + "\r\n\r\n");
  }
  // A length that is no number doesn't go out, and none is made up.
  for (const char* length : {"", "-1", "+1", "0x10", "1 2", "1, 1", "many",
                             "18446744073709551616"}) {
    EXPECT_EQ(ReplyToHead({length}, ""), start + "\r\n") << length;
  }
  EXPECT_EQ(ReplyToHead({}, ""), start + "\r\n");
  // There is one in any case.
  EXPECT_EQ(ReplyToHead({"5", "7"}, ""), start + "Content-Length: 7\r\n\r\n");
  // The body is that of the answer to a GET.
  EXPECT_EQ(ReplyToHead({"1000"}, "abc"), start + "Content-Length: 3\r\n\r\n");
}

TEST(HttpHandlers, SomeStatusesHaveNoBody) {
  for (HttpStatus status : {HttpStatus::NoContent, HttpStatus::NotModified}) {
    HttpServer server;
    server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    HttpResponse response;
    response.set_status(status);
    response.set_body("not sent");
    server.Reply(0, std::move(response));
    std::string sent = server.sink().Take();
    EXPECT_THAT(sent, Not(HasSubstr("Content-Length")));
    EXPECT_THAT(sent, EndsWith("\r\n\r\n"));
  }
}

TEST(HttpHandlers, NothingIsSentWith205) {
  for (const char* method : {"GET", "HEAD"}) {
    HttpServer server;
    server.Feed(std::string(method) + " / HTTP/1.1\r\nHost: h\r\n\r\n");
    HttpResponse response;
    response.set_status(HttpStatus::ResetContent);
    response.headers()->Set("Date", "today");
    response.set_body("not sent");
    server.Reply(0, std::move(response));
    EXPECT_THAT(server.sink().Take(),
                EndsWith("\r\nDate: today\r\nContent-Length: 0\r\n\r\n"));
  }
}

TEST(HttpHandlers, ImpossibleStatusesBecome500) {
  for (int status : {0, 99, 100, 101, 1000, -1}) {
    HttpServer server;
    server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    HttpResponse response;
    response.set_status(static_cast<HttpStatus>(status));
    server.Reply(0, std::move(response));
    EXPECT_THAT(server.sink().Take(), StartsWith("HTTP/1.1 500 "));
  }
}

TEST(HttpHandlers, UnknownMethodsAreAnswered501) {
  HttpServer server;
  server.Feed(
      "PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: "
      "h\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  server.AnswerAll();
  EXPECT_THAT(server.sink().Take(),
              StartsWith("HTTP/1.1 501 Not Implemented\r\n"));
  EXPECT_FALSE(server.sink().closed());
}

TEST(HttpHandlers, AbsentWhereOnlyCallsAreEnabled) {
  HttpUses calls;
  calls.pb = true;
  EXPECT_THAT(ReplyTo("GET / HTTP/1.1\r\nHost: h\r\n\r\n", calls),
              StartsWith("HTTP/1.1 404 Not Found\r\n"));
}

TEST(HttpHandlers, BodiesOfAnyMethodAreTaken) {
  HttpServer server;
  server.Feed(
      "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
      "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  EXPECT_EQ(*HttpOf(server.request(0)).request().body(), "abc");
  EXPECT_EQ(HttpOf(server.request(1)).request().method(), HttpMethod::Options);
}

TEST(HttpHandlers, EmptyLinesHaveAnEnd) {
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
  std::string most;
  while (most.size() != 1024) most += "\r\n";
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{3}, most.size()}) {
    HttpServer server;
    server.Feed(get + most + get + most + get, piece);
    ASSERT_EQ(server.count(), 3u);
    server.Feed(most, piece);
    EXPECT_EQ(server.count(), 3u);
    server.Feed("\r\n" + most + get, piece);
    ASSERT_EQ(server.count(), 4u);
    server.AnswerAll();
    EXPECT_THAT(server.sink().Take(),
                HasSubstr("\r\n\r\nHTTP/1.1 400 Bad Request\r\n"));
    EXPECT_TRUE(server.sink().closed());
    EXPECT_TRUE(server.in().empty());
  }
}

TEST(HttpHandlers, EmptyLinesBetweenRequestsAreSkipped) {
  HttpServer server;
  server.Trickle(
      "GET /a HTTP/1.1\r\nHost: h\r\n\r\n\r\n\r\nGET /b HTTP/1.1\r\nHost: "
      "h\r\n\r\n");
  ASSERT_EQ(server.count(), 2u);
  EXPECT_EQ(HttpOf(server.request(1)).request().uri(), "/b");
}

// --- the end of a connection -----------------------------------------------

TEST(HttpConnection, CloseIsHonoured) {
  HttpServer server;
  server.Feed(
      "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
      "GET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
      "GET /c HTTP/1.1\r\nHost: h\r\n\r\n");
  // Input behind it isn't read.
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
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpResponse response;
  response.headers()->Set("Date", "today");
  response.headers()->Set("connection", "Close");
  server.Reply(0, std::move(response));
  EXPECT_EQ(server.sink().Take(), HandlerReply("", "Connection: close\r\n"));
  EXPECT_TRUE(server.sink().closed());
  EXPECT_EQ(server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
            CutResult::kNeedMore);
  EXPECT_EQ(server.count(), 1u);
}

TEST(HttpConnection, HandlersOptionsAreAList) {
  for (const auto& [value, said] : {std::pair{"close, x", "Connection: x\r\n"},
                                    {"X-Y , CLOSE", "Connection: X-Y\r\n"},
                                    {"keep-alive,,close", ""}}) {
    HttpServer server;
    server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    HttpResponse response;
    response.headers()->Set("Connection", value);
    response.headers()->Set("Date", "today");
    server.Reply(0, std::move(response));
    EXPECT_EQ(server.sink().Take(), "HTTP/1.1 200 OK\r\n" + std::string(said) +
                                        "Date: today\r\nContent-Length: 0\r\n"
                                        "Connection: close\r\n\r\n");
    EXPECT_TRUE(server.sink().closed());
  }
}

TEST(HttpConnection, HandlersCanAskForAnUpgrade) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  HttpResponse response;
  response.set_status(HttpStatus::UpgradeRequired);
  response.headers()->Set("Date", "today");
  response.headers()->Set("Upgrade", "x/1");
  response.headers()->Set("Connection", "Upgrade");
  server.Reply(0, std::move(response));
  EXPECT_EQ(server.sink().Take(),
            "HTTP/1.1 426 Upgrade Required\r\nDate: today\r\nUpgrade: x/1\r\n"
            "Connection: Upgrade\r\nContent-Length: 0\r\n\r\n");
  EXPECT_FALSE(server.sink().closed());
}

TEST(HttpConnection, Http10ClosesUnlessAskedNotTo) {
  HttpServer one;
  one.Feed("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(HttpOf(one.request()).request().version(), HttpVersion::kHttp10);
  one.AnswerAll("x");
  EXPECT_EQ(one.sink().Take(), HandlerReply("x", "Connection: close\r\n"));
  EXPECT_TRUE(one.sink().closed());

  HttpServer two;
  two.Feed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  two.AnswerAll("x");
  EXPECT_EQ(two.sink().Take(), HandlerReply("x", "Connection: keep-alive\r\n"));
  EXPECT_FALSE(two.sink().closed());
}

TEST(HttpConnection, TheLastReplySaysClose) {
  HttpServer server;
  for (const char* path : {"/a", "/b", "/c"}) {
    server.Feed("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  server.Answer(2, "c");  // Ready before that is known.
  server.protocol().EndInput();
  server.Answer(1, "b");
  EXPECT_EQ(server.sink().Take(), "");
  server.Answer(0, "a");
  EXPECT_EQ(server.sink().Take(), HandlerReply("a") + HandlerReply("b") +
                                      LastReply(HandlerReply("c")));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpConnection, TheLastCallsReplySaysClose) {
  HttpServer server;
  server.Feed(Call(1, "a") + CallWithoutSeqNo("b") + Call(2, "c"));
  server.protocol().EndInput();
  server.Answer(2, "two");
  EXPECT_EQ(server.sink().Take(), SuccessReply(2, "two"));
  server.Answer(1, "none");
  EXPECT_EQ(server.sink().Take(), SuccessReply(0, "none"));
  server.Answer(0, "one");
  EXPECT_EQ(server.sink().Take(), LastReply(SuccessReply(1, "one")));
  EXPECT_TRUE(server.sink().closed());
}

// The request itself asks for the end.
TEST(HttpConnection, TheLastReplySaysCloseOnce) {
  HttpServer server;
  server.Feed("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  server.protocol().EndInput();
  server.Answer(0, "a");
  EXPECT_EQ(server.sink().Take(), HandlerReply("a", "Connection: close\r\n"));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpConnection, ExpectContinueIsAnsweredBeforeTheBody) {
  HttpServer server;
  std::string head =
      "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: "
      "4\r\n\r\n";
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
      "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"
      "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
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
      "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: "
      "2\r\n\r\nab");
  ASSERT_EQ(server.count(), 1u);
  EXPECT_EQ(server.sink().Take(), "");
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
