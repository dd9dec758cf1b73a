#include "flare/fiber/channel.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class ChannelTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ChannelTest);

TEST_P(ChannelTest, KeepsTheOrder) {
  for (const std::size_t capacity : {0, 1, 3, 100}) {
    Channel<int> channel(capacity);
    EXPECT_EQ(channel.capacity(), capacity);
    constexpr int kValues = 1000;
    Fiber sender([&] {
      for (int i = 0; i < kValues; ++i) {
        EXPECT_EQ(channel.Send(i), ChannelResult::kDone);
        EXPECT_LE(channel.size(), capacity);
      }
      EXPECT_TRUE(channel.Close());
    });
    const auto receive = [&] {
      int expected = 0;
      while (auto value = channel.Receive()) EXPECT_EQ(*value, expected++);
      EXPECT_EQ(expected, kValues);
    };
    if (capacity % 2 == 0) {
      receive();  // On this plain thread.
    } else {
      Fiber(receive).join();
    }
    sender.join();
  }
}

TEST_P(ChannelTest, NotWaiting) {
  OnBoth([] {
    Channel<int> channel(2);
    EXPECT_EQ(channel.TryReceive().error(), ChannelResult::kWouldBlock);
    EXPECT_EQ(channel.TrySend(1), ChannelResult::kDone);
    const int two = 2;
    EXPECT_EQ(channel.TrySend(two), ChannelResult::kDone);
    EXPECT_EQ(channel.TrySend(3), ChannelResult::kWouldBlock);
    EXPECT_EQ(channel.size(), 2U);
    EXPECT_EQ(channel.TryReceive().value(), 1);
    EXPECT_EQ(channel.TrySend(4), ChannelResult::kDone);
    EXPECT_EQ(channel.TryReceive().value(), 2);
    EXPECT_EQ(channel.TryReceive().value(), 4);
    EXPECT_EQ(channel.TryReceive().error(), ChannelResult::kWouldBlock);
    Channel<int> rendezvous;
    EXPECT_EQ(rendezvous.TrySend(1), ChannelResult::kWouldBlock);
    EXPECT_EQ(rendezvous.TryReceive().error(), ChannelResult::kWouldBlock);
  });
}

TEST_P(ChannelTest, ClosedLetsReceiversDrain) {
  OnBoth([] {
    Channel<std::string> channel(4);
    EXPECT_EQ(channel.Send("first"), ChannelResult::kDone);
    EXPECT_EQ(channel.Send("second"), ChannelResult::kDone);
    EXPECT_FALSE(channel.closed());
    EXPECT_TRUE(channel.Close());
    EXPECT_FALSE(channel.Close());
    EXPECT_TRUE(channel.closed());
    std::string kept = "kept";
    EXPECT_EQ(channel.Send(std::move(kept)), ChannelResult::kClosed);
    EXPECT_EQ(channel.TrySend(std::move(kept)), ChannelResult::kClosed);
    EXPECT_EQ(kept, "kept");  // NOLINT: under test
    EXPECT_EQ(channel.Receive().value(), "first");
    EXPECT_EQ(channel.TryReceive().value(), "second");
    EXPECT_EQ(channel.Receive().error(), ChannelResult::kClosed);
    EXPECT_EQ(channel.TryReceive().error(), ChannelResult::kClosed);
  });
}

TEST_P(ChannelTest, ClosingEndsAllWaits) {
  for (const bool senders : {false, true}) {
    Channel<std::unique_ptr<int>> channel;
    std::atomic<int> closed{0};
    TaskGroup group;
    for (int i = 0; i < 10; ++i) {
      group.Spawn([&] {
        if (senders) {
          auto value = std::make_unique<int>(5);
          EXPECT_EQ(channel.Send(std::move(value)), ChannelResult::kClosed);
          EXPECT_NE(value, nullptr);  // NOLINT: under test
        } else {
          EXPECT_EQ(channel.Receive().error(), ChannelResult::kClosed);
        }
        closed.fetch_add(1);
      });
    }
    std::thread waiter([&] {
      if (!senders) {
        EXPECT_EQ(channel.Receive().error(), ChannelResult::kClosed);
      }
    });
    Fiber([] { this_fiber::Yield(); }).join();
    EXPECT_EQ(closed.load(), 0);
    channel.Close();
    EXPECT_TRUE(group.Wait().ok());
    waiter.join();
    EXPECT_EQ(closed.load(), 10);
  }
}

TEST_P(ChannelTest, GivingUpDoesNothing) {
  OnBoth([] {
    Channel<std::string> channel(1);
    EXPECT_EQ(channel.ReceiveFor(milliseconds(1)).error(),
              ChannelResult::kTimedOut);
    EXPECT_EQ(channel.ReceiveUntil(std::chrono::steady_clock::now()).error(),
              ChannelResult::kTimedOut);
    EXPECT_EQ(channel.Send("in it"), ChannelResult::kDone);
    std::string kept = "kept";
    EXPECT_EQ(channel.SendFor(std::move(kept), milliseconds(1)),
              ChannelResult::kTimedOut);
    EXPECT_EQ(channel.SendUntil(kept, std::chrono::system_clock::now()),
              ChannelResult::kTimedOut);
    std::stop_source source;
    Fiber stopper([&] { source.request_stop(); });
    EXPECT_EQ(channel.Send(std::move(kept), source.get_token()),
              ChannelResult::kStopped);
    EXPECT_EQ(channel.Send(kept, source.get_token()), ChannelResult::kStopped);
    stopper.join();
    EXPECT_EQ(kept, "kept");  // NOLINT: under test
    // What can be done is done, stopped or late or not.
    EXPECT_EQ(channel.Receive(source.get_token()).value(), "in it");
    EXPECT_EQ(channel.Receive(source.get_token()).error(),
              ChannelResult::kStopped);
    EXPECT_EQ(channel.Send(kept, source.get_token()), ChannelResult::kDone);
    EXPECT_EQ(channel.ReceiveUntil(std::chrono::steady_clock::now()).value(),
              "kept");
    EXPECT_EQ(channel.TryReceive().error(), ChannelResult::kWouldBlock);
  });
}

