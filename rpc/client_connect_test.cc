// Connections that are being established: how long that may take, and who waits
// for it.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/client_connection.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::seconds;

class ClientConnectTest : public ClientTest {
 protected:
  static std::shared_ptr<PeerConnections> SetOf(const Endpoint& endpoint) {
    return FindPeerConnections(fiber::GetCurrentSchedulingGroupIndex(),
                               {"flare",
                                {endpoint, endpoint.ToString()},
                                ClientDefaultsFromFlags().max_packet_size});
  }

  static bool Eventually(const std::function<bool()>& done) {
    const std::int64_t deadline = NowNs() + 20'000'000'000;
    while (!done()) {
      if (NowNs() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Nothing that hangs ends by itself before the test has failed.
  static void Start(TestedCall* call, RpcChannel* channel) {
    call->controller.SetTimeout(seconds(30));
    call->Start(channel);
  }
};

TEST_F(ClientConnectTest, SilentServerFailsCallsInTime) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 100;
  SilentAddress silent;
  RpcChannel channel(silent.uri());
  const ClientStatistics before = GetClientStatistics();
  const std::int64_t begin = NowNs();
  TestedCall call;
  Start(&call, &channel);
  EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
  EXPECT_GE(NowNs() - begin, 100'000'000);
  EXPECT_LT(NowNs() - begin, 20'000'000'000);
  const std::string text = call.controller.ErrorText();
  EXPECT_NE(text.find(silent.endpoint().ToString()), std::string::npos) << text;
  EXPECT_NE(text.find("no answer within 100 ms"), std::string::npos) << text;
  EXPECT_EQ(SetOf(silent.endpoint())->size(), 0);
  const ClientStatistics after = GetClientStatistics();
  EXPECT_EQ(after.connections_failed, before.connections_failed + 1);
  EXPECT_EQ(after.connections_broken, before.connections_broken);
}

// Attempts that time out are spaced out like those that are refused.
TEST_F(ClientConnectTest, SilentServerIsNotAskedAllTheTime) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 10;
  SilentAddress silent;
  RpcChannel channel(silent.uri());
  const std::uint64_t before = GetClientStatistics().connections_opened;
  const std::int64_t begin = NowNs();
  for (int i = 0; i != 300; ++i) {
    TestedCall call;
    Start(&call, &channel);
    EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
  }
  // Each takes 10 ms, and at least 15 ms pass before the next one.
  const auto allowed =
      static_cast<std::uint64_t>((NowNs() - begin) / 25'000'000 + 2);
  EXPECT_LE(GetClientStatistics().connections_opened - before, allowed);
}

// While one call waits for a server that doesn't answer, the others go to those
// that do.
TEST_F(ClientConnectTest, SilentServerIsPassedOver) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 30'000;
  SilentAddress silent;
  RawServer server;
  std::thread serving([&] {
    auto peer = server.Accept();
    while (auto request = peer->ReadRequest()) peer->Reply(request->id, "pong");
  });
  RpcChannel channel(silent.uri() + "," + server.endpoint().ToString());
  std::vector<TestedCall> first(2);
  for (TestedCall& call : first) Start(&call, &channel);
  ASSERT_TRUE(
      Eventually([&] { return first[0].HasEnded() || first[1].HasEnded(); }));
  for (int i = 0; i != 200; ++i) {
    TestedCall call;
    Start(&call, &channel);
    ASSERT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    ASSERT_EQ(call.controller.GetRemotePeer(), server.endpoint());
  }
  EXPECT_FALSE(first[0].HasEnded() && first[1].HasEnded());
  ShutdownClientSide();
  for (TestedCall& call : first) call.Await();
  serving.join();
}

// A second connection that doesn't get established keeps no calls from the
// first one, which does work.
TEST_F(ClientConnectTest, EstablishedConnectionsArePreferred) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 1000;
  FLAGS_flare_rpc_client_max_connections_per_server = 2;
  RawServer server(0, /*backlog=*/0);  // Room for one.
  RpcChannel channel(server.uri());
  TestedCall opens_first;
  Start(&opens_first, &channel);
  const auto set = SetOf(server.endpoint());
  ASSERT_TRUE(Eventually([&] { return set->Promising(); }));
  TestedCall opens_second;
  Start(&opens_second, &channel);
  EXPECT_EQ(set->size(), 2);
  std::vector<TestedCall> calls(10);
  for (TestedCall& call : calls) Start(&call, &channel);
  EXPECT_EQ(opens_second.Await(), STATUS_FAIL_TO_CONNECT);

  auto peer = server.Accept();
  for (int i = 0; i != 11; ++i) peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(opens_first.Await(), STATUS_SUCCESS);
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

// The timer is for establishing only.
TEST_F(ClientConnectTest, EstablishedConnectionsOutliveTheLimit) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 1000;
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall slow;
  Start(&slow, &channel);
  auto peer = server.Accept();
  const auto id = peer->ReadRequest()->id;
  const std::int64_t until = NowNs() + 1'100'000'000;
  // Something else passes the time: a connect time-out of another server.
  SilentAddress silent;
  RpcChannel other(silent.uri());
  while (NowNs() < until) {
    TestedCall call;
    Start(&call, &other);
    EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
  }
  peer->Reply(id, "pong");
  EXPECT_EQ(slow.Await(), STATUS_SUCCESS) << slow.controller.ErrorText();
}

// A server that vanishes is noticed even if nobody waits for the reply.
TEST_F(ClientConnectTest, UnacknowledgedDataEndsAConnection) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  Start(&call, &channel);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  ASSERT_EQ(call.Await(), STATUS_SUCCESS);
  // Our end is some descriptor of this process.
  int found = 0;
  for (int fd = 0; fd != 1000; ++fd) {
    if (io::GetRemoteEndpoint(fd) != server.endpoint()) continue;
    ++found;
    int limit = 0;
    socklen_t length = sizeof(limit);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &length),
              0);
    EXPECT_EQ(limit, 10'000);
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace flare::rpc::testing
