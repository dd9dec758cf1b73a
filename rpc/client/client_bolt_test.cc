// Input other than replies that servers of Bolt may send.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "flare/base/clock.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "flare/rpc/wire/framing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ClientBoltTest : public RawServerTest {
 protected:
  void SetUp() override {
    RawServerTest::SetUp();
    FLAGS_flare_rpc_client_max_connections_per_server = 1;
    late_replies_ = GetClientStatistics().late_replies;
  }

  static std::string Uri(const RawServer& server) {
    return "bolt://" + server.endpoint().ToString();
  }

  // Takes a request; returns the reply to it.
  static std::string ReadRequest(RawPeer* peer) {
    const std::string request = peer->ReadUntil("ping");
    BoltResponseParts parts;
    parts.id = ReadBigEndian32(request.data() + 5);
    return parts.Bytes();
  }

  static std::string GoAway() {
    BoltRequestParts go_away;
    go_away.command = 100;
    go_away.class_name = go_away.headers = "";
    return go_away.Bytes();
  }

  std::uint64_t late_replies_ = 0;
};

// Some peers send heartbeats after a long silence.
TEST_F(ClientBoltTest, HeartbeatsOfTheServerAreAnswered) {
  RawServer server;
  RpcChannel channel(Uri(server));
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  const std::string reply = ReadRequest(peer.get());
  peer->Send(kBoltHeartbeatVector);
  const std::string answer =
      FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");
  EXPECT_EQ(peer->ReadUntil(answer), answer);
  peer->Send(kBoltHeartbeatVector + reply + kBoltHeartbeatVector);
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(peer->ReadUntil(answer + answer), answer + answer);
  EXPECT_EQ(GetClientStatistics().late_replies, late_replies_);
}

TEST_F(ClientBoltTest, GoAwayLeavesCallsTheirReplies) {
  RawServer server;
  RpcChannel channel(Uri(server));
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  const std::string reply = ReadRequest(peer.get());
  const std::string answer =
      FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");
  peer->Send(GoAway() + kBoltHeartbeatVector);
  EXPECT_EQ(peer->ReadUntil(answer), answer);  // Both were read.
  // A call that comes now takes another connection.
  TestedCall next;
  next.Start(&channel);
  auto another = server.Accept();
  another->Send(ReadRequest(another.get()));
  EXPECT_EQ(next.Await(), STATUS_SUCCESS) << next.controller.ErrorText();
  peer->Send(reply);
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_TRUE(peer->AtEnd());
  EXPECT_EQ(GetClientStatistics().late_replies, late_replies_);
}

// A server that has nothing else to say isn't connected to all the time.
TEST_F(ClientBoltTest, NoticesAreNoReplies) {
  RawServer server;
  RpcChannel channel(Uri(server));
  const std::int64_t begin = NowNs();
  for (int i = 0; i != 5; ++i) {
    TestedCall call;
    call.controller.SetTimeout(std::chrono::seconds(20));
    call.Start(&channel);
    while (!call.HasEnded()) {
      if (!server.HasVisitor()) {
        std::this_thread::yield();
        continue;
      }
      auto peer = server.Accept();
      peer->ReadUntil("ping");
      peer->Send(kBoltHeartbeatVector + GoAway());
    }
    EXPECT_EQ(call.Await(), STATUS_IO_ERROR) << call.controller.ErrorText();
  }
  // Each call but the first has waited: at least 15, 30, 60 and 120 ms.
  EXPECT_GE(NowNs() - begin, 225'000'000);
}

}  // namespace
}  // namespace flare::rpc::testing
