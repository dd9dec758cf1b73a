#include "flare/rpc/name_resolver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/testing/client_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

std::vector<std::string> Addresses(NameResolution* resolution) {
  std::vector<std::string> addresses;
  for (const Peer& peer : resolution->Peers()) {
    addresses.push_back(peer.endpoint.ToString());
  }
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

std::string ErrorOf(std::string_view address) {
  const auto resolution = ResolveName("list", address);
  if (resolution) return "resolved";
  EXPECT_EQ(resolution.error().code(), STATUS_INVALID_CHANNEL);
  return resolution.error().message();
}

// Names whose addresses the test chooses.
class FakeHosts {
 public:
  FakeHosts() {
    SetHostLookupForTesting([state = state_](std::string_view name) {
      return state->LookUp(std::string(name));
    });
  }
  ~FakeHosts() {
    SetHostLookupForTesting(nullptr);
    Hang(false);
  }

  void Set(const std::string& name, const std::vector<std::string>& to) {
    std::scoped_lock guard(state_->mutex);
    state_->hosts[name].clear();
    for (const std::string& text : to) {
      state_->hosts[name].push_back(MustParseEndpoint(text));
    }
  }
  void Remove(const std::string& name) {
    std::scoped_lock guard(state_->mutex);
    state_->hosts.erase(name);
  }
  // Look-ups that begin don't end until this is taken back.
  void Hang(bool hang) {
    std::scoped_lock guard(state_->mutex);
    state_->hang = hang;
    state_->changed.notify_all();
  }
  // Look-ups that have begun.
  int lookups() {
    std::scoped_lock guard(state_->mutex);
    return state_->lookups;
  }
  void AwaitEnds(int lookups) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->ends >= lookups; });
  }

 private:
  // Shared with look-ups, which nobody waits for.
  struct State {
    Expected<std::vector<Endpoint>> LookUp(const std::string& name) {
      std::unique_lock lock(mutex);
      ++lookups;
      changed.wait(lock, [&] { return !hang; });
      ++ends;
      changed.notify_all();
      const auto it = hosts.find(name);
      if (it != hosts.end()) return it->second;
      return flare::Status(2, "no such host: " + name);
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::vector<Endpoint>> hosts;
    bool hang = false;
    int lookups = 0;
    int ends = 0;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class NameResolverTest : public ClientTest {
 protected:
  // Without channels, names are refreshed again only by this.
  void SetUp() override {
    ClientTest::SetUp();
    OpenClientSide();
  }

  // Asks for the version, as calls do, until `done`.
  template <class F>
  static bool Eventually(NameResolution* resolution, F done) {
    return fiber::testing::Eventually([&] {
      if (done()) return true;
      (void)resolution->Version();
      return false;
    });
  }
};

TEST_F(NameResolverTest, ListsOfAddresses) {
  const auto resolution = ResolveName(
      "list", "127.0.0.1:5567,[::1]:80, 10.1.2.3:1 ,unix:/tmp/socket");
  ASSERT_TRUE(resolution) << resolution.error().ToString();
  EXPECT_EQ(Addresses(resolution->get()),
            (std::vector<std::string>{"10.1.2.3:1", "127.0.0.1:5567",
                                      "[::1]:80", "unix:/tmp/socket"}));
  EXPECT_TRUE((*resolution)->IsStatic());
  EXPECT_EQ((*resolution)->Peers()[1].host, "[::1]:80");
}

TEST_F(NameResolverTest, ServersHaveAttributes) {
  const auto found = ResolveName(
      "list", "10.0.0.1:5 ; zone = a;weight=3; tag.env=new;tag.x.y=z,[::1]:5");
  ASSERT_TRUE(found) << found.error().ToString();
  const std::vector<Peer> peers = (*found)->Peers();
  ASSERT_EQ(peers.size(), 2);
  EXPECT_EQ(peers[0].zone, "a");
  EXPECT_EQ(peers[0].weight, 3);
  const std::map<std::string, std::string> tags = {{"env", "new"},
                                                   {"x.y", "z"}};
  EXPECT_EQ(peers[0].tags, tags);
  EXPECT_TRUE(peers[1].zone.empty());
  EXPECT_TRUE(peers[1].tags.empty());
}

TEST_F(NameResolverTest, RepeatedAddressesCountOnce) {
  const auto resolution =
      ResolveName("list", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:1");
  ASSERT_TRUE(resolution);
  EXPECT_EQ((*resolution)->Peers().size(), 2);
}

TEST_F(NameResolverTest, ErrorsNameTheCulprit) {
  EXPECT_NE(ErrorOf("").find("empty server"), std::string::npos);
  EXPECT_NE(ErrorOf("127.0.0.1:1,").find("empty server"), std::string::npos);
  EXPECT_NE(ErrorOf(",127.0.0.1:1").find("empty server"), std::string::npos);
  for (const char* bad : {"127.0.0.1", "127.0.0.1:0", "localhost:0",
                          "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
                          "[::1]", "[::1:80", ":80", "unix:"}) {
    const std::string text = ErrorOf(std::string("10.0.0.1:80,") + bad);
    EXPECT_NE(text.find(std::string("\"") + bad + "\""), std::string::npos)
        << text;
  }
}

TEST_F(NameResolverTest, UnknownResolverListsTheKnown) {
  const auto resolution = ResolveName("zookeeper", "127.0.0.1:1");
  ASSERT_FALSE(resolution);
  EXPECT_EQ(resolution.error().code(), STATUS_INVALID_CHANNEL);
  EXPECT_NE(resolution.error().message().find("known are "), std::string::npos);
  EXPECT_NE(resolution.error().message().find(" list"), std::string::npos);
}

TEST_F(NameResolverTest, OthersCanBeRegisteredOnce) {
  const NameResolver forward = [](std::string_view) {
    return ResolveName("list", "10.9.8.7:6");
  };
  EXPECT_TRUE(RegisterNameResolver("test-fixed", forward));
  EXPECT_FALSE(RegisterNameResolver("test-fixed", forward));
  EXPECT_FALSE(RegisterNameResolver("list", forward));
  const auto resolution = ResolveName("test-fixed", "whatever");
  ASSERT_TRUE(resolution);
  EXPECT_EQ(Addresses(resolution->get()),
            std::vector<std::string>{"10.9.8.7:6"});
}

// By the system, which needs no /etc/hosts for this name.
TEST_F(NameResolverTest, NamesAreResolved) {
  const auto resolution = ResolveName("list", "127.1:5567");
  ASSERT_TRUE(resolution) << resolution.error().ToString();
  EXPECT_FALSE((*resolution)->IsStatic());
  const auto peers = (*resolution)->Peers();
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers[0].endpoint, MustParseEndpoint("127.0.0.1:5567"));
  EXPECT_EQ(peers[0].host, "127.1:5567");
}

TEST_F(NameResolverTest, UnresolvableHostIsAnError) {
  FakeHosts hosts;
  const std::string text = ErrorOf("nowhere.test:80");
  EXPECT_NE(text.find("nowhere.test:80"), std::string::npos) << text;
  EXPECT_NE(text.find("no such host"), std::string::npos) << text;
}

// As IPv6 ones where there is only IPv4.
TEST_F(NameResolverTest, AddressesWithoutRouteAreNoServers) {
  FakeHosts hosts;
  hosts.Set("a.test:1", {"[fe80::1]:1", "127.0.0.1:1"});
  const auto resolution = ResolveName("list", "a.test:1");
  ASSERT_TRUE(resolution);
  EXPECT_EQ(Addresses(resolution->get()),
            std::vector<std::string>{"127.0.0.1:1"});
}

TEST_F(NameResolverTest, FollowsChanges) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1", "10.0.0.2:1"});
  const auto resolution = ResolveName("list", "a.test:1,10.0.0.9:9");
  ASSERT_TRUE(resolution);
  NameResolution* const r = resolution->get();
  EXPECT_EQ(Addresses(r), (std::vector<std::string>{"10.0.0.1:1", "10.0.0.2:1",
                                                    "10.0.0.9:9"}));
  const std::uint64_t version = r->Version();
  hosts.Set("a.test:1", {"10.0.0.3:1"});
  ASSERT_TRUE(Eventually(r, [&] { return r->Version() != version; }));
  EXPECT_GT(r->Version(), version);
  EXPECT_EQ(Addresses(r),
            (std::vector<std::string>{"10.0.0.3:1", "10.0.0.9:9"}));
}

TEST_F(NameResolverTest, KeepsAddressesWhenLookupsFail) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1"});
  const auto resolution = ResolveName("list", "a.test:1");
  ASSERT_TRUE(resolution);
  NameResolution* const r = resolution->get();
  const std::uint64_t version = r->Version();
  hosts.Remove("a.test:1");
  ASSERT_TRUE(Eventually(r, [&] { return hosts.lookups() > 1; }));
  EXPECT_EQ(r->Version(), version);
  EXPECT_EQ(Addresses(r), std::vector<std::string>{"10.0.0.1:1"});
}

