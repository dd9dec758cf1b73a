// Acceptors, as far as all kinds of addresses share their behaviour. Unix
// sockets have tests of their own in unix_acceptor_test.cc.
#include "flare/io/acceptor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/latch.h"
#include "flare/io/testing/acceptor_fixture.h"
#include "flare/io/testing/loopback.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Greeter;
using testing::PlainConnect;
using testing::Receive;
using testing::SendAll;

// An address that no other process uses: nobody else gets a port that a test
// has given up, nor a connection that a test tries to make there.
std::string LoopbackHost() {
  const auto pid = static_cast<unsigned>(::getpid());
  return "127." + std::to_string(1 + pid / 62500 % 250) + "." +
         std::to_string(1 + pid / 250 % 250) + "." +
         std::to_string(1 + pid % 250);
}

Endpoint Loopback() { return EndpointFromIpv4(LoopbackHost(), 0); }

class AcceptorTest : public testing::AcceptorTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(AcceptorTest);

TEST_P(AcceptorTest, Accepts) {
  auto acceptor = MustListen(Loopback(), greeter_.Callback());
  EXPECT_NE(acceptor->local_endpoint().port(), 0);
  EXPECT_EQ(acceptor->local_endpoint().host(), LoopbackHost());
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(PlainConnect(acceptor->local_endpoint()));
    ASSERT_TRUE(clients.back());
    EXPECT_EQ(Receive(clients.back().get(), 2), "hi");
  }
  EXPECT_EQ(acceptor->accepted(), 50U);
  EXPECT_EQ(greeter_.count(), 50U);
}

TEST_P(AcceptorTest, AcceptsIpv6) {
  auto acceptor =
      Acceptor::Listen(EndpointFromIpv6("::1", 0), {}, greeter_.Callback());
  if (!acceptor) GTEST_SKIP() << acceptor.error().message();
  const UniqueFd client = PlainConnect((*acceptor)->local_endpoint());
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

// A port that the kernel picks for one of the two may be somebody else's in the
// other: the next one isn't.
TEST_P(AcceptorTest, Ipv6OnlyLeavesIpv4ToAnother) {
  for (int i = 0; i < 100; ++i) {
    auto v6 = Acceptor::Listen(EndpointFromIpv6("::", 0), {.ipv6_only = true},
                               greeter_.Callback());
    if (!v6) GTEST_SKIP() << v6.error().message();
    const std::uint16_t port = (*v6)->local_endpoint().port();
    auto v4 = Acceptor::Listen(EndpointFromIpv4("0.0.0.0", port), {},
                               greeter_.Callback());
    if (!v4) continue;
    for (const Endpoint& address :
         {EndpointFromIpv4("127.0.0.1", port), EndpointFromIpv6("::1", port)}) {
      const UniqueFd client = PlainConnect(address);
      EXPECT_EQ(Receive(client.get(), 2), "hi") << address;
    }
    EXPECT_EQ((*v4)->accepted(), 1U);
    EXPECT_EQ((*v6)->accepted(), 1U);
    return;
  }
  FAIL() << "no port is free for both";
}

// Which IPv6 alone wouldn't have.
TEST_P(AcceptorTest, Ipv6OnlyIsAboutTheWildcard) {
  auto acceptor = Acceptor::Listen(EndpointFromIpv6("::ffff:127.0.0.1", 0),
                                   {.ipv6_only = true}, greeter_.Callback());
  if (!acceptor) GTEST_SKIP() << acceptor.error().message();
  const UniqueFd client = PlainConnect(
      EndpointFromIpv4("127.0.0.1", (*acceptor)->local_endpoint().port()));
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

// From the socket that listens.
TEST_P(AcceptorTest, AcceptedSocketsAskSilentPeers) {
  for (const int seconds : {60, 2, 0}) {
    auto acceptor = Acceptor::Listen(
        Loopback(), {.keep_alive = std::chrono::seconds(seconds)},
        [&](UniqueFd fd, const Endpoint&, std::size_t) {
          const auto [idle, interval] = testing::KeepAliveOf(fd.get());
          EXPECT_EQ(idle, seconds);
          EXPECT_EQ(interval, seconds / 6 + (seconds == 2));
          SendAll(fd.get(), "hi");
        });
    ASSERT_TRUE(acceptor.has_value());
    const UniqueFd client = PlainConnect((*acceptor)->local_endpoint());
    EXPECT_EQ(Receive(client.get(), 2), "hi");
  }
}

TEST_P(AcceptorTest, PortInUse) {
  auto acceptor = MustListen(Loopback(), greeter_.Callback());
  const Endpoint taken = acceptor->local_endpoint();
  const auto second = Acceptor::Listen(taken, {}, greeter_.Callback());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), EADDRINUSE);
  EXPECT_EQ(second.error().message().rfind("listen on " + taken.ToString() +
                                               ": bind: Address already in "
                                               "use",
                                           0),
            0U)
      << second.error().message();
  // The first one is none the worse for it.
  const UniqueFd client = PlainConnect(taken);
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

TEST_P(AcceptorTest, WithoutDescriptorsItSaysWhatToRaise) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  // UBSan takes a descriptor to look at types that it hasn't seen.
  (void)StatusFromErrno(EMFILE, "");
  auto greet = greeter_.Callback();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto acceptor = Acceptor::Listen(Loopback(), {}, std::move(greet));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(acceptor.has_value());
  EXPECT_TRUE(acceptor.error().message().ends_with(
      "; raise the limit of descriptors (ulimit -n)"))
      << acceptor.error().message();
}

