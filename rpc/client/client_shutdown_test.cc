// The end of the client side, and its next beginning.
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::seconds;

class ClientShutdownTest : public RawServerTest {};

TEST_F(ClientShutdownTest, ShutdownEndsCallsAndRefusesNewOnes) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::vector<TestedCall> calls(10);
  for (TestedCall& call : calls) {
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
  }
  auto peer = server.Accept();
  peer->ReadRequest();
  ShutdownClientSide();
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN)
        << call.controller.ErrorText();
  }
  EXPECT_EQ(CallOnce(&channel), STATUS_CHANNEL_SHUTDOWN);
  ShutdownClientSide();  // Twice does no harm.

  // A channel opened after it has a client side again.
  RawServer another;
  RpcChannel fresh(another.uri());
  std::thread serving([&] { Serve(another.Accept().get()); });
  EXPECT_EQ(CallOnce(&fresh), STATUS_SUCCESS);
  ShutdownClientSide();
  serving.join();
}

// However often they would try: it is over.
TEST_F(ClientShutdownTest, ShutdownEndsCallsThatTryForEver) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.controller.SetMaxRetries(std::numeric_limits<std::size_t>::max());
  call.controller.SetTimeout(std::chrono::hours(1));
  call.Start(&channel);
  auto peer = server.Accept();
  peer->ReadRequest();
  ShutdownClientSide();
  EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN);
}

// Nor does it matter that they know no server.
TEST_F(ClientShutdownTest, ShutdownEndsCallsThatFindNobody) {
  RpcChannel channel("flare://service", {.override_nslb = NobodyNslb()});
  TestedCall call;
  call.controller.SetMaxRetries(std::numeric_limits<std::size_t>::max());
  call.controller.SetTimeout(std::chrono::hours(1));
  call.Start(&channel);
  EXPECT_FALSE(call.HasEnded());
  ShutdownClientSide();
  EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN);
}

// A channel that was there, but had not made a call yet, has no client side any
// more; nor do its calls keep a later one from having a sweeper.
TEST_F(ClientShutdownTest, ShutdownHoldsForChannelsNeverUsed) {
  FLAGS_flare_rpc_client_remove_idle_connection_interval = 1;
  FLAGS_flare_rpc_client_connection_max_idle = 1;
  RawServer server;
  RpcChannel unused(server.uri());
  ShutdownClientSide();
  EXPECT_EQ(CallOnce(&unused), STATUS_CHANNEL_SHUTDOWN);
  EXPECT_EQ(SetOf(server)->size(), 0);
  EXPECT_FALSE(server.HasVisitor());

  RpcChannel fresh(server.uri());
  TestedCall call;
  call.Start(&fresh);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_TRUE(peer->AtEnd());  // Closed by the sweeper.
}

// First calls of many channels come while the client side is being shut down.
TEST_F(ClientShutdownTest, ShutdownMissesNoSet) {
  RawServer server;  // Never accepts nor answers.
  for (std::size_t round = 0; round != 50; ++round) {
    std::vector<std::unique_ptr<RpcChannel>> channels;
    for (std::size_t i = 0; i != 8; ++i) {
      // Each has a set of its own.
      channels.push_back(std::make_unique<RpcChannel>(
          server.uri(), RpcChannel::Options{.maximum_packet_size = 1000 + i}));
    }
    std::vector<TestedCall> calls(channels.size());
    fiber::Latch started(1);
    fiber::Event all_made;
    fiber::Spawn([&] {
      started.count_down();
      for (std::size_t i = 0; i != calls.size(); ++i) {
        calls[i].controller.SetTimeout(seconds(20));
        calls[i].Start(channels[i].get());
      }
      all_made.Set();
    });
    started.wait();
    ShutdownClientSide();  // Else it waits for ever.
    for (TestedCall& call : calls) {
      ASSERT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN)
          << call.controller.ErrorText();
    }
    all_made.Wait();
  }
}

// One that has been told so isn't forgotten if the server then says nothing.
TEST_F(ClientShutdownTest, ConnectionsOnTheirLastReplyAreShutDown) {
  RawServer server;
  RpcChannel channel("http+pb://" + server.endpoint().ToString());
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  std::vector<TestedCall> calls(2);
  for (TestedCall& call : calls) {
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
  }
  auto peer = server.Accept();
  const std::string request = peer->ReadUntil("ping");
  const std::size_t at = request.find("Rpc-SeqNo: ") + 11;
  peer->Send(
      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n"
      "Rpc-SeqNo: " +
      request.substr(at, request.find('\r', at) - at) + "\r\n\r\n");
  EXPECT_EQ(calls[0].Await(), STATUS_SUCCESS);
  ShutdownClientSide();
  EXPECT_EQ(calls[1].Await(), STATUS_CHANNEL_SHUTDOWN);
}

}  // namespace
}  // namespace flare::rpc::testing
