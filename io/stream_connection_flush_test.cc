// When a connection sends its output, and on which thread.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/topology.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/long_task.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/forked_child.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Receive;
using testing::SendAll;

class FlushTest : public testing::ConnectionTest {
 protected:
  // Blocks the thread, not the fiber.
  bool ArrivesWithin(int ms) const {
    pollfd socket{.fd = peer_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&socket, 1, ms) == 1;
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(FlushTest);

// Replies written by the tasks of one batch leave in one segment, as the flush
// comes behind them in the queue; unless a thief flushes earlier, or the queue
// is shuffled.
TEST_P(FlushTest, RepliesOfABatchLeaveTogether) {
  constexpr int kReplies = 20;
  constexpr std::size_t kAll = kReplies * 6;
  handler_.on_data = [&](Buffer& in, std::size_t*, std::string*) {
    in.Clear();
    for (int i = 0; i < kReplies; ++i) {
      fiber::Spawn([this] {
        EXPECT_EQ(connection_->Write(CreateBufferSlow("reply ")),
                  WriteResult::kOk);
      });
    }
    return true;
  };
  Open();
  const bool expected = GetParam().workers == 1 && !fiber::IsShuffleRequested();
  bool together = false;
  // More than once, as a worker that loses its CPU sends at once.
  const std::int64_t deadline_ns = testing::Deadline();
  do {
    ASSERT_TRUE(SendAll(peer_.get(), "go"));
    char bytes[kAll];
    // Once the first byte is there, one recv() gets all of the segment.
    ASSERT_EQ(::recv(peer_.get(), bytes, 1, MSG_PEEK), 1);
    const ssize_t first = ::recv(peer_.get(), bytes, kAll, 0);
    ASSERT_GT(first, 0);
    together = first == static_cast<ssize_t>(kAll);
    EXPECT_EQ(Receive(peer_.get(), kAll - first).size(), kAll - first);
  } while (expected && !together && NowNs() < deadline_ns);
  EXPECT_TRUE(together || !expected);
}

// The tasks behind it may take as long: its output needn't wait for them, if it
// claims that. Else it is queued, as it may be one of many.
TEST_P(FlushTest, ATaskThatHasRunForLongMaySendOnceByItself) {
  if (GetParam().workers != 1) GTEST_SKIP();  // A thief might flush.
  Open();
  bool at_once = false;
  bool queued = false;
  // The worker has to learn first that its tasks are long.
  for (int i = 0; i != 1000 && !(at_once && queued); ++i) {
    fiber::Latch done(1);
    fiber::Spawn([&] {
      const std::int64_t end_ns = NowNs() + 300'000;
      while (NowNs() < end_ns) continue;
      const bool claimed = i % 2 != 0 && fiber::ClaimLongTask();
      EXPECT_EQ(connection_->Write(CreateBufferSlow("x"),
                                   claimed ? Flush::kNow : Flush::kSoon),
                WriteResult::kOk);
      const bool arrived = ArrivesWithin(0);
      if (claimed) {
        at_once |= arrived;
        EXPECT_FALSE(fiber::ClaimLongTask());
      } else if (fiber::ClaimLongTask()) {
        queued |= !arrived;
      }
      done.count_down();
    });
    done.wait();
    EXPECT_EQ(Receive(peer_.get(), 1), "x");
  }
  EXPECT_TRUE(at_once);
  EXPECT_TRUE(queued);
}

// A worker that had to wait for its CPU takes tasks for long ones for a while,
// for which nothing waits; so once in many times is enough.
TEST_P(FlushTest, WaitsForAllIfThatHasPaidLately) {
  if (GetParam().workers != 1 || fiber::IsShuffleRequested()) GTEST_SKIP();
  Open();
  constexpr int kOthers = 10;  // Few aren't worth waiting for.
  // Does a reply leave before others that are written five tasks later?
  const auto leaves_early = [this] {
    int saw_it = 0;
    fiber::Latch done(kOthers);
    const auto write = [&] {
      if (ArrivesWithin(0)) ++saw_it;
      EXPECT_EQ(connection_->Write(CreateBufferSlow("other ")),
                WriteResult::kOk);
      done.count_down();
    };
    const auto later = [&](auto& self, int tasks) -> void {
      if (tasks == 0) return write();
      fiber::Spawn([&self, tasks] { self(self, tasks - 1); });
    };
    fiber::Spawn([&] {
      EXPECT_EQ(connection_->Write(CreateBufferSlow("first ")),
                WriteResult::kOk);
      for (int i = 0; i < kOthers; ++i) later(later, 5);
    });
    done.wait();
    const std::size_t all = 6 * (1 + kOthers);
    EXPECT_EQ(Receive(peer_.get(), all).size(), all);
    return saw_it != 0;
  };
  EXPECT_TRUE(leaves_early());

  EpollPoller* const poller = EpollPoller::OfGroup(0);
  const std::int64_t deadline_ns = NowNs() + 20'000'000'000;
  bool early = true;
  while (early && NowNs() < deadline_ns) {
    while (!poller->waiting_pays()) poller->NoteFlushWaited(true);
    early = leaves_early();
  }
  EXPECT_FALSE(early);
}

// While this task has its thread nobody else can send, if there is one worker.
TEST_P(FlushTest, NowMeansByTheWriter) {
  Open();
  bool early = true;
  // More than once, as a worker that loses its CPU sends at once.
  const std::int64_t deadline_ns = testing::Deadline();
  while (early && NowNs() < deadline_ns) {
    fiber::Latch done(1);
    fiber::Spawn([&] {
      EXPECT_EQ(connection_->Write(CreateBufferSlow("soon ")),
                WriteResult::kOk);
      early = GetParam().workers == 1 && ArrivesWithin(20);
      done.count_down();
    });
    done.wait();
    EXPECT_EQ(Receive(peer_.get(), 5), "soon ");
  }
  EXPECT_FALSE(early);

  fiber::Latch done_now(1);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->Write(CreateBufferSlow("now"), Flush::kNow),
              WriteResult::kOk);
    EXPECT_TRUE(ArrivesWithin(10'000));
    done_now.count_down();
  });
  done_now.wait();
  EXPECT_EQ(Receive(peer_.get(), 3), "now");
}

// Behind waiting output, and in one piece with it.
TEST_P(FlushTest, NowKeepsTheOrder) {
  Open();
  fiber::Latch done(1);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->Write(CreateBufferSlow("first ")), WriteResult::kOk);
    EXPECT_EQ(connection_->Write(CreateBufferSlow("second"), Flush::kNow),
              WriteResult::kOk);
    done.count_down();
  });
  done.wait();
  EXPECT_EQ(Receive(peer_.get(), 12), "first second");
}