TEST_P(AcceptorTest, PortInUseBySomeoneElse) {
  Endpoint taken;
  const UniqueFd other = testing::PlainListener(&taken);
  const auto acceptor = Acceptor::Listen(taken, {}, greeter_.Callback());
  ASSERT_FALSE(acceptor.has_value());
  EXPECT_EQ(acceptor.error().code(), EADDRINUSE);
}

TEST_P(AcceptorTest, AddressesThatAreNotOurs) {
  for (const Endpoint& address :
       {EndpointFromIpv4("192.0.2.1", 80), Endpoint(),
        EndpointFromUnix("/no/such/directory/socket")}) {
    const auto acceptor = Acceptor::Listen(address, {}, greeter_.Callback());
    ASSERT_FALSE(acceptor.has_value());
    EXPECT_NE(acceptor.error().code(), 0);
    EXPECT_EQ(acceptor.error().message().rfind(
                  "listen on " + address.ToString() + ": ", 0),
              0U)
        << acceptor.error().message();
  }
}

TEST_P(AcceptorTest, AddressIsFreeAfterJoin) {
  Endpoint address = Loopback();
  for (int i = 0; i < 5; ++i) {
    auto acceptor = MustListen(address, greeter_.Callback());
    address = acceptor->local_endpoint();
    const UniqueFd client = PlainConnect(address);
    EXPECT_EQ(Receive(client.get(), 2), "hi");
    acceptor->Stop();
    acceptor->Stop();
    acceptor->Join();
    acceptor->Join();
    EXPECT_FALSE(PlainConnect(address));
    EXPECT_EQ(errno, ECONNREFUSED);
  }
}

TEST_P(AcceptorTest, StopFromTheCallback) {
  std::unique_ptr<Acceptor> acceptor;
  fiber::Event published;
  fiber::Event stopped;
  acceptor =
      MustListen(Loopback(), [&](UniqueFd, const Endpoint&, std::size_t) {
        ASSERT_TRUE(published.WaitUntil(testing::Deadline()));
        acceptor->Stop();
        stopped.Set();
      });
  published.Set();
  const UniqueFd client = PlainConnect(acceptor->local_endpoint());
  ASSERT_TRUE(stopped.WaitUntil(testing::Deadline()));
  acceptor->Join();
}

// Connections that the kernel has completed by the time of Stop() are handed
// out, not reset.
TEST_P(AcceptorTest, StopTakesWhatHasConnected) {
  for (int round = 0; round < 20; ++round) {
    Greeter greeter;
    auto acceptor = MustListen(Loopback(), greeter.Callback());
    std::vector<UniqueFd> clients;
    for (int i = 0; i < 30; ++i) {
      clients.push_back(PlainConnect(acceptor->local_endpoint()));
      ASSERT_TRUE(clients.back());
    }
    acceptor->Stop();
    acceptor->Join();
    EXPECT_EQ(greeter.count(), 30U);
    EXPECT_EQ(acceptor->accepted(), 30U);
    for (const UniqueFd& client : clients) {
      EXPECT_EQ(Receive(client.get(), 2), "hi");
    }
  }
}

// No callback comes after Join(), however many clients keep trying.
TEST_P(AcceptorTest, NoCallbackAfterJoin) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> joined{false};
    std::atomic<bool> done{false};
    std::atomic<int> accepted{0};
    auto acceptor =
        MustListen(Loopback(), [&](UniqueFd, const Endpoint&, std::size_t) {
          EXPECT_FALSE(joined.load());
          accepted.fetch_add(1);
        });
    const Endpoint address = acceptor->local_endpoint();
    std::thread client([&] {
      while (!done.load()) PlainConnect(address);
    });
    while (accepted.load() < 10) std::this_thread::yield();
    acceptor->Stop();
    acceptor->Join();
    joined.store(true);
    testing::DrainPollers();
    done.store(true);
    client.join();
  }
}

