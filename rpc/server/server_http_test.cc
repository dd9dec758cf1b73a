// Plain HTTP, byte for byte.
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::string_literals::operator""s;

class ServerHttpTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    const auto echo = [](const HttpRequest& request, HttpResponse* response,
                         HttpServerContext* context) {
      EXPECT_EQ(context->remote_peer.host(), "127.0.0.1");
      // Between workers the clock may differ by a microsecond.
      EXPECT_LE(context->received_at,
                context->dispatched_at + std::chrono::microseconds(2));
      response->set_body(*request.body());
    };
    server().AddHttpHandler("/echo", NewHttpPostHandler(echo));
    server().AddHttpHandler(
        "/hello", NewHttpGetHandler([](const HttpRequest& request,
                                       HttpResponse* response, auto*) {
          response->headers()->Set("Content-Type", "text/plain");
          response->set_body("hello " + std::string(request.query()) + "\n");
        }));
    server().AddHttpPrefixHandler(
        "/tree/", NewHttpGetHandler([](const HttpRequest& request,
                                       HttpResponse* response, auto*) {
          response->set_body("leaf " + std::string(request.path()));
        }));
  }

  // The reply of status `code` to a request, without its header.
  static std::string BodyOf(RawClient* client, const std::string& code) {
    std::string body;
    HeadOf(client, code, &body);
    return body;
  }
  // ... and its header.
  static std::string HeadOf(RawClient* client, const std::string& code,
                            std::string* body = nullptr) {
    const std::string head = client->ReadUntil("\r\n\r\n");
    EXPECT_EQ(head.substr(9, 3), code) << head;
    const std::size_t at = head.find("Content-Length: ");
    EXPECT_NE(at, std::string::npos) << head;
    if (at == std::string::npos) return head;
    std::string bytes = client->ReadExactly(std::stoul(head.substr(at + 16)));
    if (body != nullptr) *body = std::move(bytes);
    return head;
  }
};

