// Requests through proxies.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/fiber/task.h"
#include "flare/fiber/task_group.h"
#include "flare/io/tcp_listener.h"
#include "flare/io/tcp_socket.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_client/http_proxies.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/websocket.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;

constexpr std::string_view kReply =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

// --- the choice --------------------------------------------------------------

bool IsProxied(std::vector<std::string> except, std::string_view url) {
  const auto proxies = HttpProxies::Create(
      {.http = "http://proxy:1", .https = "proxy:2", .except = except});
  EXPECT_TRUE(proxies) << proxies.error().ToString();
  const auto parsed = ParseHttpUrl(url);
  EXPECT_TRUE(parsed);
  const HttpProxy* const proxy = proxies->For(*parsed);
  if (proxy != nullptr) {
    EXPECT_EQ(proxy->address, parsed->tls ? "proxy:2" : "proxy:1");
  }
  return proxy != nullptr;
}

TEST(HttpProxies, AreForAllHostsButSome) {
  EXPECT_TRUE(IsProxied({}, "http://example.com/"));
  EXPECT_TRUE(IsProxied({}, "https://example.com/"));
  EXPECT_FALSE(IsProxied({"*"}, "https://example.com/"));
  for (const char* name :
       {"example.com", ".example.com", "*.example.com", " Example.COM "}) {
    EXPECT_FALSE(IsProxied({name}, "https://example.com/")) << name;
    EXPECT_FALSE(IsProxied({"x", name}, "http://a.example.com:81/")) << name;
    EXPECT_TRUE(IsProxied({name}, "http://anexample.com/")) << name;
    EXPECT_TRUE(IsProxied({name}, "http://example.com.org/")) << name;
  }
  EXPECT_FALSE(IsProxied({"localhost:8080"}, "http://localhost:8080/"));
  EXPECT_TRUE(IsProxied({"localhost:8080"}, "http://localhost/"));
  EXPECT_FALSE(IsProxied({"a.example:8080"}, "http://b.a.example:8080/"));
  EXPECT_FALSE(IsProxied({"10.0.0.1"}, "http://10.0.0.1:81/"));
  EXPECT_FALSE(IsProxied({"::1"}, "http://[::1]:81/"));
  EXPECT_FALSE(IsProxied({"[::1]"}, "http://[::1]/"));
  EXPECT_TRUE(IsProxied({""}, "http://example.com/"));
}

TEST(HttpProxies, AreForNoAddressOfSomeNetworks) {
  EXPECT_FALSE(IsProxied({"10.0.0.0/8"}, "http://10.255.0.1:81/"));
  EXPECT_TRUE(IsProxied({"10.0.0.0/8"}, "http://11.0.0.1/"));
  EXPECT_FALSE(IsProxied({" 192.168.7.9/20 "}, "https://192.168.15.1/"));
  EXPECT_TRUE(IsProxied({"192.168.7.9/20"}, "https://192.168.16.1/"));
  EXPECT_FALSE(IsProxied({"x", "0.0.0.0/0"}, "http://1.2.3.4/"));
  EXPECT_TRUE(IsProxied({"0.0.0.0/0"}, "http://[::1]/"));
  EXPECT_FALSE(IsProxied({"10.0.0.1/32"}, "http://[::ffff:10.0.0.1]/"));
  EXPECT_FALSE(IsProxied({"::ffff:10.0.0.0/104"}, "http://10.1.2.3/"));
  EXPECT_FALSE(IsProxied({"::ffff:10.0.0.0/104"}, "http://[::ffff:10.1.2.3]/"));
  EXPECT_TRUE(IsProxied({"::ffff:10.0.0.0/104"}, "http://11.1.2.3/"));
  EXPECT_FALSE(IsProxied({"::ffff:0.0.0.0/96"}, "http://1.2.3.4/"));
  EXPECT_FALSE(IsProxied({"::1/128"}, "http://[::1]:81/"));
  EXPECT_TRUE(IsProxied({"::1/128"}, "http://[::2]/"));
  for (const char* network : {"fd00::/8", "[fd00::]/8", "FD12::/8"}) {
    EXPECT_FALSE(IsProxied({network}, "http://[fdff::1]/")) << network;
    EXPECT_TRUE(IsProxied({network}, "http://[fe00::1]/")) << network;
  }
  // Names aren't looked up.
  EXPECT_TRUE(IsProxied({"0.0.0.0/0", "::/0"}, "http://example.com/"));
  for (const char* none :
       {"10.0.0.1/33", "10.0.0.1/", "/8", "10.0.0/8", "10.0.0.1/-1",
        "10.0.0.1/8x", "::1/129", "::1/256", "[::1/128", "a/8",
        "::ffff:10.0.0.1/95", "::ffff:10.0.0.1/129"}) {
    EXPECT_TRUE(IsProxied({none}, "http://10.0.0.1/")) << none;
    EXPECT_TRUE(IsProxied({none}, "http://[::1]/")) << none;
  }
}

