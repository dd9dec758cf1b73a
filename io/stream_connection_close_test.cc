// How a connection ends: by either side, in good order or not.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/latch.h"
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
using testing::RecordingHandler;
using testing::SendAll;

Buffer BufferOf(std::string_view bytes) { return CreateBufferSlow(bytes); }

// Reads whatever comes. The error at the end; 0: it ends in order.
int ReceiveRest(int fd) {
  std::array<char, 65536> bytes;
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n <= 0) return n == 0 ? 0 : errno;
  }
}

class CloseTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(CloseTest);

TEST_P(CloseTest, ByUs) {
  Open();
  connection_->Close(Status(ECANCELED, "enough"));
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ECANCELED);
  EXPECT_EQ(why.message(), "enough");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  ExpectGone();
}

TEST_P(CloseTest, FirstReasonWins) {
  Open();
  connection_->Close(Status(1, "first"));
  connection_->Close(Status(2, "second"));
  connection_->CloseAfterFlush(Status(3, "third"));
  EXPECT_EQ(handler_.WaitClosed().message(), "first");
  ExpectGone();
}

TEST_P(CloseTest, AReasonIsNeverOk) {
  Open();
  connection_->Close(Status());
  EXPECT_FALSE(handler_.WaitClosed().ok());
  ExpectGone();
}

TEST_P(CloseTest, BeforeTheStart) {
  testing::SocketPair pair = testing::TcpPair();
  connection_ = StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  EXPECT_EQ(connection_->Write(BufferOf("x")), WriteResult::kOk);
  connection_->Close(Status(1, "never mind"));
  connection_->Start();
  EXPECT_EQ(handler_.WaitClosed().message(), "never mind");
  ExpectGone();
  EXPECT_NE(ReceiveEnd(pair.peer.get()), EAGAIN);
}

TEST_P(CloseTest, BeforeTheStartOfAnOutgoingOne) {
  connection_ =
      StreamConnection::Connect(EndpointFromIpv4("127.0.0.1", 1), 0, &handler_);
  connection_->Close(Status(1, "never mind"));
  connection_->Start();
  EXPECT_EQ(handler_.WaitClosed().message(), "never mind");
  ExpectGone();
}

TEST_P(CloseTest, NeverStartedNorClosed) {
  testing::SocketPair pair = testing::TcpPair();
  auto connection =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  EXPECT_EQ(connection->Write(BufferOf("x")), WriteResult::kOk);
  connection.Reset();
  EXPECT_EQ(ReceiveEnd(pair.peer.get()), 0);
  EXPECT_FALSE(handler_.closed());
}

// The kernel doesn't know any more who that was.
TEST_P(CloseTest, ByAResetBeforeTheStart) {
  testing::SocketPair pair = testing::TcpPair();
  const Endpoint peer = GetLocalEndpoint(pair.peer.get());
  SetResetOnClose(pair.peer.get());
  pair.peer.Reset();
  connection_ =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler_, {}, peer);
  connection_->Start();
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ECONNRESET);
  EXPECT_NE(why.message().find(peer.ToString()), std::string::npos) << why;
  ExpectGone();
}

TEST_P(CloseTest, WhileConnecting) {
  // A listener whose backlog is full: the handshake doesn't complete.
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  const socklen_t length =
      EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
  ASSERT_EQ(
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const Endpoint address = GetLocalEndpoint(listener.get());
  const UniqueFd fills = testing::PlainConnect(address);
  ASSERT_TRUE(fills);

  connection_ = StreamConnection::Connect(address, 0, &handler_);
  EXPECT_EQ(connection_->Write(BufferOf("never sent")), WriteResult::kOk);
  connection_->Start();
  connection_->Close(Status(ETIMEDOUT, "took too long"));
  EXPECT_EQ(handler_.WaitClosed().message(), "took too long");
  ExpectGone();
}

TEST_P(CloseTest, FromOnData) {
  handler_.on_data = [&](Buffer&, std::size_t*, std::string*) {
    connection_->Close(Status(1, "seen enough"));
    return true;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "x"));
  EXPECT_EQ(handler_.WaitClosed().message(), "seen enough");
  ExpectGone();
}

