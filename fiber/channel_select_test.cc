// Select() over several channels: what it takes, what it leaves, and that
// nothing is lost when it competes with closing, deadlines and stops.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/deterministic.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class SelectTest : public testing::RuntimeTest {
 protected:
  template <class F>
  static void OnBoth(F f) {
    f();
    Fiber(f).join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(SelectTest);

TEST_P(SelectTest, DoesWhatIsPossible) {
  OnBoth([] {
    Channel<int> numbers(1);
    Channel<std::string> texts(1);
    std::optional<int> number = 9;
    std::string text = "sent";
    // Nothing to receive, but room to send.
    SelectResult did = Select(numbers.Receiving(&number), texts.Sending(&text));
    EXPECT_EQ(did.index, 1U);
    EXPECT_EQ(did.result, ChannelResult::kDone);
    EXPECT_EQ(number, std::nullopt);
    EXPECT_EQ(texts.TryReceive().value(), "sent");
    EXPECT_EQ(numbers.TrySend(4), ChannelResult::kDone);
    EXPECT_EQ(texts.TrySend("full"), ChannelResult::kDone);
    text = "kept";
    did = Select(numbers.Receiving(&number), texts.Sending(&text));
    EXPECT_EQ(did.index, 0U);
    EXPECT_EQ(number, 4);
    EXPECT_EQ(text, "kept");
    // Neither is possible.
    did = TrySelect(numbers.Receiving(&number), texts.Sending(&text));
    EXPECT_EQ(did.index, SelectResult::kNone);
    EXPECT_EQ(did.result, ChannelResult::kWouldBlock);
    did = SelectFor(milliseconds(1), numbers.Receiving(&number),
                    texts.Sending(&text));
    EXPECT_EQ(did.result, ChannelResult::kTimedOut);
    EXPECT_EQ(did.index, SelectResult::kNone);
    EXPECT_EQ(text, "kept");
    did = SelectUntil(std::chrono::steady_clock::now(), texts.Sending(&text));
    EXPECT_EQ(did.result, ChannelResult::kTimedOut);
  });
}

TEST_P(SelectTest, ClosedIsPossible) {
  OnBoth([] {
    Channel<int> open;
    Channel<int> closed(1);
    EXPECT_EQ(closed.TrySend(1), ChannelResult::kDone);
    closed.Close();
    std::optional<int> a;
    std::optional<int> b;
    SelectResult did = Select(open.Receiving(&a), closed.Receiving(&b));
    EXPECT_EQ(did.result, ChannelResult::kDone);
    EXPECT_EQ(b, 1);
    did = Select(open.Receiving(&a), closed.Receiving(&b));
    EXPECT_EQ(did.index, 1U);
    EXPECT_EQ(did.result, ChannelResult::kClosed);
    EXPECT_EQ(b, std::nullopt);
    int value = 3;
    did = TrySelect(closed.Sending(&value), open.Receiving(&a));
    EXPECT_EQ(did.index, 0U);
    EXPECT_EQ(did.result, ChannelResult::kClosed);
  });
}

TEST_P(SelectTest, WaitsForWhicheverComes) {
  OnBoth([] {
    Channel<int> a;
    Channel<int> b;
    Channel<int> answers;
    constexpr int kRounds = 200;
    Fiber server([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::optional<int> from_a;
        std::optional<int> from_b;
        const SelectResult did =
            Select(a.Receiving(&from_a), b.Receiving(&from_b));
        ASSERT_EQ(did.result, ChannelResult::kDone);
        EXPECT_EQ(did.index == 0, from_a.has_value());
        EXPECT_EQ(did.index == 1, from_b.has_value());
        int answer = from_a ? *from_a : -*from_b;
        EXPECT_EQ(answers.Send(answer), ChannelResult::kDone);
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      Channel<int>& channel = i % 3 == 0 ? a : b;
      EXPECT_EQ(channel.Send(i), ChannelResult::kDone);
      EXPECT_EQ(answers.Receive().value(), i % 3 == 0 ? i : -i);
    }
    server.join();
  });
}

TEST_P(SelectTest, Stopped) {
  OnBoth([] {
    Channel<int> a;
    Channel<int> b;
    std::optional<int> out;
    int value = 1;
    std::stop_source source;
    Fiber stopper([&] { source.request_stop(); });
    EXPECT_EQ(
        Select(source.get_token(), a.Receiving(&out), b.Sending(&value)).result,
        ChannelResult::kStopped);
    stopper.join();
    EXPECT_EQ(
        Select(source.get_token(), a.Receiving(&out), b.Sending(&value)).result,
        ChannelResult::kStopped);
    // Nothing was left behind.
    EXPECT_EQ(a.TrySend(1), ChannelResult::kWouldBlock);
    EXPECT_EQ(b.TryReceive().error(), ChannelResult::kWouldBlock);
  });
}

TEST_P(SelectTest, DisabledOperationsAndNone) {
  OnBoth([] {
    Channel<int> channel(1);
    std::optional<int> out;
    int value = 1;
    SelectResult did =
        Select(ChannelOperation(), channel.Sending(&value), ChannelOperation());
    EXPECT_EQ(did.index, 1U);
    EXPECT_EQ(TrySelect(ChannelOperation()).result, ChannelResult::kWouldBlock);
    EXPECT_EQ(TrySelect().result, ChannelResult::kWouldBlock);
    EXPECT_EQ(SelectFor(milliseconds(1)).result, ChannelResult::kTimedOut);
    EXPECT_EQ(SelectFor(milliseconds(1), ChannelOperation()).result,
              ChannelResult::kTimedOut);
    EXPECT_EQ(
        SelectFor(hours(1), ChannelOperation(), channel.Receiving(&out)).index,
        1U);
  });
}

TEST_P(SelectTest, TheSameChannelTwice) {
  OnBoth([] {
    Channel<int> channel;
    std::optional<int> a;
    std::optional<int> b;
    int value = 5;
    // Doesn't meet itself.
    EXPECT_EQ(SelectFor(milliseconds(1), channel.Receiving(&a),
                        channel.Sending(&value), channel.Receiving(&b))
                  .result,
              ChannelResult::kTimedOut);
    Fiber sender([&] { EXPECT_EQ(channel.Send(7), ChannelResult::kDone); });
    const SelectResult did =
        Select(channel.Receiving(&a), channel.Receiving(&b));
    EXPECT_EQ(did.result, ChannelResult::kDone);
    EXPECT_EQ(did.index == 0 ? a : b, 7);
    EXPECT_EQ(did.index == 0 ? b : a, std::nullopt);
    sender.join();
  });
}

TEST_P(SelectTest, TwoSelectsMeet) {
  Channel<int> a;
  Channel<int> b;
  constexpr int kRounds = 1000;
  Fiber sender([&] {
    for (int i = 0; i < kRounds; ++i) {
      int to_a = i;
      int to_b = i;
      EXPECT_EQ(Select(b.Sending(&to_b), a.Sending(&to_a)).result,
                ChannelResult::kDone);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    std::optional<int> from_a;
    std::optional<int> from_b;
    const SelectResult did = Select(a.Receiving(&from_a), b.Receiving(&from_b));
    EXPECT_EQ(did.index == 0 ? from_a : from_b, i);
  }
  sender.join();
}

TEST_P(SelectTest, NoCaseStarves) {
  Channel<int> channels[3] = {Channel<int>(1), Channel<int>(1),
                              Channel<int>(1)};
  int taken[3] = {};
  for (int i = 0; i < 3000; ++i) {
    for (auto& channel : channels) static_cast<void>(channel.TrySend(i));
    std::optional<int> out;
    ++taken[Select(channels[0].Receiving(&out), channels[1].Receiving(&out),
                   channels[2].Receiving(&out))
                .index];
  }
  for (const int n : taken) EXPECT_GT(n, 300);
}

TEST_P(SelectTest, ManyOperations) {
  constexpr std::size_t kChannels = 50;
  std::vector<std::unique_ptr<Channel<int>>> channels;
  for (std::size_t i = 0; i < kChannels; ++i) {
    channels.push_back(std::make_unique<Channel<int>>(i % 2));
  }
  const auto receive = [&](bool wait) {
    std::vector<std::optional<int>> outs(kChannels);
    std::vector<ChannelOperation> operations;
    for (std::size_t i = 0; i < kChannels; ++i) {
      operations.push_back(channels[i]->Receiving(&outs[i]));
    }
    const SelectResult did =
        wait ? SelectOf(operations) : TrySelectOf(operations);
    if (did.result == ChannelResult::kDone) {
      EXPECT_EQ(outs[did.index], static_cast<int>(did.index));
    }
    return did.result;
  };
  EXPECT_EQ(receive(false), ChannelResult::kWouldBlock);
  Fiber sender([&] {
    for (std::size_t i = 0; i < 200; ++i) {
      const std::size_t to = i * 7 % kChannels;
      EXPECT_EQ(channels[to]->Send(static_cast<int>(to)), ChannelResult::kDone);
    }
  });
  for (int i = 0; i < 200; ++i) EXPECT_EQ(receive(true), ChannelResult::kDone);
  sender.join();
}

// Senders and receivers of all kinds, on fibers and threads, giving up at
// random, while channels are closed one after the other. Every value that a
// sender was told is done arrives exactly once, and no other does; everybody
// ends (a lost wake-up would hang).
class Storm {
 public:
  explicit Storm(std::uint32_t seed) : random_(seed * 2 + 1) {
    for (int i = 0; i < kChannels; ++i) {
      channels_.push_back(std::make_unique<Channel<int>>(random_() % 3));
    }
  }

  void Run() {
    std::stop_source source;
    {
      TaskGroup group;
      std::vector<std::thread> threads;
      for (int i = 0; i < 10; ++i) {
        const std::uint32_t seed = random_();
        group.Spawn([=, this, stop = source.get_token()] {
          i % 2 == 0 ? Sender(seed, stop, i) : Receiver(seed, stop);
        });
      }
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back(
            [=, this, seed = random_(), stop = source.get_token()] {
              i % 2 == 0 ? Sender(seed, stop, 10) : Receiver(seed, stop);
            });
      }
      const auto pause = [&] {
        static_cast<void>(Channel<int>().ReceiveFor(
            std::chrono::microseconds(random_() % 300)));
      };
      pause();
      for (auto& channel : channels_) {
        pause();
        channel->Close();
      }
      if (random_() % 2 == 0) source.request_stop();
      EXPECT_TRUE(group.Wait().ok());
      for (auto& thread : threads) thread.join();
    }
    for (auto& channel : channels_) {
      while (auto value = channel->TryReceive()) Count(*value);
    }
    EXPECT_EQ(sent_.load(), received_.load());
    EXPECT_EQ(sum_sent_.load(), sum_received_.load());
  }

 private:
  static constexpr int kChannels = 3;

  static WaitLimit RandomLimit(std::uint32_t random,
                               const std::stop_token* stop) {
    WaitLimit limit;
    if (random % 3 == 0) limit.stop = stop;
    if (random % 4 == 0) limit.deadline_ns = NowNs() + random % 50'000;
    return limit;
  }

  void Count(int value) {
    received_.fetch_add(1);
    sum_received_.fetch_add(value);
  }

  void Sender(std::uint32_t seed, const std::stop_token& stop, int id) {
    std::minstd_rand random(seed);
    for (int n = 0;; ++n) {
      const int value = id * 1'000'000 + n;
      const auto limit = RandomLimit(random(), &stop);
      ChannelResult result;
      if (random() % 2 == 0) {
        result = channels_[random() % kChannels]->Send(value, limit);
      } else {
        int copies[2] = {value, value};
        result =
            Select(limit, channels_[random() % kChannels]->Sending(&copies[0]),
                   channels_[random() % kChannels]->Sending(&copies[1]))
                .result;
      }
      if (result == ChannelResult::kDone) {
        sent_.fetch_add(1);
        sum_sent_.fetch_add(value);
      } else if (AllClosed()) {
        return;
      } else {
        this_fiber::Yield();
      }
    }
  }

  void Receiver(std::uint32_t seed, const std::stop_token& stop) {
    std::minstd_rand random(seed);
    for (;;) {
      const auto limit = RandomLimit(random(), &stop);
      ChannelResult result = ChannelResult::kDone;
      std::optional<int> outs[3];
      if (random() % 2 == 0) {
        auto value = channels_[random() % kChannels]->Receive(limit);
        if (value) {
          outs[0] = *value;
        } else {
          result = value.error();
        }
      } else {
        result = Select(limit, channels_[0]->Receiving(&outs[0]),
                        channels_[1]->Receiving(&outs[1]),
                        channels_[2]->Receiving(&outs[2]))
                     .result;
      }
      int filled = 0;
      for (const auto& out : outs) {
        if (!out) continue;
        Count(*out);
        ++filled;
      }
      EXPECT_EQ(filled, result == ChannelResult::kDone ? 1 : 0);
      if (result != ChannelResult::kDone) {
        if (AllClosed()) return;
        this_fiber::Yield();
      }
    }
  }

  bool AllClosed() const {
    for (const auto& channel : channels_) {
      if (!channel->closed()) return false;
    }
    return true;
  }

  std::minstd_rand random_;
  std::vector<std::unique_ptr<Channel<int>>> channels_;
  std::atomic<int> sent_{0};
  std::atomic<int> received_{0};
  std::atomic<std::int64_t> sum_sent_{0};
  std::atomic<std::int64_t> sum_received_{0};
};

TEST_P(SelectTest, StressAgainstClosingDeadlinesAndStops) {
  const std::int64_t end = NowNs() + testing::StressNs(400'000'000);
  for (std::uint32_t seed = 1; NowNs() < end; ++seed) {
    SCOPED_TRACE(seed);
    Storm(seed).Run();
    ASSERT_FALSE(HasFailure());
  }
}

// Seeded orders of events, time-outs included: each value that was sent arrives
// once, and nobody waits for ever (that ends the process).
TEST(SelectExplorationTest, SendersReceiversDeadlinesAndClosing) {
  testing::ExploreSchedules(400, [] {
    Channel<int> a;
    Channel<int> b(1);
    int sent = 0;
    int received = 0;
    std::stop_source source;
    TaskGroup group;
    for (int i = 0; i < 2; ++i) {
      group.Spawn([&, i] {
        for (int k = 1; k <= 3; ++k) {
          int to_a = k;
          int to_b = k;
          const auto did = i == 0 ? SelectFor(milliseconds(1), a.Sending(&to_a),
                                              b.Sending(&to_b))
                                  : Select(source.get_token(), b.Sending(&to_b),
                                           a.Sending(&to_a));
          if (did.result == ChannelResult::kDone) sent += k;
        }
      });
      group.Spawn([&, i] {
        for (int k = 0; k < 3; ++k) {
          std::optional<int> from_a;
          std::optional<int> from_b;
          const auto did =
              i == 0 ? SelectFor(milliseconds(2), b.Receiving(&from_b),
                                 a.Receiving(&from_a))
                     : Select(a.Receiving(&from_a), b.Receiving(&from_b));
          received += from_a.value_or(0) + from_b.value_or(0);
          if (did.result == ChannelResult::kClosed) break;
        }
      });
    }
    group.Spawn([&] {
      this_fiber::SleepFor(milliseconds(3));
      source.request_stop();
      a.Close();
      b.Close();
    });
    EXPECT_TRUE(group.Wait().ok());
    while (auto value = b.TryReceive()) received += *value;
    EXPECT_EQ(sent, received);
    EXPECT_EQ(a.size() + b.size(), 0U);
  });
}

}  // namespace
}  // namespace flare::fiber
