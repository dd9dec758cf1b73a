// Deadlines that pass while a connection is being closed: of lingering, and of
// those that wait for room. A waiter that has left isn't touched any more [BK3]
// [SC6].
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/testing/overwrite_stack.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Pattern;
using testing::RecordingHandler;

// Some turns of the timer wheel.
constexpr std::int64_t kRaceNs = 60'000;

std::int64_t Below(std::mt19937& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
}

void SpinUntil(std::int64_t at_ns) {
  while (NowNs() < at_ns) CpuRelax();
}

// Waits for room, first until `at_ns`, then by short deadlines, until the
// connection is closed. The remains of a wait on the stack are overwritten at
// once.
void WaitAgainAndAgain(StreamConnection* connection, std::int64_t at_ns) {
  for (;;) {
    const RoomResult result = connection->WaitWritable(at_ns);
    flare::testing::OverwriteStack();
    if (result == RoomResult::kClosed) return;
    // It may have room all the time.
    if (result == RoomResult::kRoom) this_fiber::Yield();
    static_cast<void>(connection->PeerTakesOutput(kRaceNs));
    at_ns = NowNs() + kRaceNs / 4;
  }
}

class ConnectionDeadlineTest : public testing::IoTest {
 protected:
  static void ReadALittle(int fd) {
    std::array<char, 2000> bytes;
    for (int i = 0; i != 5; ++i) {
      static_cast<void>(::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT));
    }
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(ConnectionDeadlineTest);

TEST_P(ConnectionDeadlineTest, PassWhileItIsClosed) {
  constexpr int kRounds = 150;
  constexpr int kWaiters = 3;
  const Buffer large = CreateBufferSlow(Pattern(15'000));
  std::mt19937 random(11);
  for (int round = 0; round < kRounds; ++round) {
    RecordingHandler handler;
    testing::SocketPair pair = testing::TcpPair(2048, 2048);
    StreamConnection::Options options;
    options.linger_ns = Below(random, kRaceNs);
    options.max_output = 20'000;
    const auto connection = StreamConnection::Accepted(
        std::move(pair.ours), round % fiber::GetSchedulingGroupCount(),
        &handler, options);
    connection->Start();
    WriteResult written;
    do {
      written = connection->Write(Buffer(large));
    } while (written == WriteResult::kOk);
    ASSERT_EQ(written, WriteResult::kOverLimit);

    const std::int64_t close_ns = NowNs() + 2 * kRaceNs;
    const auto about = [&] { return close_ns - Below(random, kRaceNs / 2); };
    fiber::Latch left(kWaiters + 2);
    for (int w = 0; w < kWaiters; ++w) {
      fiber::Spawn([&, at_ns = about()] {
        WaitAgainAndAgain(connection.Get(), at_ns);
        left.count_down();
      });
    }
    std::thread thread([&, at_ns = about()] {
      WaitAgainAndAgain(connection.Get(), at_ns);
      left.count_down();
    });
    const unsigned kind = random() % 4;
    if (kind == 0) {
      SpinUntil(close_ns);
      connection->Close(Status(2, "closed"));
    }
    fiber::Spawn([&, kind] {
      if (kind != 0) connection->CloseAfterFlush(Status(1, "flushed"));
      if (kind == 1) {
        // Three times linger_ns, while there is output, and the next steps.
        SpinUntil(close_ns + 2 * options.linger_ns);
        connection->Close(Status(2, "closed"));
      }
      left.count_down();
    });
    if (kind == 2) ReadALittle(pair.peer.get());  // It lingers for longer.
    if (kind == 3) {
      SpinUntil(close_ns);
      testing::ResetOnClose(pair.peer.get());
      pair.peer.Reset();
    }
    handler.WaitClosed();
    ASSERT_TRUE(left.wait_for(testing::kLimit));
    thread.join();
    testing::ExpectGone(connection);
  }
}

}  // namespace
}  // namespace flare::io
