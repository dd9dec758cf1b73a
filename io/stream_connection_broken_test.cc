// The time after a connection has broken: a send has failed, or the handler has
// refused the input.
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::RecordingHandler;
using testing::SendAll;

class BrokenTest : public testing::ConnectionTest {
 protected:
  // The poller of group 0 has told of all that had happened before this: events
  // of one poller come in their order.
  static void WaitForEventsSoFar() {
    testing::SocketPair pair = testing::TcpPair();
    RecordingHandler handler;
    auto later = StreamConnection::Accepted(std::move(pair.ours), 0, &handler);
    later->Start();
    EXPECT_TRUE(SendAll(pair.peer.get(), "x"));
    handler.WaitReceived(1);
    later->Close(Status(ECANCELED, "seen"));
    handler.WaitClosed();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(BrokenTest);

// The reader waits for room, which only the flusher can make: by dropping also
// the output that was written after the failed batch.
TEST_P(BrokenTest, AWriteBesideASendThatFailsLeavesRoom) {
  const std::string large(1'000'000, 'l');
  StreamConnection::Options options;
  options.max_output = 100'000;
  options.refuse_writes = false;
  fiber::Event paused;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Clear();
    EXPECT_EQ(connection_->Write(CreateBufferSlow(large)), WriteResult::kOk);
    connection_->PauseReadingForOutput();
    paused.Set();
    return true;
  };
  Open(options, /*our_send_buffer=*/4096, /*peer_receive_buffer=*/4096);
  // Runs in the flusher, which is this thread, between a send that has taken
  // the first byte and one that fails.
  const char first = 'f';
  Buffer output = MakeReferencingBuffer(&first, 1, [&] {
    EXPECT_TRUE(SendAll(peer_.get(), "answer this"));
    EXPECT_TRUE(paused.WaitUntil(Deadline()));
    testing::ResetOnClose(peer_.get());
    peer_.Reset();
    WaitForEventsSoFar();
  });
  output.Append(CreateBufferSlow(large));
  EXPECT_EQ(connection_->Write(std::move(output), Flush::kNow),
            WriteResult::kOk);
  EXPECT_TRUE(paused.IsSet());
  EXPECT_FALSE(handler_.WaitClosed().ok());
}

// It isn't called for input that arrived during the pause, either.
TEST_P(BrokenTest, WhatIsRefusedAfterAPauseWasTheLast) {
  std::atomic<int> calls{0};
  fiber::Event paused;
  handler_.on_data = [&](Buffer&, std::size_t*, std::string*) {
    if (calls.fetch_add(1) > 0) return false;
    connection_->PauseReading();
    paused.Set();
    return true;
  };
  Open();
  EXPECT_TRUE(SendAll(peer_.get(), "left"));
  ASSERT_TRUE(paused.WaitUntil(Deadline()));
  EXPECT_TRUE(SendAll(peer_.get(), "more"));
  connection_->ResumeReading();
  EXPECT_EQ(handler_.WaitClosed().code(), EPROTO);
  EXPECT_EQ(calls.load(), 2);
}

// Somebody else has begun to close the connection, so refusing doesn't.
TEST_P(BrokenTest, WhatIsRefusedDuringACloseWasTheLast) {
  std::atomic<int> calls{0};
  fiber::Event refused;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Clear();
    calls.fetch_add(1);
    refused.Set();
    return false;
  };
  handler_.on_end_of_input = [&] {
    calls.fetch_add(1);
    return false;
  };
  Open({}, /*our_send_buffer=*/4096, /*peer_receive_buffer=*/4096);
  // The flusher waits for room, so output that is written now is still there
  // when the connection is closed. Then this runs, in Close().
  EXPECT_EQ(connection_->Write(CreateBufferSlow(std::string(1'000'000, 'l')),
                               Flush::kNow),
            WriteResult::kOk);
  const char last = 'l';
  Buffer output = MakeReferencingBuffer(&last, 1, [&] {
    EXPECT_TRUE(SendAll(peer_.get(), "bad"));
    EXPECT_TRUE(refused.WaitUntil(Deadline()));
    EXPECT_TRUE(SendAll(peer_.get(), "more"));
    WaitForEventsSoFar();
    connection_->EndInput();
  });
  EXPECT_EQ(connection_->Write(std::move(output)), WriteResult::kOk);
  connection_->Close(Status(ECANCELED, "enough"));
  EXPECT_EQ(handler_.WaitClosed().code(), ECANCELED);
  EXPECT_EQ(calls.load(), 1);
}

}  // namespace
}  // namespace flare::io
