// WebSockets of a server and of a client of this library, and of raw bytes.
#include "flare/rpc/websocket.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/access_control.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http/http_upgrade.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/websocket/websocket_counters.h"
#include "flare/rpc/websocket/websocket_frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr WebSocketMask kMask = {1, 2, 3, 4};
// RFC 6455, 1.3.
constexpr char kKey[] = "dGhlIHNhbXBsZSBub25jZQ==";

std::string Upgrade(const std::string& more = "",
                    const std::string& path = "/ws") {
  return "GET " + path +
         " HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n"
         "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: " +
         kKey + "\r\n" + more + "\r\n";
}

std::string ClientFrame(WebSocketOpcode opcode, std::string_view payload) {
  return FlattenSlow(
      MakeWebSocketFrame(opcode, CreateBufferSlow(payload), &kMask));
}

std::string ServerFrame(WebSocketOpcode opcode, std::string_view payload) {
  return FlattenSlow(
      MakeWebSocketFrame(opcode, CreateBufferSlow(payload), nullptr));
}

std::string ClosePayload(int code, std::string_view reason = "") {
  return FlattenSlow(MakeWebSocketClosePayload(code, reason));
}

void Echo(WebSocket& socket, const HttpRequest&) {
  while (auto message = socket.Read()) {
    if (!socket.Write(*std::move(message)).ok()) return;
  }
}

class WebSocketTest : public testing::ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Start(WebSocketHandler handler, WebSocketServerOptions options = {}) {
    server().AddWebSocketHandler("/ws", std::move(handler), std::move(options));
    StartServer();
  }

  static std::unique_ptr<Server> ServerOf(
      const std::string& path, const WebSocketServerOptions& options) {
    auto server = std::make_unique<Server>();
    server->AddWebSocketHandler(path, Echo, options);
    server->AddProtocol("http");
    server->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    if (!server->Start()) return nullptr;
    return server;
  }

  std::string Url(const std::string& path = "/ws") {
    return "ws://" + endpoint().ToString() + path;
  }

  // A raw client behind its handshake.
  std::unique_ptr<testing::RawClient> Open(const std::string& path = "/ws") {
    auto client = std::make_unique<testing::RawClient>(endpoint());
    client->Send(Upgrade("", path));
    EXPECT_THAT(client->ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 101 "));
    return client;
  }

  // Stops the server when it ends: to be declared behind what the server's
  // handlers refer to.
  class StopAtEnd {
   public:
    explicit StopAtEnd(WebSocketTest* test) : test_(test) {}
    ~StopAtEnd() { test_->StopServer(); }

   private:
    WebSocketTest* const test_;
  };

  // The whole answer to a request that is refused: the connection ends.
  std::string Refusal(const std::string& request) {
    testing::RawClient client(endpoint());
    client.Send(request);
    return client.ReadAll();
  }

  static std::string TextOf(const std::optional<WebSocketMessage>& message) {
    if (!message) return "(none)";
    return (message->is_text ? "text:" : "binary:") +
           FlattenSlow(message->data);
  }
};

// --- handshakes --------------------------------------------------------------

TEST_F(WebSocketTest, AnswersTheHandshakeOfTheStandard) {
  Start(Echo);
  testing::RawClient client(endpoint());
  client.Send(Upgrade());
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"),
            "HTTP/1.1 101 Switching Protocols\r\n"
            "Upgrade: websocket\r\n"
            "Connection: Upgrade\r\n"
            "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
            "\r\n");
  client.Send(ClientFrame(WebSocketOpcode::kText, "hi") +
              ClientFrame(WebSocketOpcode::kClose, ClosePayload(1000, "bye")));
  EXPECT_EQ(client.ReadAll(),
            ServerFrame(WebSocketOpcode::kText, "hi") +
                ServerFrame(WebSocketOpcode::kClose, ClosePayload(1000)));
}

TEST_F(WebSocketTest, UpgradeIsAList) {
  Start(Echo);
  for (const char* const fields :
       {"Upgrade: other, WebSocket", "Upgrade: other\r\nUpgrade: websocket"}) {
    std::string request = Upgrade();
    request.replace(request.find("Upgrade: websocket"), 18, fields);
    testing::RawClient client(endpoint());
    client.Send(request);
    EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 101 "));
  }
}