// ... before the tasks behind the first, which may write, too.
TEST_P(FlushTest, NowEndsTheWaitingForMore) {
  if (GetParam().workers != 1 || fiber::IsShuffleRequested()) GTEST_SKIP();
  constexpr int kOthers = 30;
  Open();
  int saw_it = 0;
  fiber::Latch done(kOthers);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->Write(CreateBufferSlow("first ")), WriteResult::kOk);
    EXPECT_EQ(connection_->Write(CreateBufferSlow("second"), Flush::kNow),
              WriteResult::kOk);
    for (int i = 0; i < kOthers; ++i) {
      fiber::Spawn([&] {
        if (ArrivesWithin(0)) ++saw_it;
        done.count_down();
      });
    }
  });
  done.wait();
  EXPECT_EQ(saw_it, kOthers);
  EXPECT_EQ(Receive(peer_.get(), 12), "first second");
}

// A limit of 0 is one message at a time, not none ever.
TEST_P(FlushTest, NoOutputMayWaitButOneMessage) {
  StreamConnection::Options options;
  options.max_output = 0;
  Open(options, /*our_send_buffer=*/4096, /*peer_receive_buffer=*/4096);
  const std::string large = testing::Pattern(1'000'000);
  EXPECT_EQ(connection_->Write(CreateBufferSlow(large)), WriteResult::kOk);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("x")), WriteResult::kOverLimit);
  EXPECT_FALSE(connection_->HasOutputRoom());
  EXPECT_EQ(Receive(peer_.get(), large.size()), large);
  EXPECT_EQ(connection_->WaitWritable(testing::Deadline()), RoomResult::kRoom);
  EXPECT_EQ(connection_->Write(CreateBufferSlow("x")), WriteResult::kOk);
  EXPECT_EQ(Receive(peer_.get(), 1), "x");
}

// Workers send the output that the kernel doesn't take at once.
TEST_P(FlushTest, NowLeavesTheRestToWorkers) {
  Open();
  const std::string all = testing::Pattern(20'000'000);
  fiber::Spawn([&] {
    EXPECT_EQ(connection_->Write(CreateBufferSlow(all), Flush::kNow),
              WriteResult::kOk);
  });
  EXPECT_EQ(Receive(peer_.get(), all.size()), all);
}

