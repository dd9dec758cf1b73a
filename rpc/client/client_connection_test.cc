// Connections that are shared, break, are refused and come back. Which of them
// a call gets is in peer_connections_test.cc.
#include "flare/rpc/client/client_connection.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/io/back_pressure.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/client/peer_connections.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::seconds;

class ClientConnectionTest : public RawServerTest {
 protected:
  // How often a server that is never well is connected to since `begin_ns`, at
  // most: at first, and after 15, 15 + 30, 15 + 30 + 60 ... ms at the earliest.
  static std::uint64_t MostAttemptsSince(std::int64_t begin_ns) {
    const std::int64_t elapsed_ms = (NowNs() - begin_ns) / 1'000'000;
    std::uint64_t allowed = 2;
    for (std::int64_t t = 15, step = 15; t <= elapsed_ms; t += step) {
      step = std::min<std::int64_t>(2 * step, 750);
      ++allowed;
    }
    return allowed;
  }

  // A connection with more waiting output than the kernel and it take.
  static ClientConnection* AcquireFull(const RawServer& server) {
    auto acquired = SetOf(server)->Acquire(nullptr, kNoDeadline,
                                           ConnectionKind::kMultiplexed);
    if (!acquired) {
      ADD_FAILURE() << "no connection";
      return nullptr;
    }
    const std::string much(80 << 20, 'x');
    EXPECT_EQ((*acquired)->Send(CreateBufferSlow(much)), io::WriteResult::kOk);
    return *acquired;
  }
};

TEST_F(ClientConnectionTest, IdleConnectionIsUsedAgain) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread serving([&] { Serve(server.Accept().get()); });
  for (int i = 0; i != 20; ++i) ASSERT_EQ(CallOnce(&channel), STATUS_SUCCESS);
  EXPECT_EQ(SetOf(server)->size(), 1);
  EXPECT_FALSE(server.HasVisitor());
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, ChannelsShareConnections) {
  RawServer server;
  std::thread serving([&] { Serve(server.Accept().get()); });
  for (int i = 0; i != 5; ++i) {
    RpcChannel channel(server.uri());
    ASSERT_EQ(CallOnce(&channel), STATUS_SUCCESS);
  }
  EXPECT_FALSE(server.HasVisitor());
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, PacketSizesDoNotShareConnections) {
  RawServer server;
  RpcChannel small(server.uri(), {.maximum_packet_size = 1000});
  RpcChannel large(server.uri());
  std::thread serving([&] {
    auto first = server.Accept();
    auto request = first->ReadRequest();
    first->Reply(request->id, std::string(2000, 'x'));
    auto second = server.Accept();
    request = second->ReadRequest();
    second->Reply(request->id, std::string(2000, 'x'));
    Serve(second.get());
  });
  std::string text;
  EXPECT_EQ(CallOnce(&small, &text), STATUS_MALFORMED_DATA);
  EXPECT_NE(text.find("exceeds the limit of 1000"), std::string::npos) << text;
  EXPECT_EQ(CallOnce(&large), STATUS_SUCCESS);
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, BreakingFailsAllCallsOnIt) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  std::vector<TestedCall> calls(100);
  for (TestedCall& call : calls) {
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
  }
  auto peer = server.Accept();
  for (int i = 0; i != 100; ++i) peer->ReadRequest();
  peer->Close();
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_IO_ERROR);
    EXPECT_NE(call.controller.ErrorText().find(server.endpoint().ToString()),
              std::string::npos)
        << call.controller.ErrorText();
  }
}

// A plain client that speaks to a port for TLS sees no more than that.
TEST_F(ClientConnectionTest, AServerThatNeverAnsweredMayExpectTls) {
  for (const bool answered_before : {false, true}) {
    RawServer server;
    RpcChannel channel(server.uri());
    std::thread serving([&] {
      auto peer = server.Accept();
      if (answered_before) peer->Reply(peer->ReadRequest()->id, "pong");
      peer->ReadRequest();  // Never answered.
    });
    if (answered_before) {
      EXPECT_EQ(CallOnce(&channel), STATUS_SUCCESS);
    }
    std::string text;
    EXPECT_EQ(CallOnce(&channel, &text), STATUS_IO_ERROR);
    EXPECT_NE(
        text.find(server.endpoint().ToString() + " closed the connection"),
        std::string::npos)
        << text;
    EXPECT_EQ(text.find("(does it expect TLS?)") == std::string::npos,
              answered_before)
        << text;
    serving.join();
  }
}