TEST_F(WebSocketTest, RefusesOtherRequests) {
  Start(Echo);
  const std::string get = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: close";
  EXPECT_THAT(Refusal(get + "\r\n\r\n"),
              ::testing::AllOf(StartsWith("HTTP/1.1 426 "),
                               HasSubstr("Sec-WebSocket-Version: 13\r\n")));
  EXPECT_THAT(Refusal("POST /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
                      "Connection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 405 "));
  const auto without = [](std::string what, const std::string& with = "") {
    std::string request = Upgrade();
    const std::size_t at = request.find(what);
    EXPECT_NE(at, request.npos);
    return request.replace(at, what.size(), with);
  };
  EXPECT_THAT(Refusal(without("Version: 13", "Version: 8")),
              StartsWith("HTTP/1.1 426 "));
  EXPECT_THAT(Refusal(without("keep-alive, Upgrade", "close")),
              StartsWith("HTTP/1.1 426 "));
  EXPECT_THAT(Refusal(without("HTTP/1.1", "HTTP/1.0")),
              StartsWith("HTTP/1.1 426 "));
  EXPECT_THAT(Refusal(without(kKey, "dGhlIHNhbXBsZSBub25jZQ")),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Refusal(without("/ws", "/other")), StartsWith("HTTP/1.1 404 "));
  // It doesn't wait for the answer.
  EXPECT_THAT(Refusal(Upgrade() + ClientFrame(WebSocketOpcode::kText, "x")),
              StartsWith("HTTP/1.1 "));
}

TEST_F(WebSocketTest, ChoosesASubprotocol) {
  std::string seen;
  Start(
      [&](WebSocket& socket, const HttpRequest&) {
        seen = socket.subprotocol();
        EXPECT_TRUE(socket.WriteText(seen).ok());
      },
      {.subprotocols = {"b", "c"}});
  const StopAtEnd stop(this);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url(), {.subprotocols = {"a", "c", "b"}});
  ASSERT_TRUE(socket) << socket.error().ToString();
  EXPECT_EQ(socket->subprotocol(), "c");
  EXPECT_EQ(TextOf(socket->Read()), "text:c");
  auto none = client.OpenWebSocket(Url(), {.subprotocols = {"x"}});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->subprotocol(), "");
  EXPECT_EQ(TextOf(none->Read()), "text:");
  EXPECT_EQ(
      client.OpenWebSocket(Url(), {.subprotocols = {"a b"}}).error().code(),
      ERROR_INVALID_REQUEST);
}

TEST_F(WebSocketTest, PagesOfOtherOriginsMayNotConnect) {
  server().AddWebSocketHandler("/some", Echo,
                               {.origins = {"https://a.example"}});
  server().AddWebSocketHandler("/all", Echo, {.origins = {"*"}});
  Start(Echo);
  const auto status = [&](const std::string& path, const std::string& origin) {
    testing::RawClient client(endpoint());
    client.Send(Upgrade("Origin: " + origin + "\r\n", path));
    return client.ReadUntil("\r\n").substr(9, 3);
  };
  EXPECT_EQ(status("/ws", "http://here"), "101");
  EXPECT_EQ(status("/ws", "https://here"), "101");
  EXPECT_EQ(status("/ws", "http://here.evil"), "403");
  EXPECT_EQ(status("/ws", "null"), "403");
  EXPECT_EQ(status("/some", "https://a.example"), "101");
  EXPECT_EQ(status("/some", "http://here"), "403");
  EXPECT_EQ(status("/all", "null"), "101");
}

TEST_F(WebSocketTest, AcceptHasTheLastWord) {
  Start(Echo,
        {.accept = [](const HttpRequest& request, HttpResponse* response) {
          if (request.query() != "token=1") {
            response->set_status(HttpStatus::Unauthorized);
            return false;
          }
          response->headers()->Set("Set-Cookie", "a=b");
          return true;
        }});
  HttpClient client;
  const auto refused = client.OpenWebSocket(Url());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ERROR_NO_WEBSOCKET);
  EXPECT_THAT(refused.error().message(), HasSubstr("401"));
  auto socket = client.OpenWebSocket(Url("/ws?token=1"));
  ASSERT_TRUE(socket) << socket.error().ToString();
  EXPECT_TRUE(socket->WriteText("hi").ok());
  EXPECT_EQ(TextOf(socket->Read()), "text:hi");
}

// --- messages ----------------------------------------------------------------

