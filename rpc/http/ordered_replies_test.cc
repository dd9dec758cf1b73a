#include "flare/rpc/http/ordered_replies.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::CountingWaiter;
using testing::RecordingSink;

Buffer Bytes(std::string_view text) { return CreateBufferSlow(text); }

class OrderedRepliesTest : public ::testing::Test {
 protected:
  std::uint64_t Enter() { return replies_.Enter().value(); }

  RecordingSink sink_;
  OrderedReplies replies_{100, 1000, &sink_};
};

TEST_F(OrderedRepliesTest, InOrderRepliesLeaveAtOnce) {
  auto a = Enter();
  auto b = Enter();
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "a");
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "b");
  EXPECT_FALSE(sink_.closed());
}

TEST_F(OrderedRepliesTest, EveryOrderOfFiveComesOutInOrder) {
  std::vector<int> order(5);
  std::iota(order.begin(), order.end(), 0);
  do {
    std::vector<std::uint64_t> places;
    for (int i = 0; i != 5; ++i) places.push_back(Enter());
    for (int i : order) {
      replies_.Send(places[i], Bytes(std::string(1, 'a' + i)), false);
    }
    ASSERT_EQ(sink_.Take(), "abcde");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(OrderedRepliesTest, HoldsBackUntilTheFirstIsReady) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  replies_.Send(c, Bytes("c"), false);
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "");
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "abc");
}

// A long ring of slots is given back, and made anew.
TEST_F(OrderedRepliesTest, ManyAreHeldAgainAndAgain) {
  for (int round = 0; round != 3; ++round) {
    std::vector<std::uint64_t> places;
    for (int i = 0; i != 100; ++i) places.push_back(Enter());
    for (int i = 99; i > 0; --i) replies_.Send(places[i], Bytes("x"), false);
    EXPECT_EQ(sink_.Take(), "");
    replies_.Send(places[0], Bytes("a"), false);
    EXPECT_EQ(sink_.Take(), "a" + std::string(99, 'x'));
    // One that is pending keeps the ring.
    const std::uint64_t first = Enter();
    const std::uint64_t second = Enter();
    const std::uint64_t third = Enter();
    replies_.Send(third, Bytes("3"), false);
    replies_.Send(first, Bytes("1"), false);
    EXPECT_EQ(sink_.Take(), "1");
    replies_.Send(second, Bytes("2"), false);
    EXPECT_EQ(sink_.Take(), "23");
  }
}

TEST_F(OrderedRepliesTest, UnorderedRepliesPass) {
  auto a = Enter();
  replies_.EnterUnordered();
  replies_.SendUnordered(Bytes("u"), false);
  EXPECT_EQ(sink_.Take(), "u");
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "a");
}

TEST_F(OrderedRepliesTest, InterimsKeepTheirTurn) {
  auto a = Enter();
  replies_.SendInterim(Bytes("(b)"));
  auto b = Enter();
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "");
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "a(b)b");
  replies_.SendInterim(Bytes("(c)"));
  EXPECT_EQ(sink_.Take(), "(c)");
}

TEST_F(OrderedRepliesTest, ClosesBehindTheLastReply) {
  auto a = Enter();
  auto b = Enter();
  EXPECT_FALSE(replies_.closing());
  replies_.Send(b, Bytes("b"), true);
  EXPECT_TRUE(replies_.closing());
  EXPECT_FALSE(sink_.closed());
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "ab");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, ClosesBehindUnorderedRepliesToo) {
  replies_.EnterUnordered();
  auto a = Enter();
  replies_.Send(a, Bytes("a"), true);
  EXPECT_FALSE(sink_.closed());
  replies_.SendUnordered(Bytes("u"), false);
  EXPECT_EQ(sink_.Take(), "ua");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, AnUnorderedReplyCanClose) {
  replies_.EnterUnordered();
  replies_.EnterUnordered();
  replies_.SendUnordered(Bytes("u"), true);
  EXPECT_FALSE(sink_.closed());
  replies_.SendUnordered(Bytes("v"), false);
  EXPECT_EQ(sink_.Take(), "vu");
  EXPECT_TRUE(sink_.closed());
}

// Replies of both kinds, each of which waits for the other.
TEST_F(OrderedRepliesTest, NothingFollowsAClosingReply) {
  replies_.EnterUnordered();
  auto a = Enter();
  replies_.EnterUnordered();
  replies_.SendUnordered(Bytes("last"), true);
  EXPECT_EQ(sink_.Take(), "");
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "a");
  EXPECT_FALSE(sink_.closed());
  replies_.SendUnordered(Bytes("u"), false);
  EXPECT_EQ(sink_.Take(), "ulast");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, DropsWhatComesBehindAClosingReply) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  replies_.Send(c, Bytes("c"), false);
  replies_.Send(a, Bytes("a"), true);
  EXPECT_FALSE(sink_.closed());
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "a");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, BoundsTheNumberPending) {
  std::vector<std::uint64_t> places;
  for (int i = 0; i != 100; ++i) places.push_back(Enter());
  EXPECT_FALSE(replies_.Enter().has_value());
  // The reply that says so still has its place.
  auto last = replies_.Enter(/*forced=*/true);
  ASSERT_TRUE(last.has_value());
  replies_.Send(*last, Bytes("!"), true);
  for (int i = 99; i >= 0; --i) replies_.Send(places[i], Bytes("."), false);
  EXPECT_EQ(sink_.Take(), std::string(100, '.') + "!");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, PlacesAreReusedAfterReplies) {
  for (int i = 0; i != 1000; ++i) {
    replies_.Send(Enter(), Bytes("."), false);
  }
  EXPECT_EQ(sink_.Take().size(), 1000u);
}

