// CloseAfterFlush(): a connection ends once all is sent, however long the peer
// takes, as long as it takes any.
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/io/socket_calls.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::PatientOptions;
using testing::Pattern;
using testing::Receive;
using testing::ReceiveEnd;
using testing::ReceiveRest;
using testing::RecordingHandler;
using testing::SendAll;
using testing::SocketPair;
using testing::TcpPair;

class AfterFlushTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(AfterFlushTest);

TEST_P(AfterFlushTest, SendsAndEnds) {
  Open(PatientOptions(), 2048, 2048);
  const std::string sent = Pattern(300'000);
  ASSERT_EQ(connection_->Write(CreateBufferSlow(sent)), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "all said"));
  EXPECT_EQ(connection_->Write(CreateBufferSlow("late")), WriteResult::kClosed);
  EXPECT_EQ(Receive(peer_.get(), sent.size()), sent);
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_FALSE(handler_.closed());  // Until the peer has ended, too.
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "all said");
  ExpectGone();
}

TEST_P(AfterFlushTest, OfNothing) {
  Open();
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().code(), ECANCELED);
  ExpectGone();
}

// Unread input must not turn our end into a reset that destroys the reply.
TEST_P(AfterFlushTest, DespiteUnreadInput) {
  Open();
  connection_->PauseReading();
  ASSERT_TRUE(SendAll(peer_.get(), "nobody reads this"));
  ASSERT_EQ(connection_->Write(CreateBufferSlow("reply")), WriteResult::kOk);
  connection_->CloseAfterFlush();
  EXPECT_EQ(Receive(peer_.get(), 5), "reply");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  connection_->ResumeReading();
  peer_.Reset();
  handler_.WaitClosed();
  ExpectGone();
}

// Input goes on being delivered between our end and the peer's.
TEST_P(AfterFlushTest, StillReads) {
  Open();
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  ASSERT_TRUE(SendAll(peer_.get(), "more"));
  EXPECT_EQ(handler_.WaitReceived(4), "more");
  peer_.Reset();
  handler_.WaitClosed();
  ExpectGone();
}

TEST_P(AfterFlushTest, WhileConnecting) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  connection_ =
      StreamConnection::Connect(address, 0, &handler_, PatientOptions());
  ASSERT_EQ(connection_->Write(CreateBufferSlow("notice")), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "told them"));
  connection_->Start();
  peer_ = testing::PlainAccept(listener);
  EXPECT_EQ(Receive(peer_.get(), 6), "notice");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "told them");
  ExpectGone();
}

TEST_P(AfterFlushTest, GivesUpOnAPeerThatStays) {
  StreamConnection::Options options;
  options.linger_ns = 5'000'000;
  Open(options);
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_EQ(handler_.WaitClosed().code(), ETIMEDOUT);
  ExpectGone();
}

TEST_P(AfterFlushTest, GivesUpOnAPeerThatTakesNothing) {
  StreamConnection::Options options;
  options.linger_ns = 5'000'000;
  Open(options, 2048, 2048);
  ASSERT_EQ(connection_->Write(CreateBufferSlow(Pattern(1 << 20))),
            WriteResult::kOk);
  connection_->CloseAfterFlush();
  EXPECT_EQ(handler_.WaitClosed().code(), ETIMEDOUT);
  // It doesn't take its part for the whole output.
  EXPECT_EQ(ReceiveRest(peer_.get()), ECONNRESET);
  ExpectGone();
}

