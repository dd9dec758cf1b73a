#include "example/proxy/upstream.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/testing/stress.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::Endpoint;
using flare::RefPtr;

std::vector<RefPtr<Upstream>> MakeUpstreams(int n) {
  std::vector<RefPtr<Upstream>> upstreams;
  for (int i = 0; i < n; ++i) {
    const std::string name = "10.0.0." + std::to_string(i) + ":80";
    upstreams.push_back(
        flare::MakeRefCounted<Upstream>(name, flare::MustParseEndpoint(name)));
  }
  return upstreams;
}

Endpoint Client(int i) {
  return flare::MustParseEndpoint("192.168." + std::to_string(i / 256) + "." +
                                  std::to_string(i % 256) + ":" +
                                  std::to_string(1024 + i));
}

// The upstreams of `n` clients, by name.
std::map<std::string, int> Deal(const UpstreamSet& set, int n) {
  std::map<std::string, int> shares;
  for (int i = 0; i < n; ++i) {
    const auto upstream = set.Acquire(Client(i), {}, 0);
    EXPECT_TRUE(upstream);
    ++shares[upstream->name()];
  }
  return shares;
}

TEST(UpstreamSetTest, RoundRobinGivesEachItsTurn) {
  const UpstreamSet set(MakeUpstreams(4), LoadBalancing::kRoundRobin, 0);
  for (const auto& [name, share] : Deal(set, 400)) EXPECT_EQ(share, 100);
  EXPECT_EQ(set.upstreams()[2]->statistics(0).active, 100U);
}

TEST(UpstreamSetTest, RoundRobinStaysEvenWithoutTheUnhealthy) {
  const UpstreamSet set(MakeUpstreams(4), LoadBalancing::kRoundRobin, 0);
  set.upstreams()[1]->SetHealthy(false);
  const auto shares = Deal(set, 300);
  EXPECT_EQ(shares.size(), 3U);
  for (const auto& [name, share] : shares) EXPECT_EQ(share, 100);
}

TEST(UpstreamSetTest, RoundRobinStaysEvenWithOneThatAlwaysFails) {
  for (std::size_t bad = 0; bad < 3; ++bad) {
    const UpstreamSet set(MakeUpstreams(3), LoadBalancing::kRoundRobin, 0);
    std::map<std::string, int> shares;
    for (int i = 0; i < 600; ++i) {
      auto upstream = set.Acquire(Client(i), {}, 0);
      if (upstream == set.upstreams()[bad]) {
        const Upstream* const tried[] = {upstream.Get()};
        upstream = set.Acquire(Client(i), tried, 0);
      }
      ++shares[upstream->name()];
    }
    EXPECT_EQ(shares.size(), 2U);
    for (const auto& [name, share] : shares) EXPECT_EQ(share, 300) << name;
  }
}

TEST(UpstreamSetTest, LeastConnectionsFillsWhoHasFewest) {
  const UpstreamSet set(MakeUpstreams(3), LoadBalancing::kLeastConnections, 0);
  Deal(set, 30);
  // The first loses eight of its ten, the second four.
  for (int i = 0; i < 8; ++i) set.upstreams()[0]->Release();
  for (int i = 0; i < 4; ++i) set.upstreams()[1]->Release();
  auto shares = Deal(set, 4);
  EXPECT_EQ(shares["10.0.0.0:80"], 4);
  Deal(set, 12);
  std::vector<std::uint64_t> active;
  for (const auto& it : set.upstreams()) {
    active.push_back(it->statistics(0).active);
  }
  EXPECT_LE(*std::max_element(active.begin(), active.end()),
            *std::min_element(active.begin(), active.end()) + 1);
}

TEST(UpstreamSetTest, SourceHashKeepsClientsWhereTheyWere) {
  const UpstreamSet five(MakeUpstreams(5), LoadBalancing::kSourceHash, 0);
  const UpstreamSet again(MakeUpstreams(5), LoadBalancing::kSourceHash, 0);
  const UpstreamSet four(MakeUpstreams(4), LoadBalancing::kSourceHash, 0);
  int moved = 0;
  std::map<std::string, int> shares;
  for (int i = 0; i < 5000; ++i) {
    Endpoint client = Client(i);
    const auto chosen = five.Acquire(client, {}, 0);
    ++shares[chosen->name()];
    // Another port of the same client, in another process.
    client.set_port(7);
    EXPECT_EQ(again.Acquire(client, {}, 0)->name(), chosen->name());
    const auto without = four.Acquire(client, {}, 0);
    if (without->name() != chosen->name()) {
      ++moved;
      EXPECT_EQ(chosen->name(), "10.0.0.4:80") << "nobody else has to move";
    }
  }
  EXPECT_EQ(moved, shares["10.0.0.4:80"]);
  for (const auto& [name, share] : shares) {
    EXPECT_GT(share, 600) << name;
    EXPECT_LT(share, 1400) << name;
  }
}

TEST(UpstreamSetTest, SourceHashGoesAroundTheUnhealthyAndBack) {
  const UpstreamSet set(MakeUpstreams(5), LoadBalancing::kSourceHash, 0);
  const auto home = set.Acquire(Client(1), {}, 0);
  home->SetHealthy(false);
  const auto refuge = set.Acquire(Client(1), {}, 0);
  EXPECT_NE(refuge, home);
  EXPECT_EQ(set.Acquire(Client(1), {}, 0), refuge);
  home->SetHealthy(true);
  EXPECT_EQ(set.Acquire(Client(1), {}, 0), home);
}

