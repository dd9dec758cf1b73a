// The distribution of each balancer over the servers, against its definition.
#include "flare/rpc/load_balancer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/rpc/balance/backend_state.h"
#include "flare/rpc/balance/zone_picker.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

Backends MakeBackends(const std::vector<std::uint32_t>& weights) {
  Backends backends;
  for (std::size_t i = 0; i != weights.size(); ++i) {
    const std::string name = "10.0." + std::to_string(i / 250) + "." +
                             std::to_string(1 + i % 250) + ":5567";
    Peer peer{*EndpointFromString(name), name, weights[i]};
    backends.emplace_back(std::move(peer), std::make_shared<BackendState>());
  }
  return backends;
}

// A balancer with a list.
struct Tested {
  Tested(std::string_view name, const std::vector<std::uint32_t>& weights)
      : backends(MakeBackends(weights)) {
    auto made = NewLoadBalancer(name);
    EXPECT_TRUE(made);
    balancer = *std::move(made);
    picker = balancer->NewPicker(backends);
  }

  std::size_t Pick() { return picker->Pick({}); }
  std::size_t PickFor(std::uint64_t key) {
    return picker->Pick({.key = key, .has_key = true});
  }
  std::vector<double> Counts(int picks) {
    std::vector<double> counts(backends.size());
    for (int i = 0; i != picks; ++i) ++counts[Pick()];
    return counts;
  }

  Backends backends;
  std::unique_ptr<LoadBalancer> balancer;
  std::unique_ptr<Picker> picker;
};

