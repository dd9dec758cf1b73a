// Handlers that pause reading, and the input that is left for later.
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>

#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/task.h"
#include "flare/io/socket_options.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::Pattern;
using testing::Receive;
using testing::SendAll;

class PauseTest : public testing::ConnectionTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(PauseTest);

TEST_P(PauseTest, PausedReadingResumes) {
  fiber::Event first;
  fiber::Event second;
  std::atomic<bool> resumed{false};
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    const std::string got = FlattenSlow(in);
    in.Clear();
    if (got == "a") {
      connection_->PauseReading();
      first.Set();
    } else {
      EXPECT_TRUE(resumed.load());
      EXPECT_EQ(got, "b");
      second.Set();
    }
    return true;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "a"));
  ASSERT_TRUE(first.WaitUntil(Deadline()));
  // Edges come, nobody reads; DrainPollers() makes sure they were delivered.
  ASSERT_TRUE(SendAll(peer_.get(), "b"));
  testing::DrainPollers();
  resumed.store(true);
  connection_->ResumeReading();
  EXPECT_TRUE(second.WaitUntil(Deadline()));
}

// A handler that takes one byte at a time and pauses: all arrive, without
// anything new having to come, and so does the end.
TEST_P(PauseTest, WhatAPausingHandlerLeftIsDeliveredAgain) {
  fiber::Latch all(1000);
  std::atomic<int> taken{0};
  fiber::Event ended;
  StreamConnection::Options options;
  options.max_input = 100;  // Doesn't count for the rest that was left.
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Skip(1);
    connection_->PauseReading();
    // Now from within, now from outside.
    if (++taken % 2 == 0) {
      connection_->ResumeReading();
    } else {
      fiber::Spawn([&] { connection_->ResumeReading(); });
    }
    all.count_down();
    return true;
  };
  handler_.on_end_of_input = [&] {
    EXPECT_EQ(taken.load(), 1000);
    ended.Set();
    return false;
  };
  Open(options);
  ASSERT_TRUE(SendAll(peer_.get(), std::string(1000, 'x')));
  EXPECT_TRUE(all.wait_for(testing::kLimit));
  ::shutdown(peer_.get(), SHUT_WR);
  EXPECT_TRUE(ended.WaitUntil(Deadline()));
}

// EndInput() waits until the handler has taken the rest that it left.
TEST_P(PauseTest, EndOfInputComesAfterWhatWasLeft) {
  std::atomic<int> taken{0};
  fiber::Event first;
  fiber::Event ended;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Skip(1);
    connection_->PauseReading();
    if (taken++ == 0) {
      first.Set();
    } else {
      connection_->ResumeReading();
    }
    return true;
  };
  handler_.on_end_of_input = [&] {
    EXPECT_EQ(taken.load(), 5);
    ended.Set();
    return false;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "abcde"));
  ASSERT_TRUE(first.WaitUntil(Deadline()));
  connection_->EndInput();
  EXPECT_FALSE(ended.IsSet());
  connection_->ResumeReading();
  EXPECT_TRUE(ended.WaitUntil(Deadline()));
}

// The peer's earlier input is of no use to it any more.
TEST_P(PauseTest, AResetIsNoticedWhileReadingIsPaused) {
  fiber::Event paused;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    EXPECT_FALSE(paused.IsSet());
    in.Skip(1);
    connection_->PauseReading();
    paused.Set();
    return true;
  };
  StreamConnection::Options options;
  options.ends_when_broken = true;
  Open(options);
  ASSERT_TRUE(SendAll(peer_.get(), "ab"));
  ASSERT_TRUE(paused.WaitUntil(Deadline()));
  SetResetOnClose(peer_.get());
  peer_.Reset();
  EXPECT_EQ(handler_.WaitClosed().code(), ECONNRESET);
}

// The end of one direction is none of the connection: it is told when the
// reader gets there.
TEST_P(PauseTest, AnEndOfInputWaitsForThePause) {
  fiber::Event paused;
  fiber::Event ended;
  std::atomic<bool> resumed{false};
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Clear();
    connection_->PauseReading();
    paused.Set();
    return true;
  };
  handler_.on_end_of_input = [&] {
    EXPECT_TRUE(resumed.load());
    ended.Set();
    return false;
  };
  Open();
  ASSERT_TRUE(SendAll(peer_.get(), "a"));
  ASSERT_TRUE(paused.WaitUntil(Deadline()));
  ::shutdown(peer_.get(), SHUT_WR);
  testing::DrainPollers();
  resumed.store(true);
  connection_->ResumeReading();
  EXPECT_TRUE(ended.WaitUntil(Deadline()));
}

TEST_P(PauseTest, ReadingPausedForOutputResumesByItself) {
  StreamConnection::Options options;
  options.max_output = 1'000'000;
  fiber::Event paused;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    while (!in.empty()) {
      if (!connection_->HasOutputRoom()) {
        paused.Set();
        connection_->PauseReadingForOutput();
        return true;
      }
      in.Skip(1);
      EXPECT_EQ(connection_->Write(CreateBufferSlow(Pattern(300'000))),
                WriteResult::kOk);
    }
    return true;
  };
  Open(options, 2048, 2048);
  ASSERT_TRUE(SendAll(peer_.get(), std::string(20, 'x')));
  // The peer might read as fast as it is written to.
  ASSERT_TRUE(paused.WaitUntil(Deadline()));
  EXPECT_EQ(Receive(peer_.get(), 20 * 300'000).size(), 20U * 300'000);
}

}  // namespace
}  // namespace flare::io
