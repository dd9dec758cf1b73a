// Connections that are being established: how long that may take, and their
// waiters.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientConnectTest : public ClientTest {
 protected:
  static std::shared_ptr<PeerConnections> SetOf(const Endpoint& endpoint) {
    return ConnectionPool::Default()->Find(
        fiber::GetCurrentSchedulingGroupIndex(),
        {"flare",
         {endpoint, endpoint.ToString()},
         FillDefaults({}).connections});
  }

  // Nothing that hangs ends by itself before the test has failed.
  static void Start(TestedCall* call, RpcChannel* channel) {
    call->controller.SetTimeout(seconds(30));
    call->Start(channel);
  }

  // Reads the option from our end of the only connection to it, some descriptor
  // of this process.
  static int SocketOption(const RawServer& server, int level, int name) {
    int value = -1;
    for (int fd = 0; fd != 1000; ++fd) {
      if (io::GetRemoteEndpoint(fd) != server.endpoint()) continue;
      EXPECT_EQ(value, -1) << "more than one connection";
      socklen_t length = sizeof(value);
      EXPECT_EQ(getsockopt(fd, level, name, &value, &length), 0);
    }
    return value;
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
  // If the call hears of it so late that the server may be asked again, it is
  // asked again.
  const std::uint64_t asked =
      after.connections_opened - before.connections_opened;
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 2);
  EXPECT_EQ(after.connections_failed - before.connections_failed, asked);
  EXPECT_EQ(after.connections_broken, before.connections_broken);
}

TEST_F(ClientConnectTest, ADeadlineBeforeIsTold) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 30'000;
  SilentAddress silent;
  RpcChannel channel(silent.uri());
  TestedCall call;
  // Enough to begin, on a busy machine, too.
  call.controller.SetTimeout(milliseconds(300));
  call.Start(&channel);
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
  EXPECT_TRUE(call.controller.ErrorText().ends_with(
      " from " + silent.endpoint().ToString() +
      " until the deadline; it was not connected, nothing was sent by then"))
      << call.controller.ErrorText();
}

// Attempts that time out are spaced out like those that are refused.
TEST_F(ClientConnectTest, SilentServerIsNotAskedAllTheTime) {
  FLAGS_flare_rpc_client_connect_timeout_ms = 10;
  SilentAddress silent;
  RpcChannel channel(silent.uri());
  const std::uint64_t before = GetClientStatistics().connections_opened;
  const std::int64_t begin = NowNs();
  for (int i = 0; i != 8; ++i) {
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
  FLAGS_flare_rpc_client_max_connections_per_server = 2;
  FLAGS_flare_rpc_client_connect_timeout_ms = 3000;
  RawServer server(0, /*backlog=*/0);  // Room for one.
  RpcChannel channel(server.uri());
  const std::uint64_t opened = GetClientStatistics().connections_opened;
  TestedCall opens_first;
  Start(&opens_first, &channel);
  const auto set = SetOf(server.endpoint());
  ASSERT_TRUE(Eventually([&] { return set->Promising(); }));
  // The server's kernel may learn later than the client that it has a visitor;
  // till then it answers a second one, too.
  ASSERT_TRUE(Eventually([&] { return server.HasVisitor(); }));
  TestedCall opens_second;
  Start(&opens_second, &channel);
  // Compares opened ones with all that exist: on a busy machine it has failed
  // already.
  EXPECT_GE(GetClientStatistics().connections_opened, opened + 2);
  std::vector<TestedCall> calls(10);
  for (TestedCall& call : calls) Start(&call, &channel);
  const auto started = ReadSteadyClock();
  // Calls that waited for it go there, too, when it has failed. (Before, an
  // accept would make room for it.)
  ASSERT_TRUE(Eventually([&] { return set->size() == 1; }));
  auto peer = server.Accept();
  for (int i = 0; i != 12; ++i) peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(opens_first.Await(), STATUS_SUCCESS);
  EXPECT_EQ(opens_second.Await(), STATUS_SUCCESS);
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_SUCCESS);
    // They weren't sent again when the second one had failed.
    EXPECT_LE(call.controller.GetTimestampSent(), started);
  }
}

