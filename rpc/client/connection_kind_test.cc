// Calls on connections of their own: pooled and short ones.
#include "flare/rpc/connection_kind.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using std::chrono::seconds;

// --------------------------------------------------------------------------
// Against a real server, over each protocol
// --------------------------------------------------------------------------

class KindsOfProtocolTest : public ServerTest,
                            public ::testing::WithParamInterface<const char*> {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve() { StartServer({GetParam()}); }

  std::unique_ptr<RpcChannel> Open(ConnectionKind kind) {
    auto channel = std::make_unique<RpcChannel>(
        std::string(GetParam()) + "://" + endpoint().ToString(),
        RpcChannel::Options{.connection_kind = kind});
    EXPECT_TRUE(channel->status().ok()) << channel->status().ToString();
    return channel;
  }

  static void CallAndExpectEcho(RpcChannel* channel, const std::string& body) {
    TestedCall call;
    call.request.set_body(body);
    EXPECT_EQ(call.Start(channel)->Await(), STATUS_SUCCESS)
        << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), body);
  }

  std::uint64_t Accepted() {
    return server().statistics().connections_accepted;
  }
  std::uint64_t StillOpen() { return server().statistics().connections_open; }
};

TEST_P(KindsOfProtocolTest, ShortConnectionsCarryOneCall) {
  Serve();
  const auto channel = Open(ConnectionKind::kShort);
  for (int i = 0; i != 5; ++i) {
    CallAndExpectEcho(channel.get(), "call " + std::to_string(i));
  }
  EXPECT_EQ(Accepted(), 5);
  EXPECT_TRUE(Eventually([&] { return StillOpen() == 0; }));
}

TEST_P(KindsOfProtocolTest, PooledConnectionsAreUsedAgain) {
  Serve();
  const auto channel = Open(ConnectionKind::kPooled);
  for (int i = 0; i != 5; ++i) {
    CallAndExpectEcho(channel.get(), "call " + std::to_string(i));
  }
  EXPECT_EQ(Accepted(), 1);
  EXPECT_EQ(StillOpen(), 1);
}

// As many connections as calls at a time, which later calls share.
TEST_P(KindsOfProtocolTest, PooledConnectionsCarryOneCallAtATime) {
  constexpr int kCalls = 8;
  fiber::Event go;
  fiber::Latch all_run(kCalls);
  service().on_call = [&](TestCall call) {
    all_run.count_down();
    go.Wait();
    FlexibleService::Echo(call);
  };
  Serve();
  const auto channel = Open(ConnectionKind::kPooled);
  std::vector<TestedCall> calls(kCalls);
  for (TestedCall& call : calls) call.Start(channel.get());
  all_run.wait();
  EXPECT_EQ(Accepted(), kCalls);
  go.Set();
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);

  service().on_call = FlexibleService::Echo;
  for (int i = 0; i != 3; ++i) {
    std::vector<TestedCall> again(kCalls);
    for (TestedCall& call : again) call.Start(channel.get());
    for (TestedCall& call : again) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  }
  EXPECT_EQ(Accepted(), kCalls);
}

INSTANTIATE_TEST_SUITE_P(Protocols, KindsOfProtocolTest,
                         ::testing::Values("flare", "http+pb", "http+pb-text",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "grpc", "trpc"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (c == '+' || c == '-') c = '_';
                           }
                           return name;
                         });

// --------------------------------------------------------------------------
// Against a server that does as the test wants
// --------------------------------------------------------------------------

class ConnectionKindTest : public RawServerTest {
 protected:
  static RpcChannel::Options Of(ConnectionKind kind) {
    return {.connection_kind = kind};
  }
};

// A late reply could be taken for that of the next call.
TEST_F(ConnectionKindTest, PooledConnectionWithoutItsReplyIsClosed) {
  RawServer server;
  RpcChannel channel(server.uri(), Of(ConnectionKind::kPooled));
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  ASSERT_TRUE(peer->ReadRequest());
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_EQ(SetOf(server)->dedicated_size(), 0);
  EXPECT_EQ(SetOf(server)->kept_size(), 0);

  TestedCall next;
  next.Start(&channel);
  auto another = server.Accept();
  another->Reply(another->ReadRequest()->id, "pong");
  EXPECT_EQ(next.Await(), STATUS_SUCCESS) << next.controller.ErrorText();
  EXPECT_EQ(SetOf(server)->kept_size(), 1);
}

TEST_F(ConnectionKindTest, KeptConnectionThatTheServerClosedIsNotTaken) {
  RawServer server;
  RpcChannel channel(server.uri(), Of(ConnectionKind::kPooled));
  auto peer = Connect(&channel, &server);
  ASSERT_TRUE(Eventually([&] { return SetOf(server)->kept_size() == 1; }));
  peer->Close();
  ASSERT_TRUE(Eventually([&] { return SetOf(server)->kept_size() == 0; }));
  auto another = Connect(&channel, &server);
  EXPECT_NE(another, nullptr);
}

