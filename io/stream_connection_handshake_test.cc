// When the steps of a transport's handshake run.
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "flare/base/status.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

// Its handshake is the first byte; then it changes nothing.
class OneByteTransport final : public Transport {
 public:
  explicit OneByteTransport(std::atomic<int>* steps) : steps_(steps) {}

  void Attach(int fd) override { fd_ = fd; }
  Progress Handshake() override {
    steps_->fetch_add(1);
    char byte;
    if (::recv(fd_, &byte, 1, MSG_DONTWAIT) == 1) return Progress::kDone;
    return errno == EAGAIN ? Progress::kWaiting : Progress::kFailed;
  }
  std::int64_t handshake_timeout_ns() const override { return 0; }
  ssize_t Receive(const iovec* pieces, int count) override {
    const ssize_t n = ::readv(fd_, pieces, count);
    taken_ = n > 0 ? static_cast<std::size_t>(n) : 0;
    return n;
  }
  bool HasMore() const override { return false; }
  std::size_t taken() const override { return taken_; }
  bool cut_short() const override { return false; }
  ssize_t Send(const iovec* pieces, std::size_t count, int) override {
    return ::writev(fd_, pieces, static_cast<int>(count));
  }
  ssize_t SendEnd() override { return 0; }
  bool end_sent() const override { return true; }
  Status failure() const override { return Status(EPROTO, "no byte"); }
  const PeerIdentity* peer_identity() const override { return nullptr; }

 private:
  std::atomic<int>* const steps_;
  int fd_ = -1;
  std::size_t taken_ = 0;
};

class HandshakeTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(HandshakeTest);

// The first event says that the socket takes output.
TEST_P(HandshakeTest, NoStepRunsBeforeInput) {
  std::atomic<int> steps{0};
  testing::SocketPair pair = testing::TcpPair();
  peer_ = std::move(pair.peer);
  connection_ =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler_, {}, {},
                                 std::make_unique<OneByteTransport>(&steps));
  connection_->Start();
  testing::DrainPollers();
  EXPECT_EQ(steps.load(), 0);
  ASSERT_TRUE(testing::SendAll(peer_.get(), "hello"));
  EXPECT_EQ(handler_.WaitReceived(4), "ello");
  EXPECT_EQ(steps.load(), 1);
}

}  // namespace
}  // namespace flare::io
