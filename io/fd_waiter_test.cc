#include "flare/io/fd_waiter.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/io/fd.h"
#include "flare/io/testing/forked_child.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using std::chrono::milliseconds;

class FdWaiterTest : public testing::IoTest {
 protected:
  struct Pair {
    UniqueFd ours;
    UniqueFd peers;
  };

  static Pair Connect() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }

  static std::unique_ptr<FdWaiter> Watch(const UniqueFd& fd) {
    auto waiter = FdWaiter::Create(fd.get());
    EXPECT_TRUE(waiter.has_value()) << waiter.error().message();
    return *std::move(waiter);
  }

  static void Send(const UniqueFd& fd) {
    EXPECT_EQ(::write(fd.get(), "x", 1), 1);
  }

  static void OnBoth(void (*f)()) {
    f();
    Fiber(f).join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(FdWaiterTest);

TEST_P(FdWaiterTest, AForkedChildLeavesTheWatchToItsParent) {
  const Pair pair = Connect();
  auto waiter = Watch(pair.ours);
  testing::ExpectAbortInChild([&] { waiter.reset(); });
  Fiber fiber(
      [&] { EXPECT_EQ(waiter->WaitFor(POLLIN, testing::kLimit), POLLIN); });
  Send(pair.peers);
  fiber.join();
}

// Unlike the poller's edges: libraries may leave some of the input unread.
TEST_P(FdWaiterTest, UnreadInputIsReadyEachTime) {
  OnBoth([] {
    const Pair pair = Connect();
    const auto waiter = Watch(pair.ours);
    EXPECT_EQ(waiter->WaitFor(POLLIN, milliseconds(0)), 0);
    EXPECT_EQ(waiter->WaitFor(POLLIN | POLLOUT, testing::kLimit), POLLOUT);
    Send(pair.peers);
    EXPECT_EQ(waiter->WaitFor(POLLIN, testing::kLimit), POLLIN);
    EXPECT_EQ(waiter->WaitFor(POLLIN, testing::kLimit), POLLIN);
    char byte;
    EXPECT_EQ(::read(pair.ours.get(), &byte, 1), 1);
    EXPECT_EQ(waiter->WaitFor(POLLIN, milliseconds(1)), 0);
  });
}

TEST_P(FdWaiterTest, TheEndOfThePeerWakesAWaiterForOutput) {
  OnBoth([] {
    Pair pair = Connect();
    const auto waiter = Watch(pair.ours);
    const std::string much(1 << 20, 'x');
    while (::write(pair.ours.get(), much.data(), much.size()) > 0) continue;
    EXPECT_EQ(waiter->WaitFor(POLLOUT, milliseconds(1)), 0);
    Fiber peer([&] { pair.peers.Reset(); });
    EXPECT_NE(waiter->WaitFor(POLLOUT, testing::kLimit) & POLLHUP, 0);
    peer.join();
  });
}

TEST_P(FdWaiterTest, ReaderAndWriterOfOneDescriptorWaitAtTheSameTime) {
  Pair pair = Connect();
  const auto waiter = Watch(pair.ours);
  const std::string much(1 << 20, 'x');
  while (::write(pair.ours.get(), much.data(), much.size()) > 0) continue;
  std::atomic<short> readable{0};
  std::atomic<short> writable{0};
  Fiber reader([&] { readable = waiter->Wait(POLLIN); });
  Fiber writer([&] { writable = waiter->Wait(POLLOUT); });
  Send(pair.peers);
  reader.join();
  EXPECT_EQ(readable.load(), POLLIN);
  std::string taken(much.size(), '\0');
  while (::read(pair.peers.get(), taken.data(), taken.size()) > 0) continue;
  writer.join();
  EXPECT_NE(writable.load() & POLLOUT, 0);
}

// A waiter may go while an event of it is on the way, and the descriptor stays
// the caller's.
TEST_P(FdWaiterTest, LeavesTheDescriptorToItsOwner) {
  const Pair pair = Connect();
  for (int i = 0; i != 200; ++i) {
    const auto waiter = Watch(pair.ours);
    Send(pair.peers);
  }
  char bytes[200];
  EXPECT_EQ(::read(pair.ours.get(), bytes, sizeof(bytes)), 200);
}

// Whenever the poller lets go of its waiter: it sleeps.
TEST_P(FdWaiterTest, ThePeerSeesTheEndAtOnce) {
  OnBoth([] {
    Pair pair = Connect();
    auto waiter = Watch(pair.ours);
    // The event of its registration comes and goes.
    EXPECT_EQ(waiter->WaitFor(POLLIN, milliseconds(20)), 0);
    waiter.reset();
    pair.ours.Reset();
    char byte;
    EXPECT_EQ(::read(pair.peers.get(), &byte, 1), 0);
  });
}

TEST_P(FdWaiterTest, SaysWhatItCannotWatch) {
  const auto closed = FdWaiter::Create(-1);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code(), EBADF);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  ASSERT_NE(file, nullptr);
  const auto regular = FdWaiter::Create(::fileno(file.get()));
  ASSERT_FALSE(regular.has_value());
  EXPECT_EQ(regular.error().code(), EPERM);
}

// No change is lost: a byte goes to and fro between pairs of fibers, each of
// which waits for the other one's.
TEST_P(FdWaiterTest, StressPingPong) {
  constexpr int kPairs = 8;
  constexpr int kRounds = 500;
  const auto play = [](const UniqueFd& fd, bool first) -> Status {
    const auto waiter = Watch(fd);
    if (first) Send(fd);
    for (int round = 0; round != kRounds; ++round) {
      char byte;
      while (::read(fd.get(), &byte, 1) != 1) {
        if (waiter->WaitFor(POLLIN, testing::kLimit) == 0) {
          return Status(ETIMEDOUT, "a byte was not seen");
        }
      }
      if (!first || round + 1 != kRounds) Send(fd);
    }
    return {};
  };
  fiber::TaskGroup players;
  for (int i = 0; i != kPairs; ++i) {
    auto pair = std::make_shared<Pair>(Connect());
    players.Spawn([=] { return play(pair->ours, true); });
    players.Spawn([=] { return play(pair->peers, false); });
  }
  const Status status = players.Wait();
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace flare::io
