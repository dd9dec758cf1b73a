// How a connection ends: by either side, in good order or not. Output before
// the end is the subject of stream_connection_after_flush_test.cc.
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "flare/fiber/latch.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Pattern;
using testing::Receive;
using testing::ReceiveEnd;
using testing::ReceiveRest;
using testing::RecordingHandler;
using testing::SendAll;
using testing::SocketPair;
using testing::TcpPair;

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
  SocketPair pair = TcpPair();
  connection_ = StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("x")), WriteResult::kOk);
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
  SocketPair pair = TcpPair();
  auto connection =
      StreamConnection::Accepted(std::move(pair.ours), 0, &handler_);
  EXPECT_EQ(connection->Write(CreateBufferSlow("x")), WriteResult::kOk);
  connection.Reset();
  EXPECT_EQ(ReceiveEnd(pair.peer.get()), 0);
  EXPECT_FALSE(handler_.closed());
}

// The kernel doesn't know any more who that was.
TEST_P(CloseTest, ByAResetBeforeTheStart) {
  SocketPair pair = TcpPair();
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
  EXPECT_EQ(connection_->Write(CreateBufferSlow("never sent")),
            WriteResult::kOk);
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
  ASSERT_EQ(connection_->Write(CreateBufferSlow(Pattern(1 << 20))),
            WriteResult::kOk);
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
  ASSERT_EQ(connection_->Write(CreateBufferSlow(Pattern(1 << 20))),
            WriteResult::kOk);
  Receive(peer_.get(), 1);
  testing::ResetOnClose(peer_.get());
  peer_.Reset();
  const Status why = handler_.WaitClosed();
  EXPECT_TRUE(why.code() == ECONNRESET || why.code() == EPIPE)
      << why.ToString();
  ExpectGone();
}

// The peer's last input is delivered although sending fails.
TEST_P(CloseTest, LastWordsOfThePeerAreRead) {
  for (int round = 0; round < 50; ++round) {
    RecordingHandler handler;
    SocketPair pair = TcpPair();
    auto connection =
        StreamConnection::Accepted(std::move(pair.ours), 0, &handler);
    connection->PauseReading();
    connection->Start();
    ASSERT_TRUE(SendAll(pair.peer.get(), "too many requests"));
    pair.peer.Reset();
    // Answered by a reset, so that the next one fails.
    ASSERT_EQ(connection->Write(CreateBufferSlow("request")), WriteResult::kOk);
    connection->ResumeReading();
    while (connection->Write(CreateBufferSlow("request")) == WriteResult::kOk) {
      std::this_thread::yield();
    }
    handler.WaitClosed();
    EXPECT_EQ(handler.WaitReceived(17), "too many requests");
  }
}

TEST_P(CloseTest, Reset) {
  Open();
  connection_->Reset(Status(1, "half of it"));
  EXPECT_EQ(handler_.WaitClosed().message(), "half of it");
  EXPECT_EQ(ReceiveRest(peer_.get()), ECONNRESET);
  ExpectGone();
}

TEST_P(CloseTest, CloseMayBeMadeAReset) {
  Open();
  connection_->ResetOnClose();
  EXPECT_EQ(connection_->Write(CreateBufferSlow("half")), WriteResult::kOk);
  EXPECT_EQ(Receive(peer_.get(), 4), "half");
  connection_->Close(Status(1, "of it"));
  EXPECT_EQ(handler_.WaitClosed().message(), "of it");
  EXPECT_EQ(ReceiveRest(peer_.get()), ECONNRESET);
  ExpectGone();
}

TEST_P(CloseTest, AnEndInGoodOrderIsNoReset) {
  Open(testing::PatientOptions(), 400'000, 8192);
  connection_->ResetOnClose();
  // The kernel takes it all, the peer most of it after we have closed.
  const std::string sent = Pattern(200'000);
  EXPECT_EQ(connection_->Write(CreateBufferSlow(sent)), WriteResult::kOk);
  connection_->CloseAfterFlush(Status(1, "that is all"));
  ::shutdown(peer_.get(), SHUT_WR);
  EXPECT_EQ(handler_.WaitClosed().message(), "that is all");
  ExpectGone();
  EXPECT_EQ(Receive(peer_.get(), sent.size()), sent);
  EXPECT_EQ(ReceiveEnd(peer_.get()), 0);
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
  SocketPair pair = TcpPair();
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