TEST_F(WebSocketTest, CarriesMessagesOfAllSizes) {
  Start(Echo);
  HttpClient client;
  HttpResponseInfo info;
  auto socket = client.OpenWebSocket(Url(), {}, &info);
  ASSERT_TRUE(socket) << socket.error().ToString();
  EXPECT_FALSE(info.connection_reused);
  for (const std::size_t n : {0u, 1u, 125u, 126u, 65535u, 65536u, 1u << 20}) {
    ASSERT_TRUE(socket->WriteText(std::string(n, 'x')).ok());
    ASSERT_TRUE(
        socket->WriteBinary(CreateBufferSlow(std::string(n, '\xff'))).ok());
    EXPECT_EQ(TextOf(socket->Read()), "text:" + std::string(n, 'x'));
    EXPECT_EQ(TextOf(socket->Read()), "binary:" + std::string(n, '\xff'));
  }
  EXPECT_FALSE(socket->closed());
  EXPECT_EQ(socket->close_code(), 0);
  EXPECT_TRUE(socket->Close(3001, "enough").ok());
  EXPECT_EQ(TextOf(socket->Read()), "(none)");
  EXPECT_TRUE(socket->closed());
  EXPECT_EQ(socket->close_code(), 3001);  // The server's answer.
  EXPECT_EQ(socket->WriteText("late").code(), STATUS_IO_ERROR);
}

TEST_F(WebSocketTest, TextMustBeUtf8BothWays) {
  Start(Echo);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  EXPECT_EQ(socket->WriteText("\xff").code(), EINVAL);
  EXPECT_TRUE(socket->WriteText("\xc3\xa4").ok());
  EXPECT_EQ(TextOf(socket->Read()), "text:\xc3\xa4");

  const auto raw = Open();
  raw->Send(ClientFrame(WebSocketOpcode::kText, "\xff"));
  EXPECT_EQ(raw->ReadAll(),
            ServerFrame(WebSocketOpcode::kClose,
                        ClosePayload(1007, "a text message that isn't UTF-8")));
}

TEST_F(WebSocketTest, PingsAreAnsweredThoughNobodyReads) {
  fiber::Event go;
  Start([&](WebSocket&, const HttpRequest&) { go.Wait(); });
  const StopAtEnd stop(this);
  const auto client = Open();
  client->Send(ClientFrame(WebSocketOpcode::kPing, "are you there?"));
  const std::string pong =
      ServerFrame(WebSocketOpcode::kPong, "are you there?");
  EXPECT_EQ(client->ReadExactly(pong.size()), pong);
  go.Set();
  EXPECT_EQ(client->ReadExactly(4),
            ServerFrame(WebSocketOpcode::kClose, ClosePayload(1000)));
  client->Send(ClientFrame(WebSocketOpcode::kClose, ClosePayload(1000)));
  EXPECT_TRUE(client->AtEnd());
}

TEST_F(WebSocketTest, SeveralFibersMayWrite) {
  constexpr int kWriters = 4;
  constexpr int kEach = 50;
  Start(
      [](WebSocket& socket, const HttpRequest&) {
        std::vector<Fiber> writers;
        for (int i = 0; i != kWriters; ++i) {
          writers.emplace_back([socket]() mutable {
            for (int n = 0; n != kEach; ++n) {
              EXPECT_TRUE(socket.WriteText(std::string(1000, 'x')).ok());
            }
          });
        }
        for (Fiber& writer : writers) writer.join();
      },
      {.limits = {.max_unsent = 4000}});
  const StopAtEnd stop(this);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  int count = 0;
  while (const auto message = socket->Read()) {
    EXPECT_EQ(message->data.size(), 1000u);
    ++count;
  }
  EXPECT_EQ(count, kWriters * kEach);
  EXPECT_EQ(socket->close_code(), 1000);
}