// A credit or an end that is lost would leave the server waiting.
TEST_F(ClientConnectionTest, FramesOfStreamsGoWhereRequestsWait) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  ClientConnection* const connection = AcquireFull(server);
  ASSERT_NE(connection, nullptr);
  EXPECT_TRUE(connection->WriteSoon(CreateBufferSlow("a credit")));
  peer->Close();
  EXPECT_EQ(connection->WaitWritable(kNoDeadline), io::RoomResult::kClosed);
  EXPECT_FALSE(connection->WriteSoon(CreateBufferSlow("a credit")));
  connection->Release(/*clean=*/false);
}

// A server that asks, say by PINGs, and doesn't read doesn't fill the memory:
// not by single answers, nor by those to all questions of one read.
TEST_F(ClientConnectionTest, AServerThatTakesNoFramesIsLeft) {
  for (const std::size_t size : {9, 16'000}) {
    RawServer server;
    RpcChannel channel(server.uri());
    auto peer = Connect(&channel, &server);
    ClientConnection* const connection = AcquireFull(server);
    ASSERT_NE(connection, nullptr);
    constexpr std::size_t kMany = 10'000'000;
    const Buffer answer = CreateBufferSlow(std::string(size, 'x'));
    std::size_t frames = 0;
    std::size_t most = 0;
    while (frames != kMany && connection->WriteSoon(Buffer(answer))) {
      ++frames;
      most = std::max(most, connection->output()->BufferedOutput());
    }
    EXPECT_GT(frames, 1000U);
    EXPECT_LT(frames, kMany);
    EXPECT_LT(most, 256u << 20);
    EXPECT_EQ(connection->WaitWritable(kNoDeadline), io::RoomResult::kClosed);
    while (connection->close_reason().ok()) std::this_thread::yield();
    EXPECT_NE(connection->close_reason().message().find("takes none"),
              std::string::npos)
        << connection->close_reason().message();
    connection->Release(/*clean=*/false);
  }
}

// A connection that has brought replies is replaced at once when it breaks.
TEST_F(ClientConnectionTest, NextCallOpensANewOne) {
  RawServer server;
  RpcChannel channel(server.uri());
  for (int i = 0; i != 5; ++i) {
    std::thread serving([&] {
      auto peer = server.Accept();
      peer->Reply(peer->ReadRequest()->id, "pong");
      peer->ReadRequest();  // Never answered: it breaks.
    });
    EXPECT_EQ(CallOnce(&channel), STATUS_SUCCESS);
    EXPECT_EQ(CallOnce(&channel), STATUS_IO_ERROR);
    serving.join();
  }
}

TEST_F(ClientConnectionTest, GarbageBreaksTheConnection) {
  RawServer server;
  RpcChannel channel(server.uri());
  const std::string garbage[] = {
      std::string(100, 'x'), std::string("HTTP/1.1 200 OK\r\n\r\n"),
      // A header that announces more than anybody may send.
      std::string("CPRF\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
      // A meta that can't be parsed.
      std::string("CPRF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
                  "\xff\xff\xff",
                  19)};
  for (const std::string& bytes : garbage) {
    std::thread serving([&] {
      auto peer = server.Accept();
      peer->Reply(peer->ReadRequest()->id, "pong");
      peer->ReadRequest();
      peer->Send(bytes);
      EXPECT_TRUE(peer->AtEnd());
    });
    EXPECT_EQ(CallOnce(&channel), STATUS_SUCCESS);
    std::string text;
    EXPECT_EQ(CallOnce(&channel, &text), STATUS_IO_ERROR);
    EXPECT_NE(text.find(server.endpoint().ToString()), std::string::npos);
    serving.join();
  }
}

TEST_F(ClientConnectionTest, RepliesMayComeInPieces) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall first, second;
  first.Start(&channel);
  auto peer = server.Accept();
  const std::string bytes =
      peer->Encode(peer->ReadRequest()->id, std::string(100'000, 'x'));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = at < 40 ? 1 : 9973;
    peer->Send(std::string_view(bytes).substr(at, n));
    at += n;
  }
  EXPECT_EQ(first.Await(), STATUS_SUCCESS);
  EXPECT_EQ(first.response.body().size(), 100'000);
}

// The size of a message may be wrong, and nothing be read behind it.
TEST_F(ClientConnectionTest, OneThatIsStuckWithinAMessageIsGivenUp) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto set = SetOf(server);
  const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
  // The first reply still wants the bytes of the second one. (So is the third,
  // if the first was read only after the second call was sent.)
  while (set->size() != 0 && NowNs() < give_up_ns) {
    const auto call = StartShort(&channel, milliseconds(200));
    const auto request = peer->ReadRequest();
    ASSERT_TRUE(request);
    std::string reply = peer->Encode(request->id, "pong");
    reply[9] = 100;  // The size of the body: 25 KB more.
    peer->Send(reply);
    EXPECT_EQ(call->Await(), STATUS_TIMEOUT);
  }
  EXPECT_TRUE(peer->AtEnd());
  peer = Connect(&channel, &server);
}

TEST_F(ClientConnectionTest, OneThatIsStuckStillBringsItsMessage) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall patient;
  patient.controller.SetTimeout(seconds(20));
  patient.Start(&channel);
  const std::string reply = peer->Encode(peer->ReadRequest()->id, "pong");
  peer->Send(reply.substr(0, 20));
  while (!server.HasVisitor()) {
    TestedCall call;
    call.controller.SetTimeout(milliseconds(20));
    call.Start(&channel);
    EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
  }
  peer->Send(reply.substr(20));
  EXPECT_EQ(patient.Await(), STATUS_SUCCESS) << patient.controller.ErrorText();
  peer = server.Accept();
  TestedCall next;
  next.Start(&channel);
  while (auto request = peer->ReadRequest()) {
    peer->Reply(request->id, "pong");
    if (request->timeout_ms > 20) break;
  }
  EXPECT_EQ(next.Await(), STATUS_SUCCESS) << next.controller.ErrorText();
}

// A skipped message isn't one that is coming in.
TEST_F(ClientConnectionTest, OneThatHasSkippedAMessageIsNotStuck) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri(), {.maximum_packet_size = 1000});
  auto peer = Connect(&channel, &server);
  TestedCall large;
  large.Start(&channel);
  const std::string reply =
      peer->Encode(peer->ReadRequest()->id, std::string(2000, 'x'));
  peer->Send(reply.substr(0, 1000));
  EXPECT_EQ(large.Await(), STATUS_MALFORMED_DATA);
  peer->Send(reply.substr(1000));
  // If that is read later, there is less to see.
  std::this_thread::sleep_for(milliseconds(50));
  const auto slow = StartShort(&channel, milliseconds(200));
  EXPECT_TRUE(peer->ReadRequest());
  EXPECT_EQ(slow->Await(), STATUS_TIMEOUT);
  TestedCall next;
  next.Start(&channel);
  if (const auto request = peer->ReadRequest()) {
    peer->Reply(request->id, "pong");
  } else {
    ADD_FAILURE() << "the connection was given up";
    next.controller.StartCancel();
  }
  next.Await();
}

