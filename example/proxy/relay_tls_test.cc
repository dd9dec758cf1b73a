// A relay whose sides speak TLS: a scripted one, so that each refusal of the
// socket can be caused. e2e/tls_e2e_test.py has OpenSSL's.

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "example/proxy/relay.h"
#include "flare/base/status.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::io::testing::Pattern;

// After its handshake. It keeps the promises of Transport, and fails the test
// if the relay breaks one.
class ScriptedTls final : public flare::io::Transport {
 public:
  void Attach(int) override {}
  Progress Handshake() override { return Progress::kDone; }
  std::int64_t handshake_timeout_ns() const override { return 0; }

  ssize_t Receive(const iovec* pieces, int count) override {
    EXPECT_EQ(count, 1);
    ++receives;
    taken_ = kMostAtOnce;
    if (without_data != 0) {
      --without_data;
      errno = EINTR;
      return -1;
    }
    const std::size_t n = std::min(pieces->iov_len, input.size());
    std::copy_n(input.data(), n, static_cast<char*>(pieces->iov_base));
    input.erase(0, n);
    taken_ = n;
    if (n != 0 || ends) return static_cast<ssize_t>(n);
    errno = EAGAIN;
    return -1;
  }
  bool HasMore() const override { return input.empty() && ends; }
  std::size_t taken() const override { return taken_; }
  bool cut_short() const override { return cuts_short; }

  ssize_t Send(const iovec* pieces, std::size_t count, int) override {
    EXPECT_FALSE(end_told) << "bytes behind the end";
    std::string given;
    for (std::size_t i = 0; i != count; ++i) {
      given.append(static_cast<const char*>(pieces[i].iov_base),
                   pieces[i].iov_len);
    }
    if (begun_.empty()) begun_ = given.substr(0, kMostAtOnce);
    EXPECT_EQ(given.substr(0, begun_.size()), begun_) << "not given again";
    if (!takes) {
      errno = EAGAIN;
      return -1;
    }
    ++flushes;
    const auto n = static_cast<ssize_t>(begun_.size());
    output += begun_;
    begun_.clear();
    return n;
  }
  ssize_t SendEnd() override {
    EXPECT_TRUE(begun_.empty()) << "an end within the bytes";
    if (!takes) {
      errno = EAGAIN;
      return -1;
    }
    end_told = true;
    return 0;
  }
  bool end_sent() const override { return end_told; }
  flare::Status failure() const override { return flare::Status(); }
  const flare::PeerIdentity* peer_identity() const override { return nullptr; }

  std::string input;  // Arrives.
  bool ends = false;  // After `input`.
  // So many calls find no data, and more to come, before that.
  std::size_t without_data = 0;
  std::size_t receives = 0;
  bool cuts_short = false;
  bool takes = true;  // The socket does.
  std::string output;
  bool end_told = false;
  int flushes = 0;

 private:
  static constexpr std::size_t kMostAtOnce = 64 << 10;
  std::string begun_;  // Encrypted, but refused by the socket.
  std::size_t taken_ = 0;
};

class RelayTlsTest : public ::testing::Test {
 protected:
  void Run(std::uint32_t client_events, std::uint32_t upstream_events) {
    outcome_ = relay_.Run(client_events, upstream_events);
    while (outcome_ == Relay::Outcome::kMore) outcome_ = relay_.Run(0, 0);
  }

  ScriptedTls client_;
  ScriptedTls upstream_;
  Relay relay_{-1, -1,
               Relay::Options{.copy_mode = CopyMode::kSplice,
                              .client_tls = &client_,
                              .upstream_tls = &upstream_}};
  Relay::Outcome outcome_ = Relay::Outcome::kWaiting;
};

TEST_F(RelayTlsTest, TakesBytesThatCameWithTheHandshake) {
  client_.input = "early";
  Run(0, 0);
  EXPECT_EQ(upstream_.output, "early");
  EXPECT_EQ(relay_.bytes_to(Relay::kUpstream), 5u);
  EXPECT_FALSE(relay_.splices_to(Relay::kUpstream));
}

