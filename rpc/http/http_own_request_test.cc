#include "flare/rpc/http/http_own_request.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::HttpServer;
using ::testing::StartsWith;

// Records its calls.
class RecordingHost final : public OwnRequestHost {
 public:
  bool EnterStream(std::string_view*) override { return true; }
  void LeaveStream() override {}
  io::StreamConnection* connection() override { return nullptr; }

  explicit RecordingHost(const ReplyTicket& ticket) : ticket_(ticket) {}

  const Endpoint& peer() const override { return peer_; }
  const PeerIdentity* peer_identity() const override { return nullptr; }
  std::int64_t received_ns() const override { return 1; }
  std::int64_t dispatched_ns() const override { return 2; }
  const ReplyTicket& ticket() const override { return ticket_; }
  void Run(const Function<void()>& code) override {
    asked.emplace_back("run");
    code();
  }
  void LogException(const std::string& what) override {
    asked.push_back("log " + what);
  }
  void CountFailure(int) override { asked.emplace_back("failure"); }
  void WaitToReply(std::size_t bytes) override {
    asked.push_back("reply " + std::to_string(bytes));
  }
  ReplyTurn WaitForTurn(
      const Function<ReplyTurn(ReplyTurnWaiter*)>& ask) override {
    asked.emplace_back("turn");
    testing::CountingWaiter waiter;
    return ask(&waiter);
  }
  ReplyTurn WaitForTurnOr(const Function<ReplyTurn(ReplyTurnWaiter*)>& ask,
                          const Function<void()>&) override {
    asked.emplace_back("turn or give up");
    testing::CountingWaiter waiter;
    return ask(&waiter);
  }
  void WaitForRoom() override { asked.emplace_back("room"); }
  void LeaveLimits() override { asked.emplace_back("leave"); }
  void ResetOnClose() override { asked.emplace_back("reset"); }
  void Close(const flare::Status&) override { asked.emplace_back("close"); }

  std::vector<std::string> asked;

 private:
  const Endpoint peer_;
  const ReplyTicket ticket_;
};

class HttpOwnRequestTest : public ::testing::Test {
 protected:
  HttpOwnRequestTest() {
    HttpUses uses = testing::kAllUses;
    uses.routes = &routes_;
    server_ = std::make_unique<HttpServer>(uses);
  }

  template <class Handler>
  void Add(std::string path, Handler handler) {
    ASSERT_TRUE(
        routes_
            .AddPath(std::move(path),
                     NewHttpGetHandler([handler](const HttpRequest&,
                                                 HttpResponse* response,
                                                 HttpServerContext* context) {
                       response->headers()->Set("Date", "today");
                       handler(response, context);
                     }))
            .ok());
  }

  // Serves a GET of `path`; returns the calls of the server.
  std::vector<std::string> Get(const std::string& path) {
    server_->Feed("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n");
    const InboundRequest& request = server_->request(server_->count() - 1);
    RecordingHost host(request.ticket);
    request.own->Serve(&host);
    return host.asked;
  }
  std::string Reply() { return server_->sink().Take(); }

  HttpRoutes routes_;
  std::unique_ptr<HttpServer> server_;
};

// A client with the reply may send the next request.
TEST_F(HttpOwnRequestTest, LeavesTheLimitsBeforeItReplies) {
  Add("/a", [](HttpResponse* response, HttpServerContext* context) {
    EXPECT_EQ(ToNs(context->received_at.time_since_epoch()), 1);
    EXPECT_EQ(ToNs(context->dispatched_at.time_since_epoch()), 2);
    response->set_body("abc");
  });
  EXPECT_THAT(Get("/a"), ElementsAre("run", "reply 3", "leave"));
  EXPECT_EQ(Reply(), testing::HandlerReply("abc"));
}

