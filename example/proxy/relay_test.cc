// How a relay passes bytes on, over sockets of either kind. Resets and urgent
// data, which only TCP has, are in relay_tcp_test.cc.
#include "example/proxy/relay.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "example/proxy/relay_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::io::testing::Pattern;
using flare::io::testing::Receive;
using flare::io::testing::ReceiveEnd;
using flare::io::testing::SendAll;

INSTANTIATE_TEST_SUITE_P(Sockets, RelayTest,
                         ::testing::Values(SocketKind::kTcp, SocketKind::kUnix),
                         [](const auto& info) {
                           return info.param == SocketKind::kTcp ? "Tcp"
                                                                 : "Unix";
                         });

TEST_P(RelayTest, PassesMessagesBothWays) {
  Open();
  for (int i = 0; i < 100; ++i) {
    const std::string request = Pattern(1 + i * 17, i);
    ASSERT_TRUE(SendAll(client_.peer.get(), request));
    const std::uint64_t before = Passed(Relay::kUpstream);
    RunUntil(
        [&] { return Passed(Relay::kUpstream) == before + request.size(); });
    EXPECT_EQ(Receive(upstream_.peer.get(), request.size()), request);
    const std::string reply = Pattern(1 + i * 31, i + 1000);
    ASSERT_TRUE(SendAll(upstream_.peer.get(), reply));
    const std::uint64_t before_reply = Passed(Relay::kClient);
    RunUntil(
        [&] { return Passed(Relay::kClient) == before_reply + reply.size(); });
    EXPECT_EQ(Receive(client_.peer.get(), reply.size()), reply);
  }
  EXPECT_EQ(relay_->pending_to(Relay::kClient), 0U);
}

class RelayCopyModeTest : public RelayTest {
 protected:
  void PassManyBytesBothWaysAtOnce(CopyMode mode);
};

void RelayCopyModeTest::PassManyBytesBothWaysAtOnce(CopyMode mode) {
  ::signal(SIGPIPE, SIG_IGN);  // As programs do in flare::Start().
  most_pending_ = 64 << 10;
  Open({.high_watermark = 64 << 10, .low_watermark = 5'000, .copy_mode = mode},
       4096);
  const std::string up = Pattern(3'000'000, 1);
  const std::string down = Pattern(2'000'000, 2);
  std::thread client_sends([&] {
    EXPECT_TRUE(SendAll(client_.peer.get(), up));
    ::shutdown(client_.peer.get(), SHUT_WR);
  });
  std::thread upstream_sends([&] {
    EXPECT_TRUE(SendAll(upstream_.peer.get(), down));
    ::shutdown(upstream_.peer.get(), SHUT_WR);
  });
  std::thread upstream_reads(
      [&] { EXPECT_TRUE(Receive(upstream_.peer.get(), up.size() + 1) == up); });
  std::thread client_reads([&] {
    EXPECT_TRUE(Receive(client_.peer.get(), down.size() + 1) == down);
  });
  RunUntilEnd();
  for (auto* const thread :
       {&client_sends, &upstream_sends, &upstream_reads, &client_reads}) {
    thread->join();
  }
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kFinished);
  EXPECT_EQ(Passed(Relay::kUpstream), up.size());
  EXPECT_EQ(Passed(Relay::kClient), down.size());
}

TEST_P(RelayCopyModeTest, Copying) {
  PassManyBytesBothWaysAtOnce(CopyMode::kCopy);
}
TEST_P(RelayCopyModeTest, Splicing) {
  PassManyBytesBothWaysAtOnce(CopyMode::kSplice);
}
TEST_P(RelayCopyModeTest, AsItComes) {
  PassManyBytesBothWaysAtOnce(CopyMode::kAuto);
}
INSTANTIATE_TEST_SUITE_P(Sockets, RelayCopyModeTest,
                         ::testing::Values(SocketKind::kTcp,
                                           SocketKind::kUnix));