// The peer is held, not dropped, while nobody reads; each side in turn.
TEST_F(WebSocketTest, UnreadMessagesHoldThePeer) {
  constexpr int kMessages = 300;
  const std::string text(10'000, 'x');
  fiber::Event sent;
  Start(
      [&](WebSocket& socket, const HttpRequest&) {
        for (int i = 0; i != kMessages; ++i) {
          EXPECT_TRUE(socket.WriteText(text).ok());
        }
        sent.Set();
        int count = 0;
        while (socket.Read()) ++count;
        EXPECT_EQ(count, kMessages);
        EXPECT_EQ(socket.close_code(), 1000);
      },
      {.limits = {.max_unread = 30'000, .max_unsent = 30'000}});
  const StopAtEnd stop(this);
  HttpClient client;
  auto socket = client.OpenWebSocket(
      Url(), {.limits = {.max_unread = 30'000, .max_unsent = 30'000}});
  ASSERT_TRUE(socket);
  for (int i = 0; i != kMessages; ++i) {
    const auto message = socket->Read();
    ASSERT_TRUE(message);
    EXPECT_EQ(message->data.size(), text.size());
  }
  sent.Wait();
  for (int i = 0; i != kMessages; ++i) {
    ASSERT_TRUE(socket->WriteText(text).ok());
  }
  EXPECT_TRUE(socket->Close().ok());
  EXPECT_EQ(TextOf(socket->Read()), "(none)");
}

// --- compression -------------------------------------------------------------

TEST_F(WebSocketTest, CompressesIfBothSidesWantIt) {
  for (const auto& [server_from, client_from] :
       {std::pair(100, 100), std::pair(100, 0), std::pair(0, 100)}) {
    SCOPED_TRACE(client_from);
    WebSocketServerOptions options;
    options.compress_from = server_from;
    const std::string path =
        "/" + std::to_string(server_from) + "/" + std::to_string(client_from);
    const std::unique_ptr<Server> server = ServerOf(path, options);
    ASSERT_TRUE(server);
    const std::string url = "ws://" + server->endpoint().ToString() + path;
    const bool both = server_from != 0 && client_from != 0;
    HttpClient client;
    WebSocketClientOptions client_options;
    client_options.compress_from = client_from;
    auto socket = client.OpenWebSocket(url, client_options);
    ASSERT_TRUE(socket) << socket.error().ToString();
    EXPECT_EQ(socket->compresses(), both);
    for (const std::size_t n : {0u, 99u, 100u, 70'000u}) {
      const std::string text(n, 'x');
      ASSERT_TRUE(socket->WriteText(text).ok());
      EXPECT_EQ(TextOf(socket->Read()), "text:" + text);
    }
    EXPECT_TRUE(socket->Close().ok());
    EXPECT_FALSE(socket->Read());
    EXPECT_EQ(socket->close_code(), 1000);
    server->Stop();
    server->Join();
  }
}

TEST_F(WebSocketTest, CompressedMessagesAreSmall) {
  Start(
      [](WebSocket& socket, const HttpRequest&) {
        EXPECT_TRUE(socket.compresses());
        EXPECT_EQ(TextOf(socket.Read()), "text:" + std::string(1000, 'x'));
        EXPECT_TRUE(socket.WriteText(std::string(1000, 'y')).ok());
        EXPECT_TRUE(socket.WriteText("short").ok());
      },
      {.compress_from = 100});
  testing::RawClient client(endpoint());
  client.Send(
      Upgrade("Sec-WebSocket-Extensions: permessage-deflate; "
              "server_max_window_bits=10\r\n"));
  EXPECT_THAT(
      client.ReadUntil("\r\n\r\n"),
      HasSubstr("Sec-WebSocket-Extensions: permessage-deflate; "
                "server_no_context_takeover; client_no_context_takeover; "
                "server_max_window_bits=10\r\n"));
  const auto deflated = [](char c) {
    return *DeflateMessage(CreateBufferSlow(std::string(1000, c)), 9);
  };
  client.Send(FlattenSlow(MakeWebSocketFrame(WebSocketOpcode::kText,
                                             deflated('x'), &kMask,
                                             /*deflated=*/true)));
  const std::string expected =
      FlattenSlow(MakeWebSocketFrame(WebSocketOpcode::kText, deflated('y'),
                                     nullptr, /*deflated=*/true)) +
      ServerFrame(WebSocketOpcode::kText, "short");
  EXPECT_LT(expected.size(), 50u);
  EXPECT_EQ(client.ReadExactly(expected.size()), expected);
}

// --- limits ------------------------------------------------------------------

TEST_F(WebSocketTest, BrokenPeersAreTold) {
  Start(Echo, {.limits = {.max_message_size = 10,
                          .max_fragments = 2,
                          .max_control_frames = 5}});
  const auto code = [&](const std::string& bytes) {
    const auto client = Open();
    client->Send(bytes);
    const std::string all = client->ReadAll();
    // Behind the pongs.
    const std::size_t at = all.find('\x88');
    if (at == all.npos || at + 4 > all.size()) return 0;
    return static_cast<unsigned char>(all[at + 2]) * 256 +
           static_cast<unsigned char>(all[at + 3]);
  };
  EXPECT_EQ(code(ServerFrame(WebSocketOpcode::kText, "no mask")), 1002);
  EXPECT_EQ(code(ClientFrame(WebSocketOpcode::kText, "01234567890")), 1009);
  std::string fragment = ClientFrame(WebSocketOpcode::kText, "");
  fragment[0] = 1;
  std::string more = ClientFrame(WebSocketOpcode::kContinuation, "");
  more[0] = 0;
  EXPECT_EQ(code(fragment + more + more), 1008);
  std::string pings;
  for (int i = 0; i != 50; ++i) {
    pings += ClientFrame(WebSocketOpcode::kPing, "");
  }
  EXPECT_EQ(code(pings), 1008);
}

TEST_F(WebSocketTest, CountAsStreamsUnderTheLimits) {
  server_options().max_concurrent_requests = 2;  // One of them for streams.
  Start(Echo);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket) << socket.error().ToString();
  auto second = client.OpenWebSocket(Url());
  if (second) {  // Up to 90%, rounded.
    second = client.OpenWebSocket(Url());
  }
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("503"));
  // The place is given back.
  EXPECT_TRUE(socket->Close().ok());
}