TEST_F(HttpOwnRequestTest, CountsWhatHandlersFail) {
  Add("/gone", [](HttpResponse* response, HttpServerContext*) {
    response->set_status(HttpStatus::Gone);
  });
  EXPECT_THAT(Get("/gone"), ElementsAre("run", "failure", "reply 0", "leave"));
  EXPECT_THAT(Reply(), StartsWith("HTTP/1.1 410 "));
  EXPECT_THAT(Get("/none"),
              ElementsAre("failure", StartsWith("reply"), "leave"));
  EXPECT_THAT(Reply(), EndsWith("There is nothing at /none.\n"));
}

TEST_F(HttpOwnRequestTest, AnExceptionIsLoggedAndAnswered) {
  Add("/throw", [](HttpResponse*, HttpServerContext*) {
    throw std::runtime_error("no");
  });
  EXPECT_THAT(Get("/throw"),
              ElementsAre("run", "log the HTTP handler of /throw", "failure",
                          StartsWith("reply"), "leave"));
  EXPECT_THAT(Reply(), StartsWith("HTTP/1.1 500 "));
}

TEST_F(HttpOwnRequestTest, PiecesWaitForTurnAndRoom) {
  Add("/pieces", [](HttpResponse* response, HttpServerContext* context) {
    response->set_status(HttpStatus::Gone);
    EXPECT_TRUE(context->body->Write(CreateBufferSlow("a")).ok());
    EXPECT_TRUE(context->body->Write(CreateBufferSlow("b")).ok());
  });
  EXPECT_THAT(Get("/pieces"), ElementsAre("run", "turn", "failure", "room",
                                          "room", "reply 0", "leave"));
  EXPECT_THAT(Reply(), EndsWith("\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n"));
}

TEST_F(HttpOwnRequestTest, PiecesThatCantBeCompletedClose) {
  Add("/pieces", [](HttpResponse*, HttpServerContext* context) {
    EXPECT_TRUE(context->body->Write(CreateBufferSlow("a")).ok());
    throw std::runtime_error("no");
  });
  EXPECT_THAT(Get("/pieces"),
              ElementsAre("run", "turn", "room", StartsWith("log"), "failure",
                          "close", "reply 0", "leave"));
}

TEST_F(HttpOwnRequestTest, RefusalsSayWhy) {
  ASSERT_TRUE(
      routes_.AddExemptPath("/exempt", NewHttpGetHandler([](auto&&...) {}))
          .ok());
  Add("/other", [](HttpResponse*, HttpServerContext*) {});
  for (const char* path : {"/exempt", "/other", "/none"}) {
    server_->Feed("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n\r\n");
    InboundRequest& request = server_->request(server_->count() - 1);
    EXPECT_EQ(request.own->IsExempt(), path == std::string("/exempt"));
    RecordingHost host(request.ticket);
    request.own->Refuse("No room.", &host);
    const std::string reply = Reply();
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 503 "));
    EXPECT_THAT(reply, EndsWith("No room.\n"));
    EXPECT_THAT(host.asked, ElementsAre());
  }
}

// One large message must not occupy the pool for ever.
TEST_F(HttpOwnRequestTest, IsRecycledAsNewWithLittleMemory) {
  HttpUses uses;
  HttpOwnRequest* request = HttpOwnRequest::New(&uses, nullptr, true);
  request->request().set_method(HttpMethod::Put);
  request->request().set_uri(std::string(1'000'000, 'x'));
  request->request().headers()->Set("a", "b");
  request->request().set_body("body");
  request->Recycle();
  HttpOwnRequest* const next = HttpOwnRequest::New(&uses, nullptr, false);
  ASSERT_EQ(next, request);
  EXPECT_FALSE(next->preflight());
  EXPECT_EQ(next->request().uri(), "");
  EXPECT_LE(next->request().uri().capacity(), 4096u);
  EXPECT_EQ(next->request().headers()->size(), 0u);
  EXPECT_EQ(next->request().body_size(), 0u);
  next->Recycle();
}

}  // namespace
}  // namespace flare::rpc
