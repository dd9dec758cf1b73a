// How much a connection reads before the tasks of that input get their turn.
#include <atomic>
#include <cstddef>
#include <string>
#include <thread>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/connection_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Deadline;
using testing::SendAll;

class TurnTest : public testing::ConnectionTest {
 protected:
  static constexpr std::size_t kBurst = 60 * 1024;  // Fits into the socket.

  // Before Open(): on a "!" a burst is sent, from within the reader's turn, so
  // that all is there when the next one begins.
  void AnswerMessages() {
    handler_.on_data = [this](Buffer& in, std::size_t*, std::string*) {
      const std::string got = FlattenSlow(in);
      in.Clear();
      if (got == ".") {
        dots_.fetch_add(1);
      } else if (got == "!") {
        read_.store(0);
        EXPECT_TRUE(SendAll(peer_.get(), std::string(kBurst, 'x')));
      } else {
        if (read_.load() == 0) {
          fiber::Spawn([this] { seen_.store(read_.load()); });
        }
        if (read_.fetch_add(got.size()) + got.size() == kBurst) {
          fiber::Spawn([this] { all_.Set(); });
        }
      }
      return true;
    };
  }

  // How much of a burst has been read when the task runs that the first read
  // of it makes: is it ever, in so many bursts, from `least` to `most`?
  // A worker of the reserve may run the task early now and then, if the one
  // that reads had to wait for its CPU; so once is enough.
  bool IsEverRead(int bursts, std::size_t least, std::size_t most) {
    for (int i = 0; i < bursts; ++i) {
      all_.Reset();
      EXPECT_TRUE(SendAll(peer_.get(), "!"));
      if (!all_.WaitUntil(Deadline())) return false;
      const std::size_t seen = seen_.load();
      if (least <= seen && seen <= most) return true;
    }
    return false;
  }

  // Messages that are fetched one by one, until the poller calls that serving
  // one connection.
  void ServeAlone() {
    for (int sent = 1; !EpollPoller::OfGroup(0)->serves_one(); ++sent) {
      ASSERT_LT(sent, 1000);
      ASSERT_TRUE(SendAll(peer_.get(), "."));
      while (dots_.load() != sent) std::this_thread::yield();
    }
  }

  std::atomic<int> dots_{0};
  std::atomic<std::size_t> read_{0};  // Bytes of a burst.
  std::atomic<std::size_t> seen_{0};
  fiber::Event all_;
};
FLARE_INSTANTIATE_RUNTIME_TEST(TurnTest);

TEST_P(TurnTest, AloneTheFirstTasksComeBeforeTheRestIsRead) {
  // Otherwise a thief, or chance, decides which comes first.
  if (GetParam().workers != 1 || fiber::IsShuffleRequested()) GTEST_SKIP();
  AnswerMessages();
  Open();
  // Too few events yet for the poller to call it alone: two for each burst.
  static_assert(2 * 5 < EpollPoller::kFetchesOfOne);
  EXPECT_TRUE(IsEverRead(5, kBurst, kBurst));
  EXPECT_FALSE(EpollPoller::OfGroup(0)->serves_one());
  ServeAlone();
  // The read that passes 16 KiB brings 32 at most.
  EXPECT_TRUE(IsEverRead(20, 16 * 1024, 48 * 1024));
}

}  // namespace
}  // namespace flare::io
