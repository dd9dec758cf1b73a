#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "example/proxy/proxy_fixture.h"
#include "flare/base/clock.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::Endpoint;
using flare::NowNs;
using flare::io::UniqueFd;
using flare::io::testing::Pattern;
using flare::io::testing::PlainAccept;
using flare::io::testing::PlainConnect;
using flare::io::testing::PlainListener;
using flare::io::testing::Receive;
using flare::io::testing::ReceiveEnd;
using flare::io::testing::ResetOnClose;
using flare::io::testing::SendAll;
using namespace std::literals;

class ProxyReloadTest : public ProxyTest {};
INSTANTIATE_TEST_SUITE_P(Shapes, ProxyReloadTest, ProxyShapes(),
                         flare::fiber::testing::RuntimeShapeName);

TEST_P(ProxyReloadTest, ReloadKeepsWhatIsThere) {
  EchoServer old_server;
  EchoServer both;
  AddUpstream(old_server.address());
  AddUpstream(both.address());
  Start();
  const UniqueFd at_old = Connect();
  const UniqueFd at_both = Connect();
  ASSERT_TRUE(Echo(at_old, "a"));
  ASSERT_TRUE(Echo(at_both, "b"));
  const auto kept = proxy_->upstreams()[1];
  const Endpoint before = address();

  EchoServer fresh;
  config_.upstreams.erase(config_.upstreams.begin());
  AddUpstream(fresh.address());
  config_.listeners.push_back(
      {flare::EndpointFromIpv4("127.0.0.2", 0), "--listen"});
  ASSERT_TRUE(Reload().ok());
  EXPECT_EQ(proxy_->upstreams()[0], kept);
  EXPECT_EQ(address(), before);
  ASSERT_EQ(proxy_->listening().size(), 2U);
  ASSERT_TRUE(Echo(at_old, "still there"));
  const UniqueFd second = PlainConnect(proxy_->listening()[1]);
  const UniqueFd third = Connect();
  ASSERT_TRUE(Echo(second, "c"));
  ASSERT_TRUE(Echo(third, "d"));
  EXPECT_EQ(old_server.accepted(), 1U);
  EXPECT_EQ(fresh.accepted(), 1U);

  config_.listeners.pop_back();
  const Endpoint gone = proxy_->listening()[1];
  ASSERT_TRUE(Reload().ok());
  EXPECT_FALSE(PlainConnect(gone));
  ASSERT_TRUE(Echo(second, "goes on"));
  proxy_->CutAll();
  WaitIdle();
}

TEST_P(ProxyReloadTest, ReloadKeepsListenersThatAreWrittenAlike) {
  EchoServer server;
  AddUpstream(server.address());
  config_.listeners.push_back(config_.listeners.front());
  Start();
  const std::vector<Endpoint> before = proxy_->listening();
  ASSERT_NE(before[0], before[1]);
  ASSERT_TRUE(Reload().ok());
  EXPECT_EQ(proxy_->listening(), before);
  EXPECT_TRUE(Echo(PlainConnect(before[1]), "b"));
  config_.listeners.pop_back();
  ASSERT_TRUE(Reload().ok());
  EXPECT_EQ(proxy_->listening(), std::vector<Endpoint>{before[0]});
  WaitIdle();
}

TEST_P(ProxyReloadTest, ReloadThatFailsChangesNothing) {
  EchoServer server;
  AddUpstream(server.address());
  Start();
  Endpoint taken;
  const UniqueFd owner = PlainListener(&taken);
  config_.listeners = {{taken, "proxy.yaml:3: listen[0]"}};
  const flare::Status status = Reload();
  EXPECT_EQ(status.code(), EADDRINUSE);
  EXPECT_EQ(status.message().find("proxy.yaml:3: listen[0]: "), 0U) << status;
  const UniqueFd client = Connect();
  EXPECT_TRUE(Echo(client, "as before"));
  proxy_->CutAll();
  WaitIdle();
}

