// A channel's options in place of the flags, and pools of connections as
// objects.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientOptionsTest : public RawServerTest {};

TEST_F(ClientOptionsTest, FlagsFillWhatIsLeftOpen) {
  FLAGS_flare_rpc_client_default_rpc_timeout_ms = 1234;
  FLAGS_flare_rpc_client_default_streaming_rpc_timeout_ms = 2345;
  FLAGS_flare_rpc_client_connect_timeout_ms = 567;
  FLAGS_flare_rpc_client_max_connections_per_server = 3;
  FLAGS_flare_rpc_client_max_dedicated_connections_per_server = 33;
  FLAGS_flare_rpc_client_connection_max_idle = 7;
  FLAGS_flare_rpc_channel_max_packet_size = 4321;
  FLAGS_flare_rpc_max_decompressed_size = 8765;
  FLAGS_flare_rpc_propagate_deadline = false;
  const ClientSettings settings = FillDefaults({});
  EXPECT_EQ(settings.timeout, milliseconds(1234));
  EXPECT_EQ(settings.stream_timeout, milliseconds(2345));
  EXPECT_FALSE(settings.inherits_context);
  EXPECT_EQ(settings.connections,
            (ConnectionSettings{.max_packet_size = 4321,
                                .max_decompressed_size = 8765,
                                .max_connections = 3,
                                .max_dedicated_connections = 33,
                                .connect_timeout = milliseconds(567),
                                .max_idle = seconds(7)}));
}

TEST_F(ClientOptionsTest, OptionsComeBeforeFlags) {
  const ClientSettings settings =
      FillDefaults({.maximum_packet_size = 100,
                    .timeout = seconds(1),
                    .stream_timeout = seconds(2),
                    .inherits_context = false,
                    .max_decompressed_size = 200,
                    .connect_timeout = seconds(3),
                    .max_connections_per_server = 4,
                    .max_dedicated_connections_per_server = 5,
                    .connection_max_idle = seconds(0),
                    .keep_alive = seconds(6)});
  EXPECT_EQ(settings.timeout, seconds(1));
  EXPECT_EQ(settings.stream_timeout, seconds(2));
  EXPECT_FALSE(settings.inherits_context);
  EXPECT_EQ(settings.connections,
            (ConnectionSettings{.max_packet_size = 100,
                                .max_decompressed_size = 200,
                                .max_connections = 4,
                                .max_dedicated_connections = 5,
                                .connect_timeout = seconds(3),
                                .max_idle = seconds(0),
                                .keep_alive = seconds(6)}));
}

TEST_F(ClientOptionsTest, RepliesUnpackToNoMoreThanAMessage) {
  EXPECT_EQ(FillDefaults({}).connections.max_decompressed_size,
            FillDefaults({}).connections.max_packet_size);
  EXPECT_EQ(FillDefaults({.maximum_packet_size = 100})
                .connections.max_decompressed_size,
            100u);
}

TEST_F(ClientOptionsTest, OptionsThatMakeNoSenseFailOpen) {
  const std::pair<RpcChannel::Options, const char*> cases[] = {
      {{.timeout = seconds(0)}, "Options::timeout must be positive"},
      {{.connect_timeout = seconds(-1)}, "Options::connect_timeout"},
      {{.max_connections_per_server = 0}, "must be at least 1"},
      {{.max_dedicated_connections_per_server = 0}, "must be at least 1"},
      {{.connection_max_idle = seconds(-1)}, "Options::connection_max_idle"},
      {{.keep_alive = seconds(-1)}, "Options::keep_alive"},
      {{.name_update_interval = seconds(0)}, "Options::name_update_interval"}};
  for (const auto& [options, text] : cases) {
    RpcChannel channel;
    EXPECT_FALSE(channel.Open("flare://127.0.0.1:1", options)) << text;
    EXPECT_EQ(channel.status().code(), STATUS_INVALID_CHANNEL);
    EXPECT_NE(channel.status().message().find(text), std::string::npos)
        << channel.status().message();
  }
}

TEST_F(ClientOptionsTest, TimeoutIsThatOfTheChannel) {
  RawServer server;
  RpcChannel channel(server.uri(), {.timeout = milliseconds(100)});
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_TIMEOUT);
  // A controller that says something else is heeded.
  TestedCall patient;
  patient.controller.SetTimeout(seconds(20));
  patient.Start(&channel);
  auto peer = server.Accept();
  auto request = peer->ReadRequest();
  if (request->timeout_ms <= 100) request = peer->ReadRequest();
  EXPECT_GT(request->timeout_ms, 100);
  peer->Reply(request->id, "pong");
  EXPECT_EQ(patient.Await(), STATUS_SUCCESS);
}

