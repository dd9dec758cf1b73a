// The last reply of a connection, to HTTP/1.0 that asked to keep it.
#include "flare/rpc/http/http_replies.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::Call;
using testing::CallWithoutSeqNo;
using testing::CountingWaiter;
using ::testing::EndsWith;
using testing::HandlerReply;
using testing::HttpServer;
using testing::LastReply;
using testing::ReplyTo;
using testing::SlicedBuffer;
using testing::SuccessReply;

const std::string kKeepAliveField = "Connection: keep-alive\r\n";
const std::string kGetToBeKept =
    "GET / HTTP/1.0\r\n" + kKeepAliveField + "\r\n";

// A request of HTTP/1.1 as one of HTTP/1.0 that wants to go on.
std::string ToBeKept(std::string request) {
  constexpr std::string_view kVersion = "HTTP/1.1\r\n";
  return request.replace(request.find(kVersion), kVersion.size(),
                         "HTTP/1.0\r\n" + kKeepAliveField);
}

TEST(HttpLastReply, OfAHandlerSaysOnlyClose) {
  // A body may look like the end of a head.
  for (const std::string& body :
       {std::string(), std::string("a"), "\r\n" + kKeepAliveField + "\r\n"}) {
    HttpServer server;
    server.Feed(kGetToBeKept);
    server.protocol().EndInput();
    server.Answer(0, body);
    EXPECT_EQ(server.sink().Take(), LastReply(HandlerReply(body)));
    EXPECT_TRUE(server.sink().closed());
  }
}

TEST(HttpLastReply, MayHaveBeenReadyBeforeTheEnd) {
  HttpServer server;
  server.Feed(kGetToBeKept + kGetToBeKept);
  server.Answer(1, "b");
  server.protocol().EndInput();
  server.Answer(0, "a");
  EXPECT_EQ(server.sink().Take(),
            HandlerReply("a", kKeepAliveField) + LastReply(HandlerReply("b")));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpLastReply, OfACallSaysOnlyClose) {
  for (const auto& [request, id] :
       {std::pair{Call(1, "x"), 1}, {CallWithoutSeqNo("x"), 0}}) {
    HttpServer server;
    server.Feed(ToBeKept(request));
    ASSERT_EQ(server.count(), 1u);
    server.protocol().EndInput();
    server.Answer(0, "y");
    EXPECT_EQ(server.sink().Take(), LastReply(SuccessReply(id, "y")));
    EXPECT_TRUE(server.sink().closed());
  }
}

TEST(HttpLastReply, OfAFailedCallSaysOnlyClose) {
  HttpServer server;
  server.Feed(ToBeKept(Call(1, "x")));
  ASSERT_EQ(server.count(), 1u);
  server.protocol().EndInput();
  OutboundResponse failure;
  failure.status = 4711;
  failure.description = "why";
  server.protocol().Write(server.request().ticket, std::move(failure));
  EXPECT_EQ(server.sink().Take(),
            "HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n"
            "Content-Type: application/x-protobuf\r\nRpc-SeqNo: 1\r\n"
            "Rpc-Error-Code: 4711\r\nRpc-Error-Reason: why\r\n"
            "Content-Length: 0\r\n\r\n");
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpLastReply, OfARefusedCallSaysOnlyClose) {
  const std::string request = ToBeKept(Call(1, "x", "text/odd"));
  std::string reply = ReplyTo(request);
  const std::size_t at = reply.find(kKeepAliveField);
  ASSERT_NE(at, std::string::npos) << reply;
  reply.erase(at, kKeepAliveField.size());
  HttpServer server;
  server.Feed(request);
  server.protocol().EndInput();
  server.Answer(0);
  EXPECT_EQ(server.sink().Take(), LastReply(reply));
  EXPECT_TRUE(server.sink().closed());
}

TEST(HttpLastReply, HasTheOptionsOfItsHandler) {
  for (const auto& [options, expected] :
       {std::pair{"Keep-Alive, X-Y",
                  "HTTP/1.1 200 OK\r\nConnection: close\r\nDate: today\r\n"
                  "Connection: X-Y\r\nContent-Length: 0\r\n\r\n"},
        {"Keep-Alive, close",
         "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 0\r\n"
         "Connection: close\r\n\r\n"}}) {
    HttpServer server;
    server.Feed(kGetToBeKept);
    server.protocol().EndInput();
    HttpResponse response;
    response.headers()->Set("Date", "today");
    response.headers()->Set("Connection", options);
    server.Reply(0, std::move(response));
    EXPECT_EQ(server.sink().Take(), expected);
    EXPECT_TRUE(server.sink().closed());
  }
}

TEST(HttpLastReply, InPiecesSaysOnlyClose) {
  for (HttpStatus status : {HttpStatus::OK, HttpStatus::NoContent}) {
    HttpServer server;
    server.Feed(kGetToBeKept);
    server.protocol().EndInput();
    HttpResponse head;
    head.set_status(status);
    head.headers()->Set("Date", "today");
    HttpTicket ticket = TicketOf(&server.request());
    HttpReplySender& sender = *HttpOf(server.request()).sender();
    CountingWaiter waiter;
    ASSERT_EQ(sender.BeginHttp(HttpVersion::kHttp10, head, &ticket, &waiter),
              ReplyTurn::kNow);
    sender.EndHttp(ticket);
    EXPECT_THAT(server.sink().Take(),
                EndsWith("\r\nDate: today\r\nConnection: close\r\n\r\n"));
    EXPECT_TRUE(server.sink().closed());
  }
}

TEST(SayClose, TakesOutTheKeepAliveOfTheHeadInAnyPieces) {
  const std::string start = "HTTP/1.1 203 Non-Authoritative Information\r\n";
  const std::string last = kKeepAliveField + "\r\n";
  for (const auto& [rest, left] :
       {std::pair{last, std::string("\r\n")},
        {"A: b\r\n" + last + last, "A: b\r\n\r\n" + last},
        // Ends of the body, and of other fields.
        {"\r\n" + last, "\r\n" + last},
        {"Proxy-" + last, "Proxy-" + last},
        {"A: " + last, "A: " + last}}) {
    std::string said = start;
    said += "Connection: close\r\n";
    said += left;
    for (std::size_t piece : {1, 2, 7, 1000}) {
      EXPECT_EQ(FlattenSlow(SayClose(SlicedBuffer(start + rest, piece))), said);
    }
  }
}

}  // namespace
}  // namespace flare::rpc
