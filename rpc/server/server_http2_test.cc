// Plain HTTP over HTTP/2: handlers and calls of HTTP, beside gRPC.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/http2_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPiece = 10'000;

class ServerHttp2Test : public ServerTest {
 protected:
  using Pieces = std::function<void(HttpBodyWriter*)>;

  // Echoes at /echo; `pieces` writes the body of /pieces.
  void Start(Pieces pieces = {}) {
    server().AddHttpHandler(
        "/echo",
        NewHttpHandler({HttpMethod::Get, HttpMethod::Post},
                       [](const HttpRequest& request, HttpResponse* response,
                          auto*) { Echo(request, response); }));
    server().AddHttpHandler(
        "/pieces", NewHttpGetHandler([pieces = std::move(pieces)](
                                         const HttpRequest&, HttpResponse*,
                                         HttpServerContext* context) {
          pieces(context->body);
        }));
    StartServer({"grpc", "http", "http+pb", "http+proto3-json"});
  }

  static void Echo(const HttpRequest& request, HttpResponse* response) {
    response->headers()->Set("Date", "today");
    for (const char* name : {"host", "cookie", "x-a"}) {
      if (const auto value = request.headers()->TryGet(name)) {
        response->headers()->Append(
            "Had", std::string(name) + ":" + std::string(*value));
      }
    }
    response->headers()->Append("Uri", request.uri());
    response->set_body(*request.noncontiguous_body());
  }

  // The connection goes on.
  static void ExpectAnswers(Http2Client* client) {
    EXPECT_THAT(client->Reply(client->Ask("GET", "/echo")),
                HasSubstr(":status=200;"));
  }
};

TEST_F(ServerHttp2Test, HandlersAreServed) {
  Start();
  Http2Client client(endpoint());
  Http2ClientStream* const get =
      client.Ask("GET", "/echo?a=b", {},
                 {{"x-a", "1"}, {"cookie", "c=1"}, {"cookie", "d=2"}});
  Http2ClientStream* const head = client.Ask("HEAD", "/echo");
  Http2ClientStream* const post = client.Ask("POST", "/echo", "hello");
  Http2ClientStream* const other = client.Ask("DELETE", "/echo");
  Http2ClientStream* const nowhere = client.Ask("GET", "/nowhere");
  EXPECT_EQ(client.Reply(get),
            ":status=200;date=today;had=host:localhost;had=cookie:c=1; d=2;"
            "had=x-a:1;uri=/echo?a=b;content-length=0;\n");
  EXPECT_EQ(client.Reply(head),
            ":status=200;date=today;had=host:localhost;uri=/echo;\n");
  EXPECT_EQ(
      client.Reply(post),
      ":status=200;date=today;had=host:localhost;uri=/echo;content-length=5;\n"
      "hello");
  EXPECT_THAT(client.Reply(other), HasSubstr(":status=405;"));
  EXPECT_THAT(client.Reply(nowhere), HasSubstr(":status=404;"));
  EXPECT_THAT(client.Reply(client.Ask("GET", "/inspect/server")),
              HasSubstr(":status=200;"));
}

TEST_F(ServerHttp2Test, HandlersSeeTheClientsAddress) {
  server().AddHttpHandler(
      "/peer", NewHttpGetHandler([](const HttpRequest&, HttpResponse* response,
                                    HttpServerContext* context) {
        response->set_body(context->remote_peer.ToString());
      }));
  Start();
  Http2Client client(endpoint());
  Http2ClientStream* const stream = client.Ask("GET", "/peer");
  client.AwaitEnd(stream);
  EXPECT_EQ(stream->data, client.address().ToString());
  // The rule of pages for callers on the same host.
  EXPECT_THAT(client.Reply(client.Ask("GET", "/inspect")),
              HasSubstr(":status=200;"));
  EXPECT_THAT(client.Reply(client.Ask("GET", "/inspect", {},
                                      {{"x-forwarded-for", "10.0.0.1"}})),
              HasSubstr(":status=403;"));
}

TEST_F(ServerHttp2Test, PagesOfAllowedOriginsReadReplies) {
  server_options().http_cors_origins = "https://page.example";
  Start();
  Http2Client client(endpoint());
  const std::string path = std::string("/rpc/") + kCall;
  const Http2Field origin = {"origin", "https://page.example"};
  constexpr const char* kAllowed =
      "access-control-allow-origin=https://page.example;";
  EXPECT_THAT(client.Reply(client.Ask(
                  "OPTIONS", path, {},
                  {origin, {"access-control-request-method", "POST"}})),
              HasSubstr(kAllowed));
  for (const char* type : {"application/x-proto3-json", "text/html"}) {
    EXPECT_THAT(client.Reply(client.Ask("POST", path, "{}",
                                        {origin, {"content-type", type}})),
                HasSubstr(kAllowed));
  }
}

