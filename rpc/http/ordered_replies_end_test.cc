// The last reply says that it is, once the input has ended.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <numeric>
#include <optional>
#include <semaphore>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/rpc/http/ordered_replies.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::RecordingSink;

// The reply that SayClose takes, and its result.
std::string Head(std::string_view text) {
  return "<" + std::string(text) + ">\r\n";
}
Buffer Reply(std::string_view text) { return CreateBufferSlow(Head(text)); }
constexpr std::string_view kClose = "Connection: close\r\n";
std::string Last(std::string_view text) { return Head(text).append(kClose); }

class NoWaiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { ADD_FAILURE(); }
};

class RepliesAtTheEnd : public ::testing::Test {
 protected:
  std::uint64_t Enter() { return replies_.Enter().value(); }

  RecordingSink sink_;
  OrderedReplies replies_{100, 1000, &sink_};
  NoWaiter waiter_;
};

TEST_F(RepliesAtTheEnd, LeaveInEachOrderAndTheLastSaysSo) {
  std::vector<int> order(4);
  std::iota(order.begin(), order.end(), 0);
  do {
    for (int ended_after = 0; ended_after != 4; ++ended_after) {
      RecordingSink sink;
      OrderedReplies replies(100, 1000, &sink);
      for (std::uint64_t place = 0; place != 4; ++place) {
        ASSERT_EQ(replies.Enter(), place);
      }
      for (int i = 0; i != 4; ++i) {
        if (i == ended_after) replies.EndInput();
        replies.Send(order[i], Reply(std::to_string(order[i])), false);
      }
      ASSERT_EQ(sink.Take(), Head("0") + Head("1") + Head("2") + Last("3"));
      ASSERT_TRUE(sink.closed());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(RepliesAtTheEnd, ReadyOnesDontWait) {
  auto a = Enter();
  auto b = Enter();
  replies_.EnterUnordered();
  replies_.EnterUnordered();
  replies_.EndInput();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Head("a"));
  replies_.SendUnordered(Reply("u"), false);
  EXPECT_EQ(sink_.Take(), Head("u"));
  // The last of those with a place isn't the last.
  replies_.Send(b, Reply("b"), false);
  EXPECT_EQ(sink_.Take(), Head("b"));
  EXPECT_FALSE(sink_.closed());
  replies_.SendUnordered(Reply("v"), false);
  EXPECT_EQ(sink_.Take(), Last("v"));
  EXPECT_TRUE(sink_.closed());
}

TEST_F(RepliesAtTheEnd, NorIsTheLastOfThoseWithoutAPlace) {
  auto a = Enter();
  replies_.EnterUnordered();
  replies_.EndInput();
  replies_.SendUnordered(Reply("u"), false);
  EXPECT_EQ(sink_.Take(), Head("u"));
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Last("a"));
  EXPECT_TRUE(sink_.closed());
}

// The input is to end soon.
TEST_F(RepliesAtTheEnd, TheFirstWithoutAnotherBehindItIsTheLast) {
  replies_.Send(Enter(), Reply("before"), false);
  auto a = Enter();
  auto b = Enter();
  replies_.ExpectEnd();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Head("before") + Head("a"));
  EXPECT_FALSE(replies_.closing());
  replies_.Send(b, Reply("b"), false);
  EXPECT_EQ(sink_.Take(), Last("b"));
  EXPECT_TRUE(sink_.closed());
  // Bytes behind it are no request any more.
  EXPECT_TRUE(replies_.closing());
  EXPECT_EQ(replies_.Enter(), std::nullopt);
  EXPECT_EQ(replies_.EnterUnordered(), OrderedReplies::kClosed);
  EXPECT_EQ(sink_.Take(), "");
}

TEST_F(RepliesAtTheEnd, HeldOnesAreBehindTheOneThatTheyWaitFor) {
  auto a = Enter();
  auto b = Enter();
  replies_.ExpectEnd();
  replies_.Send(b, Reply("b"), false);  // Doesn't count as pending any more.
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Head("a") + Last("b"));
  EXPECT_TRUE(sink_.closed());
}

// Its client knows nothing of the end, and may send another request.
TEST_F(RepliesAtTheEnd, OneInPartsWhoseHeadHasLeftIsNotTheLast) {
  auto a = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  EXPECT_FALSE(replies_.IsLast(a));
  replies_.SendPart(Reply("a"));
  replies_.ExpectEnd();
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), Head("a"));
  EXPECT_FALSE(replies_.closing());
  EXPECT_FALSE(sink_.closed());
  replies_.Send(Enter(), Reply("b"), false);
  EXPECT_EQ(sink_.Take(), Last("b"));
  EXPECT_TRUE(sink_.closed());
}

TEST_F(RepliesAtTheEnd, NothingIsForcedInBehindTheLast) {
  auto a = Enter();
  replies_.ExpectEnd();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Last("a"));
  EXPECT_EQ(replies_.Enter(/*forced=*/true), std::nullopt);
  EXPECT_EQ(sink_.Take(), "");
}