// The kernel holds so much that it has no room for more for longer than we
// would wait; but its backlog shrinks. A reader that was kept from its CPU for
// so long isn't one of those: it tries again.
TEST_P(AfterFlushTest, WaitsForAPeerThatReadsSlowly) {
  constexpr std::int64_t kLinger = 100'000'000;
  StreamConnection::Options options;
  options.linger_ns = kLinger;
  const std::string bytes = Pattern(1'200'000);
  // The longest time from one step of the reader to the next.
  std::int64_t last_ns = 0;
  std::int64_t longest_ns = 0;
  const auto note_step = [&] {
    const std::int64_t now_ns = NowNs();
    longest_ns = std::max(longest_ns, now_ns - std::exchange(last_ns, now_ns));
  };
  // Whether all came.
  const auto read_slowly = [&] {
    for (std::size_t at = 0; at < bytes.size(); at += 8000) {
      const std::string piece = Receive(peer_.get(), 8000);
      note_step();
      if (piece != bytes.substr(at, 8000)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return ReceiveEnd(peer_.get()) == 0;
  };
  const std::int64_t deadline_ns = Deadline();
  for (;;) {
    RecordingHandler handler;
    SocketPair pair = TcpPair(400'000, 8192);
    peer_ = std::move(pair.peer);
    connection_ =
        StreamConnection::Accepted(std::move(pair.ours), 0, &handler, options);
    connection_->Start();
    ASSERT_EQ(connection_->Write(CreateBufferSlow(bytes)), WriteResult::kOk);
    last_ns = NowNs();
    longest_ns = 0;
    connection_->CloseAfterFlush(Status(1, "all sent"));
    const bool all = read_slowly();
    peer_.Reset();
    note_step();
    const Status why = handler.WaitClosed();
    ExpectGone();
    if (all && why.message() == "all sent") break;
    ASSERT_GT(longest_ns, kLinger / 2) << why;
    ASSERT_LT(NowNs(), deadline_ns) << "kept from the CPU again and again";
  }
}

// Passes bytes on as they are. Its end comes as the test says, and end_sent()
// never tells of it.
class OddTransport final : public Transport {
 public:
  void Attach(int fd) override { fd_ = fd; }
  Progress Handshake() override { return Progress::kDone; }
  std::int64_t handshake_timeout_ns() const override { return 0; }
  ssize_t Receive(const iovec* pieces, int count) override {
    const ssize_t n = ReceivePieces(fd_, pieces, count);
    taken_ = n > 0 ? static_cast<std::size_t>(n) : 0;
    return n;
  }
  bool HasMore() const override { return false; }
  std::size_t taken() const override { return taken_; }
  bool cut_short() const override { return false; }
  ssize_t Send(const iovec* pieces, std::size_t count, int flags) override {
    if (takes_nothing) return 0;
    std::vector<iovec> own(pieces, pieces + count);
    return SendPieces(fd_, own.data(), own.size(), flags);
  }
  ssize_t SendEnd() override {
    if (end_error == 0) return 0;
    errno = end_error;
    return -1;
  }
  bool end_sent() const override { return false; }
  Status failure() const override { return Status(); }
  const PeerIdentity* peer_identity() const override { return nullptr; }

  bool takes_nothing = false;
  int end_error = 0;

 private:
  int fd_ = -1;
  std::size_t taken_ = 0;
};

// However a transport behaves, the flusher comes to an end.
class OddTransportTest : public testing::ConnectionTest {
 protected:
  void Open(std::unique_ptr<OddTransport> transport) {
    SocketPair pair = TcpPair();
    peer_ = std::move(pair.peer);
    connection_ =
        StreamConnection::Accepted(std::move(pair.ours), 0, &handler_,
                                   PatientOptions(), {}, std::move(transport));
    connection_->Start();
    // A transport's output begins with the first event.
    ASSERT_TRUE(SendAll(peer_.get(), "request"));
    ASSERT_EQ(handler_.WaitReceived(7), "request");
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(OddTransportTest);

TEST_P(OddTransportTest, DoesNotSayThatTheEndIsSent) {
  Open(std::make_unique<OddTransport>());
  ASSERT_EQ(connection_->Write(CreateBufferSlow("reply")), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "all said"));
  EXPECT_EQ(Receive(peer_.get(), 5), "reply");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "all said");
  ExpectGone();
}

TEST_P(OddTransportTest, CannotSendTheEnd) {
  auto transport = std::make_unique<OddTransport>();
  transport->end_error = EPIPE;
  Open(std::move(transport));
  ASSERT_EQ(connection_->Write(CreateBufferSlow("reply")), WriteResult::kOk);
  connection_->CloseAfterFlush();
  EXPECT_EQ(Receive(peer_.get(), 5), "reply");
  EXPECT_EQ(handler_.WaitClosed().code(), EPIPE);
  ExpectGone();
}

TEST_P(OddTransportTest, TakesNothing) {
  auto transport = std::make_unique<OddTransport>();
  transport->takes_nothing = true;
  Open(std::move(transport));
  ASSERT_EQ(connection_->Write(CreateBufferSlow("reply")), WriteResult::kOk);
  connection_->Close(Status(1, "enough"));
  EXPECT_EQ(handler_.WaitClosed().message(), "enough");
  ExpectGone();
}

}  // namespace
}  // namespace flare::io