TEST_F(NameResolverTest, TheSameInAnotherOrderIsNoChange) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1", "10.0.0.2:1"});
  const auto resolution = ResolveName("list", "a.test:1");
  ASSERT_TRUE(resolution);
  NameResolution* const r = resolution->get();
  const std::uint64_t version = r->Version();
  hosts.Set("a.test:1", {"10.0.0.2:1", "10.0.0.1:1"});
  // The second refresh begins after the first one has ended.
  ASSERT_TRUE(Eventually(r, [&] { return hosts.lookups() > 2; }));
  EXPECT_EQ(r->Version(), version);
}

// Neither does the end wait for a look-up, nor is a further one begun.
TEST_F(NameResolverTest, StopAbandonsLookups) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1"});
  hosts.Set("b.test:1", {"10.0.0.2:1"});
  auto resolution = ResolveName("list", "a.test:1,b.test:1");
  ASSERT_TRUE(resolution);
  NameResolution* const r = resolution->get();
  // Before who asks for the version may begin a look-up.
  hosts.Hang(true);
  const std::uint64_t version = r->Version();
  hosts.Set("a.test:1", {"10.0.0.3:1"});
  ASSERT_TRUE(Eventually(r, [&] { return hosts.lookups() == 3; }));
  StopNameResolution();
  EXPECT_EQ(r->Version(), version);
  resolution->reset();  // Nobody wants the look-up's result any more.
  hosts.Hang(false);
  hosts.AwaitEnds(3);

  // The next one is refreshed again.
  ResumeNameResolution();
  const auto next = ResolveName("list", "a.test:1");
  ASSERT_TRUE(next);
  hosts.Set("a.test:1", {"10.0.0.4:1"});
  EXPECT_TRUE(Eventually(next->get(), [&] {
    return Addresses(next->get()) == std::vector<std::string>{"10.0.0.4:1"};
  }));
  EXPECT_GE(hosts.lookups(), 5);
}

