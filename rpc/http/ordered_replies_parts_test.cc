// Replies in parts among others.
#include <atomic>
#include <cstdint>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "flare/rpc/http/ordered_replies.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::CountingWaiter;
using testing::RecordingSink;

Buffer Bytes(std::string_view text) { return CreateBufferSlow(text); }

class ReplyPartsTest : public ::testing::Test {
 protected:
  std::uint64_t Enter() { return replies_.Enter().value(); }

  RecordingSink sink_;
  OrderedReplies replies_{100, 1000, &sink_};
  CountingWaiter waiter_;
};

TEST_F(ReplyPartsTest, LeaveAtOnceAndHoldUpOthers) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  EXPECT_TRUE(replies_.SendPart(Bytes("a1")));
  EXPECT_EQ(sink_.Take(), "a1");
  replies_.Send(c, Bytes("c"), false);
  replies_.Send(b, Bytes("b"), false);
  replies_.SendInterim(Bytes("i"));
  EXPECT_TRUE(replies_.SendPart(Bytes("a2")));
  EXPECT_EQ(sink_.Take(), "a2");
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), "bci");
  EXPECT_EQ(waiter_.told, 0);
}

TEST_F(ReplyPartsTest, WaitForEarlierReplies) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  CountingWaiter later;
  EXPECT_EQ(replies_.AskForTurn(c, &later), ReplyTurn::kLater);
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kLater);
  replies_.Send(a, Bytes("a"), false);
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(later.told, 0);
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kNow);
  replies_.SendPart(Bytes("b"));
  EXPECT_EQ(later.told, 0);
  replies_.EndParts(b, false);
  EXPECT_EQ(later.told, 1);
  EXPECT_EQ(replies_.AskForTurn(c, &later), ReplyTurn::kNow);
  replies_.SendPart(Bytes("c"));
  replies_.EndParts(c, false);
  EXPECT_EQ(sink_.Take(), "abc");
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(later.told, 1);
}

TEST_F(ReplyPartsTest, WaitForRepliesWithoutAPlaceThatEnteredBefore) {
  auto a = Enter();
  EXPECT_FALSE(replies_.EnterUnordered());
  EXPECT_FALSE(replies_.EnterUnordered());
  EXPECT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kLater);
  replies_.SendUnordered(Bytes("u"), false);
  EXPECT_EQ(waiter_.told, 0);
  replies_.SendUnordered(Bytes("v"), false);
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  replies_.SendPart(Bytes("a"));
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), "uva");
}

TEST_F(ReplyPartsTest, WhoEntersMeanwhileGetsAPlace) {
  auto a = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  auto u = replies_.EnterUnordered();
  ASSERT_TRUE(u);
  replies_.Send(*u, Bytes("u"), false);
  replies_.SendPart(Bytes("a"));
  EXPECT_EQ(sink_.Take(), "a");
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), "u");
  EXPECT_FALSE(replies_.EnterUnordered());
  replies_.SendUnordered(Bytes("v"), true);
  EXPECT_EQ(sink_.Take(), "v");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(ReplyPartsTest, WhoEntersWhileOthersAreWaitedForGetsAPlace) {
  auto a = Enter();
  EXPECT_FALSE(replies_.EnterUnordered());
  EXPECT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kLater);
  auto u = replies_.EnterUnordered();
  ASSERT_TRUE(u);
  EXPECT_EQ(waiter_.told, 0);
  replies_.SendUnordered(Bytes("v"), false);
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  replies_.Send(*u, Bytes("u"), false);
  replies_.SendPart(Bytes("a"));
  replies_.EndParts(a, false);
  EXPECT_EQ(sink_.Take(), "vau");
}

TEST_F(ReplyPartsTest, CanBeTheLastOfAConnection) {
  auto a = Enter();
  auto b = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  replies_.SendPart(Bytes("a"));
  replies_.EndParts(a, true);
  EXPECT_TRUE(replies_.closing());
  EXPECT_FALSE(sink_.closed());
  // Input read by then is dropped.
  auto u = replies_.EnterUnordered();
  ASSERT_TRUE(u);
  replies_.Send(*u, Bytes("u"), false);
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "a");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(ReplyPartsTest, NeverBehindTheLastOfAConnection) {
  auto a = Enter();
  auto b = Enter();
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kLater);
  replies_.Send(a, Bytes("a"), true);
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kNever);
  replies_.Send(b, Bytes("b"), false);
  EXPECT_EQ(sink_.Take(), "a");
  EXPECT_TRUE(sink_.closed());
}