TEST_F(ClientConnectionTest, RefusedConnectionFailsCalls) {
  DeadAddress nowhere;
  RpcChannel channel(nowhere.uri());
  std::string text;
  EXPECT_EQ(CallOnce(&channel, &text), STATUS_FAIL_TO_CONNECT);
  EXPECT_NE(text.find(nowhere.endpoint().ToString()), std::string::npos)
      << text;
  EXPECT_NE(text.find("refused"), std::string::npos) << text;
}

// Many calls to a dead server make few attempts to connect.
TEST_F(ClientConnectionTest, AttemptsToConnectAreSpacedOut) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  DeadAddress nowhere;
  RpcChannel channel(nowhere.uri());
  const std::uint64_t before = GetClientStatistics().connections_opened;
  const std::int64_t begin = NowNs();
  std::set<std::string> texts;
  std::vector<TestedCall> calls(1000);
  for (TestedCall& call : calls) {
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
  }
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
    texts.insert(call.controller.ErrorText());
  }
  EXPECT_LE(GetClientStatistics().connections_opened - before,
            MostAttemptsSince(begin));
  EXPECT_EQ(texts.size(), 1u);
}

// Calls without time until the next attempt don't wait for their end.
TEST_F(ClientConnectionTest, CallsThatCannotWaitFailAtOnce) {
  DeadAddress nowhere;
  RpcChannel channel(nowhere.uri());
  EXPECT_EQ(CallOnce(&channel), STATUS_FAIL_TO_CONNECT);
  bool told = false;
  // Pauses get longer, so that one of these calls comes within one.
  for (int i = 0; i != 10'000 && !told; ++i) {
    TestedCall call;
    call.controller.SetTimeout(std::chrono::milliseconds(5));
    told =
        call.Start(&channel)->Await() == STATUS_FAIL_TO_CONNECT &&
        call.controller.ErrorText().find("a moment ago") != std::string::npos;
  }
  EXPECT_TRUE(told);
}

