// A port of their own for pages, alone and as a server has it.
#include "flare/rpc/admin/admin_port.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

::testing::AssertionResult Contains(const std::string& text,
                                    const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

std::string Ask(const Endpoint& address, const std::string& request) {
  RawClient client(address);
  client.Send(request);
  return client.ReadAll();
}

std::string GetPage(const Endpoint& address, const std::string& path) {
  return Ask(
      address,
      "GET " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
}

const Endpoint kAnyPort = EndpointFromIpv4("127.0.0.1", 0);

std::string SocketPath() {
  // In place of TempDir(): a socket's path has at most 107 characters.
  return "/tmp/flare_admin_port_test." + std::to_string(getpid());
}

std::unique_ptr<AdminPort> StartPort(const Endpoint& address = kAnyPort) {
  auto port = AdminPort::Listen(address);
  EXPECT_TRUE(port) << port.error();
  HttpRoutes* const routes = (*port)->routes();
  const auto add = [&](const char* path, HttpHandlerFunction f) {
    EXPECT_TRUE(routes->AddPath(path, NewHttpGetHandler(std::move(f))).ok());
  };
  add("/hello", [](const HttpRequest& request, HttpResponse* response,
                   HttpServerContext* context) {
    response->headers()->Set("X-Query", request.query());
    response->set_body("hello " + context->remote_peer.host());
  });
  add("/large",
      [](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
        response->set_body(std::string(8 << 20, 'x'));
      });
  add("/text", [](const HttpRequest&, HttpResponse* response,
                  HttpServerContext* context) {
    response->headers()->Set("Content-Type", "text/plain");
    response->set_body(std::string(2000, 'x'));
    context->compress_from = 1000;
  });
  add("/throws", [](const HttpRequest&, HttpResponse*, HttpServerContext*) {
    throw std::runtime_error("no");
  });
  add("/throws_anything",
      [](const HttpRequest&, HttpResponse*, HttpServerContext*) { throw 1; });
  EXPECT_TRUE((*port)->Start().ok());
  return *std::move(port);
}

TEST(AdminPortTest, AnswersGets) {
  const auto port = StartPort();
  EXPECT_EQ(GetPage(port->local_endpoint(), "/hello?a=b"),
            "HTTP/1.1 200 OK\r\nX-Query: a=b\r\nContent-Length: 15\r\n"
            "Connection: close\r\n\r\nhello 127.0.0.1");
  EXPECT_EQ(Ask(port->local_endpoint(), "HEAD /hello HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nX-Query: \r\nContent-Length: 15\r\n"
            "Connection: close\r\n\r\n");
}

TEST(AdminPortTest, CompressesPagesForThoseThatTakeIt) {
  const auto port = StartPort();
  const std::string reply =
      Ask(port->local_endpoint(),
          "GET /text HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n");
  EXPECT_TRUE(Contains(reply, "\r\nContent-Encoding: gzip\r\n"));
  const std::string body = reply.substr(reply.find("\r\n\r\n") + 4);
  EXPECT_TRUE(Contains(
      reply, "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n"));
  const auto plain = Decompress(CompressionAlgorithm::kGzip,
                                CreateBufferSlow(body), std::size_t{2000});
  ASSERT_TRUE(plain) << plain.error().ToString();
  EXPECT_EQ(FlattenSlow(*plain), std::string(2000, 'x'));
}

TEST(AdminPortTest, SendsWhatTheKernelDoesNotTakeAtOnce) {
  const auto port = StartPort();
  const std::string reply = GetPage(port->local_endpoint(), "/large");
  EXPECT_GT(reply.size(), std::size_t{8 << 20});
  EXPECT_EQ(reply.back(), 'x');
}

TEST(AdminPortTest, RefusesOtherRequests) {
  const auto port = StartPort();
  const Endpoint address = port->local_endpoint();
  EXPECT_TRUE(Contains(GetPage(address, "/nothing"), "HTTP/1.1 404 "));
  EXPECT_TRUE(Contains(GetPage(address, "/throws"), "HTTP/1.1 500 "));
  EXPECT_TRUE(Contains(GetPage(address, "/throws_anything"), "HTTP/1.1 500 "));
  EXPECT_TRUE(Contains(Ask(address,
                           "POST /hello HTTP/1.1\r\nHost: x\r\n"
                           "Content-Length: 3\r\n\r\nabc"),
                       "HTTP/1.1 405 "));
  EXPECT_TRUE(Contains(Ask(address, "garbage\r\n\r\n"), "HTTP/1.1 400 "));
  EXPECT_TRUE(
      Contains(Ask(address, std::string(AdminPort::kMaxHeadSize + 4096, 'x')),
               "HTTP/1.1 431 "));
}

// They are no more in the way of others than those that sleep.
TEST(AdminPortTest, UnfinishedRequestsHoldNobodyUp) {
  const auto port = StartPort();
  const Endpoint address = port->local_endpoint();
  std::vector<RawClient> others;
  for (std::size_t i = 0; i != AdminPort::kMaxConnections - 1; ++i) {
    others.emplace_back(address);
    others.back().Send("GET /hello");
  }
  EXPECT_TRUE(Contains(GetPage(address, "/hello"), "hello 127.0.0.1"));
  // One by one.
  for (const char c : std::string(" HTTP/1.0\r\n\r\n")) {
    others[0].Send(std::string(1, c));
  }
  EXPECT_TRUE(Contains(others[0].ReadAll(), "hello 127.0.0.1"));
  others[1].Shutdown();
  EXPECT_TRUE(others[1].AtEnd());
}

// Bytes behind a request are thrown away, but not without end at a time.
TEST(AdminPortTest, WhoGoesOnSendingHoldsNobodyUp) {
  const auto port = StartPort();
  const Endpoint address = port->local_endpoint();
  std::atomic<bool> ended{false};
  std::jthread sender([&] {
    RawClient client(address);
    client.Send("GET /hello HTTP/1.0\r\n\r\n");
    const std::string bytes(1 << 20, 'x');
    while (!ended) {
      static_cast<void>(::send(client.fd(), bytes.data(), bytes.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT));
    }
  });
  for (int i = 0; i != 5; ++i) {
    EXPECT_TRUE(Contains(GetPage(address, "/hello"), "hello 127.0.0.1"));
  }
  ended = true;
}

TEST(AdminPortTest, ListensOnUnixSockets) {
  const std::string path = SocketPath();
  {
    const auto port = StartPort(EndpointFromUnix(path));
    EXPECT_TRUE(Contains(GetPage(port->local_endpoint(), "/hello"), "hello "));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(AdminPortTest, AnAddressInUseIsAnError) {
  const auto port = StartPort();
  const auto second = AdminPort::Listen(port->local_endpoint());
  ASSERT_FALSE(second);
  EXPECT_TRUE(
      Contains(second.error().message(), port->local_endpoint().ToString()));
}

class ServerAdminPortTest : public ServerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ServerTest::SetUp());
    server_options().admin_address = "127.0.0.1:0";
  }

  std::string GetAdmin(const std::string& path) {
    return GetPage(server().admin_endpoint(), path);
  }
};

// Fibers that keep the threads of all workers busy until their end.
class StuckWorkers {
 public:
  StuckWorkers() {
    const std::size_t workers =
        fiber::GetSchedulingGroupCount() * fiber::GetSchedulingGroupSize();
    for (std::size_t i = 0; i != workers; ++i) {
      fibers_.emplace_back([this] {
        ++stuck_;
        while (!go_) std::this_thread::yield();
      });
    }
    while (stuck_ != workers) std::this_thread::yield();
  }
  ~StuckWorkers() {
    go_ = true;
    for (Fiber& fiber : fibers_) fiber.join();
  }

 private:
  std::atomic<std::size_t> stuck_{0};
  std::atomic<bool> go_{false};
  std::vector<Fiber> fibers_;
};

TEST_F(ServerAdminPortTest, AnswersWhileAllWorkersAreStuck) {
  StartServer();
  const StuckWorkers stuck;
  EXPECT_TRUE(
      Contains(GetAdmin("/inspect/scheduler"), "\nworkers_per_group 2"));
  EXPECT_TRUE(Contains(GetAdmin("/metrics"),
                       "\nflare_server_connections_accepted_total 0\n"));
  EXPECT_TRUE(Contains(GetAdmin("/inspect/methods"), kCall));
  EXPECT_TRUE(Contains(GetAdmin("/inspect/fibers"), "HTTP/1.1 200 OK"));
  EXPECT_TRUE(Contains(GetAdmin("/inspect/stacks"), "HTTP/1.1 200 OK"));
  EXPECT_TRUE(Contains(GetAdmin("/inspect/channels"), "HTTP/1.1 200 OK"));
  EXPECT_TRUE(Contains(GetAdmin("/inspect"), "/inspect/server"));
}

TEST_F(ServerAdminPortTest, TakesThePagesFromThePortOfTheService) {
  StartServer();
  EXPECT_TRUE(Contains(GetPage(endpoint(), "/inspect"), "HTTP/1.1 404 "));
  EXPECT_TRUE(
      Contains(GetAdmin("/inspect/server"), "connections_accepted 1\n"));
}

TEST_F(ServerAdminPortTest, LeavesThePagesWhereTheyAreAskedFor) {
  server_options().builtin_pages = BuiltinPages::kLoopback;
  StartServer();
  EXPECT_TRUE(Contains(Ask(endpoint(), "GET /metrics HTTP/1.0\r\n\r\n"),
                       "HTTP/1.1 200 "));
  // It isn't this host's proxies that the admin port is for.
  EXPECT_TRUE(Contains(Ask(server().admin_endpoint(),
                           "GET /metrics HTTP/1.0\r\nVia: 1.1 x\r\n\r\n"),
                       "HTTP/1.1 200 "));
}

TEST_F(ServerAdminPortTest, IsGoneAfterJoin) {
  const std::string path = SocketPath();
  server_options().admin_address = "unix:" + path;
  StartServer();
  server().Stop();
  EXPECT_TRUE(
      Contains(GetAdmin("/inspect/server"), "connections_accepted 0\n"));
  server().Join();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ServerAdminPortTest, ABadAddressIsAnError) {
  server_options().admin_address = "localhost";
  server().AddProtocol("flare");
  server().ListenOn(kAnyPort);
  EXPECT_FALSE(server().Start());
  EXPECT_TRUE(Contains(server().error().message(), "localhost"));
}

TEST_F(ServerAdminPortTest, AnAddressInUseIsAnErrorOfTheServer) {
  const auto port = StartPort();
  server_options().admin_address = port->local_endpoint().ToString();
  server().AddProtocol("flare");
  server().ListenOn(kAnyPort);
  EXPECT_FALSE(server().Start());
  EXPECT_TRUE(
      Contains(server().error().message(), port->local_endpoint().ToString()));
}

}  // namespace
}  // namespace flare::rpc::testing
