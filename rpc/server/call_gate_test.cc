// A server is simulated in a time of its own: the calls that pass its queue and
// the gate, and the replies that come in time.
#include "flare/rpc/server/call_gate.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using Verdict = CallGate::Verdict;

constexpr std::int64_t kMs = kNsPerMs;

TEST(CallGateTest, WithoutLimitNobodyIsAsked) {
  CallGate gate;
  gate.SetUp(0ns);
  EXPECT_TRUE(gate.IsOpen(0));
  EXPECT_TRUE(gate.IsOpen(1'000'000'000'000));
}

TEST(CallGateTest, CallsBeyondTheLimitAreRefused) {
  CallGate gate;
  gate.SetUp(50ns);
  EXPECT_TRUE(gate.IsOpen(50));
  EXPECT_FALSE(gate.IsOpen(51));
  EXPECT_EQ(gate.Ask({.now_ns = 1000, .waited_ns = 51}), Verdict::kOverloaded);
}

TEST(CallGateTest, ClosesAtTheEarliestMoment) {
  const auto ask_at = [](CallGate* gate, std::int64_t now_ns) {
    return gate->Ask({.now_ns = now_ns});
  };
  for (const auto max_wait : {-1ns, 0ns, 50ns}) {
    CallGate gate;
    gate.SetUp(max_wait);
    gate.CloseAt(1000);
    EXPECT_FALSE(gate.IsOpen(0));
    EXPECT_EQ(ask_at(&gate, 1000), Verdict::kBegin);
    EXPECT_EQ(ask_at(&gate, 1001), Verdict::kStopping);
    gate.CloseAt(2000);
    EXPECT_EQ(ask_at(&gate, 1001), Verdict::kStopping);
    gate.CloseAt(500);
    EXPECT_EQ(ask_at(&gate, 501), Verdict::kStopping);
  }
}