// Nor is one that takes connections and answers with something else than whole
// replies.
TEST_F(ClientConnectionTest, AttemptsWithoutReplyAreSpacedOut) {
  RawServer server;
  RpcChannel channel(server.uri());
  const std::uint64_t before = GetClientStatistics().connections_opened;
  const std::int64_t begin = NowNs();
  for (int i = 0; i != 6; ++i) {
    TestedCall call;
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
    while (!call.HasEnded()) {
      if (!server.HasVisitor()) continue;
      auto peer = server.Accept();
      peer->Send(peer->Encode(peer->ReadRequest()->id, "pong").substr(0, 20));
    }
    const int code = call.Await();
    EXPECT_TRUE(code == STATUS_IO_ERROR || code == STATUS_FAIL_TO_CONNECT)
        << code << " " << call.controller.ErrorText();
  }
  EXPECT_LE(GetClientStatistics().connections_opened - before,
            MostAttemptsSince(begin));
}

// The channel goes on when a server comes back, whatever happened in between.
TEST_F(ClientConnectionTest, SurvivesRestartOfTheServer) {
  auto server = std::make_unique<RawServer>();
  const Endpoint endpoint = server->endpoint();
  RpcChannel channel(server->uri());
  std::vector<TestedCall> under_way(10);
  for (TestedCall& call : under_way) {
    call.controller.SetTimeout(seconds(20));
    call.Start(&channel);
  }
  server.reset();  // Resets the connections, accepted or not.
  for (TestedCall& call : under_way) {
    const int code = call.Await();
    EXPECT_TRUE(code == STATUS_IO_ERROR || code == STATUS_FAIL_TO_CONNECT)
        << code << " " << call.controller.ErrorText();
  }
  const int refused = CallOnce(&channel);
  EXPECT_TRUE(refused == STATUS_IO_ERROR || refused == STATUS_FAIL_TO_CONNECT);

  RawServer again(endpoint.port());
  std::thread serving([&] { Serve(again.Accept().get()); });
  const std::int64_t deadline = NowNs() + 20'000'000'000;
  while (CallOnce(&channel) != STATUS_SUCCESS && NowNs() < deadline) {
  }
  EXPECT_EQ(CallOnce(&channel), STATUS_SUCCESS);
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, DeadServersArePassedOver) {
  DeadAddress nowhere;
  RawServer server;
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  std::thread serving([&] { Serve(server.Accept().get()); });
  RpcChannel channel(nowhere.uri() + "," + server.endpoint().ToString());
  int failures = 0;
  const std::int64_t begin = NowNs();
  for (int i = 0; i != 200; ++i) {
    failures += CallOnce(&channel) != STATUS_SUCCESS;
  }
  // One call is lost whenever it is tried whether the server is back: at
  // first, and after 15, 45, 105 ... ms at the earliest.
  const std::int64_t elapsed_ms = (NowNs() - begin) / 1'000'000;
  EXPECT_LE(failures, 3 + elapsed_ms / 15);
  EXPECT_LT(failures, 60);
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, IdleOnesAreClosed) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  const auto id = peer->ReadRequest()->id;
  const auto set = SetOf(server);
  const std::uint64_t closed = GetClientStatistics().connections_idle_closed;
  const std::uint64_t broken = GetClientStatistics().connections_broken;
  EXPECT_FALSE(set->CloseIdle(NowNs() + 1'000'000'000));  // It is busy.
  peer->Reply(id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  // Idle for a moment only.
  EXPECT_FALSE(set->CloseIdle(NowNs() - 60'000'000'000));
  EXPECT_TRUE(set->CloseIdle(NowNs() + 1'000'000'000));
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_EQ(GetClientStatistics().connections_idle_closed, closed + 1);
  EXPECT_EQ(GetClientStatistics().connections_broken, broken);

  // That is no failure: the next call opens another one at once.
  std::thread serving([&] { Serve(server.Accept().get()); });
  EXPECT_EQ(CallOnce(&channel), STATUS_SUCCESS);
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientConnectionTest, SweeperClosesIdleOnes) {
  FLAGS_flare_rpc_client_remove_idle_connection_interval = 1;
  FLAGS_flare_rpc_client_connection_max_idle = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_TRUE(peer->AtEnd());  // Within a second or two.
}

}  // namespace
}  // namespace flare::rpc::testing