TEST(HttpProxies, MayBeNone) {
  const auto proxies = HttpProxies::Create({.https = "http://proxy"});
  ASSERT_TRUE(proxies);
  EXPECT_EQ(proxies->For(*ParseHttpUrl("http://example.com/")), nullptr);
  EXPECT_EQ(proxies->For(*ParseHttpUrl("https://example.com/"))->address,
            "proxy:80");
}

TEST(HttpProxies, OfMalformedUrlsAreRefused) {
  for (const char* url :
       {"https://proxy", "socks5://proxy", "http://", "http://proxy:0",
        "http://proxy/path", "http://user@proxy", "http://user:%4@proxy",
        "http://user:p@", "pro xy", "http://unix:3128"}) {
    const auto proxies = HttpProxies::Create({.http = url});
    ASSERT_FALSE(proxies) << url;
    EXPECT_EQ(proxies.error().code(), ERROR_INVALID_URI_ADDRESS);
    // Passwords aren't shown.
    EXPECT_EQ(proxies.error().message().find("user:p@"), std::string::npos);
  }
}

TEST(HttpProxies, ComeFromTheEnvironment) {
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY",
                           "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(HttpProxyOptions::FromEnvironment().http, "");
  // It is a field of a request to CGI programs.
  ::setenv("HTTP_PROXY", "http://evil", 1);
  EXPECT_EQ(HttpProxyOptions::FromEnvironment().http, "");
  ::unsetenv("HTTP_PROXY");
  ::setenv("ALL_PROXY", "http://all", 1);
  ::setenv("https_proxy", "http://secure", 1);
  ::setenv("no_proxy", "a.example, b.example c.example", 1);
  const auto options = HttpProxyOptions::FromEnvironment();
  EXPECT_EQ(options.http, "http://all");
  EXPECT_EQ(options.https, "http://secure");
  EXPECT_EQ(options.except,
            (std::vector<std::string>{"a.example", "b.example", "c.example"}));
  for (const char* name : {"ALL_PROXY", "https_proxy", "no_proxy"}) {
    ::unsetenv(name);
  }
}

// --- requests for the proxy to pass on ---------------------------------------

class HttpClientProxy : public testing::ClientTest {
 protected:
  std::string Proxy(const std::string& user = {}) const {
    return "http://" + user + proxy_.endpoint().ToString();
  }
  Future<HttpClient::Result> Ask(const std::string& url) {
    return client_.AsyncGet(url, {.timeout = 20s});
  }
  static std::string Said(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? *result->body() : result.error().ToString();
  }

  testing::RawServer proxy_;
  HttpClient client_;
};