TEST_F(ConnectionKindTest, IdleKeptConnectionsAreClosed) {
  RawServer server;
  RpcChannel channel(server.uri(), Of(ConnectionKind::kPooled));
  auto peer = Connect(&channel, &server);
  const std::uint64_t before = GetClientStatistics().connections_idle_closed;
  ASSERT_TRUE(Eventually([&] { return SetOf(server)->kept_size() == 1; }));
  ASSERT_TRUE(Eventually([&] { return SetOf(server)->CloseIdle(NowNs()); }));
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_EQ(GetClientStatistics().connections_idle_closed, before + 1);
}

// Channels of several kinds to one server don't disturb each other.
TEST_F(ConnectionKindTest, KindsDoNotShareConnections) {
  RawServer server;
  RpcChannel shared(server.uri());
  RpcChannel pooled(server.uri(), Of(ConnectionKind::kPooled));
  RpcChannel once(server.uri(), Of(ConnectionKind::kShort));
  auto shared_peer = Connect(&shared, &server);
  auto pooled_peer = Connect(&pooled, &server);
  auto short_peer = Connect(&once, &server);
  EXPECT_TRUE(short_peer->AtEnd());
  auto another = Connect(&once, &server);
  EXPECT_TRUE(another->AtEnd());
  EXPECT_EQ(SetOf(server)->size(), 1);
  ASSERT_TRUE(Eventually([&] { return SetOf(server)->kept_size() == 1; }));
  TestedCall call;
  call.Start(&pooled);
  pooled_peer->Reply(pooled_peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  TestedCall other;
  other.Start(&shared);
  shared_peer->Reply(shared_peer->ReadRequest()->id, "pong");
  EXPECT_EQ(other.Await(), STATUS_SUCCESS);
}

TEST_F(ConnectionKindTest, ShutdownEndsAndRefusesThem) {
  RawServer server;
  for (const ConnectionKind kind :
       {ConnectionKind::kPooled, ConnectionKind::kShort}) {
    RpcChannel channel(server.uri(), Of(kind));
    auto kept = Connect(&channel, &server);
    std::vector<TestedCall> calls(3);
    for (TestedCall& call : calls) call.Start(&channel);
    ShutdownClientSide();
    for (TestedCall& call : calls) {
      EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN)
          << call.controller.ErrorText();
    }
    EXPECT_EQ(CallOnce(&channel), STATUS_CHANNEL_SHUTDOWN);
    while (server.HasVisitor()) server.Accept();
  }
}

// Calls wait for the next attempt, each on a connection of its own, and may be
// cancelled meanwhile.
TEST_F(ConnectionKindTest, CallsWaitForAServerThatIsDown) {
  DeadAddress dead;
  RpcChannel channel(dead.uri(), Of(ConnectionKind::kPooled));
  EXPECT_EQ(CallOnce(&channel), STATUS_FAIL_TO_CONNECT);
  std::vector<TestedCall> calls(20);
  for (TestedCall& call : calls) {
    call.controller.SetTimeout(seconds(30));
    call.controller.SetWaitForReady(true);
    call.Start(&channel);
  }
  for (std::size_t i = 0; i < calls.size(); i += 2) {
    calls[i].controller.StartCancel();
    EXPECT_EQ(calls[i].Await(), STATUS_FAILED);
  }
  RawServer server(&dead);
  std::vector<std::thread> serving;
  for (std::size_t i = 0; i != calls.size() / 2; ++i) {
    serving.emplace_back([peer = server.Accept()] { Serve(peer.get()); });
  }
  for (std::size_t i = 1; i < calls.size(); i += 2) {
    EXPECT_EQ(calls[i].Await(), STATUS_SUCCESS)
        << calls[i].controller.ErrorText();
  }
  ShutdownClientSide();
  for (std::thread& thread : serving) thread.join();
}

// As a stream takes a connection of its own, whatever calls do.
TEST_F(ConnectionKindTest, SetGivesDedicatedConnections) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto set = SetOf(server);
  ClientConnection* const first =
      *set->Acquire(nullptr, 0, ConnectionKind::kShort);
  ClientConnection* const second =
      *set->Acquire(nullptr, 0, ConnectionKind::kShort);
  EXPECT_NE(first, second);
  EXPECT_EQ(set->dedicated_size(), 2);
  EXPECT_EQ(set->size(), 1);
  EXPECT_FALSE(set->CloseIdle(NowNs()));  // They are in use.
  EXPECT_EQ(set->dedicated_size(), 2);
  auto first_peer = server.Accept();
  first->Release(/*clean=*/true);
  second->Release(/*clean=*/false);
  EXPECT_EQ(set->dedicated_size(), 0);
  EXPECT_TRUE(first_peer->AtEnd());
}

}  // namespace
}  // namespace flare::rpc::testing