TEST_P(CloseTest, FromOnConnected) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  handler_.on_connected = [&] { connection_->Close(Status(1, "changed")); };
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  connection_->Start();
  EXPECT_EQ(handler_.WaitClosed().message(), "changed");
  ExpectGone();
}

TEST_P(CloseTest, WhilePaused) {
  Open();
  connection_->PauseReading();
  connection_->Close(Status(1, "paused"));
  EXPECT_EQ(handler_.WaitClosed().message(), "paused");
  connection_->ResumeReading();
  ExpectGone();
}

TEST_P(CloseTest, WhileTheSocketIsFull) {
  Open({}, 2048, 2048);
  ASSERT_EQ(connection_->Write(BufferOf(Pattern(1 << 20))), WriteResult::kOk);
  Receive(peer_.get(), 1);
  connection_->Close(Status(1, "dropped"));
  EXPECT_EQ(handler_.WaitClosed().message(), "dropped");
  ExpectGone();
}

TEST_P(CloseTest, ByThePeer) {
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "bye"));
  peer_.Reset();
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ESHUTDOWN);
  EXPECT_EQ(why.message(), "the peer " +
                               connection_->remote_endpoint().ToString() +
                               " closed the connection");
  EXPECT_EQ(handler_.WaitReceived(3), "bye");  // Data before the end.
  ExpectGone();
}

TEST_P(CloseTest, ByThePeerInTheMiddleOfAMessage) {
  handler_.on_data = [](Buffer&, std::size_t*, std::string*) { return true; };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "half"));
  peer_.Reset();
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ECONNRESET);
  EXPECT_NE(why.message().find("in the middle of a message, after 4 bytes"),
            std::string::npos)
      << why.message();
  ExpectGone();
}

TEST_P(CloseTest, ResetByThePeer) {
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "x"));
  handler_.WaitReceived(1);
  testing::ResetOnClose(peer_.get());
  peer_.Reset();
  const Status why = handler_.WaitClosed();
  EXPECT_EQ(why.code(), ECONNRESET) << why.message();
  ExpectGone();
}

// Even if nothing is read from it: sending finds out.
TEST_P(CloseTest, ResetWhileTheSocketIsFull) {
  Open({}, 2048, 2048);
  ASSERT_EQ(connection_->Write(BufferOf(Pattern(1 << 20))), WriteResult::kOk);
  Receive(peer_.get(), 1);
  testing::ResetOnClose(peer_.get());
  peer_.Reset();
  const Status why = handler_.WaitClosed();
  EXPECT_TRUE(why.code() == ECONNRESET || why.code() == EPIPE)
      << why.ToString();
  ExpectGone();
}

// What the peer said before it went is delivered although sending fails.
TEST_P(CloseTest, LastWordsOfThePeerAreRead) {
  for (int round = 0; round < 50; ++round) {
    RecordingHandler handler;
    testing::SocketPair pair = testing::TcpPair();
    auto connection =
        StreamConnection::Accepted(std::move(pair.ours), 0, &handler);
    connection->PauseReading();
    connection->Start();
    ASSERT_TRUE(SendAll(pair.peer.get(), "too many requests"));
    pair.peer.Reset();
    // Answered by a reset, so that the next one fails.
    ASSERT_EQ(connection->Write(BufferOf("request")), WriteResult::kOk);
    connection->ResumeReading();
    while (connection->Write(BufferOf("request")) == WriteResult::kOk) {
      std::this_thread::yield();
    }
    handler.WaitClosed();
    EXPECT_EQ(handler.WaitReceived(17), "too many requests");
  }
}

TEST_P(CloseTest, AfterFlush) {
  Open({}, 2048, 2048);
  const std::string sent = Pattern(300'000);
  ASSERT_EQ(connection_->Write(BufferOf(sent)), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "all said"));
  EXPECT_EQ(connection_->Write(BufferOf("late")), WriteResult::kClosed);
  EXPECT_EQ(Receive(peer_.get(), sent.size()), sent);
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_FALSE(handler_.closed());  // Until the peer has ended, too.
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "all said");
  ExpectGone();
}

TEST_P(CloseTest, AfterFlushOfNothing) {
  Open();
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().code(), ECANCELED);
  ExpectGone();
}