TEST_P(RelayTest, SlowSideStopsTheOtherAtTheHighWatermark) {
  most_pending_ = 30'000;
  Open({.high_watermark = 30'000, .low_watermark = 10'000}, 4096);
  // The client sends as long as anybody takes it; the upstream reads nothing.
  ASSERT_EQ(::fcntl(client_.peer.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string piece = Pattern(1000);
  std::size_t sent = 0;
  for (;;) {
    const ssize_t n =
        ::send(client_.peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    RunUntilQuiet();
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (largest_pending_ == 30'000) {
      break;  // Some of it the upstream's kernel may have taken since.
    }
    ASSERT_LT(sent, 100'000'000U) << "nothing stops the client";
  }
  // The other direction isn't concerned.
  ASSERT_TRUE(SendAll(upstream_.peer.get(), "reply"));
  RunUntil([&] { return Passed(Relay::kClient) == 5; });
  // Somebody reads again: nothing is lost, and the client can go on.
  std::string got;
  while (got.size() < sent) {
    std::array<char, 3000> buffer;
    const ssize_t n = ::recv(upstream_.peer.get(), buffer.data(), buffer.size(),
                             MSG_DONTWAIT);
    if (n > 0) got.append(buffer.data(), static_cast<std::size_t>(n));
    RunUntilQuiet();
  }
  EXPECT_EQ(got.size(), sent);
  for (std::size_t i = 0; i < got.size(); i += 997) {
    ASSERT_EQ(got[i], piece[i % piece.size()]) << i;
  }
  EXPECT_EQ(relay_->pending_to(Relay::kUpstream), 0U);
}

TEST_P(RelayTest, EndOfRequestIsPassedOnAndTheReplyStillComes) {
  Open();
  ASSERT_TRUE(SendAll(client_.peer.get(), "request"));
  ::shutdown(client_.peer.get(), SHUT_WR);
  RunUntil([&] { return Passed(Relay::kUpstream) == 7; });
  RunUntilQuiet();
  EXPECT_FALSE(ended_);
  EXPECT_EQ(Receive(upstream_.peer.get(), 8), "request");  // And the end.
  ASSERT_TRUE(SendAll(upstream_.peer.get(), "reply"));
  upstream_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kFinished);
  EXPECT_FALSE(relay_->result().reset_other);
  CloseOurs();
  EXPECT_EQ(Receive(client_.peer.get(), 5), "reply");
  EXPECT_EQ(ReceiveEnd(client_.peer.get()), 0);
}

TEST_P(RelayTest, UpstreamMayEndItsDirectionFirst) {
  Open();
  ASSERT_TRUE(SendAll(upstream_.peer.get(), "greeting"));
  ::shutdown(upstream_.peer.get(), SHUT_WR);
  RunUntil([&] { return Passed(Relay::kClient) == 8; });
  RunUntilQuiet();
  EXPECT_EQ(Receive(client_.peer.get(), 9), "greeting");
  ASSERT_TRUE(SendAll(client_.peer.get(), "late"));
  RunUntil([&] { return Passed(Relay::kUpstream) == 4; });
  client_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(Receive(upstream_.peer.get(), 5), "late");
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kFinished);
}

// The end comes while bytes wait for a slow sink: it must not overtake them.
TEST_P(RelayTest, EndWaitsForPendingBytes) {
  Open({}, 4096);
  const std::string bytes = Pattern(200'000);
  std::thread sender([&] {
    EXPECT_TRUE(SendAll(client_.peer.get(), bytes));
    ::shutdown(client_.peer.get(), SHUT_WR);
  });
  RunUntil([&] { return relay_->pending_to(Relay::kUpstream) > 0; });
  std::thread reader([&] {
    EXPECT_TRUE(Receive(upstream_.peer.get(), bytes.size() + 1) == bytes);
    upstream_.peer.Reset();
  });
  RunUntilEnd();
  sender.join();
  reader.join();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kFinished);
}

TEST_P(RelayTest, HeaderGoesFirstAndIsNotCounted) {
  Open();
  relay_->SendFirst(Relay::kUpstream, "PROXY ...\r\n");
  relay_->AddReceived(Relay::kClient, "early ");
  ASSERT_TRUE(SendAll(client_.peer.get(), "bird"));
  RunUntil([&] { return Passed(Relay::kUpstream) == 10; });
  EXPECT_EQ(Receive(upstream_.peer.get(), 21), "PROXY ...\r\nearly bird");
}

// As much of a client's first bytes waits as may: there is no room for a read.
TEST_P(RelayTest, FirstBytesUpToTheHighWatermarkAreNoEnd) {
  Open({.high_watermark = 5000, .low_watermark = 1000}, 4096);
  const std::string full(1000, '-');
  std::size_t waits = 0;
  for (ssize_t n = 0; n >= 0; waits += static_cast<std::size_t>(n)) {
    n = ::send(upstream_.ours.get(), full.data(), full.size(), MSG_NOSIGNAL);
    if (n < 0) break;
  }
  relay_->AddReceived(Relay::kClient, Pattern(5000));
  RunUntilQuiet();
  ASSERT_TRUE(SendAll(client_.peer.get(), "more"));
  RunUntilQuiet();
  std::thread reader([&] {
    const std::string got = Receive(upstream_.peer.get(), waits + 5004);
    EXPECT_EQ(got.size(), waits + 5004);
    EXPECT_TRUE(got.ends_with("more"));
  });
  RunUntil([&] { return Passed(Relay::kUpstream) == 5004; });
  reader.join();
  EXPECT_FALSE(ended_);
}

TEST_P(RelayTest, WritingToAnUpstreamThatIsGoneEndsTheRelay) {
  Open();
  ASSERT_TRUE(SendAll(upstream_.peer.get(), "last words"));
  RunUntil([&] { return Passed(Relay::kClient) == 10; });
  upstream_.peer.Reset();  // Closed in order, so first its end is passed on.
  RunUntilQuiet();
  EXPECT_FALSE(ended_);
  EXPECT_EQ(Receive(client_.peer.get(), 11), "last words");
  ASSERT_TRUE(SendAll(client_.peer.get(), "anybody?"));
  RunUntilQuiet();
  // TCP learns only by the answer to that that nobody reads.
  if (!ended_) RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kUpstreamBroke);
  EXPECT_FALSE(relay_->result().reset_other);
}