TEST(UpstreamSetTest, EachIsTriedOnce) {
  for (const auto policy :
       {LoadBalancing::kRoundRobin, LoadBalancing::kLeastConnections,
        LoadBalancing::kSourceHash}) {
    const UpstreamSet set(MakeUpstreams(4), policy, 0);
    std::vector<const Upstream*> tried;
    for (int i = 0; i < 4; ++i) {
      const auto next = set.Acquire(Client(0), tried, 0);
      ASSERT_TRUE(next);
      EXPECT_EQ(std::count(tried.begin(), tried.end(), next.Get()), 0);
      tried.push_back(next.Get());
    }
    EXPECT_FALSE(set.Acquire(Client(0), tried, 0));
  }
}

TEST(UpstreamSetTest, FullOnesAreNotChosen) {
  const UpstreamSet set(MakeUpstreams(2), LoadBalancing::kRoundRobin, 3);
  Deal(set, 6);
  EXPECT_FALSE(set.Acquire(Client(0), {}, 0));
  set.upstreams()[1]->Release();
  EXPECT_EQ(set.Acquire(Client(0), {}, 0), set.upstreams()[1]);
}

TEST(UpstreamSetTest, LimitHoldsAmongThreads) {
  const UpstreamSet set(MakeUpstreams(1), LoadBalancing::kLeastConnections, 2);
  std::atomic<int> held{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const auto upstream = set.Acquire(Client(i), {}, 0);
        if (!upstream) continue;
        EXPECT_LE(held.fetch_add(1) + 1, 2);
        held.fetch_sub(1);
        upstream->Release();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(set.upstreams()[0]->statistics(0).active, 0U);
}

TEST(UpstreamTest, FailuresInARowPauseIt) {
  const UpstreamSet set(MakeUpstreams(2), LoadBalancing::kRoundRobin, 0);
  Upstream& bad = *set.upstreams()[0];
  bad.ReportFailure(3, 1000, 10);
  bad.ReportFailure(3, 1000, 20);
  EXPECT_FALSE(bad.paused(20));
  bad.ReportConnected();  // Ends the row.
  bad.ReportFailure(3, 1000, 30);
  bad.ReportFailure(3, 1000, 40);
  EXPECT_FALSE(bad.paused(40));
  bad.ReportFailure(3, 1000, 50);
  EXPECT_TRUE(bad.paused(50));
  EXPECT_TRUE(bad.paused(1049));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(set.Acquire(Client(i), {}, 1049), set.upstreams()[1]);
  }
  // One try after the pause; if that fails, another pause.
  EXPECT_FALSE(bad.paused(1050));
  bad.ReportFailure(3, 1000, 1060);
  EXPECT_TRUE(bad.paused(1061));
  bad.ReportConnected();
  EXPECT_FALSE(bad.paused(1061));
  EXPECT_EQ(bad.statistics(0).failures, 6U);
  EXPECT_EQ(bad.statistics(0).connections, 2U);
}

// Whatever the order in which the two were seen, the next success ends it.
TEST(UpstreamTest, SuccessesBesideAFailureLeaveNoPauseThatNothingEnds) {
  const auto upstream = MakeUpstreams(1).front();
  std::atomic<int> round{0};
  std::atomic<int> failed{0};
  std::atomic<bool> stop{false};
  std::thread failing([&] {
    for (int i = 1;; ++i) {
      while (round.load() != i) {
        if (stop.load()) return;
        std::this_thread::yield();
      }
      upstream->ReportFailure(1, 1000, 0);
      failed.store(i);
    }
  });
  int lasting = 0;
  const std::int64_t end_ns =
      flare::NowNs() + flare::fiber::testing::StressNs(200'000'000);
  for (int i = 1; flare::NowNs() < end_ns; ++i) {
    round.store(i);
    while (failed.load() != i) {
      for (int j = 0; j < 100; ++j) upstream->EndFailures();
      std::this_thread::yield();
    }
    upstream->EndFailures();
    if (upstream->paused(1)) ++lasting;
  }
  stop.store(true);
  failing.join();
  EXPECT_EQ(lasting, 0);
}

TEST(UpstreamTest, ZeroFailuresNeverPause) {
  const auto upstream = MakeUpstreams(1).front();
  for (int i = 0; i < 100; ++i) upstream->ReportFailure(0, 1000, 0);
  EXPECT_FALSE(upstream->paused(1));
}

// Paused before unhealthy, and either rather than none.
TEST(UpstreamSetTest, TheLeastBadIsChosenWhenNoneIsGood) {
  const UpstreamSet set(MakeUpstreams(2), LoadBalancing::kRoundRobin, 0);
  set.upstreams()[0]->ReportFailure(1, 1000, 0);
  set.upstreams()[1]->SetHealthy(false);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(set.Acquire(Client(i), {}, 1), set.upstreams()[0]);
  }
  set.upstreams()[0]->SetHealthy(false);
  EXPECT_EQ(Deal(set, 10).size(), 2U);
}

}  // namespace
}  // namespace example::proxy