// Their clients wait for further ones, and close.
TEST_F(RepliesAtTheEnd, AllWithoutAPlaceTellTheClient) {
  auto a = Enter();
  replies_.EnterUnordered();
  replies_.ExpectEnd();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Head("a"));
  replies_.SendUnordered(CreateBufferSlow("HTTP/1.1 100 Continue"), false);
  EXPECT_EQ(sink_.Take(), "HTTP/1.1 100 Continue");
  for (int i = 0; i != 2; ++i) {
    EXPECT_EQ(replies_.EnterUnordered(), std::nullopt);
    replies_.SendUnordered(Reply("u"), false);
    EXPECT_EQ(sink_.Take(), Last("u"));
    EXPECT_FALSE(sink_.closed());
    EXPECT_FALSE(replies_.closing());
  }
}

TEST_F(RepliesAtTheEnd, TheEndOfTheInputMayOvertakeIt) {
  auto a = Enter();
  replies_.ExpectEnd();
  replies_.SendInterim(CreateBufferSlow("HTTP/1.1 100 Continue"));
  auto b = Enter();
  replies_.EndInput();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Head("a") + "HTTP/1.1 100 Continue");
  replies_.Send(b, Reply("b"), false);
  EXPECT_EQ(sink_.Take(), Last("b"));
}

TEST_F(RepliesAtTheEnd, WhatHasLeftCantSayIt) {
  replies_.Send(Enter(), Reply("a"), false);
  replies_.EndInput();
  EXPECT_EQ(sink_.Take(), Head("a"));
  EXPECT_FALSE(sink_.closed());  // That's for the connection to do.
}

TEST_F(RepliesAtTheEnd, InterimsAreNoReplies) {
  auto a = Enter();
  replies_.SendInterim(Reply("interim"));
  replies_.EndInput();
  replies_.Send(a, Reply("a"), false);
  EXPECT_EQ(sink_.Take(), Last("a"));
  EXPECT_TRUE(sink_.closed());
}

TEST_F(RepliesAtTheEnd, WhoHasSaidSoIsNotOutdone) {
  replies_.EnterUnordered();
  replies_.EnterUnordered();
  auto a = Enter();
  replies_.EndInput();
  replies_.SendUnordered(Reply("last"), true);
  replies_.Send(a, Reply("a"), false);
  replies_.SendUnordered(Reply("u"), false);
  EXPECT_EQ(sink_.Take(), Head("a") + Head("u") + Head("last"));
  EXPECT_TRUE(sink_.closed());
}

TEST_F(RepliesAtTheEnd, OneInPartsIsToldInTime) {
  auto a = Enter();
  auto b = Enter();
  replies_.EndInput();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  EXPECT_FALSE(replies_.IsLast(a));
  replies_.SendPart(Reply("a"));
  replies_.EndParts(a, false);
  ASSERT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kNow);
  EXPECT_TRUE(replies_.IsLast(b));
  replies_.SendPart(Reply("b"));
  EXPECT_FALSE(sink_.closed());
  replies_.EndParts(b, true);
  EXPECT_EQ(sink_.Take(), Head("a") + Head("b"));
  EXPECT_TRUE(sink_.closed());
}

TEST_F(RepliesAtTheEnd, OneInPartsMayHaveBegunBefore) {
  auto a = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  EXPECT_FALSE(replies_.IsLast(a));
  replies_.SendPart(Reply("a"));
  replies_.EndInput();
  replies_.SendPart(Reply("more"));
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), Head("a") + Head("more"));
}

// A sink during whose first write something else happens.
class SinkWithMeanwhile final : public ReplySink {
 public:
  bool Write(Buffer&& bytes) override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    sent += FlattenSlow(bytes);
    return true;
  }
  void CloseAfterReplies() override { sent += '|'; }
  void Abort(const flare::Status&) override { ADD_FAILURE(); }

  std::string sent;
  std::function<void()> meanwhile;
};

// The last but one is still being written when the last is ready.
TEST(RepliesAtTheEndTogether, TheLastFollowsTheOthers) {
  for (const bool ordered : {false, true}) {
    SinkWithMeanwhile sink;
    OrderedReplies replies(100, 1000, &sink);
    replies.EnterUnordered();
    ordered ? replies.Enter() : replies.EnterUnordered();
    replies.EndInput();
    sink.meanwhile = [&] {
      std::jthread([&] {
        ordered ? replies.Send(0, Reply("b"), false)
                : replies.SendUnordered(Reply("b"), false);
      });
    };
    replies.SendUnordered(Reply("a"), false);
    EXPECT_EQ(sink.sent, Head("a") + Last("b") + "|");
  }
}