TEST_P(ChannelTest, LimitsThatAreNotReached) {
  Channel<int> channel;
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  Fiber sender([&] {
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(channel.SendFor(i, hours(1)), ChannelResult::kDone);
      const WaitLimit both{NowNs() + 3'600'000'000'000, &stop};
      EXPECT_EQ(channel.Send(i, both), ChannelResult::kDone);
    }
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(channel.Receive(stop).value(), i);
    EXPECT_EQ(channel.ReceiveFor(hours(1)).value(), i);
  }
  sender.join();
}

TEST_P(ChannelTest, ValuesThatNobodyTookAreDestroyed) {
  const auto counted = std::make_shared<int>(1);
  {
    Channel<std::shared_ptr<int>> channel(3);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(channel.Send(counted), ChannelResult::kDone);
    }
    EXPECT_EQ(channel.Receive().value(), counted);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(channel.Send(counted), ChannelResult::kDone);
    }
    EXPECT_EQ(counted.use_count(), 4);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

// A receiver may destroy the channel though Send() has not returned.
TEST_P(ChannelTest, DestroyedByTheReceiver) {
  for (int i = 0; i < 500; ++i) {
    auto channel = std::make_unique<Channel<int>>(i % 2);
    Fiber sender([raw = channel.get()] {
      EXPECT_EQ(raw->Send(1), ChannelResult::kDone);
    });
    EXPECT_EQ(channel->Receive().value(), 1);
    channel.reset();
    sender.join();
  }
}

TEST_P(ChannelTest, OldestWaiterIsServedFirst) {
  Channel<int> channel;
  constexpr int kSenders = 10;
  std::vector<Fiber> senders;
  Event entered[kSenders];
  for (int i = 0; i < kSenders; ++i) {
    senders.emplace_back([&, i] {
      entered[i].Set();
      EXPECT_EQ(channel.Send(i), ChannelResult::kDone);
    });
    entered[i].Wait();
    // It waits in the channel once a value can be seen by a Select that doesn't
    // take it; on one worker already.
    if (GetParam().workers > 1) break;
  }
  if (GetParam().workers == 1) Fiber([] { this_fiber::Yield(); }).join();
  for (std::size_t i = 0; i < senders.size(); ++i) {
    EXPECT_EQ(channel.Receive().value(), static_cast<int>(i));
  }
  for (auto& sender : senders) sender.join();
}

TEST_P(ChannelTest, ManySendersManyReceivers) {
  for (const std::size_t capacity : {0, 1, 16}) {
    Channel<int> channel(capacity);
    constexpr int kEach = 500;
    constexpr int kSenders = 6;
    std::atomic<std::int64_t> sum{0};
    std::atomic<int> count{0};
    TaskGroup receivers;
    const auto receive = [&] {
      while (auto value = channel.Receive()) {
        sum.fetch_add(*value);
        count.fetch_add(1);
      }
    };
    for (int i = 0; i < 5; ++i) receivers.Spawn(receive);
    std::thread plain(receive);
    TaskGroup senders;
    for (int s = 0; s < kSenders; ++s) {
      senders.Spawn([&, s] {
        for (int i = 0; i < kEach; ++i) {
          EXPECT_EQ(channel.Send(s * kEach + i), ChannelResult::kDone);
        }
      });
    }
    EXPECT_TRUE(senders.Wait().ok());
    channel.Close();
    EXPECT_TRUE(receivers.Wait().ok());
    plain.join();
    constexpr std::int64_t kAll = kSenders * kEach;
    EXPECT_EQ(count.load(), kAll);
    EXPECT_EQ(sum.load(), kAll * (kAll - 1) / 2);
  }
}

// Compilers warn if another class could be derived from it.
TEST(ChannelClassTest, MayBeDeleted) {
  auto* const channel = new Channel<int>(1);
  EXPECT_EQ(channel->TrySend(1), ChannelResult::kDone);
  delete channel;
}

TEST(ChannelResultTest, HasNames) {
  EXPECT_STREQ(ToString(ChannelResult::kDone), "done");
  EXPECT_STREQ(ToString(ChannelResult::kClosed), "closed");
  EXPECT_STREQ(ToString(ChannelResult::kWouldBlock), "would block");
  EXPECT_STREQ(ToString(ChannelResult::kTimedOut), "timed out");
  EXPECT_STREQ(ToString(ChannelResult::kStopped), "stopped");
}

TEST(ChannelDeathTest, DestroyedWhileSomebodyWaits) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        RuntimeOptions options;
        options.concurrency = 1;
        if (StartRuntime(options).ok()) {
          auto channel = std::make_unique<Channel<int>>();
          Fiber waiter([&] { static_cast<void>(channel->Receive()); });
          Fiber([] { this_fiber::Yield(); }).join();
          channel.reset();
        }
      },
      "destroyed while somebody waits");
}

}  // namespace
}  // namespace flare::fiber