// How many of `n` connections, that are made one after another, each group
// gets.
std::vector<int> DealConnections(int n) {
  std::vector<std::atomic<int>> in_group(fiber::GetSchedulingGroupCount());
  fiber::Latch closed(n);
  const auto serve = [&](UniqueFd fd, const Endpoint&, std::size_t group) {
    in_group[group].fetch_add(1);
    auto* const handler =
        new testing::EchoHandler([&](const Status&) { closed.count_down(); });
    handler->Serve(StreamConnection::Accepted(std::move(fd), group, handler));
  };
  const auto acceptor = Acceptor::Listen(Loopback(), {}, serve);
  EXPECT_TRUE(acceptor.has_value()) << acceptor.error().message();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < n; ++i) {
    clients.push_back(PlainConnect((*acceptor)->local_endpoint()));
    EXPECT_TRUE(SendAll(clients.back().get(), "x"));
    EXPECT_EQ(Receive(clients.back().get(), 1), "x");
  }
  clients.clear();
  EXPECT_TRUE(closed.wait_for(testing::kLimit));
  return {in_group.begin(), in_group.end()};
}

// However the kernel spreads connections over the groups' sockets, they end up
// evenly.
TEST_P(AcceptorTest, GroupsAreBalanced) {
  const std::vector<int> in_group = DealConnections(64);
  const double fair = 64.0 / static_cast<double>(in_group.size());
  for (const int n : in_group) {
    EXPECT_GE(n, fair * 0.9);
    EXPECT_LE(n, fair * 1.1);
  }
}

// With few connections each one counts.
TEST_P(AcceptorTest, FewConnectionsAreDealtOneByOne) {
  for (int round = 0; round < 10; ++round) {
    const std::vector<int> in_group = DealConnections(8);
    const auto [least, most] =
        std::minmax_element(in_group.begin(), in_group.end());
    EXPECT_LE(*most - *least, 1);
  }
}

// Without a free descriptor accepting stalls, which is said, and not for the
// process's first listener alone; and goes on once there is one, without an
// edge.
TEST_P(AcceptorTest, RunningOutOfDescriptors) {
  // No member: to look at one of those UBSan wants a descriptor.
  static std::atomic<int> complaints;
  complaints = 0;
  struct Complaints : google::LogSink {
    void send(google::LogSeverity, const char*, const char*, int,
              const google::LogMessageTime&, const char* message,
              std::size_t size) override {
      const std::string_view text(message, size);
      if (text.find("accepting connections stalls") != text.npos) ++complaints;
    }
  } sink;
  google::AddLogSink(&sink);
  auto acceptor = MustListen(Loopback(), greeter_.Callback());
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  testing::MakePlain(client.get());
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(client.get()) + 1;
  // Numbers below the limit may still be free: take them all.
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<UniqueFd> hogs;
  for (;;) {
    UniqueFd hog(::dup(client.get()));
    if (!hog) break;
    hogs.push_back(std::move(hog));
  }
  sockaddr_storage storage;
  const socklen_t length = acceptor->local_endpoint().ToSockaddr(&storage);
  EXPECT_EQ(
      ::connect(client.get(), reinterpret_cast<sockaddr*>(&storage), length),
      0);
  const std::int64_t deadline = testing::Deadline();
  while (complaints == 0 && NowNs() < deadline) std::this_thread::yield();
  EXPECT_EQ(complaints, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  hogs.clear();
  EXPECT_EQ(Receive(client.get(), 2), "hi");
  google::RemoveLogSink(&sink);
}

// Runs `act` while `address` has a connection to accept and nobody can have a
// descriptor for it.
void WithoutDescriptors(const Endpoint& address,
                        const std::function<void()>& act) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  // UBSan needs a descriptor to look at types that are new to it.
  (void)StatusFromErrno(EMFILE, "");
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  EXPECT_EQ(
      ::connect(client.get(), reinterpret_cast<sockaddr*>(&storage), length),
      0);
  act();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_P(AcceptorTest, StopWithoutDescriptors) {
  auto acceptor = MustListen(Loopback(), greeter_.Callback());
  WithoutDescriptors(acceptor->local_endpoint(), [&] {
    acceptor->Stop();
    acceptor->Join();
  });
  EXPECT_EQ(greeter_.count(), 0U);
}

// The timer of the next attempt, 50 ms later, meets the listener's end.
TEST_P(AcceptorTest, StopAsItIsTriedAgain) {
  for (int round = 0; round < 8; ++round) {
    auto acceptor = MustListen(Loopback(), greeter_.Callback());
    WithoutDescriptors(acceptor->local_endpoint(), [&] {
      std::this_thread::sleep_for(
          std::chrono::microseconds(49'800 + 100 * round));
      acceptor->Stop();
      acceptor->Join();
      acceptor.reset();
    });
  }
  EXPECT_EQ(greeter_.count(), 0U);
}

}  // namespace
}  // namespace flare::io