TEST_F(ServerHttpTest, ExceptionsOfHandlersAreAnswered) {
  server().AddHttpHandler(
      "/throw",
      NewHttpGetHandler([](auto&, HttpResponse* response, HttpServerContext*) {
        response->headers()->Set("X", "left out");
        this_fiber::SleepFor(std::chrono::milliseconds(1));
        throw std::runtime_error("not for strangers");
      }));
  StartServer();
  RawClient client(endpoint());
  client.Send("GET /throw HTTP/1.1\r\nHost: x\r\n\r\n");
  std::string body;
  EXPECT_EQ(HeadOf(&client, "500", &body).find("left out"), std::string::npos);
  EXPECT_EQ(body, "500 Internal Server Error: The handler has failed.\n");
  EXPECT_EQ(server().statistics().calls_failed, 1u);
  client.Send("GET /hello?x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "hello x\n");
}

TEST_F(ServerHttpTest, RoutesAndKeepsTheConnection) {
  StartServer();
  RawClient client(endpoint());
  client.Send("GET /hello?you HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "hello you\n");
  client.Send("GET /tree/a/b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "leaf /tree/a/b");
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(BodyOf(&client, "200"), "body");
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nchu\r\n3\r\nnks\r\n0\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "chunks");
  client.Send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(BodyOf(&client, "404").find("/nothing"), std::string::npos);
  client.Send("DELETE /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  BodyOf(&client, "405");
  client.Send("HEAD /hello?me HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 9"), std::string::npos) << head;
  client.Send(
      "GET /hello?end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "hello end\n");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerHttpTest, OwnHeadTellsItsOwnLength) {
  class File : public HttpHandler {
    void OnGet(const HttpRequest&, HttpResponse* response,
               HttpServerContext*) override {
      response->headers()->Set("Content-Length", "9");  // Ignored.
      response->set_body("content");
    }
    void OnHead(const HttpRequest&, HttpResponse* response,
                HttpServerContext*) override {
      response->headers()->Set("Content-Length", "123456789");
    }
  };
  server().AddHttpHandler("/file", std::make_unique<File>());
  StartServer();
  RawClient client(endpoint());
  client.Send("HEAD /file HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("\r\nContent-Length: 123456789\r\n"), std::string::npos)
      << head;
  // The next reply begins right behind.
  client.Send("GET /file HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "content");
}

TEST_F(ServerHttpTest, RefusalsOfMethodsNameThoseThatAreTaken) {
  class Poster : public HttpHandler {
    void OnPost(const HttpRequest&, HttpResponse*,
                HttpServerContext*) override {}
  };
  server().AddHttpHandler("/path", std::make_unique<Poster>());
  server().AddHttpPrefixHandler("/prefix/", std::make_unique<Poster>());
  server().SetDefaultHttpHandler(std::make_unique<Poster>());
  StartServer();
  RawClient client(endpoint());
  for (const char* path : {"/path", "/prefix/x", "/else"}) {
    client.Send("PUT " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(HeadOf(&client, "405").find("\r\nAllow: POST\r\n"),
              std::string::npos);
  }
}

TEST_F(ServerHttpTest, OptionsOfTheServerItself) {
  StartServer();
  RawClient client(endpoint());
  for (const char* target : {"*", "http://x:80"}) {
    client.Send("OPTIONS " + std::string(target) +
                " HTTP/1.1\r\nHost: x\r\n\r\n");
    std::string body;
    const std::string head = HeadOf(&client, "200", &body);
    EXPECT_NE(head.find("\r\nAllow: GET, HEAD, POST, PUT, DELETE, OPTIONS, "
                        "TRACE, PATCH\r\n"),
              std::string::npos)
        << head;
    EXPECT_EQ(body, "");
  }
}

// Whatever it would say, there would be none.
TEST_F(ServerHttpTest, NoHandlerIsAskedForATunnel) {
  server().SetDefaultHttpHandler(
      NewHttpConnectHandler([](auto&&...) { ADD_FAILURE(); }));
  StartServer();
  RawClient client(endpoint());
  client.Send("CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\nfirst bytes");
  EXPECT_EQ(BodyOf(&client, "501"), "CONNECT: there are no tunnels here\n");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerHttpTest, Version10IsClosedAfterTheReply) {
  StartServer();
  RawClient client(endpoint());
  client.Send("GET /hello?x HTTP/1.0\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "hello x\n");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerHttpTest, MalformedIsAnswered400) {
  StartServer();
  for (const char* bad :
       {"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        "Content-Length: 4\r\n\r\nabcd",
        "GET /hello HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        "GET /hello HTTP/1.1\r\nno colon\r\n\r\n"}) {
    RawClient client(endpoint());
    client.Send(bad);
    BodyOf(&client, "400");
    EXPECT_TRUE(client.AtEnd()) << bad;
  }
  EXPECT_EQ(server().statistics().calls_malformed, 3u);
}

// The first handler doesn't finish before all have started, so the replies are
// ready in another order than the requests came in.
TEST_F(ServerHttpTest, PipelinedRepliesLeaveInOrder) {
  constexpr int kRequests = 50;
  std::atomic<int> others{0};
  fiber::Event all_others;
  server().AddHttpHandler(
      "/first", NewHttpGetHandler([&](auto&, HttpResponse* response, auto*) {
        all_others.Wait();
        response->set_body("0");
      }));
  server().AddHttpPrefixHandler(
      "/n/", NewHttpGetHandler([&](const HttpRequest& request,
                                   HttpResponse* response, auto*) {
        response->set_body(std::string(request.path().substr(3)));
        if (++others == kRequests - 1) all_others.Set();
      }));
  StartServer();
  RawClient client(endpoint());
  std::string batch = "GET /first HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int i = 1; i != kRequests; ++i) {
    batch += "GET /n/" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  client.Send(batch);
  for (int i = 0; i != kRequests; ++i) {
    EXPECT_EQ(BodyOf(&client, "200"), std::to_string(i));
  }
}

TEST_F(ServerHttpTest, RpcAndPagesShareAConnection) {
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest("rpc"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "rpc");
  client.Send("GET /hello?page HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "200"), "hello page\n");
  client.Call(2, "no.such.Method", MakeRequest(""));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_METHOD_NOT_FOUND);
}

TEST_F(ServerHttpTest, FailuresAreCountedByTheStatusThatIsSent) {
  server().AddHttpHandler(
      "/status", NewHttpGetHandler([](auto& request, auto* response, auto*) {
        response->set_status(
            static_cast<HttpStatus>(std::stoi(std::string(request.query()))));
      }));
  StartServer();
  RawClient client(endpoint());
  std::uint64_t failed = 0;
  for (const auto& [asked, sent, fails] :
       {std::tuple{"103", "500", true}, std::tuple{"200", "200", false},
        std::tuple{"302", "302", false}, std::tuple{"400", "400", true},
        std::tuple{"1000", "500", true}}) {
    client.Send("GET /status?"s + asked + " HTTP/1.1\r\nHost: x\r\n\r\n");
    HeadOf(&client, sent);
    failed += fails;
    EXPECT_EQ(server().statistics().calls_failed, failed) << asked;
  }
}

TEST_F(ServerHttpTest, DefaultHandlerTakesTheRest) {
  server().SetDefaultHttpHandler(
      NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_status(HttpStatus::Found);
        response->headers()->Set("Location", "/hello");
      }));
  StartServer();
  RawClient client(endpoint());
  client.Send("GET /anywhere HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(BodyOf(&client, "302"), "");
}

}  // namespace
}  // namespace flare::rpc::testing