// A socket isn't one of the calls that keep the connection from being read.
TEST_F(WebSocketTest, OneCallForEachConnectionIsEnough) {
  server_options().max_concurrent_requests_per_connection = 1;
  Start(Echo);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket) << socket.error().ToString();
  for (int i = 0; i != 3; ++i) {
    ASSERT_TRUE(socket->WriteText("hello").ok());
    EXPECT_EQ(TextOf(socket->Read()), "text:hello");
  }
  EXPECT_TRUE(socket->Close().ok());
  EXPECT_FALSE(socket->Read());
  EXPECT_EQ(socket->close_code(), 1000);
}

TEST_F(WebSocketTest, SilentPeersArePingedThenGivenUp) {
  fiber::Event over;
  Start(
      [&](WebSocket& socket, const HttpRequest&) {
        EXPECT_FALSE(socket.Read());
        EXPECT_EQ(socket.close_code(), 1006);
        EXPECT_THAT(socket.close_reason(), HasSubstr("idle_timeout"));
        over.Set();
      },
      // Its kernel acknowledges a ping within 40 ms.
      {.limits = {.ping_interval = 100ms, .idle_timeout = 250ms}});
  const StopAtEnd stop(this);
  const auto client = Open();
  const std::string ping = ServerFrame(WebSocketOpcode::kPing, "");
  EXPECT_EQ(client->ReadExactly(ping.size()), ping);
  over.Wait();
}

// Our pings wait in our kernel for ever: that is no sign of life.
TEST_F(WebSocketTest, PeersThatVanishAreGivenUp) {
  fiber::Event over;
  Start(
      [&](WebSocket& socket, const HttpRequest&) {
        EXPECT_FALSE(socket.Read());
        EXPECT_THAT(socket.close_reason(), HasSubstr("idle_timeout"));
        over.Set();
      },
      {.limits = {.ping_interval = 20ms, .idle_timeout = 200ms}});
  const StopAtEnd stop(this);
  const auto client = Open();
  // Its kernel drops all packets, and acknowledges none.
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  ASSERT_EQ(setsockopt(client->fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program,
                       sizeof(program)),
            0);
  over.Wait();
}

TEST_F(WebSocketTest, PongsKeepASilentPeerAlive) {
  Start(Echo, {.limits = {.ping_interval = 1ms, .idle_timeout = 20s}});
  HttpClient client;
  // Its pings are answered, too.
  auto socket = client.OpenWebSocket(
      Url(), {.limits = {.ping_interval = 1ms, .idle_timeout = 20s}});
  ASSERT_TRUE(socket);
  EXPECT_FALSE(socket->ReadUntil(std::chrono::steady_clock::now() + 30ms));
  EXPECT_FALSE(socket->closed());
  EXPECT_TRUE(socket->WriteText("still here").ok());
  EXPECT_EQ(TextOf(socket->Read()), "text:still here");
}

// --- ends --------------------------------------------------------------------

TEST_F(WebSocketTest, TheHandlersEndClosesIt) {
  server().AddWebSocketHandler("/throws", [](WebSocket&, const HttpRequest&) {
    throw std::runtime_error("a test throws");
  });
  Start([](WebSocket& socket, const HttpRequest&) {
    EXPECT_EQ(socket.Close(999).code(), EINVAL);
    EXPECT_EQ(socket.Close(1000, std::string(124, 'x')).code(), EINVAL);
    EXPECT_TRUE(socket.Close(4000, "enough").ok());
    EXPECT_EQ(socket.WriteText("late").code(), STATUS_IO_ERROR);
  });
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  EXPECT_FALSE(socket->Read());
  EXPECT_EQ(socket->close_code(), 4000);
  EXPECT_EQ(socket->close_reason(), "enough");
  auto thrown = client.OpenWebSocket(Url("/throws"));
  ASSERT_TRUE(thrown);
  EXPECT_FALSE(thrown->Read());
  EXPECT_EQ(thrown->close_code(), 1011);
}

TEST_F(WebSocketTest, MessagesBeforeTheEndCanBeRead) {
  std::vector<std::string> read;
  fiber::Event over;
  fiber::Event go;
  Start([&](WebSocket& socket, const HttpRequest&) {
    go.Wait();
    while (auto message = socket.Read()) read.push_back(TextOf(message));
    EXPECT_EQ(socket.close_code(), 1006);
    over.Set();
  });
  const StopAtEnd stop(this);
  {
    const auto client = Open();
    client->Send(ClientFrame(WebSocketOpcode::kText, "a") +
                 ClientFrame(WebSocketOpcode::kText, "b"));
    client->Shutdown();
    go.Set();
    over.Wait();
  }
  EXPECT_EQ(read, (std::vector<std::string>{"text:a", "text:b"}));
}