TEST_F(OrderedRepliesTest, BoundsTheBytesHeldBack) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  replies_.Send(b, Bytes(std::string(900, 'b')), false);
  EXPECT_FALSE(sink_.aborted());
  replies_.Send(c, Bytes(std::string(200, 'c')), false);
  EXPECT_TRUE(sink_.aborted());
  EXPECT_NE(sink_.abort_reason().find("1000 bytes"), std::string::npos);
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take(), "");
}

TEST_F(OrderedRepliesTest, WhoCanWaitDoesWhileMuchIsHeld) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  auto d = Enter();
  CountingWaiter waits_c;
  CountingWaiter waits_d;
  EXPECT_EQ(replies_.AskToSend(c, &waits_c, false), ReplyTurn::kNow);
  replies_.Send(b, Bytes(std::string(125, 'b')), false);
  EXPECT_FALSE(sink_.much_held());
  EXPECT_EQ(replies_.AskToSend(c, &waits_c, false), ReplyTurn::kNow);
  auto e = Enter();
  replies_.Send(e, Bytes("e"), false);
  EXPECT_TRUE(sink_.much_held());
  EXPECT_EQ(replies_.AskToSend(a, &waits_c, false), ReplyTurn::kNow);
  EXPECT_EQ(replies_.AskToSend(d, &waits_d, false), ReplyTurn::kLater);
  EXPECT_EQ(replies_.AskToSend(c, &waits_c, false), ReplyTurn::kLater);
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(sink_.Take().size(), 126u);
  EXPECT_FALSE(sink_.much_held());
  EXPECT_EQ(waits_c.told, 1);
  EXPECT_EQ(waits_d.told, 0);  // In spite of the room there is.
  replies_.Send(c, Bytes("c"), false);
  EXPECT_EQ(waits_d.told, 1);
  replies_.Send(d, Bytes("d"), false);
  EXPECT_EQ(sink_.Take(), "cde");
  EXPECT_EQ(waits_c.told, 1);
}

// As if the one that is to make the reply at `a` waited for its turn at `c`.
TEST_F(OrderedRepliesTest, WhoWaitsInVainMayGoOn) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  auto d = Enter();
  replies_.Send(b, Bytes(std::string(126, 'b')), false);
  CountingWaiter waits_c;
  CountingWaiter waits_d;
  EXPECT_EQ(replies_.AskToSend(c, &waits_c, false), ReplyTurn::kLater);
  EXPECT_EQ(replies_.AskToSend(d, &waits_d, false), ReplyTurn::kLater);
  EXPECT_TRUE(replies_.StopWaiting(c));
  auto e = Enter();
  CountingWaiter waits_e;
  EXPECT_EQ(replies_.AskToSend(e, &waits_e, true), ReplyTurn::kLater);
  EXPECT_TRUE(replies_.StopWaiting(e));
  EXPECT_EQ(replies_.AskToSend(e, &waits_c, false), ReplyTurn::kNow);
  replies_.Send(c, Bytes("c"), false);
  replies_.Send(e, Bytes(std::string(126, 'e')), false);
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(waits_c.told, 0);
  EXPECT_EQ(waits_d.told, 1);
  EXPECT_FALSE(replies_.StopWaiting(d));
  // Much is held still.
  auto f = Enter();
  EXPECT_EQ(replies_.AskToSend(f, &waits_c, false), ReplyTurn::kNow);
  replies_.Send(d, Bytes("d"), false);
  EXPECT_EQ(sink_.Take().size(), 255u);
  // It was all sent: the next time is another one.
  auto g = Enter();
  replies_.Send(g, Bytes(std::string(126, 'g')), false);
  auto h = Enter();
  EXPECT_EQ(replies_.AskToSend(h, &waits_c, false), ReplyTurn::kLater);
  replies_.Send(f, Bytes("f"), /*close=*/true);
  EXPECT_EQ(waits_c.told, 1);
  EXPECT_FALSE(replies_.StopWaiting(h));
}