// Pearson's statistic, as a number of standard deviations from its mean.
double ChiSquareSigmas(const std::vector<double>& counts,
                       const std::vector<double>& expected) {
  double sum = 0;
  for (std::size_t i = 0; i != counts.size(); ++i) {
    sum += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  }
  const double freedom = static_cast<double>(counts.size() - 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

TEST(LoadBalancerTest, RoundRobinTakesTurns) {
  Tested rr("rr", {1, 1, 1});
  std::size_t last = rr.Pick();
  EXPECT_LT(last, 3);
  for (int i = 0; i != 100; ++i) {
    const std::size_t next = rr.Pick();
    EXPECT_EQ(next, (last + 1) % 3);
    last = next;
  }
}

TEST(LoadBalancerTest, RoundRobinIsFairAmongThreads) {
  Tested rr("rr", {1, 1, 1, 1, 1});
  constexpr int kThreads = 4;
  constexpr int kPerThread = 5000;
  std::vector<std::atomic<int>> counts(5);
  std::vector<std::thread> threads;
  for (int t = 0; t != kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i != kPerThread; ++i) counts[rr.Pick()]++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : counts) EXPECT_EQ(count, kThreads * kPerThread / 5);
}

// Servers 0, 1 and 2 of five are in the caller's zone, 3 and 4 aren't.
struct TestedZones {
  explicit TestedZones(std::string_view name) {
    auto made = [&] { return std::move(*NewLoadBalancer(name)); };
    near = made();
    far = made();
    const Backends all = MakeBackends({1, 1, 1, 1, 1});
    for (std::size_t i = 0; i != all.size(); ++i) {
      Peer peer = all[i].peer();
      peer.zone = i < 3 ? "a" : i == 3 ? "b" : "";
      backends.emplace_back(std::move(peer), std::make_shared<BackendState>());
    }
    picker = std::make_unique<ZonePicker>(backends, "a", near.get(), far.get());
  }
  std::vector<double> Counts(int picks) {
    std::vector<double> counts(backends.size());
    for (int i = 0; i != picks; ++i) ++counts[picker->Pick({})];
    return counts;
  }

  Backends backends;
  std::unique_ptr<LoadBalancer> near, far;
  std::unique_ptr<ZonePicker> picker;
};

TEST(ZonePickerTest, StaysInTheZone) {
  for (const char* name : {"rr", "wrr", "random", "p2c", "la", "chash"}) {
    TestedZones tested(name);
    const std::vector<double> counts = tested.Counts(30'000);
    EXPECT_EQ(counts[3] + counts[4], 0) << name;
    for (int i = 0; i != 3; ++i) EXPECT_NEAR(counts[i], 10'000, 700) << name;
  }
}

TEST(ZonePickerTest, LeavesTheZoneByItsHealth) {
  TestedZones tested("rr");
  const auto near_share = [&](std::size_t near, std::size_t far) {
    tested.picker->NoteUsable(near, far);
    const std::vector<double> counts = tested.Counts(30'000);
    return (counts[0] + counts[1] + counts[2]) / 30'000;
  };
  EXPECT_EQ(near_share(3, 2), 1);
  EXPECT_NEAR(near_share(2, 2), 2 / 3. / 0.7, 0.02);
  EXPECT_NEAR(near_share(1, 1), 1 / 3. / 0.7, 0.02);
  EXPECT_EQ(near_share(0, 2), 0);
  // It is no better elsewhere.
  EXPECT_EQ(near_share(1, 0), 1);
  EXPECT_EQ(near_share(0, 0), 1);
  EXPECT_EQ(near_share(3, 2), 1);
}

TEST(ZonePickerTest, CallsWithOneKeyAreInOneZone) {
  TestedZones tested("chash");
  tested.picker->NoteUsable(1, 2);
  int near = 0;
  for (std::uint64_t key = 0; key != 1000; ++key) {
    const PickedCall call{.key = MixBits(key), .has_key = true};
    const std::size_t first = tested.picker->Pick(call);
    near += tested.picker->IsNear(first);
    for (int i = 0; i != 5; ++i) EXPECT_EQ(tested.picker->Pick(call), first);
  }
  EXPECT_NEAR(near / 1000., 1 / 3. / 0.7, 0.06);
}

TEST(ZonePickerTest, LeavesTheZoneAfterTwoRefusals) {
  for (const char* name : {"rr", "wrr", "random", "p2c", "la", "chash"}) {
    TestedZones tested(name);
    PickedCall call;
    for (std::uint32_t refused = 0; refused != 4; ++refused) {
      call.refused = refused;
      const std::size_t picked = tested.picker->Pick(call);
      EXPECT_EQ(tested.picker->IsNear(picked), refused < 2) << name << refused;
      call.last_refused = picked;
    }
  }
}

TEST(ZonePickerTest, TellsPickersOfTheirOwnServers) {
  TestedZones tested("chash");
  ASSERT_TRUE(tested.picker->Observes());
  // The near servers are full: a further call of their key's goes on to others
  // among them, and ends are counted where the call began.
  for (int i = 0; i != 30; ++i) {
    const std::size_t picked = tested.picker->Pick({.key = 7, .has_key = true});
    ASSERT_TRUE(tested.picker->IsNear(picked));
    tested.backends[picked].state()->Begin();
    tested.picker->OnBegin(picked);
  }
  for (std::size_t i = 0; i != 5; ++i) {
    EXPECT_EQ(tested.backends[i].in_flight() > 0, i < 3) << i;
  }
}

TEST(ZonePickerTest, IsOfUseBetweenZonesOnly) {
  const Backends backends = TestedZones("rr").backends;
  EXPECT_TRUE(ZonePicker::IsOfUse(backends, "a"));
  EXPECT_TRUE(ZonePicker::IsOfUse(backends, "b"));
  EXPECT_FALSE(ZonePicker::IsOfUse(backends, "c"));
  EXPECT_FALSE(ZonePicker::IsOfUse(backends, ""));
  EXPECT_FALSE(ZonePicker::IsOfUse({backends[0], backends[1]}, "a"));
}

// Servers without a weight get no calls.
TEST(ZonePickerTest, IsOfNoUseWithoutWeights) {
  const Backends backends = TestedZones("rr").backends;
  Backends drained;
  for (const Backend& backend : backends) {
    Peer peer = backend.peer();
    if (peer.zone == "a") peer.weight = 0;
    drained.emplace_back(std::move(peer), std::make_shared<BackendState>());
  }
  EXPECT_FALSE(ZonePicker::IsOfUse(drained, "a"));
  EXPECT_TRUE(ZonePicker::IsOfUse(drained, "b"));
}

TEST(LoadBalancerTest, NothingIsPickedAmongOneServer) {
  for (const char* name : {"rr", "wrr", "random", "p2c", "la", "chash"}) {
    EXPECT_EQ(Tested(name, {1}).picker, nullptr) << name;
  }
}

TEST(LoadBalancerTest, WeightedRoundRobinIsExactAtAnyTime) {
  const std::vector<std::uint32_t> weights = {1, 5, 0, 2, 12};
  Tested wrr("wrr", weights);
  std::vector<double> counts(weights.size());
  for (int picks = 1; picks <= 20'000; ++picks) {
    ++counts[wrr.Pick()];
    if (picks % 100 != 0) continue;
    for (std::size_t i = 0; i != weights.size(); ++i) {
      EXPECT_NEAR(counts[i], picks * weights[i] / 20.0, 4) << i;
    }
  }
}

TEST(LoadBalancerTest, RandomHeedsWeights) {
  Tested one("random", {0, 3, 0});
  EXPECT_EQ(one.Counts(1000), (std::vector<double>{0, 1000, 0}));
  Tested random("random", {1, 2, 3, 4});
  EXPECT_LT(std::abs(ChiSquareSigmas(random.Counts(100'000),
                                     {10'000, 20'000, 30'000, 40'000})),
            12);
}

TEST(LoadBalancerTest, LeastOutstandingOfTwoIsEvenAmongEqualOnes) {
  Tested p2c("p2c", std::vector<std::uint32_t>(10, 1));
  EXPECT_LT(std::abs(ChiSquareSigmas(p2c.Counts(100'000),
                                     std::vector<double>(10, 10'000))),
            12);
}

// Two different random servers: the busiest one is never the better one, the
// least busy one always, when it is among them.
TEST(LoadBalancerTest, LeastOutstandingOfTwoTakesTheLessBusyOne) {
  Tested p2c("p2c", std::vector<std::uint32_t>(5, 1));
  for (std::size_t i = 0; i != 5; ++i) {
    for (std::size_t k = 0; k != i; ++k) p2c.backends[i].state()->Begin();
  }
  // Server i wins in pairs with those above it: 4 - i of 10 pairs.
  const std::vector<double> counts = p2c.Counts(100'000);
  EXPECT_EQ(counts[4], 0);
  EXPECT_LT(std::abs(ChiSquareSigmas({counts.begin(), counts.end() - 1},
                                     {40'000, 30'000, 20'000, 10'000})),
            12);
}

TEST(LoadBalancerTest, LeastOutstandingOfTwoHeedsWeights) {
  Tested p2c("p2c", {1, 4});
  for (int i = 0; i != 3; ++i) p2c.backends[1].state()->Begin();
  p2c.backends[0].state()->Begin();  // 1 of 1 is more than 3 of 4.
  for (int i = 0; i != 100; ++i) EXPECT_EQ(p2c.Pick(), 1);
}

TEST(LoadBalancerTest, LatencyAwareAvoidsSlowServersForAWhile) {
  Tested la("la", {1, 1});
  std::int64_t now = 1'000'000'000'000;
  SetVirtualNow(now);
  for (int i = 0; i != 2; ++i) {
    la.backends[i].state()->Begin();
    la.backends[i].state()->End(Verdict::kAnswered,
                                i == 0 ? 50'000'000 : 1'000'000, now);
  }
  for (int i = 0; i != 100; ++i) EXPECT_EQ(la.Pick(), 1);
  // Calls under way count as if each took its time.
  for (int i = 0; i != 60; ++i) la.backends[1].state()->Begin();
  EXPECT_EQ(la.Pick(), 0);
  for (int i = 0; i != 60; ++i) {
    la.backends[1].state()->End(Verdict::kNeutral, 0, now);
  }
  EXPECT_EQ(la.Pick(), 1);
  // Servers that aren't tried are forgotten.
  now += 5'000'000'000;
  SetVirtualNow(now);
  la.backends[1].state()->Begin();
  la.backends[1].state()->End(Verdict::kAnswered, 1'000'000, now);
  EXPECT_EQ(la.Pick(), 0);
  EndVirtualNow();
}

// As with the least outstanding of two, by the products of latency and calls.
TEST(LoadBalancerTest, LatencyAwareTakesTheSmallerProduct) {
  SetVirtualNow(1'000'000'000'000);
  Tested equal("la", std::vector<std::uint32_t>(10, 1));
  Tested la("la", std::vector<std::uint32_t>(5, 1));
  for (std::size_t i = 0; i != 10; ++i) {
    const auto answer = [&](const Backend& backend, std::int64_t latency_ns) {
      backend.state()->Begin();
      backend.state()->End(Verdict::kAnswered, latency_ns, NowNs());
    };
    answer(equal.backends[i], 1'000'000);
    if (i < 5) answer(la.backends[i], static_cast<std::int64_t>(i + 1) * 1000);
  }
  EXPECT_LT(std::abs(ChiSquareSigmas(equal.Counts(100'000),
                                     std::vector<double>(10, 10'000))),
            12);
  // Server i wins in pairs with those above it: 4 - i of 10 pairs.
  const std::vector<double> counts = la.Counts(100'000);
  EXPECT_EQ(counts[4], 0);
  EXPECT_LT(std::abs(ChiSquareSigmas({counts.begin(), counts.end() - 1},
                                     {40'000, 30'000, 20'000, 10'000})),
            12);
  EndVirtualNow();
}

TEST(LoadBalancerTest, LatencyFollowsCalls) {
  BackendState state;
  std::int64_t now = 1'000'000'000'000;
  const auto call = [&](Verdict verdict, std::int64_t latency_ns) {
    state.Begin();
    state.End(verdict, latency_ns, now);
  };
  call(Verdict::kAnswered, 1'000'000);
  EXPECT_EQ(state.latency_ns(), 1'000'000);
  // A server that fails at once isn't fast.
  call(Verdict::kFailed, 1'000);
  EXPECT_EQ(state.latency_ns(), 1'000'000);
  for (int i = 0; i != 100; ++i) {
    now += 50'000'000;
    call(Verdict::kAnswered, 4'000'000);
  }
  EXPECT_NEAR(static_cast<double>(state.latency_ns()), 4e6, 1e4);
}

TEST(LoadBalancerTest, ConsistentHashMovesFewKeys) {
  constexpr std::uint64_t kKeys = 100'000;
  for (const std::size_t servers : {2, 5, 20, 100}) {
    const std::vector<std::uint32_t> weights(servers, 1);
    Tested all("chash", weights);
    Tested fewer("chash", weights);
    for (const std::size_t gone : {std::size_t{0}, servers / 2}) {
      fewer.backends = all.backends;
      fewer.backends.erase(fewer.backends.begin() +
                           static_cast<std::ptrdiff_t>(gone));
      if (fewer.backends.size() == 1) continue;
      fewer.picker = fewer.balancer->NewPicker(fewer.backends);
      std::uint64_t moved = 0;
      for (std::uint64_t key = 0; key != kKeys; ++key) {
        const Endpoint& before = all.backends[all.PickFor(key)].peer().endpoint;
        const Endpoint& after =
            fewer.backends[fewer.PickFor(key)].peer().endpoint;
        moved += before != after;
      }
      EXPECT_LE(static_cast<double>(moved),
                1.2 * kKeys / static_cast<double>(servers));
      EXPECT_GT(moved, 0);
    }
  }
}

// Each key has one server, and each server its share of the slots: as if each
// slot had drawn its server at random.
TEST(LoadBalancerTest, ConsistentHashSpreadsKeys) {
  for (const std::size_t servers : {2, 5, 20, 100}) {
    Tested chash("chash", std::vector<std::uint32_t>(servers, 1));
    std::vector<double> slots(servers);
    constexpr int kKeys = 1'000'000;
    for (std::uint64_t key = 0; key != kKeys; ++key) {
      const std::size_t picked = chash.PickFor(MixBits(key));
      ++slots[picked];
      if (key % 1000 == 0) {
        EXPECT_EQ(chash.PickFor(MixBits(key)), picked);
      }
    }
    constexpr double kSlots = 65536;  // Far fewer than keys.
    for (double& count : slots) count *= kSlots / kKeys;
    EXPECT_LT(ChiSquareSigmas(
                  slots, std::vector<double>(
                             servers, kSlots / static_cast<double>(servers))),
              12)
        << servers;
  }
}

TEST(LoadBalancerTest, ConsistentHashHeedsWeights) {
  Tested chash("chash", {1, 3});
  std::vector<double> counts(2);
  for (std::uint64_t key = 0; key != 10'000; ++key) {
    ++counts[chash.PickFor(MixBits(key))];
  }
  EXPECT_NEAR(counts[0], 2500, 500);
}

// No server has more than 1.25 times its share, though all calls have one key.
TEST(LoadBalancerTest, ConsistentHashBoundsTheLoad) {
  Tested chash("chash", std::vector<std::uint32_t>(4, 1));
  for (int i = 1; i <= 400; ++i) {
    const std::size_t picked = chash.PickFor(7);
    chash.backends[picked].state()->Begin();
    chash.picker->OnBegin(picked);
    EXPECT_LE(chash.backends[picked].in_flight(), std::ceil(1.25 * i / 4.0))
        << i;
  }
}

TEST(LoadBalancerTest, UnknownNameListsTheKnown) {
  for (const char* name : {"hash", "", "RR", "rr "}) {
    const auto balancer = NewLoadBalancer(name);
    ASSERT_FALSE(balancer);
    EXPECT_EQ(balancer.error().code(), STATUS_INVALID_CHANNEL);
    EXPECT_NE(balancer.error().message().find("known are "), std::string::npos);
    EXPECT_NE(balancer.error().message().find(" rr"), std::string::npos);
  }
}

TEST(LoadBalancerTest, OthersCanBeRegisteredOnce) {
  struct Last : LoadBalancer {
    std::size_t Next(std::size_t peers) override { return peers - 1; }
  };
  const auto make = [] { return std::make_unique<Last>(); };
  EXPECT_TRUE(RegisterLoadBalancer("test-last", make));
  EXPECT_FALSE(RegisterLoadBalancer("test-last", make));
  EXPECT_FALSE(RegisterLoadBalancer("rr", make));
  const auto balancer = NewLoadBalancer("test-last");
  ASSERT_TRUE(balancer);
  EXPECT_EQ((*balancer)->Next(7), 6);
  const Backends backends = MakeBackends({1, 1, 1});
  const auto picker = (*balancer)->NewPicker(backends);
  EXPECT_EQ(picker->Pick({}), 2);
  // If that one can't have the call, the following one has it.
  EXPECT_EQ(picker->Pick({.refused = 1, .last_refused = 2}), 0);
  EXPECT_NE(NewLoadBalancer("x").error().message().find("test-last"),
            std::string::npos);
}

}  // namespace
}  // namespace flare::rpc