TEST_F(RelayTlsTest, GivesRefusedBytesAgain) {
  client_.takes = false;
  upstream_.input = Pattern(200'000);
  Run(0, EPOLLIN);
  EXPECT_EQ(relay_.pending_to(Relay::kClient), 200'000u);
  EXPECT_EQ(relay_.bytes_to(Relay::kClient), 0u);
  Run(EPOLLOUT, 0);  // Refused again.
  client_.takes = true;
  Run(EPOLLOUT, 0);
  EXPECT_TRUE(client_.output == Pattern(200'000));
  EXPECT_EQ(relay_.bytes_to(Relay::kClient), 200'000u);
  EXPECT_EQ(outcome_, Relay::Outcome::kWaiting);
}

TEST_F(RelayTlsTest, ReadsNoMoreThanTheHighWatermark) {
  client_.takes = false;
  upstream_.input = Pattern(1'000'000);
  Run(0, EPOLLIN);
  EXPECT_EQ(relay_.pending_to(Relay::kClient), Relay::Options().high_watermark);
  client_.takes = true;
  Run(EPOLLOUT, 0);
  EXPECT_TRUE(client_.output == Pattern(1'000'000));
}

TEST_F(RelayTlsTest, TellsAnEndOnceThereIsRoom) {
  client_.takes = false;
  upstream_.ends = true;
  Run(0, EPOLLIN);
  EXPECT_FALSE(client_.end_told);
  EXPECT_EQ(outcome_, Relay::Outcome::kWaiting);
  client_.takes = true;
  Run(EPOLLOUT, 0);
  EXPECT_TRUE(client_.end_told);
  EXPECT_EQ(outcome_, Relay::Outcome::kWaiting);
  // The other direction goes on.
  client_.input = "more";
  client_.ends = true;
  Run(EPOLLIN, 0);
  EXPECT_EQ(upstream_.output, "more");
  EXPECT_TRUE(upstream_.end_told);
  ASSERT_EQ(outcome_, Relay::Outcome::kEnded);
  EXPECT_EQ(relay_.result().end, Relay::Result::End::kFinished);
}

TEST_F(RelayTlsTest, TakesACutForABreak) {
  client_.input = "half";
  client_.ends = client_.cuts_short = true;
  Run(EPOLLIN, 0);
  EXPECT_EQ(upstream_.output, "half");
  EXPECT_FALSE(upstream_.end_told);
  ASSERT_EQ(outcome_, Relay::Outcome::kEnded);
  EXPECT_EQ(relay_.result().end, Relay::Result::End::kClientBroke);
  EXPECT_EQ(relay_.result().error, EPROTO);
  EXPECT_TRUE(relay_.result().reset_other);
}

TEST_F(RelayTlsTest, LetsAPeerGoThatWasToldTheEnd) {
  upstream_.ends = true;
  Run(0, EPOLLIN);
  ASSERT_TRUE(client_.end_told);
  client_.ends = client_.cuts_short = true;
  Run(EPOLLIN, 0);
  ASSERT_EQ(outcome_, Relay::Outcome::kEnded);
  EXPECT_EQ(relay_.result().end, Relay::Result::End::kFinished);
}

// Others get their turn while a peer sends records without data.
TEST_F(RelayTlsTest, DoesNotReadForEverWithoutData) {
  client_.without_data = 1'000'000;
  EXPECT_EQ(relay_.Run(EPOLLIN, 0), Relay::Outcome::kMore);
  EXPECT_LE(client_.receives, 8u);
  client_.without_data = 0;
  client_.input = "at last";
  Run(0, 0);
  EXPECT_EQ(upstream_.output, "at last");
}

TEST_F(RelayTlsTest, SendsWhatTheHandshakeHasLeft) {
  Run(EPOLLOUT, 0);
  EXPECT_EQ(client_.flushes, 1);
  EXPECT_EQ(client_.output, "");
}

}  // namespace
}  // namespace example::proxy
