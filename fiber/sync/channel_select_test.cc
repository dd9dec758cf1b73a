// Select() over several channels: the values that it takes and leaves.
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "flare/fiber/channel.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class SelectTest : public testing::RuntimeTest {};
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

}  // namespace
}  // namespace flare::fiber
