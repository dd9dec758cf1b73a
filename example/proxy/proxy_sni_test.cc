// Routes by the host that a client of TLS names.
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "example/proxy/config.h"
#include "example/proxy/proxy_fixture.h"
#include "flare/base/endpoint.h"
#include "flare/io/fd.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::io::UniqueFd;
using flare::io::testing::PlainAccept;
using flare::io::testing::PlainListener;
using flare::io::testing::Receive;
using flare::io::testing::SendAll;

std::string Length(std::size_t size, std::size_t bytes) {
  std::string text;
  for (std::size_t i = bytes; i-- != 0;) {
    text += static_cast<char>(size >> (8 * i));
  }
  return text;
}

std::string Counted(const std::string& content, std::size_t bytes) {
  return Length(content.size(), bytes) + content;
}

// A ClientHello in a record of its own. client_hello_test.cc has others.
std::string HelloFor(const std::string& host) {
  std::string body = "\3\3" + std::string(32, 'r') + Counted("", 1) +
                     Counted("\x13\x01", 2) + Counted(std::string(1, '\0'), 1);
  std::string extensions;
  if (!host.empty()) {
    extensions =
        std::string(2, '\0') + Counted(Counted('\0' + Counted(host, 2), 2), 2);
  }
  body += Counted(extensions, 2);
  return "\x16\3\1" + Counted('\1' + Counted(body, 3), 2);
}

// Servers under the test's hands, and each one's connections.
class ProxySniTest : public ProxyTest {
 protected:
  void TearDown() override {
    if (proxy_) WaitIdle();
    ProxyTest::TearDown();
  }

  struct Server {
    UniqueFd listener;
    flare::Endpoint address;
  };
  Server AddServer(std::vector<std::string> hosts, bool is_default = false) {
    Server server;
    server.listener = PlainListener(&server.address);
    config_.upstreams.push_back({server.address.ToString(), server.address, "",
                                 std::move(hosts), is_default});
    config_.routes_by_host = true;
    return server;
  }

  // A client that names `host` comes to `server`, and so does each byte.
  void ExpectServed(const std::string& host, const Server& server) {
    const std::string bytes = HelloFor(host) + "behind it";
    const UniqueFd client = Connect();
    ASSERT_TRUE(SendAll(client.get(), bytes));
    const UniqueFd accepted = PlainAccept(server.listener);
    EXPECT_EQ(Receive(accepted.get(), bytes.size()), bytes) << host;
    ASSERT_TRUE(SendAll(accepted.get(), "reply"));
    EXPECT_EQ(Receive(client.get(), 5), "reply");
    ++sessions_;
  }

  void ExpectTurnedAway(const std::string& bytes) {
    const UniqueFd client = Connect();
    ASSERT_TRUE(SendAll(client.get(), bytes));
    EXPECT_EQ(Receive(client.get(), 1), "");
    EXPECT_EQ(WaitReport(++sessions_).end, SessionEnd::kNoRoute);
  }

  std::size_t sessions_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Shapes, ProxySniTest, ProxyShapes(),
                         flare::fiber::testing::RuntimeShapeName);

TEST_P(ProxySniTest, ClientsGoWhereTheirHostIs) {
  const Server one = AddServer({"one.example"});
  const Server wild = AddServer({"*.example", "two.other"});
  const Server others = AddServer({}, /*is_default=*/true);
  Start();
  ExpectServed("one.example", one);
  ExpectServed("ONE.example", one);
  ExpectServed("two.example", wild);
  ExpectServed("two.other", wild);
  ExpectServed("a.one.example", others);
  ExpectServed("", others);
}

TEST_P(ProxySniTest, ClientsWithoutARouteAreTurnedAway) {
  const Server one = AddServer({"one.example"});
  Start();
  ExpectTurnedAway(HelloFor("two.example"));
  ExpectTurnedAway(HelloFor(""));
  ExpectTurnedAway("GET / HTTP/1.1\r\n\r\n");
  ExpectServed("one.example", one);
}

TEST_P(ProxySniTest, AHelloMayComeByteByByte) {
  const Server one = AddServer({"one.example"});
  Start();
  const UniqueFd client = Connect();
  const std::string hello = HelloFor("one.example");
  for (const char c : hello) {
    ASSERT_TRUE(SendAll(client.get(), std::string(1, c)));
  }
  const UniqueFd accepted = PlainAccept(one.listener);
  EXPECT_EQ(Receive(accepted.get(), hello.size()), hello);
}

TEST_P(ProxySniTest, AClientThatEndsWithinItsHelloIsTurnedAway) {
  const Server one = AddServer({"one.example"});
  Start();
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendAll(client.get(), HelloFor("one.example").substr(0, 20)));
  ASSERT_EQ(::shutdown(client.get(), SHUT_WR), 0);
  EXPECT_EQ(WaitReport().end, SessionEnd::kNoRoute);
}

TEST_P(ProxySniTest, AHelloMustComeInTime) {
  const Server one = AddServer({"one.example"});
  config_.connect_timeout = std::chrono::milliseconds(50);
  Start();
  const UniqueFd client = Connect();
  const SessionReport report = WaitReport();
  EXPECT_EQ(report.end, SessionEnd::kNoRoute);
  EXPECT_EQ(report.error, ETIMEDOUT);
}

TEST_P(ProxySniTest, AHelloMayFollowAProxyHeader) {
  const Server one = AddServer({"one.example"});
  config_.accept_proxy_protocol = true;
  Start();
  const UniqueFd client = Connect();
  const std::string hello = HelloFor("one.example");
  ASSERT_TRUE(SendAll(client.get(),
                      "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n" + hello));
  const UniqueFd accepted = PlainAccept(one.listener);
  EXPECT_EQ(Receive(accepted.get(), hello.size()), hello);
}

TEST_P(ProxySniTest, RoutesChangeByAReload) {
  const Server one = AddServer({"one.example"});
  Start();
  ExpectServed("one.example", one);
  const Server two = AddServer({"one.example"});
  config_.upstreams.erase(config_.upstreams.begin());
  ASSERT_TRUE(Reload().ok());
  ExpectServed("one.example", two);
}

}  // namespace
}  // namespace example::proxy
