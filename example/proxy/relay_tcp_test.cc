// A relay's handling of resets and urgent data.
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>

#include "example/proxy/relay.h"
#include "example/proxy/relay_fixture.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::io::testing::Pattern;
using flare::io::testing::Receive;
using flare::io::testing::ReceiveEnd;
using flare::io::testing::ResetOnClose;
using flare::io::testing::SendAll;

// Unix sockets know resets only in part.
using TcpRelayTest = RelayTest;
INSTANTIATE_TEST_SUITE_P(Resets, TcpRelayTest,
                         ::testing::Values(SocketKind::kTcp));

TEST_P(TcpRelayTest, ResetByClientIsPassedOn) {
  Open();
  ASSERT_TRUE(SendAll(client_.peer.get(), "half a requ"));
  RunUntil([&] { return Passed(Relay::kUpstream) == 11; });
  ResetOnClose(client_.peer.get());
  client_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kClientBroke);
  EXPECT_EQ(relay_->result().error, ECONNRESET);
  EXPECT_TRUE(relay_->result().reset_other);
  EXPECT_EQ(Receive(upstream_.peer.get(), 11), "half a requ");
  CloseOurs();
  EXPECT_EQ(ReceiveEnd(upstream_.peer.get()), ECONNRESET);
}

TEST_P(TcpRelayTest, ResetByUpstreamIsPassedOnBehindWhatItHadSent) {
  Open();
  ASSERT_TRUE(SendAll(upstream_.peer.get(), "half a rep"));
  RunUntil([&] { return Passed(Relay::kClient) == 10; });
  ResetOnClose(upstream_.peer.get());
  upstream_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kUpstreamBroke);
  EXPECT_EQ(Receive(client_.peer.get(), 10), "half a rep");
  CloseOurs();
  EXPECT_EQ(ReceiveEnd(client_.peer.get()), ECONNRESET);
}

// The end of its direction came before: nobody reads from it any more.
TEST_P(TcpRelayTest, ResetAfterTheEndOfInputIsNoticed) {
  Open();
  ::shutdown(upstream_.peer.get(), SHUT_WR);
  RunUntilQuiet();
  ResetOnClose(upstream_.peer.get());
  upstream_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kUpstreamBroke);
  EXPECT_NE(relay_->result().error, 0);
}

// While it isn't read from, a client that resets is noticed once its bytes have
// been delivered.
TEST_P(TcpRelayTest, ResetByASenderThatHadBeenStopped) {
  Open({.high_watermark = 10'000, .low_watermark = 1'000}, 4096);
  ASSERT_EQ(::fcntl(client_.peer.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string piece = Pattern(1000);
  while (relay_->pending_to(Relay::kUpstream) < 10'000) {
    static_cast<void>(
        ::send(client_.peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL));
    RunUntilQuiet();
  }
  ResetOnClose(client_.peer.get());
  client_.peer.Reset();
  RunUntilQuiet();
  EXPECT_FALSE(ended_);
  std::thread reader([&] {
    while (!Receive(upstream_.peer.get(), 1).empty()) continue;
  });
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kClientBroke);
  CloseOurs();
  reader.join();
}

// Urgent data makes reads stop short in front of it; it goes on as plain data.
TEST_P(TcpRelayTest, UrgentDataDoesNotStopTheFlow) {
  Open();
  flare::io::SetUrgentInline(client_.ours.get());
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(SendAll(client_.peer.get(), "plain"));
    ASSERT_EQ(::send(client_.peer.get(), "!", 1, MSG_OOB), 1);
    expected += "plain!";
  }
  RunUntil([&] { return Passed(Relay::kUpstream) == expected.size(); });
  EXPECT_EQ(Receive(upstream_.peer.get(), expected.size()), expected);
}

// Nor do splices, which take it for the end, or for nothing, when it comes in
// front of one or of more.
TEST_P(TcpRelayTest, UrgentDataInASplicedStream) {
  for (const bool ended : {false, true}) {
    Open({.copy_mode = CopyMode::kSplice});
    flare::io::SetUrgentInline(client_.ours.get());
    std::string expected = Pattern(96 << 10, 1);
    ASSERT_TRUE(SendAll(client_.peer.get(), expected));
    RunUntil([&] { return relay_->splices_to(Relay::kUpstream); });
    ASSERT_EQ(::send(client_.peer.get(), "!", 1, MSG_OOB), 1);
    const std::string rest = Pattern(32 << 10, 2);
    ASSERT_TRUE(SendAll(client_.peer.get(), rest));
    expected += "!" + rest;
    if (ended) ::shutdown(client_.peer.get(), SHUT_WR);
    std::string received;
    std::thread reader(
        [&] { received = Receive(upstream_.peer.get(), expected.size()); });
    RunUntil([&] { return Passed(Relay::kUpstream) == expected.size(); });
    upstream_.ours.Reset();  // Ends the reader, if it still waits.
    reader.join();
    EXPECT_TRUE(received == expected) << received.size();
  }
}

}  // namespace
}  // namespace example::proxy