TEST_F(ReplyPartsTest, NeverOnceTooMuchIsHeldBack) {
  auto a = Enter();
  auto b = Enter();
  auto c = Enter();
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kLater);
  replies_.Send(c, Bytes(std::string(1001, 'c')), false);
  EXPECT_TRUE(sink_.aborted());
  EXPECT_EQ(waiter_.told, 1);
  EXPECT_EQ(replies_.AskForTurn(b, &waiter_), ReplyTurn::kNever);
  EXPECT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNever);
}

TEST_F(ReplyPartsTest, AClosedConnectionIsTold) {
  auto a = Enter();
  ASSERT_EQ(replies_.AskForTurn(a, &waiter_), ReplyTurn::kNow);
  sink_.Abort(flare::Status(ECONNRESET, "gone"));
  EXPECT_FALSE(replies_.SendPart(Bytes("a")));
  replies_.EndParts(a, false);
}

class BlockingWaiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { told_.release(); }
  void Wait() { told_.acquire(); }

 private:
  std::binary_semaphore told_{0};
};

void SendInParts(OrderedReplies* replies, std::uint64_t place,
                 const std::string& text) {
  BlockingWaiter waiter;
  for (ReplyTurn turn;
       (turn = replies->AskForTurn(place, &waiter)) != ReplyTurn::kNow;) {
    ASSERT_EQ(turn, ReplyTurn::kLater);
    waiter.Wait();
  }
  for (char c : text) replies->SendPart(Bytes(std::string_view(&c, 1)));
  replies->EndParts(place, false);
}

// Whether a request of the test below enters without a place.
bool EntersUnordered(int i) { return i % 5 == 0; }
bool HasParts(int i) { return i % 3 == 0 && !EntersUnordered(i); }

// A reader enters requests while repliers answer them: some in parts, between
// which no other output may come, some without a place. The latter have a
// replier to themselves, since all others may wait for them.
TEST(ReplyPartsStress, ManyRepliers) {
  constexpr int kRepliers = 4;
  constexpr int kRequests = 400;
  for (int round = 0; round != 50; ++round) {
    RecordingSink sink;
    OrderedReplies replies(kRequests + 1, 1 << 20, &sink);
    std::vector<std::optional<std::uint64_t>> places(kRequests);
    std::atomic<int> entered{0};
    std::atomic<int> next{0};
    const auto answer = [&](int i) {
      for (int n; (n = entered.load()) <= i;) entered.wait(n);
      const std::string text = "<" + std::to_string(i) + ">";
      if (!places[i]) {
        replies.SendUnordered(Bytes("u"), false);
      } else if (HasParts(i)) {
        SendInParts(&replies, *places[i], text);
      } else {
        replies.Send(*places[i], Bytes(EntersUnordered(i) ? "u" : text), false);
      }
    };
    std::vector<std::thread> repliers;
    for (int t = 0; t != kRepliers; ++t) {
      repliers.emplace_back([&] {
        for (int i; (i = next.fetch_add(1)) < kRequests;) {
          if (!EntersUnordered(i)) answer(i);
        }
      });
    }
    repliers.emplace_back([&] {
      for (int i = 0; i != kRequests; ++i) {
        if (EntersUnordered(i)) answer(i);
      }
    });
    std::string expected;
    for (int i = 0; i != kRequests; ++i) {
      if (EntersUnordered(i)) {
        places[i] = replies.EnterUnordered();
      } else {
        places[i] = replies.Enter();
        expected += "<" + std::to_string(i) + ">";
      }
      ++entered;
      entered.notify_all();
    }
    for (auto& replier : repliers) replier.join();
    std::string sent = sink.Take();
    for (std::size_t at = 0; (at = sent.find('u', at)) != sent.npos; ++at) {
      ASSERT_TRUE(at == 0 || sent[at - 1] == '>' || sent[at - 1] == 'u') << at;
    }
    EXPECT_EQ(std::erase(sent, 'u'), kRequests / 5);
    EXPECT_EQ(sent, expected);
  }
}

}  // namespace
}  // namespace flare::rpc