// The timer is for establishing only.
TEST_F(ClientConnectTest, EstablishedConnectionsOutliveTheLimit) {
  // Time enough for establishing it on a busy machine.
  FLAGS_flare_rpc_client_connect_timeout_ms = 2000;
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall slow;
  Start(&slow, &channel);
  auto peer = server.Accept();
  const auto id = peer->ReadRequest()->id;
  const std::int64_t until = NowNs() + 2'100'000'000;
  // Something else passes the time: a connect time-out of another server.
  FLAGS_flare_rpc_client_connect_timeout_ms = 2100;
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

// A server that vanishes is noticed even if nobody waits for the reply. But one
// that takes nothing may be busy: it has as long as the longest call.
TEST_F(ClientConnectTest, SilenceEndsAConnection) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::unique_ptr<RawPeer> peer;
  const auto limit_after = [&](auto timeout) {
    TestedCall call;
    call.controller.SetTimeout(timeout);
    call.Start(&channel);
    if (peer == nullptr) peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
    EXPECT_EQ(call.Await(), STATUS_SUCCESS);
    return SocketOption(server, IPPROTO_TCP, TCP_USER_TIMEOUT);
  };
  EXPECT_EQ(limit_after(milliseconds(9900)), 10'000);
  EXPECT_EQ(limit_after(milliseconds(39'900)), 40'000);
  EXPECT_EQ(limit_after(milliseconds(9000)), 40'000);
  EXPECT_EQ(limit_after(milliseconds(899'900)), 900'000);
  EXPECT_EQ(limit_after(std::chrono::hours(1)), 0);
  EXPECT_EQ(limit_after(seconds(60)), 0);
  EXPECT_EQ(SocketOption(server, SOL_SOCKET, SO_KEEPALIVE), 1);
}

// As the connection's first call, before it is established.
TEST_F(ClientConnectTest, TheFirstCallIsWaitedFor) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.controller.SetTimeout(milliseconds(59'900));
  call.Start(&channel);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  ASSERT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(SocketOption(server, IPPROTO_TCP, TCP_USER_TIMEOUT), 60'000);
}

// --- Servers that can't be connected to, among others ---

class FailOverTest : public ClientConnectTest {
 protected:
  void SetUp() override {
    ClientConnectTest::SetUp();
    FLAGS_flare_rpc_client_max_connections_per_server = 1;
  }

  // Answers as many requests, each with its own body and attachment.
  void Serve(int requests) {
    serving_ = std::thread([this, requests] {
      auto peer = server_.Accept();
      for (int i = 0; i != requests; ++i) {
        const auto request = peer->ReadRequest();
        TestRequest message;
        ASSERT_TRUE(request && message.ParseFromString(request->body));
        peer->Reply(request->id, message.body() + request->attachment);
      }
    });
  }
  void TearDown() override {
    if (serving_.joinable()) serving_.join();
    ClientConnectTest::TearDown();
  }

  RawServer server_;
  DeadAddress dead_;
  std::thread serving_;
};

// Such as localhost, which is ::1 as well for some.
TEST_F(FailOverTest, AServerThatIsDownIsNoFailure) {
  constexpr int kCalls = 20;
  Serve(3 * kCalls);
  RpcChannel channel(dead_.uri() + "," + server_.endpoint().ToString());
  // All at once, while it isn't known yet who is down.
  std::vector<TestedCall> calls(kCalls);
  for (int i = 0; i != kCalls; ++i) {
    calls[i].request.set_body(std::string(100 * i, 'b'));
    calls[i].controller.SetRequestAttachment(CreateBufferSlow("attached"));
    Start(&calls[i], &channel);
  }
  for (TestedCall& call : calls) {
    ASSERT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), call.request.body() + "attached");
    EXPECT_EQ(call.controller.GetRemotePeer(), server_.endpoint());
  }
  // One after the other, for so long that the dead one is tried again.
  for (int i = 0; i != 2 * kCalls; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    TestRequest request;
    request.set_body("ping");
    TestResponse response;
    RpcClientController controller;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    ASSERT_FALSE(controller.Failed()) << controller.ErrorText();
    EXPECT_EQ(response.body(), "ping");
  }
}

TEST_F(FailOverTest, ChannelsMayGoMeanwhile) {
  Serve(1);
  TestedCall call;
  {
    const auto channel = std::make_unique<RpcChannel>(
        dead_.uri() + "," + server_.endpoint().ToString());
    Start(&call, channel.get());
  }
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
}

// Or once more, where that takes so long that the first one may be back.
TEST_F(FailOverTest, EachServerIsAskedOnce) {
  DeadAddress second;
  DeadAddress third;
  RpcChannel channel(dead_.uri() + "," + second.endpoint().ToString() + "," +
                     third.endpoint().ToString());
  const std::uint64_t before = GetClientStatistics().connections_failed;
  TestedCall call;
  Start(&call, &channel);
  EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
  EXPECT_NE(call.controller.ErrorText().find("refused"), std::string::npos)
      << call.controller.ErrorText();
  const std::uint64_t failed = GetClientStatistics().connections_failed;
  EXPECT_GE(failed, before + 3);
  EXPECT_LE(failed, before + 4);
}

TEST_F(FailOverTest, WhatWasSentIsNotSentAgain) {
  RawServer other;
  RpcChannel channel(server_.uri() + "," + other.endpoint().ToString());
  TestedCall call;
  Start(&call, &channel);
  ASSERT_TRUE(
      Eventually([&] { return server_.HasVisitor() || other.HasVisitor(); }));
  RawServer* const chosen = server_.HasVisitor() ? &server_ : &other;
  auto peer = chosen->Accept();
  peer->ReadRequest();
  peer->Close();
  EXPECT_EQ(call.Await(), STATUS_IO_ERROR);
  EXPECT_FALSE((chosen == &server_ ? other : server_).HasVisitor());
}

}  // namespace
}  // namespace flare::rpc::testing
