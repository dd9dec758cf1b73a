// Shared by tests of Relay: one between two plain sockets.

#ifndef EXAMPLE_PROXY_RELAY_FIXTURE_H_
#define EXAMPLE_PROXY_RELAY_FIXTURE_H_

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "example/proxy/relay.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {

enum class SocketKind { kTcp, kUnix };

inline flare::io::testing::SocketPair MakePair(SocketKind kind, int buffer) {
  if (kind == SocketKind::kTcp)
    return flare::io::testing::TcpPair(buffer, buffer);
  std::array<int, 2> fds;
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()),
            0);
  flare::io::testing::SocketPair pair{.ours = flare::io::UniqueFd(fds[0]),
                                      .peer = flare::io::UniqueFd(fds[1])};
  if (buffer > 0) flare::io::SetSendBuffer(fds[0], buffer);
  flare::io::testing::MakePlain(fds[1]);
  EXPECT_EQ(::fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
  return pair;
}

// A relay between two plain sockets, driven by edges as the proxy drives it.
class RelayTest : public ::testing::TestWithParam<SocketKind> {
 protected:
  // `buffer`: of each socket in the kernel; 0: as usual.
  void Open(const Relay::Options& options = Relay::Options(), int buffer = 0) {
    client_ = MakePair(GetParam(), buffer);
    upstream_ = MakePair(GetParam(), buffer);
    relay_.emplace(client_.ours.get(), upstream_.ours.get(), options);
    epoll_ = flare::io::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    Watch(client_.ours.get(), 0);
    Watch(upstream_.ours.get(), 1);
  }

  void Watch(int fd, std::uint32_t side) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u32 = side;
    ASSERT_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }

  // Serves events until `done()`, or the relay has ended.
  template <class Done>
  void RunUntil(Done done) {
    bool more = true;  // Input from before the sockets were watched.
    while (!ended_ && !done()) {
      std::array<epoll_event, 2> events;
      const int n =
          ::epoll_wait(epoll_.get(), events.data(), 2, more ? 0 : kLimitMs);
      ASSERT_TRUE(n > 0 || more) << "nothing happens any more";
      std::array<std::uint32_t, 2> bits{};
      for (int i = 0; i < n; ++i) bits[events[i].data.u32] |= events[i].events;
      const Relay::Outcome outcome = relay_->Run(bits[0], bits[1]);
      more = outcome == Relay::Outcome::kMore;
      ended_ = outcome == Relay::Outcome::kEnded;
      EXPECT_LE(relay_->pending_to(Relay::kClient), most_pending_);
      EXPECT_LE(relay_->pending_to(Relay::kUpstream), most_pending_);
    }
  }
  void RunUntilEnd() {
    RunUntil([] { return false; });
    ASSERT_TRUE(ended_);
  }
  // As long as something happens.
  void RunUntilQuiet() {
    for (;;) {
      std::array<epoll_event, 2> events;
      const int n = ::epoll_wait(epoll_.get(), events.data(), 2, 0);
      std::array<std::uint32_t, 2> bits{};
      for (int i = 0; i < n; ++i) bits[events[i].data.u32] |= events[i].events;
      const Relay::Outcome outcome = relay_->Run(bits[0], bits[1]);
      ended_ = outcome == Relay::Outcome::kEnded;
      largest_pending_ =
          std::max(largest_pending_, relay_->pending_to(Relay::kUpstream));
      if (ended_ || (n == 0 && outcome == Relay::Outcome::kWaiting)) return;
    }
  }
  // The proxy's end.
  void CloseOurs() {
    const Relay::Result& result = relay_->result();
    if (result.reset_other) {
      flare::io::testing::ResetOnClose(
          result.end == Relay::Result::End::kClientBroke ? upstream_.ours.get()
                                                         : client_.ours.get());
    }
    client_.ours.Reset();
    upstream_.ours.Reset();
  }
  std::uint64_t Passed(Relay::Side side) { return relay_->bytes_to(side); }

  static constexpr int kLimitMs = 60'000;

  flare::io::testing::SocketPair client_;
  flare::io::testing::SocketPair upstream_;
  std::optional<Relay> relay_;
  flare::io::UniqueFd epoll_;
  bool ended_ = false;
  std::size_t most_pending_ = Relay::Options().high_watermark;
  std::size_t largest_pending_ = 0;  // That RunUntilQuiet() has seen.
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_RELAY_FIXTURE_H_