// Unread input must not turn our end into a reset that destroys the reply.
TEST_P(CloseTest, AfterFlushDespiteUnreadInput) {
  Open();
  connection_->PauseReading();
  ASSERT_TRUE(SendAll(peer_.get(), "nobody reads this"));
  ASSERT_EQ(connection_->Write(BufferOf("reply")), WriteResult::kOk);
  connection_->CloseAfterFlush();
  EXPECT_EQ(Receive(peer_.get(), 5), "reply");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  connection_->ResumeReading();
  peer_.Reset();
  handler_.WaitClosed();
  ExpectGone();
}

// Input goes on being delivered between our end and the peer's.
TEST_P(CloseTest, AfterFlushStillReads) {
  Open();
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  ASSERT_TRUE(SendAll(peer_.get(), "more"));
  EXPECT_EQ(handler_.WaitReceived(4), "more");
  peer_.Reset();
  handler_.WaitClosed();
  ExpectGone();
}

TEST_P(CloseTest, AfterFlushWhileConnecting) {
  Endpoint address;
  const UniqueFd listener = testing::PlainListener(&address);
  connection_ = StreamConnection::Connect(address, 0, &handler_);
  ASSERT_EQ(connection_->Write(BufferOf("notice")), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "told them"));
  connection_->Start();
  peer_ = testing::PlainAccept(listener);
  EXPECT_EQ(Receive(peer_.get(), 6), "notice");
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "told them");
  ExpectGone();
}

TEST_P(CloseTest, AfterFlushGivesUpOnAPeerThatStays) {
  StreamConnection::Options options;
  options.linger_ns = 5'000'000;
  Open(options);
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  EXPECT_EQ(handler_.WaitClosed().code(), ETIMEDOUT);
  ExpectGone();
}

TEST_P(CloseTest, AfterFlushGivesUpOnAPeerThatTakesNothing) {
  StreamConnection::Options options;
  options.linger_ns = 5'000'000;
  Open(options, 2048, 2048);
  ASSERT_EQ(connection_->Write(BufferOf(Pattern(1 << 20))), WriteResult::kOk);
  connection_->CloseAfterFlush();
  EXPECT_EQ(handler_.WaitClosed().code(), ETIMEDOUT);
  // It doesn't take what it has got for all there was.
  EXPECT_EQ(ReceiveRest(peer_.get()), ECONNRESET);
  ExpectGone();
}

// The kernel holds so much that it has no room for more for longer than we
// would wait; but what it holds becomes less.
TEST_P(CloseTest, AfterFlushWaitsForAPeerThatReadsSlowly) {
  StreamConnection::Options options;
  options.linger_ns = 100'000'000;
  Open(options, 400'000, 8192);
  const std::string bytes = Pattern(1'200'000);
  ASSERT_EQ(connection_->Write(BufferOf(bytes)), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "all sent"));
  for (std::size_t at = 0; at < bytes.size(); at += 8000) {
    ASSERT_EQ(Receive(peer_.get(), 8000), bytes.substr(at, 8000)) << at;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().message(), "all sent");
  ExpectGone();
}

TEST_P(CloseTest, Reset) {
  Open();
  connection_->Reset(Status(1, "half of it"));
  EXPECT_EQ(handler_.WaitClosed().message(), "half of it");
  EXPECT_EQ(ReceiveRest(peer_.get()), ECONNRESET);
  ExpectGone();
}

TEST_P(CloseTest, CloseCutsAFlushShort) {
  Open();
  connection_->CloseAfterFlush();
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
  connection_->Close(Status(1, "now"));
  EXPECT_EQ(handler_.WaitClosed().message(), "now");
  ExpectGone();
}

// OnClosed may delete the handler, and the last reference may go there.
TEST_P(CloseTest, HandlersThatDeleteThemselves) {
  fiber::Latch closed(1);
  testing::SocketPair pair = testing::TcpPair();
  auto* const handler =
      new testing::EchoHandler([&](const Status&) { closed.count_down(); });
  handler->Serve(StreamConnection::Accepted(std::move(pair.ours), 0, handler));
  ASSERT_TRUE(SendAll(pair.peer.get(), "echo"));
  EXPECT_EQ(Receive(pair.peer.get(), 4), "echo");
  pair.peer.Reset();
  EXPECT_TRUE(closed.wait_for(testing::kLimit));
}

}  // namespace
}  // namespace flare::io