TEST_F(ServerHttp2Test, CallsAreServed) {
  service().on_call = [](TestCall call) {
    EXPECT_EQ(call.controller->GetRequestMetadata().Get("x-m"), "1");
    call.controller->AddResponseMetadata("x-r", "2");
    call.controller->AddResponseTrailer("x-t", "3");
    if (call.request->body() == "no") call.controller->SetFailed(4711, "no");
    FlexibleService::Echo(call);
  };
  Start();
  Http2Client client(endpoint());
  const std::string path = std::string("/rpc/") + kCall;
  const auto call = [&](std::string_view type, std::string_view body) {
    return client.Reply(
        client.Ask("POST", path, body, {{"content-type", type}, {"x-m", "1"}}));
  };
  const std::string message = MakeRequest("hello").SerializeAsString();
  EXPECT_EQ(call("application/x-protobuf", message),
            ":status=200;content-type=application/x-protobuf;rpc-seqno=0;"
            "x-r=2;x-t=3;content-length=9;\n" +
                message);
  EXPECT_THAT(call("application/x-proto3-json", "{\"body\":\"hello\"}"),
              HasSubstr("\n{\"body\":\"hello\"}"));
  const std::string failure =
      call("application/x-proto3-json", "{\"body\":\"no\"}");
  EXPECT_THAT(failure, HasSubstr(":status=500;"));
  EXPECT_THAT(failure, HasSubstr("rpc-error-code=4711;"));
  EXPECT_THAT(failure, HasSubstr("\n{\"code\":4711,\"message\":\"no\"}"));
  EXPECT_THAT(call("text/html", "x"), HasSubstr(":status=415;"));
}

TEST_F(ServerHttp2Test, LargeBodiesGoBothWays) {
  Start();
  Http2Client client(endpoint());
  const std::string body(3'000'000, 'x');
  Http2ClientStream* const echo = client.Ask("POST", "/echo", body);
  client.AwaitEnd(echo);
  EXPECT_TRUE(echo->data == body);
}