TEST_F(ClientOptionsTest, ConnectTimeoutIsThatOfTheChannel) {
  SilentAddress silent;
  RpcChannel channel(silent.uri(), {.connect_timeout = milliseconds(50)});
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_FAIL_TO_CONNECT);
  EXPECT_NE(call.controller.ErrorText().find("no answer within 50 ms"),
            std::string::npos)
      << call.controller.ErrorText();
}

TEST_F(ClientOptionsTest, NumberOfSharedConnectionsIsThatOfTheChannel) {
  RawServer server;
  RpcChannel channel(server.uri(), {.max_connections_per_server = 1});
  std::vector<TestedCall> calls(4);
  for (TestedCall& call : calls) call.Start(&channel);
  auto peer = server.Accept();
  for (std::size_t i = 0; i != calls.size(); ++i) {
    peer->Reply(peer->ReadRequest()->id, "pong");
  }
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientOptionsTest, NumberOfDedicatedConnectionsIsLimited) {
  RawServer server;
  RpcChannel channel(server.uri(), {.connection_kind = ConnectionKind::kPooled,
                                    .max_dedicated_connections_per_server = 2});
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) call.Start(&channel);
  std::string text;
  EXPECT_EQ(CallOnce(&channel, &text), STATUS_OVERLOADED);
  EXPECT_NE(text.find("calls use all 2 connections"), std::string::npos)
      << text;
  for (std::size_t i = 0; i != calls.size(); ++i) {
    auto peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
  }
  for (TestedCall& call : calls) EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

TEST_F(ClientOptionsTest, PoolsDoNotShareConnections) {
  RawServer server;
  const auto pool = ConnectionPool::Create();
  RpcChannel one(server.uri(), {.pool = pool});
  RpcChannel two(server.uri());
  RpcChannel again(server.uri(), {.pool = pool});
  auto first = Connect(&one, &server);
  auto second = Connect(&two, &server);
  EXPECT_EQ(pool->statistics().shared, 1);
  EXPECT_EQ(SetOf(server)->size(), 1);
  TestedCall call;
  call.Start(&again);
  first->Reply(first->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_FALSE(server.HasVisitor());
}

// Idle connections of a pool end with it; those that carry calls end later, and
// their calls go on.
TEST_F(ClientOptionsTest, PoolOutlivesNoIdleConnection) {
  FLAGS_flare_rpc_client_remove_idle_connection_interval = 1;
  RawServer server;
  auto pool = ConnectionPool::Create();
  auto channel = std::make_unique<RpcChannel>(
      server.uri(), RpcChannel::Options{.max_connections_per_server = 1,
                                        .pool = std::move(pool)});
  auto peer = Connect(channel.get(), &server);
  TestedCall call;
  call.Start(channel.get());
  const auto request = peer->ReadRequest();
  channel.reset();
  EXPECT_FALSE(peer->HasInput());
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_TRUE(peer->AtEnd());  // By the sweeper of the process's pool.

  channel = std::make_unique<RpcChannel>(
      server.uri(), RpcChannel::Options{.pool = ConnectionPool::Create()});
  auto idle = Connect(channel.get(), &server);
  channel.reset();
  EXPECT_TRUE(idle->AtEnd());
}

TEST_F(ClientOptionsTest, PoolsEndWithTheClientSide) {
  RawServer server;
  const auto pool = ConnectionPool::Create();
  RpcChannel channel(server.uri(), {.pool = pool});
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.Start(&channel);
  peer->ReadRequest();
  ShutdownClientSide();
  EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN);
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_EQ(CallOnce(&channel), STATUS_CHANNEL_SHUTDOWN);
  EXPECT_EQ(pool->statistics().shared, 0);
}

TEST_F(ClientOptionsTest, IdleConnectionsGoWhenTheChannelSays) {
  FLAGS_flare_rpc_client_connection_max_idle = 0;  // Never.
  RawServer server;
  const auto pool =
      ConnectionPool::Create({.idle_check_interval = milliseconds(20)});
  RpcChannel brief(server.uri(),
                   {.connection_max_idle = milliseconds(1), .pool = pool});
  RpcChannel lasting(server.uri(), {.pool = pool});
  auto kept = Connect(&lasting, &server);
  auto closed = Connect(&brief, &server);
  EXPECT_TRUE(closed->AtEnd());
  EXPECT_FALSE(kept->HasInput());
  TestedCall call;
  call.Start(&lasting);
  kept->Reply(kept->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

}  // namespace
}  // namespace flare::rpc::testing