// No worker is needed for a plain thread's output.
TEST_P(FlushTest, ThreadsSendByThemselves) {
  Open();
  const std::size_t workers =
      fiber::GetSchedulingGroupCount() * fiber::GetSchedulingGroupSize();
  fiber::Latch held(static_cast<std::ptrdiff_t>(workers));
  fiber::Latch gone(static_cast<std::ptrdiff_t>(workers));
  std::atomic<std::uint32_t> go{0};
  for (std::size_t i = 0; i < workers; ++i) {
    fiber::Spawn([&] {
      held.count_down();
      while (go.load() == 0) FutexWait(&go, 0, testing::Deadline());
      gone.count_down();
    });
  }
  held.wait();
  EXPECT_EQ(connection_->Write(CreateBufferSlow("hello")), WriteResult::kOk);
  EXPECT_TRUE(ArrivesWithin(10'000));
  go.store(1);
  FutexWake(&go, INT_MAX);
  EXPECT_EQ(Receive(peer_.get(), 5), "hello");
  gone.wait();
}

// Threads that have one CPU for all: while one is about to send, the others add
// to it. The socket keeps joint sends apart from the rest.
TEST_P(FlushTest, ThreadsSendTogetherIfThatPays) {
  constexpr int kThreads = 16;
  // Each one's writes; the socket has room for them.
  constexpr int kWrites = 10;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
  peer_ = UniqueFd(ends[0]);
  connection_ = StreamConnection::Accepted(UniqueFd(ends[1]), 0, &handler_);
  connection_->Start();
  const int cpu = ::sched_getcpu();
  const auto write_all = [&] {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        EXPECT_TRUE(SetThreadAffinity({cpu}).ok());
        for (int k = 0; k < kWrites; ++k) {
          EXPECT_EQ(connection_->Write(CreateBufferSlow("call")),
                    WriteResult::kOk);
          ::sched_yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  // In how many pieces it arrives.
  const auto count_sent = [&] {
    int pieces = 0;
    for (ssize_t left = kThreads * kWrites * 4; left > 0; ++pieces) {
      char bytes[4096];
      EXPECT_TRUE(ArrivesWithin(10'000));
      const ssize_t n = ::recv(peer_.get(), bytes, sizeof(bytes), 0);
      if (n <= 0) break;
      left -= n;
    }
    return pieces;
  };
  // Each alone at first, and again if the machine is too busy to be sure.
  const std::int64_t deadline_ns = testing::Deadline();
  int pieces = 0;
  do {
    write_all();
    pieces = count_sent();
  } while (pieces > kThreads * kWrites / 2 && NowNs() < deadline_ns);
  EXPECT_LE(pieces, kThreads * kWrites / 2);
}

// New output since the last look may have replaced the bytes that it has taken.
TEST_P(FlushTest, PeerTakesOutputWhateverTheKernelHolds) {
  constexpr std::int64_t kLately = 20'000'000;
  const auto sleep = [] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(3 * kLately / 2));
  };
  const auto send = [&](std::size_t size) {
    EXPECT_EQ(connection_->Write(CreateBufferSlow(testing::Pattern(size))),
              WriteResult::kOk);
    while (connection_->BufferedOutput() != 0) std::this_thread::yield();
  };
  Open({}, 400'000, 8192);  // The kernel takes all of it.
  send(60'000);
  connection_->PeerTakesOutput(0);
  send(100'000);
  EXPECT_EQ(Receive(peer_.get(), 50'000).size(), 50'000U);
  sleep();
  EXPECT_TRUE(connection_->PeerTakesOutput(kLately));
  // Its kernel takes some for a while.
  const std::int64_t deadline = testing::Deadline();
  bool takes = true;
  while (takes && NowNs() < deadline) {
    sleep();
    takes = connection_->PeerTakesOutput(kLately);
  }
  EXPECT_FALSE(takes);
}

// A forked child has the connection, too, and no workers: its output would mix
// with the parent's, and its close would close the parent's connection.
TEST_P(FlushTest, ForkedChildrenDoNothing) {
  Open();
  testing::ExpectAbortInChild([&] {
    static_cast<void>(connection_->Write(CreateBufferSlow("child")));
  });
  testing::ExpectAbortInChild(
      [&] { connection_->Close(Status(1, "by the child")); });
  EXPECT_EQ(connection_->Write(CreateBufferSlow("parent")), WriteResult::kOk);
  EXPECT_TRUE(ArrivesWithin(10'000));
  char bytes[16];
  EXPECT_EQ(::recv(peer_.get(), bytes, sizeof(bytes), 0), 6);
}

}  // namespace
}  // namespace flare::io