TEST_F(HttpClientProxy, GetsPlainRequests) {
  client_ = HttpClient(
      {.connect_timeout = 20s, .proxy = {.http = Proxy("me:p%40ss@")}});
  auto future = Ask("http://a.invalid/path?of=tea");
  auto peer = proxy_.Accept();
  std::string request = peer->ReadUntil("\r\n\r\n");
  EXPECT_TRUE(
      request.starts_with("GET http://a.invalid/path?of=tea HTTP/1.1"
                          "\r\nHost: a.invalid\r\n"))
      << request;
  EXPECT_NE(request.find("\r\nProxy-Authorization: Basic bWU6cEBzcw==\r\n"),
            request.npos)
      << request;
  peer->Send(kReply);
  EXPECT_EQ(Said(std::move(future)), "ok");
  // Its connections serve all hosts.
  future = Ask("http://b.invalid:81");
  request = peer->ReadUntil("\r\n\r\n");
  EXPECT_TRUE(
      request.starts_with("GET http://b.invalid:81/ HTTP/1.1\r\n"
                          "Host: b.invalid:81\r\n"))
      << request;
  peer->Send(kReply);
  EXPECT_EQ(Said(std::move(future)), "ok");
}

TEST_F(HttpClientProxy, IsntAskedForSomeHosts) {
  testing::RawServer server;
  client_ = HttpClient({.connect_timeout = 20s,
                        .proxy = {.http = Proxy(), .except = {"127.0.0.1"}}});
  auto future = Ask("http://" + server.endpoint().ToString() + "/path");
  auto peer = server.Accept();
  EXPECT_TRUE(peer->ReadUntil("\r\n\r\n").starts_with("GET /path HTTP/1.1"));
  peer->Send(kReply);
  EXPECT_EQ(Said(std::move(future)), "ok");
  EXPECT_FALSE(proxy_.HasVisitor());
}

TEST_F(HttpClientProxy, OfAMalformedUrlFailsRequests) {
  client_ = HttpClient({.proxy = {.http = "http://u:secret@/"}});
  const auto failed = client_.Get("http://a.invalid/");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_INVALID_URI_ADDRESS);
  EXPECT_EQ(failed.error().message().find("secret"), std::string::npos);
}

TEST_F(HttpClientProxy, HasItsPasswordInItsUrl) {
  client_ = HttpClient({.proxy = {.http = Proxy()}});
  const auto failed = client_.Get(
      "https://a.invalid/", {.headers = {"Proxy-Authorization: Basic x"}});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_INVALID_REQUEST);
}

// --- tunnels that are refused ------------------------------------------------

TEST_F(HttpClientProxy, MayRefuseATunnel) {
  client_ = HttpClient(
      {.connect_timeout = 20s, .proxy = {.https = Proxy("me:pass@")}});
  const std::string large = "HTTP/1.1 200 OK\r\nX: " + std::string(20000, 'x');
  std::string interim;
  for (int i = 0; i != 1000; ++i) interim += "HTTP/1.1 100 Go on\r\n\r\n";
  const std::array<std::pair<std::string_view, std::string_view>, 7> cases = {{
      {"HTTP/1.1 407 Proxy Authentication Required\r\nX: y\r\n\r\n",
       "407 Proxy Authentication Required"},
      {"HTTP/1.1 502 Bad\x01Gateway\r\n\r\n", "502 Bad"},
      {"SSH-2.0-OpenSSH\r\n\r\n", "that isn't HTTP"},
      {"HTTP/1.1 2", "it has closed the connection"},
      {"", "it has closed the connection"},
      {large, "its head is too large"},
      {interim, "its head is too large"},
  }};
  for (const auto& [answer, why] : cases) {
    auto future = Ask("https://a.invalid/");
    auto peer = proxy_.Accept();
    const std::string request = peer->ReadUntil("\r\n\r\n");
    EXPECT_TRUE(
        request.starts_with("CONNECT a.invalid:443 HTTP/1.1\r\n"
                            "Host: a.invalid:443\r\n"));
    EXPECT_NE(request.find("\r\nProxy-Authorization: Basic "), request.npos);
    peer->Send(answer);
    peer->Close();
    const auto failed = fiber::BlockingGet(std::move(future));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ERROR_FAIL_TO_CONNECT_SERVER);
    EXPECT_NE(failed.error().message().find(why), std::string::npos)
        << failed.error().ToString();
  }
}

