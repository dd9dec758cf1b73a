// How the input of a connection ends: peers that send no more, and EndInput().
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::Pattern;
using testing::Receive;
using testing::ReceiveEnd;
using testing::SendAll;

class EndOfInputTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(EndOfInputTest);

// A client that ends its direction and waits for the answer, as `nc` does.
TEST_P(EndOfInputTest, HalfClosedPeerGetsItsAnswer) {
  handler_.on_end_of_input = [&] {
    EXPECT_EQ(connection_->Write(CreateBufferSlow(Pattern(200'000))),
              WriteResult::kOk);
    connection_->CloseAfterFlush(Status(1, "answered"));
    return true;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "question"));
  ::shutdown(peer_.get(), SHUT_WR);
  EXPECT_EQ(Receive(peer_.get(), 200'000), Pattern(200'000));
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_EQ(handler_.WaitClosed().message(), "answered");
  EXPECT_EQ(handler_.WaitReceived(8), "question");
  ExpectGone();
}

TEST_P(EndOfInputTest, HalfClosedPeerVanishes) {
  fiber::Event ended;
  handler_.on_end_of_input = [&] {
    ended.Set();
    return true;
  };
  Open();
  ::shutdown(peer_.get(), SHUT_WR);
  ASSERT_TRUE(ended.WaitUntil(Deadline()));
  testing::ResetOnClose(peer_.get());
  peer_.Reset();
  EXPECT_NE(handler_.WaitClosed().code(), 0);
  ExpectGone();
}

TEST_P(EndOfInputTest, EndInputDeliversWhatHasArrived) {
  std::atomic<bool> ended{false};
  handler_.on_end_of_input = [&] {
    EXPECT_FALSE(ended.exchange(true));
    connection_->CloseAfterFlush(Status(1, "stopped"));
    return true;
  };
  Open();
  connection_->PauseReading();
  ASSERT_TRUE(SendAll(peer_.get(), "request"));
  connection_->EndInput();
  connection_->ResumeReading();
  EXPECT_EQ(handler_.WaitReceived(7), "request");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_TRUE(ended.load());
  connection_->EndInput();  // Has had its effect.
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "stopped");
  ExpectGone();
}

// A peer that sends as fast as we read doesn't put the end off: for each byte
// that is read comes another.
TEST_P(EndOfInputTest, EndInputEndsInSpiteOfEverMoreInput) {
  fiber::Event reading;
  fiber::Event ended;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    const std::size_t size = in.size();
    in.Clear();
    if (!ended.IsSet()) {
      EXPECT_TRUE(SendAll(peer_.get(), Pattern(size)));
    }
    reading.Set();
    return true;
  };
  handler_.on_end_of_input = [&] {
    ended.Set();
    connection_->CloseAfterFlush();
    return true;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), Pattern(1'000'000)));
  ASSERT_TRUE(reading.WaitUntil(Deadline()));
  connection_->EndInput();
  EXPECT_TRUE(ended.WaitUntil(Deadline()));
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  handler_.WaitClosed();
  ExpectGone();
}

std::uint32_t SegmentsReceived(const UniqueFd& socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  EXPECT_EQ(::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_segs_in;
}

// Those with which a connection sends an answer and ends.
std::uint32_t SegmentsOfTheEnd() {
  testing::RecordingHandler handler;
  testing::SocketPair pair = testing::TcpPair();
  RefPtr<StreamConnection> connection = StreamConnection::Accepted(
      std::move(pair.ours), 0, &handler, testing::PatientOptions());
  handler.on_end_of_input = [&] {
    EXPECT_EQ(connection->Write(CreateBufferSlow("answer")), WriteResult::kOk);
    connection->CloseAfterFlush();
    return true;
  };
  connection->Start();
  const std::uint32_t before = SegmentsReceived(pair.peer);
  connection->EndInput();
  EXPECT_EQ(Receive(pair.peer.get(), 6), "answer");
  EXPECT_EQ(ReceiveEnd(pair.peer.get()), 0);
  const std::uint32_t segments = SegmentsReceived(pair.peer) - before;
  pair.peer.Reset();
  handler.WaitClosed();
  testing::ExpectGone(connection);
  return segments;
}

TEST_P(EndOfInputTest, TheEndLeavesWithTheLastOutput) {
  // Another worker may send the output before the end is asked for.
  const bool expected = GetParam().workers == 1 && !fiber::IsShuffleRequested();
  std::uint32_t segments = SegmentsOfTheEnd();
  // More than once, as a worker that loses its CPU sends at once.
  const std::int64_t deadline_ns = Deadline();
  while (expected && segments != 1 && NowNs() < deadline_ns) {
    segments = SegmentsOfTheEnd();
  }
  EXPECT_TRUE(segments == 1 || !expected) << segments;
}

TEST_P(EndOfInputTest, EndInputClosesWhoDoesNotCare) {
  Open();
  connection_->EndInput();
  EXPECT_EQ(handler_.WaitClosed().code(), ECANCELED);
  ExpectGone();
}

// Input that is ended before a connection starts is ended after the start.
TEST_P(EndOfInputTest, EndInputBeforeTheStart) {
  handler_.on_connected = [] { ADD_FAILURE() << "it was accepted"; };
  testing::SocketPair pair = testing::TcpPair();
  connection_ = StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  ASSERT_TRUE(SendAll(pair.peer.get(), "request"));
  connection_->EndInput();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(handler_.closed());
  connection_->Start();
  EXPECT_EQ(handler_.WaitReceived(7), "request");
  EXPECT_EQ(handler_.WaitClosed().message(), "closed: no more input is wanted");
  ExpectGone();
}

TEST_P(EndOfInputTest, EndInputBeforeConnecting) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  connection_->EndInput();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(handler_.closed());
  connection_->Start();
  EXPECT_EQ(handler_.WaitClosed().message(), "closed: no more input is wanted");
  ExpectGone();
}

}  // namespace
}  // namespace flare::io