TEST(CallGateTest, StaysClosedWhenSheddingEnds) {
  CallGate gate;
  gate.SetUp(-1ns);
  constexpr std::int64_t kNow = 100'000 * kMs;
  gate.CloseAt(kNow + 10'000 * kMs);
  const std::int64_t timeout_ns = 1000 * kMs;
  EXPECT_EQ(
      gate.Ask(
          {.now_ns = kNow, .waited_ns = 900 * kMs, .timeout_ns = timeout_ns}),
      Verdict::kOverloaded);
  EXPECT_EQ(gate.Ask({.now_ns = kNow + 5000 * kMs, .timeout_ns = timeout_ns}),
            Verdict::kBegin);
  EXPECT_FALSE(gate.IsOpen(0));
  EXPECT_EQ(gate.Ask({.now_ns = kNow + 10'001 * kMs, .timeout_ns = timeout_ns}),
            Verdict::kStopping);
}

TEST(CallGateTest, TheLongestWaitLeavesTimeForTheCall) {
  const auto longest = [](std::int64_t timeout_ms, std::int64_t usual_ms) {
    return CallGate::LongestWait(
               {.timeout_ns = timeout_ms * kMs, .usual_ns = usual_ms * kMs}) /
           kMs;
  };
  EXPECT_EQ(longest(1000, 0), 875);
  EXPECT_EQ(longest(1000, 50), 875);
  EXPECT_EQ(longest(1000, 300), 400);
  EXPECT_EQ(longest(1600, 900), 100);
  EXPECT_EQ(longest(0, 0), 1000);
  EXPECT_EQ(longest(0, 6000), 12'000);
}

TEST(CallGateTest, AMethodsOwnLimitHoldsInItsPlace) {
  CallGate gate;
  gate.SetUp(-1ns);
  CallGate::Call call = {.now_ns = 100'000 * kMs, .waited_ns = 5000 * kMs};
  call.limited = true;
  EXPECT_EQ(gate.Ask(call), Verdict::kBegin);
  call.limited = false;
  EXPECT_EQ(gate.Ask(call), Verdict::kOverloaded);
}

// One worker, which takes calls in the order in which they came.
class SimulatedServer {
 public:
  struct Counts {
    int in_time = 0;
    int late = 0;
    int refused = 0;
    int waited_for_long = 0;           // Begun after more than kNeverLongNs.
    std::int64_t longest_wait_ns = 0;  // Over all that were begun.
  };

  SimulatedServer(std::int64_t service_ns, std::int64_t timeout_ns,
                  bool tells_timeout = true)
      : service_ns_(service_ns),
        timeout_ns_(timeout_ns),
        tells_timeout_(tells_timeout) {
    gate_.SetUp(-1ns);
  }

  void Arrive(std::int64_t at_ns) { queue_.push_back(at_ns); }

  // Does nothing for so long.
  void Stall(std::int64_t length_ns) { now_ns_ += length_ns; }

  // Works on the calls that have arrived by then. In a closed loop a caller
  // calls again when it has its reply.
  void RunUntil(std::int64_t end_ns, bool closed_loop = false) {
    while (!queue_.empty()) {
      const std::int64_t at_ns = queue_.front();
      now_ns_ = std::max(now_ns_, at_ns);
      if (now_ns_ >= end_ns) return;
      queue_.pop_front();
      Serve(at_ns);
      if (closed_loop) Arrive(now_ns_);
    }
    now_ns_ = std::max(now_ns_, end_ns);
  }

  std::int64_t now_ns() const { return now_ns_; }
  const Counts& counts() const { return counts_; }
  void Forget() { counts_ = {}; }

 private:
  void Serve(std::int64_t at_ns) {
    const std::int64_t waited_ns = now_ns_ - at_ns;
    const bool begins =
        waited_ns <= timeout_ns_ &&
        (gate_.IsOpen(waited_ns) ||
         gate_.Ask({.now_ns = now_ns_,
                    .waited_ns = waited_ns,
                    .timeout_ns = tells_timeout_ ? timeout_ns_ : 0,
                    .usual_ns = service_ns_}) == Verdict::kBegin);
    if (!begins) {
      ++counts_.refused;
      now_ns_ += 10'000;  // It takes a moment, too.
      return;
    }
    counts_.longest_wait_ns = std::max(counts_.longest_wait_ns, waited_ns);
    if (waited_ns > CallGate::kNeverLongNs) ++counts_.waited_for_long;
    now_ns_ += service_ns_;
    ++(now_ns_ - at_ns <= timeout_ns_ ? counts_.in_time : counts_.late);
  }

  const std::int64_t service_ns_;
  const std::int64_t timeout_ns_;
  const bool tells_timeout_;
  CallGate gate_;
  std::deque<std::int64_t> queue_;  // When they arrived.
  std::int64_t now_ns_ = 1'000'000 * kMs;
  Counts counts_;
};

// Offers `times` as many calls as the server can do, for so long. The server
// stalls for a part of it, at its beginning.
void Offer(SimulatedServer* server, std::int64_t service_ns, double times,
           std::int64_t length_ns, std::int64_t stall_ns = 0) {
  const std::int64_t begin_ns = server->now_ns();
  const auto count = static_cast<int>(times * static_cast<double>(length_ns) /
                                      static_cast<double>(service_ns));
  for (int i = 0; i != count; ++i) {
    server->Arrive(begin_ns + length_ns * i / count);
  }
  server->Stall(stall_ns);
  server->RunUntil(begin_ns + length_ns);
}

TEST(CallGateTest, GoodputStaysNearCapacityUnderOverload) {
  for (const std::int64_t timeout_ms : {100, 1000, 10'000}) {
    for (const std::int64_t service_us : {100, 1000, 5000}) {
      for (const double times : {1.1, 2.0, 5.0}) {
        const std::int64_t service_ns = service_us * 1000;
        SimulatedServer server(service_ns, timeout_ms * kMs);
        Offer(&server, service_ns, times, (6 * timeout_ms + 5000) * kMs);
        server.Forget();
        Offer(&server, service_ns, times, 20'000 * kMs);
        const double capacity = 20'000e6 / static_cast<double>(service_ns);
        // Refused calls take the server's time, too.
        const double most = capacity - times * capacity * 10'000 /
                                           static_cast<double>(service_ns);
        EXPECT_GE(server.counts().in_time, 0.9 * most)
            << timeout_ms << " ms, " << service_us << " us, " << times;
      }
    }
  }
}

TEST(CallGateTest, CallsThatAreBegunDoNotWaitUnderOverload) {
  for (const std::int64_t timeout_ms : {0, 1000, 10'000}) {
    for (const std::int64_t service_us : {100, 1000}) {
      for (const double times : {1.05, 2.0, 5.0}) {
        const std::int64_t service_ns = service_us * 1000;
        SimulatedServer server(service_ns, std::max(timeout_ms, 1100L) * kMs,
                               /*tells_timeout=*/timeout_ms != 0);
        // Until it sheds, which takes longest with a little too much.
        Offer(&server, service_ns, times, (times < 2 ? 200'000 : 30'000) * kMs);
        server.Forget();
        Offer(&server, service_ns, times, 5'000 * kMs);
        EXPECT_LE(server.counts().longest_wait_ns, CallGate::kNeverLongNs)
            << timeout_ms << " ms, " << service_us << " us, " << times;
      }
    }
  }
}

// Few come while one is served: the worker mustn't wait for the next.
TEST(CallGateTest, SlowCallsMayWaitForLongerUnderOverload) {
  constexpr std::int64_t kServiceNs = 30 * kMs;
  SimulatedServer server(kServiceNs, 10'000 * kMs);
  Offer(&server, kServiceNs, 1.2, 120'000 * kMs);
  server.Forget();
  Offer(&server, kServiceNs, 1.2, 30'000 * kMs);
  EXPECT_GE(server.counts().in_time, 950);
  EXPECT_GT(server.counts().longest_wait_ns, CallGate::kNeverLongNs);
  EXPECT_LE(server.counts().longest_wait_ns, 4 * kServiceNs);
}

// As baidu-std's callers were, and people's browsers.
TEST(CallGateTest, GoodputStaysNearCapacityThoughNobodyTellsItsTimeout) {
  SimulatedServer server(kMs, 1100 * kMs, /*tells_timeout=*/false);
  Offer(&server, kMs, 3, 10'000 * kMs);
  server.Forget();
  Offer(&server, kMs, 3, 10'000 * kMs);
  EXPECT_GE(server.counts().in_time, 9000);
}

// 9,000 calls of 0.1 ms wait for 0.9 s, for ever.
TEST(CallGateTest, ManyCallersThatWaitForRepliesAreNoOverload) {
  SimulatedServer server(kMs / 10, 1100 * kMs);
  for (int i = 0; i != 9000; ++i) server.Arrive(server.now_ns());
  server.RunUntil(server.now_ns() + 20'000 * kMs, /*closed_loop=*/true);
  EXPECT_EQ(server.counts().refused, 0);
  EXPECT_EQ(server.counts().late, 0);
}

TEST(CallGateTest, ABurstIsNotRefused) {
  SimulatedServer server(kMs, 1000 * kMs);
  for (int round = 0; round != 10; ++round) {
    for (int i = 0; i != 800; ++i) server.Arrive(server.now_ns());
    server.RunUntil(server.now_ns() + 1000 * kMs);
  }
  EXPECT_EQ(server.counts().refused, 0);
  EXPECT_EQ(server.counts().in_time, 8000);
}

TEST(CallGateTest, AfterAnOverloadAllIsAsBefore) {
  SimulatedServer server(kMs, 1000 * kMs);
  Offer(&server, kMs, 5, 5000 * kMs);
  EXPECT_GT(server.counts().refused, 0);
  Offer(&server, kMs, 0.5, 2000 * kMs);
  server.Forget();
  for (int i = 0; i != 800; ++i) server.Arrive(server.now_ns());
  server.RunUntil(server.now_ns() + 1000 * kMs);
  EXPECT_EQ(server.counts().refused, 0);
}

// A server that stalls now and then serves all calls that came meanwhile.
TEST(CallGateTest, SheddingEndsThoughCallsWaitForMomentsStill) {
  SimulatedServer server(kMs, 1000 * kMs);
  Offer(&server, kMs, 5, 5000 * kMs);
  EXPECT_GT(server.counts().refused, 0);
  for (int round = 0; round != 40; ++round) {
    if (round == 20) server.Forget();
    Offer(&server, kMs, 0.5, 200 * kMs, /*stall_ns=*/20 * kMs);
  }
  EXPECT_EQ(server.counts().refused, 0);
}

// Calls of 1 ms that come `count` at once, every `period_ms`.
void OfferBursts(SimulatedServer* server, int rounds, int count,
                 std::int64_t period_ms) {
  for (int round = 0; round != rounds; ++round) {
    const std::int64_t begin_ns = server->now_ns();
    for (int i = 0; i != count; ++i) server->Arrive(begin_ns);
    server->RunUntil(begin_ns + period_ms * kMs);
  }
}

// At half the server's capacity.
struct Bursts {
  std::int64_t timeout_ms;
  int count;
  std::int64_t period_ms;
};
constexpr Bursts kBursts[] = {
    {10'000, 500, 1000}, {1000, 200, 400}, {1000, 10, 20}, {100, 40, 80}};

TEST(CallGateTest, BurstsAreNotRefusedAfterAStall) {
  for (const Bursts& c : kBursts) {
    SimulatedServer server(kMs, c.timeout_ms * kMs);
    const int rounds = static_cast<int>(2 * c.timeout_ms / c.period_ms) + 10;
    OfferBursts(&server, rounds, c.count, c.period_ms);
    for (int i = 0; i != c.count; ++i) server.Arrive(server.now_ns());
    server.Stall(c.timeout_ms * 9 / 10 * kMs);
    OfferBursts(&server, 1, c.count, c.period_ms);
    server.Forget();
    OfferBursts(&server, rounds, c.count, c.period_ms);
    EXPECT_EQ(server.counts().refused, 0) << c.timeout_ms << ", " << c.count;
  }
}

TEST(CallGateTest, BurstsAreNotRefusedForLongAfterAnOverload) {
  for (const Bursts& c : kBursts) {
    SimulatedServer server(kMs, c.timeout_ms * kMs);
    Offer(&server, kMs, 3, 3 * c.timeout_ms * kMs);
    EXPECT_GT(server.counts().refused, 0);
    // Half of the longest wait, until shedding is seen to be of no use.
    const int rounds =
        static_cast<int>((c.timeout_ms / 2 + 400) / c.period_ms) + 1;
    OfferBursts(&server, rounds, c.count, c.period_ms);
    server.Forget();
    OfferBursts(&server, rounds, c.count, c.period_ms);
    EXPECT_EQ(server.counts().refused, 0) << c.timeout_ms << ", " << c.count;
  }
}

// Those that are refused call again at once, so all have waited for a lap.
TEST(CallGateTest, CallersThatWaitForRepliesAreServedAgainAfterAStall) {
  for (const std::int64_t stall_ms : {100, 500, 3000}) {
    SimulatedServer server(kMs / 10, 1100 * kMs);
    for (int i = 0; i != 9000; ++i) server.Arrive(server.now_ns());
    const auto run = [&server](std::int64_t length_ms) {
      server.Forget();
      server.RunUntil(server.now_ns() + length_ms * kMs, /*closed_loop=*/true);
    };
    run(5000);
    server.Stall(stall_ms * kMs);
    run(2000);
    EXPECT_GE(server.counts().in_time, 8000) << stall_ms;
    run(10'000);
    EXPECT_EQ(server.counts().refused, 0) << stall_ms;
    EXPECT_GE(server.counts().in_time, 99'000) << stall_ms;
  }
}

// Though it stops now and then, to see whether it is needed still.
TEST(CallGateTest, SheddingLastsAsLongAsTheOverload) {
  SimulatedServer server(kMs, 1000 * kMs);
  Offer(&server, kMs, 5, 10'000 * kMs);
  server.Forget();
  Offer(&server, kMs, 5, 200'000 * kMs);
  EXPECT_GE(server.counts().in_time, 188'000);
  EXPECT_LE(server.counts().waited_for_long, 0.01 * server.counts().in_time);
}

TEST(CallGateTest, RefusesOnlyLateCallsIfOtherRulesKeepTheQueueShort) {
  CallGate gate;
  gate.SetUp(-1ns, CallGate::OtherRules::kKeepItShort);
  EXPECT_FALSE(gate.IsOpen(0));
  const std::int64_t timeout_ns = 1000 * kMs;
  for (std::int64_t now = 100'000 * kMs; now < 105'000 * kMs; now += kMs) {
    EXPECT_EQ(
        gate.Ask(
            {.now_ns = now, .waited_ns = 900 * kMs, .timeout_ns = timeout_ns}),
        Verdict::kOverloaded);
    EXPECT_EQ(
        gate.Ask(
            {.now_ns = now, .waited_ns = 800 * kMs, .timeout_ns = timeout_ns}),
        Verdict::kBegin);
  }
}

// One that could be answered in no less than no time isn't a reason to refuse
// those that can wait.
TEST(CallGateTest, ImpatientCallersDoNotHaveOthersRefused) {
  CallGate gate;
  gate.SetUp(-1ns);
  for (std::int64_t now = 100'000 * kMs; now < 101'000 * kMs; now += kMs) {
    EXPECT_EQ(
        gate.Ask(
            {.now_ns = now, .waited_ns = 50 * kMs, .timeout_ns = 52 * kMs}),
        Verdict::kOverloaded);
    EXPECT_EQ(
        gate.Ask(
            {.now_ns = now, .waited_ns = 50 * kMs, .timeout_ns = 300 * kMs}),
        Verdict::kBegin);
  }
}

}  // namespace
}  // namespace flare::rpc
