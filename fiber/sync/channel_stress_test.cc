#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/deterministic.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;

class ChannelStressTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ChannelStressTest);

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

TEST_P(ChannelStressTest, AgainstClosingDeadlinesAndStops) {
  const std::int64_t end = NowNs() + testing::StressNs(400'000'000);
  for (std::uint32_t seed = 1; NowNs() < end; ++seed) {
    SCOPED_TRACE(seed);
    Storm(seed).Run();
    ASSERT_FALSE(HasFailure());
  }
}

// Seeded orders of events, time-outs included: each value that was sent arrives
// once, and nobody waits for ever (that ends the process).
TEST(ChannelExplorationTest, SendersReceiversDeadlinesAndClosing) {
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