TEST_F(OrderedRepliesTest, WhoWaitsIsToldOfTheEnd) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  replies_.Send(b, Bytes(std::string(126, 'b')), false);
  CountingWaiter waits;
  EXPECT_EQ(replies_.AskToSend(c, &waits, false), ReplyTurn::kLater);
  replies_.Send(a, Bytes("a"), /*close=*/true);
  EXPECT_EQ(waits.told, 1);
  EXPECT_EQ(replies_.AskToSend(c, &waits, false), ReplyTurn::kNever);
  replies_.Send(c, Bytes("c"), false);
  EXPECT_EQ(sink_.Take(), "a");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(OrderedRepliesTest, HeldBytesAreGivenBack) {
  for (int round = 0; round != 10; ++round) {
    auto a = Enter();
    auto b = Enter();
    replies_.Send(b, Bytes(std::string(900, 'b')), false);
    replies_.Send(a, Bytes("a"), false);
    EXPECT_EQ(sink_.Take().size(), 901u);
  }
  EXPECT_FALSE(sink_.aborted());
}

// A sink that is busy for so long that other replies become ready.
class SlowSink final : public ReplySink {
 public:
  bool Write(Buffer&& bytes) override {
    sent += FlattenSlow(bytes);
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return true;
  }
  void CloseAfterReplies() override { sent += '|'; }
  void Abort(const flare::Status&) override { sent += '!'; }

  std::string sent;
  std::function<void()> meanwhile;
};

// ... as many as there are, and no limit counts against output that can leave.
TEST(OrderedReplies, WhatBecomesReadyDuringAWriteFollowsIt) {
  SlowSink sink;
  OrderedReplies replies(100, 10, &sink);
  for (std::uint64_t place = 0; place != 4; ++place) {
    ASSERT_EQ(replies.Enter(), place);
  }
  sink.meanwhile = [&] {
    std::jthread([&] {
      replies.Send(1, Bytes("b, longer than the limit"), false);
      replies.Send(3, Bytes("d"), true);
      EXPECT_EQ(sink.sent, "a");
    });
  };
  replies.Send(0, Bytes("a"), false);
  EXPECT_EQ(sink.sent, "ab, longer than the limit");
  replies.Send(2, Bytes("c"), false);
  EXPECT_EQ(sink.sent, "ab, longer than the limitcd|");
}

TEST_F(OrderedRepliesTest, RandomOrdersWithInterims) {
  OrderedReplies replies(100, 1 << 20, &sink_);
  std::mt19937 rng(3);
  std::string expected;
  std::vector<std::pair<std::uint64_t, std::string>> pending;
  for (int i = 0; i != 5000; ++i) {
    if (pending.size() < 50 && rng() % 2 == 0) {
      std::string text = std::to_string(i) + ",";
      if (rng() % 4 == 0) {
        replies.SendInterim(Bytes("i"));
        expected += "i";
      }
      expected += text;
      pending.emplace_back(replies.Enter().value(), text);
    } else if (!pending.empty()) {
      auto at = pending.begin() + rng() % pending.size();
      replies.Send(at->first, Bytes(at->second), false);
      pending.erase(at);
    }
  }
  for (auto& [place, text] : pending) {
    replies.Send(place, Bytes(text), false);
  }
  EXPECT_TRUE(sink_.Take() == expected);
  EXPECT_FALSE(sink_.aborted());
}

// One reader enters and hands places to several repliers; the last request
// closes. Everything must have been sent, in order, when CloseAfterReplies()
// comes.
TEST(OrderedRepliesStress, ManyRepliers) {
  constexpr int kRepliers = 4;
  constexpr int kRequests = 400;
  for (int round = 0; round != 50; ++round) {
    RecordingSink sink;
    OrderedReplies replies(kRequests + 1, 1 << 20, &sink);
    std::string expected;
    std::vector<std::optional<std::uint64_t>> places(kRequests);
    for (int i = 0; i != kRequests; ++i) {
      if (i % 5 == 0) {
        replies.EnterUnordered();
      } else {
        places[i] = replies.Enter();
        ASSERT_TRUE(places[i].has_value());
        expected += std::to_string(i) + ",";
      }
    }
    std::latch start(kRepliers);
    std::atomic<int> next{0};
    std::vector<std::thread> repliers;
    for (int t = 0; t != kRepliers; ++t) {
      repliers.emplace_back([&] {
        start.arrive_and_wait();
        // relaxed: only hands out numbers.
        for (int i;
             (i = next.fetch_add(1, std::memory_order_relaxed)) < kRequests;) {
          bool last = i == kRequests - 1;
          if (places[i]) {
            replies.Send(*places[i], Bytes(std::to_string(i) + ","), last);
          } else {
            replies.SendUnordered(Bytes("u"), false);
          }
        }
      });
    }
    for (auto& replier : repliers) replier.join();
    std::string sent = sink.Take();
    EXPECT_NE(sent.back(), 'u');
    EXPECT_EQ(std::erase(sent, 'u'), kRequests / 5);
    EXPECT_EQ(sent, expected);
    EXPECT_TRUE(sink.closed());
  }
}

}  // namespace
}  // namespace flare::rpc