TEST_F(WebSocketTest, CloseFramesAreAnsweredThoughNobodyReads) {
  fiber::Event over;
  Start(
      [&](WebSocket& socket, const HttpRequest&) {
        while (socket.WriteText("news").ok()) this_fiber::Yield();
        EXPECT_TRUE(socket.closed());
        EXPECT_EQ(socket.close_code(), 4001);
        over.Set();
      },
      {.limits = {.max_unsent = 1000, .close_timeout = 10ms}});
  const StopAtEnd stop(this);
  const auto client = Open();
  client->Send(ClientFrame(WebSocketOpcode::kClose, ClosePayload(4001)));
  const std::string close =
      ServerFrame(WebSocketOpcode::kClose, ClosePayload(4001));
  EXPECT_THAT(client->ReadUntil(close), ::testing::EndsWith(close));
  over.Wait();
}

TEST_F(WebSocketTest, DroppedClientsGoAway) {
  fiber::Event over;
  Start([&](WebSocket& socket, const HttpRequest&) {
    EXPECT_FALSE(socket.Read());
    EXPECT_EQ(socket.close_code(), 1001);
    over.Set();
  });
  const StopAtEnd stop(this);
  {
    // The client itself may go first.
    auto socket = HttpClient().OpenWebSocket(Url());
    ASSERT_TRUE(socket);
    const WebSocket copy = *socket;
  }
  over.Wait();
}

TEST_F(WebSocketTest, PeersMayEndBehindTheirCloseFrame) {
  fiber::Event go;
  Start([&](WebSocket& socket, const HttpRequest&) {
    go.Wait();
    EXPECT_EQ(TextOf(socket.Read()), "text:a");
    EXPECT_FALSE(socket.Read());
    EXPECT_EQ(socket.close_code(), 4001);
    throw std::runtime_error("a test throws");
  });
  const StopAtEnd stop(this);
  const auto client = Open();
  client->Send(ClientFrame(WebSocketOpcode::kText, "a") +
               ClientFrame(WebSocketOpcode::kClose, ClosePayload(4001)));
  client->Shutdown();
  go.Set();
  EXPECT_EQ(client->ReadAll(),
            ServerFrame(WebSocketOpcode::kClose, ClosePayload(4001)));
}

TEST_F(WebSocketTest, PeersThatDontAnswerACloseAreCutOff) {
  Start([](WebSocket&, const HttpRequest&) {},
        {.limits = {.close_timeout = 10ms}});
  const auto client = Open();
  EXPECT_EQ(client->ReadAll(),
            ServerFrame(WebSocketOpcode::kClose, ClosePayload(1000)));
}