TEST_P(ProxyReloadTest, ReloadChangesTheBacklog) {
  char folder[] = "/tmp/proxy_reload_test.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const Endpoint where =
      flare::EndpointFromUnix(std::string(folder) + "/proxy");
  EchoServer server;
  AddUpstream(server.address());
  config_.listeners = {{where, "--listen"}};
  config_.backlog = 1;
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  sockaddr_storage storage;
  const socklen_t length = where.ToSockaddr(&storage);
  const auto connect = [&](const UniqueFd& client) {
    return ::connect(client.get(), reinterpret_cast<sockaddr*>(&storage),
                     length) == 0;
  };
  // As long as nothing can be accepted, the backlog fills up.
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(connect(clients[0]));
  EXPECT_TRUE(connect(clients[1]));  // The kernel allows one more.
  EXPECT_FALSE(connect(clients[2]));
  config_.backlog = 10;
  EXPECT_TRUE(Reload().ok());
  EXPECT_TRUE(connect(clients[2]));
  EXPECT_TRUE(connect(clients[3]));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const UniqueFd& client : clients) {
    ASSERT_EQ(::fcntl(client.get(), F_SETFL, 0), 0);
    EXPECT_TRUE(Echo(client, "hello"));
  }
  clients.clear();
  WaitIdle();
  proxy_.reset();  // Removes its file.
  EXPECT_EQ(::rmdir(folder), 0);
}

TEST_P(ProxyReloadTest, DrainWaitsForSessionsAndCutEndsThem) {
  EchoServer server;
  AddUpstream(server.address());
  Start();
  const UniqueFd client = Connect();
  ASSERT_TRUE(Echo(client, "before"));
  const Endpoint where = address();
  proxy_->StopListening();
  EXPECT_FALSE(PlainConnect(where));
  EXPECT_FALSE(proxy_->WaitUntilIdle(NowNs() + 1'000'000));
  EXPECT_TRUE(Echo(client, "while it drains"));
  proxy_->CutAll();
  WaitIdle();
  EXPECT_EQ(ReceiveEnd(client.get()), 0);
  EXPECT_EQ(WaitReport().end, SessionEnd::kCut);
}