// Repliers race for the end: one of them is the last, and says so.
TEST(RepliesAtTheEndStress, ManyRepliers) {
  constexpr int kRepliers = 4;
  constexpr int kRequests = 40;
  for (int round = 0; round != 300; ++round) {
    RecordingSink sink;
    OrderedReplies replies(kRequests, 1 << 20, &sink);
    std::vector<std::optional<std::uint64_t>> places(kRequests);
    for (int i = 0; i != kRequests; ++i) {
      places[i] =
          (i + round) % 3 == 0 ? replies.Enter() : replies.EnterUnordered();
    }
    replies.EndInput();
    std::latch start(kRepliers);
    std::atomic<int> next{0};
    std::vector<std::jthread> repliers;
    for (int t = 0; t != kRepliers; ++t) {
      repliers.emplace_back([&] {
        start.arrive_and_wait();
        // relaxed: only hands out numbers.
        for (int i;
             (i = next.fetch_add(1, std::memory_order_relaxed)) < kRequests;) {
          if (places[i]) {
            replies.Send(*places[i], Reply("x"), false);
          } else {
            replies.SendUnordered(Reply("x"), false);
          }
        }
      });
    }
    repliers.clear();
    std::string expected;
    for (int i = 1; i != kRequests; ++i) expected += Head("x");
    ASSERT_EQ(sink.Take(), expected + Last("x")) << round;
    ASSERT_TRUE(sink.closed());
  }
}

class SemaphoreWaiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { told_.release(); }
  void Wait() { told_.acquire(); }

 private:
  std::binary_semaphore told_{0};
};

// A reader enters requests while repliers answer them, and ends the input.
class RaceForTheEnd {
 public:
  static constexpr int kRequests = 24;

  explicit RaceForTheEnd(int round) : round_(round) {}

  // The output.
  std::string Run() {
    std::vector<std::jthread> repliers;
    for (int t = 0; t != 3; ++t)
      repliers.emplace_back([&] { AnswerOrdered(); });
    // All others may wait for these.
    repliers.emplace_back([&] { AnswerUnordered(); });
    for (int i = 0; i != kRequests; ++i) {
      places_[i] =
          IsUnordered(i) ? replies_.EnterUnordered() : replies_.Enter();
      ++entered_;
      entered_.notify_all();
    }
    replies_.EndInput();
    repliers.clear();
    return sink_.Take();
  }

  bool IsUnordered(int i) const { return (i + round_) % 3 == 0; }
  bool HasParts(int i) const { return (i + round_) % 7 == 1; }
  bool closed() const { return sink_.closed(); }

 private:
  void AwaitEntry(int i) {
    for (int n; (n = entered_.load()) <= i;) entered_.wait(n);
  }
  void AnswerUnordered() {
    for (int i = 0; i != kRequests; ++i) {
      if (!IsUnordered(i)) continue;
      AwaitEntry(i);
      // It has a place after all while another one is being sent in parts.
      places_[i] ? replies_.Send(*places_[i], Reply("u"), false)
                 : replies_.SendUnordered(Reply("u"), false);
    }
  }
  void AnswerOrdered() {
    for (int i; (i = next_.fetch_add(1)) < kRequests;) {
      if (IsUnordered(i)) continue;
      AwaitEntry(i);
      Buffer reply = Reply(std::to_string(i));
      HasParts(i) ? SendInParts(*places_[i], std::move(reply))
                  : replies_.Send(*places_[i], std::move(reply), false);
    }
  }
  void SendInParts(std::uint64_t place, Buffer&& bytes) {
    SemaphoreWaiter waiter;
    while (replies_.AskForTurn(place, &waiter) == ReplyTurn::kLater) {
      waiter.Wait();
    }
    const bool last = replies_.IsLast(place);
    replies_.SendPart(std::move(bytes));
    replies_.EndParts(place, last);
  }

  const int round_;
  RecordingSink sink_;
  OrderedReplies replies_{kRequests, 1 << 20, &sink_};
  std::optional<std::uint64_t> places_[kRequests];
  std::atomic<int> entered_{0};
  std::atomic<int> next_{0};
};

// None is lost, and none but the last says that it is.
TEST(RepliesAtTheEndStress, WhileTheInputEnds) {
  for (int round = 0; round != 200; ++round) {
    RaceForTheEnd race(round);
    std::string sent = race.Run();
    if (sent.ends_with(kClose)) {
      sent.resize(sent.size() - kClose.size());
      EXPECT_TRUE(race.closed());
    }
    std::string expected;
    for (int i = 0; i != RaceForTheEnd::kRequests; ++i) {
      if (!race.IsUnordered(i)) expected += Head(std::to_string(i));
    }
    int unordered = 0;
    for (std::size_t at; (at = sent.find(Head("u"))) != sent.npos;) {
      sent.erase(at, Head("u").size());
      ++unordered;
    }
    EXPECT_EQ(unordered, RaceForTheEnd::kRequests / 3);
    ASSERT_EQ(sent, expected) << round;
  }
}

}  // namespace
}  // namespace flare::rpc