TEST_F(HttpClientProxy, MayBeSilent) {
  client_ = HttpClient({.connect_timeout = 20ms, .proxy = {.https = Proxy()}});
  const auto failed = client_.Get("https://a.invalid/", {.timeout = 20s});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_FAIL_TO_CONNECT_SERVER)
      << failed.error().ToString();
}

// --- tunnels -----------------------------------------------------------------

// Opens a tunnel to one server, whatever name it is asked for.
class TunnelProxy {
 public:
  // `answer`: to each request, in pieces of a byte.
  TunnelProxy(const Endpoint& target, std::string answer)
      : target_(target),
        answer_(std::move(answer)),
        listener_(*io::TcpListener::Listen(MustParseEndpoint("127.0.0.1:0"))) {
    fiber::Spawn([this] {
      fiber::TaskGroup sessions;
      while (auto client = listener_.Accept()) {
        sessions.Spawn([this, c = *std::move(client)]() mutable { Serve(&c); });
      }
      static_cast<void>(sessions.Wait());
      ended_.Set();
    });
  }
  // Clients must have closed their connections.
  ~TunnelProxy() {
    listener_.Close();
    ended_.Wait();
  }

  std::string url() const {
    return "http://" + listener_.local_endpoint().ToString();
  }
  // Heads of requests.
  std::vector<std::string> heads() {
    ScopedLock guard(mutex_);
    return heads_;
  }

 private:
  void Serve(io::TcpSocket* client) {
    std::string head;
    char byte;
    while (!head.ends_with("\r\n\r\n")) {
      if (!client->ReadExactly({&byte, 1}).ok()) return;
      head += byte;
    }
    {
      ScopedLock guard(mutex_);
      heads_.push_back(head);
    }
    for (const char& piece : answer_) {
      if (!client->Write({&piece, 1}).ok()) return;
    }
    auto server = io::TcpSocket::Connect(target_);
    if (!server) return;
    fiber::TaskGroup back;
    back.Spawn([&] { Pump(&*server, client); });
    Pump(client, &*server);
    static_cast<void>(back.Wait());
  }

  static void Pump(io::TcpSocket* from, io::TcpSocket* to) {
    std::array<char, 4096> space;
    for (;;) {
      const auto n = from->Read(space);
      if (!n || *n == 0) break;
      if (!to->Write(std::string_view(space.data(), *n)).ok()) break;
    }
    static_cast<void>(to->ShutdownWrite());
  }

  const Endpoint target_;
  const std::string answer_;
  io::TcpListener listener_;
  fiber::Event ended_;
  ThreadMutex mutex_;
  std::vector<std::string> heads_ FLARE_GUARDED_BY(mutex_);
};

