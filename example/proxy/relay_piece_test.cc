// How much a relay passes on at a time. docs/decisions/0007-copy-and-splice.md

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "example/proxy/relay.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::io::UniqueFd;
using flare::io::testing::Pattern;
using flare::io::testing::SendAll;
using flare::io::testing::SocketPair;

constexpr std::size_t kPiece = 32 << 10;
constexpr std::size_t kLargePiece = 128 << 10;

SocketPair NonBlockingPair(int type) {
  std::array<int, 2> fds;
  EXPECT_EQ(
      ::socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()),
      0);
  for (const int fd : fds) flare::io::SetSendBuffer(fd, 1 << 20);
  return {.ours = UniqueFd(fds[0]), .peer = UniqueFd(fds[1])};
}

// The upstream's socket keeps the bytes of one write together, so that we see
// the pieces.
class RelayPieceTest : public ::testing::Test {
 protected:
  RelayPieceTest()
      : client_(NonBlockingPair(SOCK_STREAM)),
        upstream_(NonBlockingPair(SOCK_SEQPACKET)),
        relay_(client_.ours.get(), upstream_.ours.get(), Relay::Options()) {}

  // `size` bytes come at once; the sizes of the pieces they are passed on in.
  std::vector<std::size_t> PassOn(std::size_t size) {
    EXPECT_TRUE(SendAll(client_.peer.get(), Pattern(size)));
    Relay::Outcome outcome = relay_.Run(EPOLLIN, 0);
    while (outcome == Relay::Outcome::kMore) outcome = relay_.Run(0, 0);
    return Pieces();
  }

  // The pieces that have arrived.
  std::vector<std::size_t> Pieces() {
    std::vector<std::size_t> sizes;
    std::string buffer(kLargePiece + 1, '\0');
    for (;;) {
      const ssize_t n =
          ::recv(upstream_.peer.get(), buffer.data(), buffer.size(), 0);
      if (n <= 0) return sizes;
      sizes.push_back(static_cast<std::size_t>(n));
    }
  }

  SocketPair client_;
  SocketPair upstream_;
  Relay relay_;
};

using Sizes = std::vector<std::size_t>;

TEST_F(RelayPieceTest, WhatFitsIntoALargePieceIsPassedOnAtOnceFromThenOn) {
  EXPECT_EQ(PassOn(1000), Sizes({1000}));
  EXPECT_EQ(PassOn(70'000), Sizes({kPiece, kPiece, 70'000 - 2 * kPiece}));
  EXPECT_EQ(PassOn(70'000), Sizes({70'000}));
  EXPECT_EQ(PassOn(1000), Sizes({1000}));
  EXPECT_EQ(PassOn(120'000), Sizes({120'000}));
}

TEST_F(RelayPieceTest, WhatIsLongerComesInSmallPieces) {
  EXPECT_EQ(PassOn(70'000).size(), 3u);
  EXPECT_EQ(PassOn(200'000),
            Sizes({kLargePiece, kPiece, kPiece, 200'000 - 6 * kPiece}));
  EXPECT_EQ(PassOn(200'000).front(), kPiece);
  EXPECT_EQ(PassOn(70'000).size(), 3u);
}

TEST_F(RelayPieceTest, SoDoesWhatTheOtherSideDoesNotTake) {
  EXPECT_EQ(PassOn(70'000).size(), 3u);
  // Fills the upstream's socket; more bytes wait for room.
  const std::string filling = Pattern(1000);
  while (::send(upstream_.ours.get(), filling.data(), filling.size(), 0) > 0)
    continue;
  EXPECT_TRUE(SendAll(client_.peer.get(), Pattern(70'000)));
  EXPECT_EQ(relay_.Run(EPOLLIN, 0), Relay::Outcome::kWaiting);
  EXPECT_EQ(relay_.pending_to(Relay::kUpstream), 70'000u);
  EXPECT_NE(Pieces(), Sizes());
  relay_.Run(0, EPOLLOUT);
  EXPECT_EQ(relay_.pending_to(Relay::kUpstream), 0u);
  Pieces();
  EXPECT_EQ(PassOn(70'000).size(), 3u);
}

}  // namespace
}  // namespace example::proxy