// They get all of a large message, and have time for an answer then.
TEST_F(WebSocketTest, PeersThatTakeOutputSlowlyAreWaitedFor) {
  constexpr std::size_t kLarge = std::size_t{12} << 20;
  constexpr std::chrono::nanoseconds kLimit = 400ms;
  constexpr int kSteps = 50;
  const auto handler = [](WebSocket& socket, const HttpRequest& request) {
    EXPECT_TRUE(socket.Read());
    EXPECT_TRUE(
        socket.WriteBinary(CreateBufferSlow(std::string(kLarge, 'x'))).ok());
    if (request.path() != "/echoes") return;
    if (auto message = socket.Read()) {
      static_cast<void>(socket.Write(*std::move(message)));
    }
  };
  server().AddWebSocketHandler("/closes", handler,
                               {.limits = {.close_timeout = kLimit}});
  server().AddWebSocketHandler(
      "/echoes", handler,
      {.limits = {.ping_interval = 0s, .idle_timeout = kLimit}});
  StartServer();
  const std::string end =
      ServerFrame(WebSocketOpcode::kClose, ClosePayload(1000));
  for (const std::string path : {"/closes", "/echoes"}) {
    // Again if this thread was kept from taking something within the limit.
    for (bool in_time = false; !in_time;) {
      const auto client = Open(path);
      const int room = 64 << 10;
      setsockopt(client->fd(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
      client->Send(ClientFrame(WebSocketOpcode::kText, "go"));
      in_time = true;
      auto last = std::chrono::steady_clock::now();
      const auto read = [&](std::size_t n) {
        std::string bytes(n, '\0');
        const ssize_t got =
            recv(client->fd(), bytes.data(), bytes.size(), MSG_WAITALL);
        bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
        const auto now = std::chrono::steady_clock::now();
        in_time = in_time && now - std::exchange(last, now) < kLimit / 2;
        return bytes;
      };
      // In twice the limit.
      std::size_t taken = read(10).size();  // The frame's head.
      while (taken < kLarge + 10) {
        std::this_thread::sleep_for(2 * kLimit / kSteps);
        const std::string bytes =
            read(std::min(kLarge / kSteps, kLarge + 10 - taken));
        if (bytes.empty()) break;
        taken += bytes.size();
      }
      std::string echo;
      if (path == "/echoes") {
        echo = ServerFrame(WebSocketOpcode::kText, "still here");
        client->TrySend(ClientFrame(WebSocketOpcode::kText, "still here"));
      }
      const std::string rest = read(echo.size() + end.size());
      if (!in_time) continue;
      ASSERT_EQ(taken, kLarge + 10) << path;
      EXPECT_EQ(rest, echo + end) << path;
    }
  }
}

TEST_F(WebSocketTest, CopiesOutliveTheHandler) {
  std::optional<WebSocket> copy;
  fiber::Event over;
  Start([&](WebSocket& socket, const HttpRequest&) {
    copy.emplace(socket);
    over.Set();
  });
  const StopAtEnd stop(this);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  EXPECT_FALSE(socket->Read());
  over.Wait();
  StopServer();
  EXPECT_FALSE(copy->WriteText("late").ok());
  EXPECT_FALSE(copy->Read());
}

TEST_F(WebSocketTest, AStoppedServerGoesAway) {
  fiber::Event reading;
  Start([&](WebSocket& socket, const HttpRequest&) {
    reading.Set();
    EXPECT_FALSE(socket.Read());
    EXPECT_TRUE(socket.closed());
  });
  const StopAtEnd stop(this);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  reading.Wait();
  server().Stop();
  EXPECT_FALSE(socket->Read());
  EXPECT_EQ(socket->close_code(), 1001);
  EXPECT_EQ(socket->close_reason(), "the server stops");
  EXPECT_EQ(server().Join(), 0u);
}

// --- as other requests -------------------------------------------------------

TEST_F(WebSocketTest, InterceptorsSeeTheRequest) {
  class Watch : public ServerInterceptor {
   public:
    void Intercept(InterceptedCall& call, ServerNext& next) override {
      if (call.http_request()->headers()->TryGet("X-Token") != "1") {
        return call.SetFailed(STATUS_PERMISSION_DENIED, "no");
      }
      next.Run();
      status = call.status();
      over.Set();
    }
    int status = 0;
    fiber::Event over;
  };
  const auto watch = std::make_shared<Watch>();
  server().AddInterceptor(watch);
  Start(Echo);
  HttpClient client;
  const auto refused = client.OpenWebSocket(Url());
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("403"));
  auto socket =
      client.OpenWebSocket(Url(), {.request = {.headers = {"X-Token: 1"}}});
  ASSERT_TRUE(socket) << socket.error().ToString();
  EXPECT_TRUE(socket->Close().ok());
  watch->over.Wait();
  EXPECT_EQ(watch->status, 101);
}

TEST_F(WebSocketTest, PlainRequestsMayComeBefore) {
  server().AddHttpHandler(
      "/page", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_body("hello");
      }));
  Start(Echo);
  testing::RawClient client(endpoint());
  // Pipelined: the answers leave in order.
  client.Send("GET /page HTTP/1.1\r\nHost: x\r\n\r\n" + Upgrade());
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(client.ReadExactly(5), "hello");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 101 "));
  client.Send(ClientFrame(WebSocketOpcode::kText, "x"));
  const std::string echo = ServerFrame(WebSocketOpcode::kText, "x");
  EXPECT_EQ(client.ReadExactly(echo.size()), echo);
  // A handler that knows nothing of it answers as always.
  EXPECT_THAT(Refusal(Upgrade("", "/page")), StartsWith("HTTP/1.1 200 "));
}

// An upgrade that comes to nothing doesn't keep the connection.
TEST_F(WebSocketTest, ExceptionsBeforeTheSwitchEndTheConnection) {
  fiber::Event prepared;
  server().AddHttpHandler(
      "/throws", NewHttpGetHandler([&](auto&, auto*, auto* context) {
        const auto link = context->body->upgrade()->Prepare();
        ASSERT_TRUE(link);
        const auto before_ns = link->connection->last_received_ns();
        prepared.Set();
        while (link->connection->last_received_ns() == before_ns) {
          this_fiber::Yield();
        }
        throw std::runtime_error("a test throws");
      }));
  Start(Echo);
  const StopAtEnd stop(this);
  testing::RawClient client(endpoint());
  client.Send(Upgrade("", "/throws"));
  prepared.Wait();
  client.Send(ClientFrame(WebSocketOpcode::kText, "too early"));
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 500 "));
}