class HttpClientTunnel : public testing::ServerTest {
 protected:
  void Start(bool tls, HttpClientHttp2 http2 = HttpClientHttp2::kOff) {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    io::testing::MakeTlsCertificate(folder_);
    if (tls) {
      server_options().tls = TlsServerOptions{
          .certificates = {{folder_ + "/certificate", folder_ + "/key"}},
          .alpn = {"h2", "http/1.1"}};
    }
    server().AddHttpHandler(
        "/page", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
          response->set_body(std::string(100'000, 'x'));
        }));
    server().AddWebSocketHandler(
        "/socket", [](WebSocket& socket, const HttpRequest&) {
          while (auto message = socket.Read()) {
            static_cast<void>(socket.Write(*std::move(message)));
          }
        });
    StartServer({"http", "grpc"});
    proxy_.emplace(endpoint(),
                   "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.0 200 Open\r\n\r\n");
    client_ =
        HttpClient({.tls = {.insecure_skip_verify = true},
                    .connect_timeout = 20s,
                    .http2 = http2,
                    .proxy = {.http = proxy_->url(), .https = proxy_->url()}});
  }
  void EchoBySocket(const std::string& url) {
    auto socket = client_.OpenWebSocket(url);
    ASSERT_TRUE(socket) << socket.error().ToString();
    const std::string text(50'000, 'x');
    ASSERT_TRUE(socket->WriteText(text).ok());
    const auto message = socket->Read();
    ASSERT_TRUE(message);
    EXPECT_EQ(FlattenSlow(message->data), text);
  }

  void TearDown() override {
    ShutdownClientSide();
    proxy_.reset();
    ServerTest::TearDown();
    for (const char* file : {"/certificate", "/key"}) {
      ::unlink((folder_ + file).c_str());
    }
    ::rmdir(folder_.c_str());
  }

  std::string folder_ = "/tmp/flare_http_proxy_XXXXXX";
  std::optional<TunnelProxy> proxy_;
  HttpClient client_;
};

TEST_F(HttpClientTunnel, CarriesTls) {
  ASSERT_NO_FATAL_FAILURE(Start(/*tls=*/true));
  HttpResponseInfo info;
  for (int i = 0; i != 3; ++i) {
    const auto response =
        client_.Get("https://a.invalid:8443/page", {.timeout = 20s}, &info);
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(response->body_size(), 100'000);
    EXPECT_EQ(info.connection_reused, i != 0);
  }
  ASSERT_EQ(proxy_->heads().size(), 1);
  EXPECT_TRUE(proxy_->heads()[0].starts_with("CONNECT a.invalid:8443 "));
  // A tunnel leads to one host.
  ASSERT_TRUE(client_.Get("https://b.invalid/page", {.timeout = 20s}));
  EXPECT_EQ(proxy_->heads().size(), 2);
}

TEST_F(HttpClientTunnel, CarriesHttp2) {
  ASSERT_NO_FATAL_FAILURE(Start(/*tls=*/true, HttpClientHttp2::kAlpn));
  const auto response =
      client_.Get("https://a.invalid:8443/page", {.timeout = 20s});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->body_size(), 100'000);
  EXPECT_EQ(response->version(), HttpVersion::kHttp2);
}

TEST_F(HttpClientTunnel, CarriesHttp2InTheClear) {
  ASSERT_NO_FATAL_FAILURE(
      Start(/*tls=*/false, HttpClientHttp2::kPriorKnowledge));
  const auto response = client_.Get("http://a.invalid/page", {.timeout = 20s});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->version(), HttpVersion::kHttp2);
  ASSERT_EQ(proxy_->heads().size(), 1);
  EXPECT_TRUE(proxy_->heads()[0].starts_with("CONNECT a.invalid:80 "));
}

TEST_F(HttpClientTunnel, VerifiesTheServer) {
  ASSERT_NO_FATAL_FAILURE(Start(/*tls=*/true));
  const auto failed =
      HttpClient({.connect_timeout = 20s, .proxy = {.https = proxy_->url()}})
          .Get("https://a.invalid/page", {.timeout = 20s});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_SSL) << failed.error().ToString();
}

TEST_F(HttpClientTunnel, CarriesWebSocketsOverTls) {
  ASSERT_NO_FATAL_FAILURE(Start(/*tls=*/true));
  EchoBySocket("wss://a.invalid/socket");
  ASSERT_EQ(proxy_->heads().size(), 1);
  EXPECT_TRUE(proxy_->heads()[0].starts_with("CONNECT a.invalid:443 "));
}

TEST_F(HttpClientTunnel, CarriesPlainWebSockets) {
  ASSERT_NO_FATAL_FAILURE(Start(/*tls=*/false));
  EchoBySocket("ws://a.invalid/socket");
  ASSERT_EQ(proxy_->heads().size(), 1);
  EXPECT_TRUE(proxy_->heads()[0].starts_with("CONNECT a.invalid:80 "));
}

}  // namespace
}  // namespace flare::rpc
