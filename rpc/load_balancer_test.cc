#include "flare/rpc/load_balancer.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

std::unique_ptr<LoadBalancer> RoundRobin() {
  auto balancer = NewLoadBalancer("rr");
  EXPECT_TRUE(balancer);
  return *std::move(balancer);
}

TEST(LoadBalancerTest, RoundRobinTakesTurns) {
  const auto balancer = RoundRobin();
  std::size_t last = balancer->Next(3);
  EXPECT_LT(last, 3);
  for (int i = 0; i != 100; ++i) {
    const std::size_t next = balancer->Next(3);
    EXPECT_EQ(next, (last + 1) % 3);
    last = next;
  }
}

TEST(LoadBalancerTest, RoundRobinFollowsChangesOfTheNumber) {
  const auto balancer = RoundRobin();
  for (std::size_t peers = 1; peers != 50; ++peers) {
    EXPECT_LT(balancer->Next(peers), peers);
    EXPECT_EQ(balancer->Next(1), 0);
  }
}

TEST(LoadBalancerTest, RoundRobinIsFairAmongThreads) {
  const auto balancer = RoundRobin();
  constexpr int kThreads = 4;
  constexpr int kPerThread = 5000;
  std::vector<std::atomic<int>> counts(5);
  std::vector<std::thread> threads;
  for (int t = 0; t != kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i != kPerThread; ++i) counts[balancer->Next(5)]++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : counts) EXPECT_EQ(count, kThreads * kPerThread / 5);
}

TEST(LoadBalancerTest, UnknownNameListsTheKnown) {
  for (const char* name : {"chash", "", "RR", "rr "}) {
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
  EXPECT_NE(NewLoadBalancer("x").error().message().find("test-last"),
            std::string::npos);
}

}  // namespace
}  // namespace flare::rpc