TEST_F(ServerHttp2Test, TooMuchIsRefused) {
  server_options().maximum_packet_size = 100'000;
  Start();
  Http2Client client(endpoint());
  const std::string body(200'000, 'x');
  EXPECT_THAT(client.Reply(client.Ask("POST", "/echo", body)),
              HasSubstr(":status=413;"));
  // By its length, before it comes.
  EXPECT_THAT(client.Reply(client.Ask("POST", "/echo", body,
                                      {{"content-length", "200000"}})),
              HasSubstr(":status=413;"));
  EXPECT_THAT(client.Reply(client.Ask("GET", "/echo", {},
                                      {{"x-a", std::string(9000, 'x')}})),
              HasSubstr(":status=431;"));
  const std::vector<Http2Field> fields(200, {"x-a", "1"});
  EXPECT_THAT(client.Reply(client.Ask("GET", "/echo", {}, fields)),
              HasSubstr(":status=431;"));
  ExpectAnswers(&client);
}

// In its own form, and so that the page of another origin may read it.
TEST_F(ServerHttp2Test, ACallThatIsTooLargeIsRefusedAsOthers) {
  server_options().maximum_packet_size = 100'000;
  server_options().http_cors_origins = "http://page";
  Start();
  Http2Client client(endpoint());
  const std::string body(200'000, 'x');
  const Http2Field origin = {"origin", "http://page"};
  for (const bool announced : {false, true}) {
    const Http2Field length = announced ? Http2Field{"content-length", "200000"}
                                        : Http2Field{"x-a", "1"};
    const std::string plain = client.Reply(
        client.Ask("POST", std::string("/rpc/") + kCall, body,
                   {origin, length, {"content-type", "application/json"}}));
    EXPECT_THAT(plain, HasSubstr(":status=413;access-control-allow-origin="
                                 "http://page;"));
    EXPECT_THAT(plain, HasSubstr("rpc-error-code="));
    EXPECT_THAT(plain, HasSubstr("\n{\"code\":"));
    const std::string connect = client.Reply(
        client.Ask("POST", "/flare.rpc.testing.TestService/Call", body,
                   {origin,
                    length,
                    {"content-type", "application/json"},
                    {"connect-protocol-version", "1"}}));
    EXPECT_THAT(connect, HasSubstr("access-control-allow-origin=http://page;"));
    EXPECT_THAT(connect, HasSubstr("\n{\"code\":\"resource_exhausted\""));
  }
  ExpectAnswers(&client);
}

TEST_F(ServerHttp2Test, PiecesWaitForTheStreamsWindow) {
  constexpr std::size_t kPieces = 100;
  std::atomic<std::size_t> written{0};
  Start([&](HttpBodyWriter* body) {
    for (std::size_t i = 0; i != kPieces; ++i) {
      EXPECT_TRUE(body->Write(CreateBufferSlow(std::string(kPiece, 'x'))).ok());
      written += kPiece;
    }
  });
  Http2Client client(endpoint());
  Http2ClientStream* const slow = client.Ask("GET", "/pieces");
  slow->takes = false;
  client.Await([slow] { return slow->data.size() == Http2Client::kWindow; });
  ExpectAnswers(&client);
  EXPECT_LE(written.load(), Http2Client::kWindow + (64 << 10) + kPiece);
  EXPECT_FALSE(slow->ended);
  client.Take(slow);
  client.AwaitEnd(slow);
  EXPECT_EQ(slow->data.size(), kPieces * kPiece);
  EXPECT_THAT(slow->head, HasSubstr(":status=200;"));
}

// With as many calls the connection would read no more, nor see the windows
// that they wait for: the second one isn't begun before the first has ended.
TEST_F(ServerHttp2Test, AsManyWritersAsCallsAtATimeGetTheirWindows) {
  server_options().max_concurrent_requests_per_connection = 2;
  constexpr std::size_t kPieces = 20;
  Start([&](HttpBodyWriter* body) {
    for (std::size_t i = 0; i != kPieces; ++i) {
      EXPECT_TRUE(body->Write(CreateBufferSlow(std::string(kPiece, 'x'))).ok());
    }
  });
  Http2Client client(endpoint());
  ExpectAnswers(&client);  // It knows the limit of streams from now on.
  Http2ClientStream* const first = client.Ask("GET", "/pieces");
  Http2ClientStream* const second = client.Ask("GET", "/pieces");
  first->takes = false;
  client.Await([first] { return first->data.size() == Http2Client::kWindow; });
  client.Take(first);
  for (Http2ClientStream* const stream : {first, second}) {
    client.AwaitEnd(stream);
    EXPECT_EQ(stream->data.size(), kPieces * kPiece);
  }
}

// Writes until that fails.
void WriteOn(HttpBodyWriter* body) {
  while (body->Write(CreateBufferSlow(std::string(kPiece, 'x'))).ok()) continue;
}

TEST_F(ServerHttp2Test, AResetEndsTheWriter) {
  fiber::Event failed;
  Start([&](HttpBodyWriter* body) {
    WriteOn(body);
    failed.Set();
  });
  Http2Client client(endpoint());
  Http2ClientStream* const stream = client.Ask("GET", "/pieces");
  stream->takes = false;
  client.Await(
      [stream] { return stream->data.size() == Http2Client::kWindow; });
  client.Reset(stream);
  failed.Wait();
  ExpectAnswers(&client);
}

TEST_F(ServerHttp2Test, TheConnectionsEndEndsTheWriter) {
  fiber::Event failed;
  Start([&](HttpBodyWriter* body) {
    WriteOn(body);
    failed.Set();
  });
  Http2Client client(endpoint());
  Http2ClientStream* const stream = client.Ask("GET", "/pieces");
  stream->takes = false;
  client.Await(
      [stream] { return stream->data.size() == Http2Client::kWindow; });
  client.Close();
  failed.Wait();
}

TEST_F(ServerHttp2Test, AReplyThatIsGivenUpResetsItsStream) {
  Start([&](HttpBodyWriter* body) {
    EXPECT_TRUE(body->Write(CreateBufferSlow("begun")).ok());
    body->Abort();
    EXPECT_FALSE(body->Write(CreateBufferSlow("more")).ok());
  });
  Http2Client client(endpoint());
  Http2ClientStream* const stream = client.Ask("GET", "/pieces");
  client.AwaitEnd(stream);
  EXPECT_FALSE(stream->ended);
  EXPECT_EQ(stream->error, Http2Error::kInternalError);
  ExpectAnswers(&client);
}

TEST_F(ServerHttp2Test, AWindowThatNeverOpensEndsTheWriter) {
  server_options().output_timeout = std::chrono::milliseconds(50);
  flare::Status last;
  fiber::Event failed;
  Start([&](HttpBodyWriter* body) {
    while (last.ok()) {
      last = body->Write(CreateBufferSlow(std::string(kPiece, 'x')));
    }
    failed.Set();
  });
  Http2Client client(endpoint());
  Http2ClientStream* const stream = client.Ask("GET", "/pieces");
  stream->takes = false;
  client.Await([stream] { return stream->closed; });
  failed.Wait();
  EXPECT_EQ(last.code(), STATUS_TIMEOUT);
  EXPECT_THAT(last.message(), HasSubstr("takes nothing"));
  EXPECT_EQ(stream->data.size(), Http2Client::kWindow);
  EXPECT_EQ(stream->error, Http2Error::kInternalError);
  ExpectAnswers(&client);
}

TEST_F(ServerHttp2Test, WithoutHttpRequestsAreRefused) {
  server_options().no_builtin_pages = true;
  StartServer({"grpc"});
  Http2Client client(endpoint());
  EXPECT_THAT(client.Reply(client.Ask("GET", "/")), HasSubstr(":status=405;"));
}

}  // namespace
}  // namespace flare::rpc::testing