TEST_F(WebSocketTest, IsCounted) {
  const auto before = WebSocketCounters::Of(/*client=*/true);
  Start(Echo);
  {
    HttpClient client;
    auto socket = client.OpenWebSocket(Url());
    ASSERT_TRUE(socket);
    EXPECT_EQ(WebSocketCounters::Of(true).opened, before.opened + 1);
    ASSERT_TRUE(socket->WriteText("hello").ok());
    EXPECT_EQ(TextOf(socket->Read()), "text:hello");
    EXPECT_TRUE(socket->Close().ok());
    EXPECT_FALSE(socket->Read());
  }
  const auto after = WebSocketCounters::Of(true);
  EXPECT_EQ(after.closed, before.closed + 1);
  EXPECT_EQ(after.lost, before.lost);
  EXPECT_EQ(after.messages_read, before.messages_read + 1);
  EXPECT_EQ(after.bytes_read, before.bytes_read + 5);
  EXPECT_EQ(after.messages_written, before.messages_written + 1);
  EXPECT_EQ(after.bytes_written, before.bytes_written + 5);
}

// --- clients -----------------------------------------------------------------

TEST_F(WebSocketTest, ClientsSayWhatFails) {
  server().AddHttpHandler(
      "/page", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_body("hello");
      }));
  Start(Echo);
  HttpClient client;
  EXPECT_EQ(client.OpenWebSocket("http://x/").error().code(),
            ERROR_PROTOCOL_NOT_SUPPORTED);
  EXPECT_EQ(client.OpenWebSocket(Url("/page")).error().code(),
            ERROR_NO_WEBSOCKET);
  EXPECT_EQ(client.OpenWebSocket(Url("/nothing")).error().code(),
            ERROR_NO_WEBSOCKET);
  EXPECT_EQ(client.OpenWebSocket("ws://127.0.0.1:1").error().code(),
            ERROR_FAIL_TO_CONNECT_SERVER);
}

// Its connection isn't kept by nobody.
TEST_F(WebSocketTest, SocketsThatAnInterceptorHidesGoAway) {
  class Hide : public HttpClientInterceptor {
   public:
    Expected<HttpResponse> Intercept(const std::string&, HttpRequest*,
                                     const HttpClientNext& next) override {
      EXPECT_TRUE(next());
      return HttpResponse();
    }
  };
  fiber::Event over;
  Start([&](WebSocket& socket, const HttpRequest&) {
    EXPECT_FALSE(socket.Read());
    EXPECT_EQ(socket.close_code(), 1001);
    over.Set();
  });
  const StopAtEnd stop(this);
  const InstalledExtension extension(
      {.http_client_interceptor = std::make_shared<Hide>()});
  HttpClient client;
  EXPECT_EQ(client.OpenWebSocket(Url()).error().code(), ERROR_NO_WEBSOCKET);
  over.Wait();
}

TEST_F(WebSocketTest, ClientsReadWithALimit) {
  Start(Echo);
  HttpClient client;
  auto socket = client.OpenWebSocket(Url());
  ASSERT_TRUE(socket);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(socket->ReadUntil(std::chrono::steady_clock::time_point::max(),
                                 stop.get_token()));
  EXPECT_FALSE(socket->closed());
  testing::OnFiber([&] {
    EXPECT_TRUE(socket->WriteText("x").ok());
    EXPECT_EQ(TextOf(socket->Read()), "text:x");
  });
}

TEST_F(WebSocketTest, WorksOverTls) {
  std::string folder = "/tmp/flare_websocket_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  io::testing::MakeTlsCertificate(folder);
  server_options().tls = TlsServerOptions{
      .certificates = {{folder + "/certificate", folder + "/key"}}};
  Start(Echo);
  HttpClient client({.tls = {.insecure_skip_verify = true}});
  auto socket = client.OpenWebSocket("wss://" + endpoint().ToString() + "/ws");
  ASSERT_TRUE(socket) << socket.error().ToString();
  const std::string text(200'000, 'x');
  ASSERT_TRUE(socket->WriteText(text).ok());
  EXPECT_EQ(TextOf(socket->Read()), "text:" + text);
  EXPECT_TRUE(socket->Close().ok());
  EXPECT_FALSE(socket->Read());
  EXPECT_EQ(socket->close_code(), 1000);
  ::unlink((folder + "/certificate").c_str());
  ::unlink((folder + "/key").c_str());
  ::rmdir(folder.c_str());
}

}  // namespace
}  // namespace flare::rpc