TEST_P(ProxyReloadTest, Churn) {
  EchoServer servers[3];
  const DeadPort dead;
  for (const auto& server : servers) AddUpstream(server.address());
  AddUpstream(dead.address());
  config_.lb = LoadBalancing::kLeastConnections;
  config_.idle_timeout = 10s;
  Start();
  constexpr int kClients = 4;
  constexpr int kEach = 50;
  std::vector<std::thread> clients;
  for (int t = 0; t < kClients; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const UniqueFd client = Connect();
        ASSERT_TRUE(client);
        const std::string text = Pattern(1 + (i * 977) % 60'000, t);
        if (i % 7 != 3) {
          EXPECT_TRUE(Echo(client, text));
        } else {
          SendAll(client.get(), text);
        }
        if (i % 3 == 0) ResetOnClose(client.get());
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    config_.lb = i % 2 == 0 ? LoadBalancing::kSourceHash
                            : LoadBalancing::kLeastConnections;
    std::rotate(config_.upstreams.begin(), config_.upstreams.begin() + 1,
                config_.upstreams.end());
    EXPECT_TRUE(Reload().ok());
  }
  for (auto& client : clients) client.join();
  WaitReport(kClients * kEach);  // Some may not even be accepted yet.
  WaitIdle();
  EXPECT_EQ(Statistics().accepted, 1U * kClients * kEach);
  EXPECT_EQ(Statistics().unserved, 0U);
  for (const auto& upstream : proxy_->upstreams()) {
    EXPECT_EQ(upstream->statistics(NowNs()).active, 0U);
  }
}

// Tests that take time, in one shape only.
class ProxyTimeTest : public ProxyTest {};
INSTANTIATE_TEST_SUITE_P(Shapes, ProxyTimeTest,
                         ::testing::Values(flare::fiber::testing::RuntimeShape{
                             2, 1, "neutral"}),
                         flare::fiber::testing::RuntimeShapeName);

TEST_P(ProxyTimeTest, ConnectTimeoutGoesToAnother) {
  Endpoint address;
  const UniqueFd stuck = PlainListener(&address);
  ASSERT_EQ(::listen(stuck.get(), 0), 0);
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(
        ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_storage storage;
    const socklen_t length = address.ToSockaddr(&storage);
    static_cast<void>(::connect(waiting.back().get(),
                                reinterpret_cast<sockaddr*>(&storage), length));
  }
  // Before one is in its queue, it would answer the proxy.
  pollfd queue{.fd = stuck.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&queue, 1, 60'000), 1);
  EchoServer server;
  AddUpstream(address);
  AddUpstream(server.address());
  config_.connect_timeout = 1s;  // Enough for the one that answers.
  Start();
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendAll(client.get(), "patience"));
  EXPECT_EQ(Receive(client.get(), 8), "patience");
  EXPECT_EQ(proxy_->upstreams()[0]->statistics(NowNs()).failures, 1U);
  EXPECT_EQ(proxy_->upstreams()[0]->statistics(NowNs()).active, 0U);
  proxy_->CutAll();
  WaitIdle();
  EXPECT_EQ(WaitReport().attempts, 2);
}

TEST_P(ProxyTimeTest, IdleMeansNoByteInEitherDirection) {
  Endpoint address;
  const UniqueFd listener = PlainListener(&address);
  AddUpstream(address);
  config_.idle_timeout = 1s;
  Start();
  UniqueFd client;
  UniqueFd server;
  std::int64_t last = 0;
  // Do bytes of one direction keep the session for twice as long as it may be
  // idle? `longest` is the longest time from one of them to the next.
  const auto keep_it = [&](std::int64_t* longest) {
    client = Connect();
    server = PlainAccept(listener);
    const std::int64_t begin = NowNs();
    last = begin;
    while (NowNs() < begin + 2'000'000'000) {
      const std::int64_t before = NowNs();
      const bool passed =
          SendAll(server.get(), "tick") && Receive(client.get(), 4) == "tick";
      *longest = std::max(*longest, NowNs() - last);
      if (!passed) return false;
      last = before;
    }
    return true;
  };
  std::size_t sessions = 0;
  for (;;) {
    ++sessions;
    std::int64_t longest = 0;
    if (keep_it(&longest)) break;
    // This thread was kept from the CPU for so long: again.
    ASSERT_GT(longest, 900'000'000);
    ASSERT_LT(sessions, 10U);
  }
  EXPECT_EQ(ReceiveEnd(client.get()), 0);
  EXPECT_EQ(ReceiveEnd(server.get()), 0);
  const SessionReport report = WaitReport(sessions);
  EXPECT_EQ(report.end, SessionEnd::kIdle);
  EXPECT_GE(report.ended_ns - last, 1'000'000'000);
  WaitIdle();
  EXPECT_EQ(Statistics().idle, sessions);
}

TEST_P(ProxyTimeTest, ClientsThatSendNoHeaderAreClosed) {
  EchoServer server;
  AddUpstream(server.address());
  config_.accept_proxy_protocol = true;
  config_.connect_timeout = 300ms;
  Start();
  const UniqueFd silent = Connect();
  ASSERT_TRUE(SendAll(silent.get(), "PROXY TCP4"));
  EXPECT_EQ(Receive(silent.get(), 1), "");
  EXPECT_EQ(WaitReport().end, SessionEnd::kBadHeader);
  EXPECT_EQ(WaitReport().error, ETIMEDOUT);
  WaitIdle();
}

}  // namespace
}  // namespace example::proxy
