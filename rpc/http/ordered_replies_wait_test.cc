// Repliers that wait for their turn on their stacks, and give up when it may
// just have come [R8].
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/testing/overwrite_stack.h"
#include "flare/rpc/http/ordered_replies.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::RecordingSink;

// Gone as soon as it was told, or needn't be any more.
class BriefWaiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { told_.store(true, std::memory_order_release); }
  bool WaitUntil(std::int64_t deadline_ns) {
    while (!told_.load(std::memory_order_acquire)) {
      if (NowNs() >= deadline_ns) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void Wait() { EXPECT_TRUE(WaitUntil(NowNs() + 60'000'000'000)); }

 private:
  std::atomic<bool> told_{false};
};

// As calls and handlers of a server do before they make their replies.
[[gnu::noinline]] void WaitForTurn(OrderedReplies* replies,
                                   const RecordingSink& sink,
                                   std::uint64_t place, bool patient) {
  while (sink.much_held()) {
    BriefWaiter turn;
    if (replies->AskToSend(place, &turn, patient) != ReplyTurn::kLater) return;
    const std::int64_t patience_ns =
        static_cast<std::int64_t>(place % 7) * 5000;
    if (!patient && !turn.WaitUntil(NowNs() + patience_ns) &&
        replies->StopWaiting(place)) {
      return;
    }
    turn.Wait();
  }
}

constexpr int kRepliers = 4;
constexpr int kRequests = 60;
constexpr std::size_t kEnough = kRequests * std::size_t{401};  // For all texts.

std::string TextOf(int i) { return std::string(i % 5 * 100, 'x') + ','; }

// Answers all requests by several threads, of which the first one, which all
// others wait for, takes its time. `close_at`: with this one it ends.
std::string AnswerAll(std::size_t max_bytes, int close_at, unsigned seed) {
  RecordingSink sink;
  OrderedReplies replies(kRequests, max_bytes, &sink);
  for (int i = 0; i != kRequests; ++i) EXPECT_EQ(replies.Enter(), i);
  std::atomic<int> next{0};
  std::vector<std::jthread> repliers;
  for (int t = 0; t != kRepliers; ++t) {
    repliers.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int i; (i = next.fetch_add(1)) < kRequests;) {
        const std::int64_t until_ns =
            NowNs() +
            static_cast<std::int64_t>(i % 16 == 0 ? 60'000 : random() % 2000);
        while (NowNs() < until_ns) std::this_thread::yield();
        // Those that depend on nobody wait without a limit.
        WaitForTurn(&replies, sink, i, /*patient=*/random() % 4 == 0);
        flare::testing::OverwriteStack();
        replies.Send(i, CreateBufferSlow(TextOf(i)), i == close_at);
      }
    });
  }
  repliers.clear();
  EXPECT_EQ(sink.closed(), close_at < kRequests && !sink.aborted());
  return sink.Take();
}

std::string TextUpTo(int end) {
  std::string text;
  for (int i = 0; i != end; ++i) text += TextOf(i);
  return text;
}

TEST(OrderedRepliesWaitStress, AllLeaveInOrder) {
  for (unsigned round = 0; round != 150; ++round) {
    ASSERT_TRUE(AnswerAll(kEnough, kRequests, round) == TextUpTo(kRequests))
        << round;
  }
}

TEST(OrderedRepliesWaitStress, ThoseBehindTheLastAreToldToo) {
  for (unsigned round = 0; round != 150; ++round) {
    const int last = 20 + static_cast<int>(round % 20);
    ASSERT_TRUE(AnswerAll(kEnough, last, round) == TextUpTo(last + 1)) << round;
  }
}

TEST(OrderedRepliesWaitStress, TooMuchEndsAllWaits) {
  for (unsigned round = 0; round != 150; ++round) {
    // Nobody waits before an eighth of that is held.
    const std::string sent = AnswerAll(300, kRequests, round);
    ASSERT_TRUE(TextUpTo(kRequests).starts_with(sent)) << round;
  }
}

}  // namespace
}  // namespace flare::rpc