// A long stream is spliced, the messages after it are copied again, and no byte
// changes its place where one follows the other.
TEST_P(RelayTest, LongStreamsAreSpliced) {
  ::signal(SIGPIPE, SIG_IGN);  // As programs do in flare::Start().
  Open({.splice_after = 64 << 10});
  std::uint64_t passed = 0;
  for (int round = 0; round < 2; ++round) {
    // All of it waits in the socket before the first read.
    const std::string bytes = Pattern(96 << 10, round);
    ASSERT_TRUE(SendAll(client_.peer.get(), bytes));
    RunUntil([&] { return relay_->splices_to(Relay::kUpstream); });
    EXPECT_FALSE(relay_->splices_to(Relay::kClient));
    std::thread reader([&] {
      EXPECT_TRUE(Receive(upstream_.peer.get(), bytes.size()) == bytes);
    });
    passed += bytes.size();
    RunUntil([&] { return Passed(Relay::kUpstream) == passed; });
    reader.join();
    for (int i = 0; i < 8; ++i) {
      const std::string message = Pattern(500, i);
      ASSERT_TRUE(SendAll(client_.peer.get(), message));
      passed += message.size();
      RunUntil([&] { return Passed(Relay::kUpstream) == passed; });
      EXPECT_EQ(Receive(upstream_.peer.get(), message.size()), message);
    }
    EXPECT_FALSE(relay_->splices_to(Relay::kUpstream));
  }
}

// The sink breaks while bytes are in the pipe, and the end of the other
// direction is still passed on.
TEST_P(RelayTest, SplicedStreamWhoseReaderGoesAway) {
  Open({.copy_mode = CopyMode::kSplice}, 4096);
  ::signal(SIGPIPE, SIG_IGN);
  std::thread sender([&] {
    static_cast<void>(SendAll(client_.peer.get(), Pattern(4'000'000)));
  });
  RunUntil([&] { return relay_->pending_to(Relay::kUpstream) > 0; });
  EXPECT_TRUE(relay_->splices_to(Relay::kUpstream));
  upstream_.peer.Reset();
  RunUntilEnd();
  EXPECT_EQ(relay_->result().end, Relay::Result::End::kUpstreamBroke);
  EXPECT_EQ(relay_->pending_to(Relay::kUpstream), 0U);
  CloseOurs();
  sender.join();
}

}  // namespace
}  // namespace example::proxy
