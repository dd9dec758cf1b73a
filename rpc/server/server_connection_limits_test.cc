// Which connections a server takes, and how long it keeps idle ones.
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ConnectionLimitsTest = ServerTest;

TEST_F(ConnectionLimitsTest, ConnectionsOverTheLimitAreClosed) {
  server_options().max_concurrent_connections = 2;
  StartServer();
  {
    RawClient first(endpoint()), second(endpoint());
    for (RawClient* client : {&first, &second}) {
      client->Call(1, kCall, MakeRequest(""));
      EXPECT_TRUE(client->ReadReply());
    }
    RawClient third(endpoint());
    EXPECT_TRUE(third.AtEnd());
    EXPECT_EQ(server().statistics().connections_refused, 1u);
    EXPECT_EQ(server().statistics().connections_open, 2u);
    first.Shutdown();
    EXPECT_TRUE(first.AtEnd());
  }
  StopServer();
  EXPECT_EQ(server().statistics().connections_open, 0u);
}

// The handshakes of those that there are go on.
TEST_F(ConnectionLimitsTest, NoHandshakeMakesWayForOneThatIsRefused) {
  std::string folder = ::testing::TempDir() + "/limits_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(
      std::system(("openssl req -x509 -newkey ec -pkeyopt "
                   "ec_paramgen_curve:P-256 -nodes -subj /CN=localhost "
                   "-keyout " +
                   folder + "/key -out " + folder + "/certificate 2> /dev/null")
                      .c_str()),
      0);
  server_options().tls = TlsServerOptions{
      .certificates = {{folder + "/certificate", folder + "/key"}},
      .max_handshakes = 1};
  server_options().max_concurrent_connections = 1;
  StartServer();
  const auto handshakes_end = [](RawClient* client) {
    pollfd end{.fd = client->fd(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 300) != 0;
  };
  RawClient first(endpoint());
  EXPECT_FALSE(handshakes_end(&first));
  RawClient second(endpoint());
  EXPECT_TRUE(second.AtEnd());
  EXPECT_FALSE(handshakes_end(&first));
  EXPECT_EQ(server().statistics().connections_refused, 1u);
}

TEST_F(ConnectionLimitsTest, FilterRefusesConnections) {
  std::atomic<int> asked{0};
  server_options().conn_filter = [&](const Endpoint& peer) {
    EXPECT_EQ(peer.host(), "127.0.0.1");
    return ++asked != 1;
  };
  StartServer();
  EXPECT_TRUE(RawClient(endpoint()).AtEnd());
  RawClient second(endpoint());
  second.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(second.ReadReply());
  EXPECT_EQ(server().statistics().connections_refused, 1u);
}

TEST_F(ConnectionLimitsTest, IdleConnectionsAreClosed) {
  // So long that no call comes too late on a connection that was just made,
  // however busy the machine is.
  server_options().connection_max_idle = std::chrono::milliseconds(2000);
  server_options().remove_idle_connection_interval =
      std::chrono::milliseconds(5);
  fiber::Event go;
  service().on_call = FlexibleService::EchoAfter(&go);
  StartServer();
  RawClient busy(endpoint());
  busy.Call(1, kCall, MakeRequest("busy"));
  RawClient idle(endpoint());
  EXPECT_TRUE(idle.AtEnd());
  // The one with a running call has lived as long.
  go.Set();
  const auto reply = busy.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "busy");
  EXPECT_TRUE(busy.AtEnd());
  idle.Close();
  busy.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_idle, 2u);
  EXPECT_EQ(server().statistics().connections_broken, 0u);
}

TEST_F(ConnectionLimitsTest, TooFewDescriptorsAreAWarning) {
  const LoggedLines warnings(google::WARNING);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  server_options().max_concurrent_connections = 500;
  StartServer();
  EXPECT_FALSE(warnings.Have(": 500 connections ("));
  Server::Options many;
  many.max_concurrent_connections = 900;
  Server another(many);
  another.AddProtocol("flare");
  another.ListenOn(*EndpointFromString("127.0.0.1:0"));
  EXPECT_TRUE(another.Start());
  EXPECT_TRUE(warnings.Have(": 900 connections (--flare_rpc_server_max_"))
      << warnings.All();
  EXPECT_TRUE(warnings.Have("allows only 1000;")) << warnings.All();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace flare::rpc::testing