TEST_F(NameResolverTest, StopEndsRefreshing) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1"});
  const auto resolution = ResolveName("list", "a.test:1");
  ASSERT_TRUE(resolution);
  NameResolution* const r = resolution->get();
  StopNameResolution();
  const std::int64_t until = NowNs() + 1'100'000'000;
  while (NowNs() < until) {  // Past the time of the next refresh.
    (void)r->Version();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(hosts.lookups(), 1);
}

// Even if a channel brings it back whose own look-up had begun before the end.
TEST_F(NameResolverTest, TheNextClientSideRefreshesNames) {
  FLAGS_flare_name_resolver_update_interval_seconds = 0;
  FakeHosts hosts;
  hosts.Set("a.test:1", {"10.0.0.1:1"});
  const auto resolution = ResolveName("list", "a.test:1");
  ASSERT_TRUE(resolution);
  hosts.Hang(true);
  std::thread opening([] { const RpcChannel channel("flare://a.test:1"); });
  EXPECT_TRUE(fiber::testing::Eventually([&] { return hosts.lookups() == 2; }));
  ShutdownClientSide();
  hosts.Hang(false);
  opening.join();
  EXPECT_TRUE(IsClientSideOpen());
  EXPECT_TRUE(
      Eventually(resolution->get(), [&] { return hosts.lookups() > 2; }));
}

// Refreshes at any moment of the end, and of the last user's going away.
TEST_F(NameResolverTest, StopRacesWithRefreshes) {
  FLAGS_flare_name_resolver_update_interval_seconds = 0;
  FakeHosts hosts;
  for (int round = 0; round != 60; ++round) {
    ResumeNameResolution();
    hosts.Set("a.test:1", {"10.0.0." + std::to_string(1 + round % 2) + ":1"});
    auto resolution = ResolveName("list", "a.test:1");
    ASSERT_TRUE(resolution);
    hosts.Set("a.test:1", {"10.0.0.3:1"});
    fiber::Latch asking(2);
    fiber::Latch ended(2);
    std::atomic<bool> done{false};
    for (int i = 0; i != 2; ++i) {
      fiber::Spawn([&, r = *resolution]() mutable {
        for (int asked = 0; !done; ++asked) {
          (void)r->Version();
          EXPECT_EQ(r->Peers().size(), 1u);
          this_fiber::Yield();
          if (asked == 10) asking.count_down();
        }
        r.reset();
        ended.count_down();
      });
    }
    resolution->reset();
    asking.wait();
    if (round % 2 == 0) done = true;
    StopNameResolution();
    done = true;
    ended.wait();
  }
  hosts.AwaitEnds(hosts.lookups());
}

}  // namespace
}  // namespace flare::rpc::testing
