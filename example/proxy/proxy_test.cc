#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "example/proxy/full_server.h"
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
using flare::io::testing::PlainListener;
using flare::io::testing::Receive;
using flare::io::testing::ReceiveEnd;
using flare::io::testing::ResetOnClose;
using flare::io::testing::SendAll;

INSTANTIATE_TEST_SUITE_P(Shapes, ProxyTest, ProxyShapes(),
                         flare::fiber::testing::RuntimeShapeName);

TEST_P(ProxyTest, PassesRequestsToUpstreamsInTurn) {
  EchoServer servers[3];
  for (const auto& server : servers) AddUpstream(server.address());
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Echo(clients.back(), Pattern(100 * i + 1, i)));
  }
  for (const auto& server : servers) EXPECT_EQ(server.accepted(), 4U);
  EXPECT_EQ(Statistics().active, 12U);
  for (const auto& upstream : proxy_->upstreams()) {
    EXPECT_EQ(upstream->statistics(NowNs()).active, 4U);
  }
  clients.clear();
  WaitIdle();
  const SessionReport report = WaitReport(12);
  EXPECT_EQ(report.end, SessionEnd::kFinished);
  EXPECT_EQ(report.listener, address());
  EXPECT_EQ(report.attempts, 1);
  EXPECT_LE(report.accepted_ns, report.connected_ns);
  EXPECT_LE(report.connected_ns, report.ended_ns);
  const ProxyStatistics statistics = Statistics();
  EXPECT_EQ(statistics.accepted, 12U);
  EXPECT_EQ(statistics.bytes_to_client, 100U * 66 + 12);
  EXPECT_EQ(statistics.bytes_to_upstream, statistics.bytes_to_client);
  EXPECT_EQ(proxy_->upstreams()[0]->statistics(NowNs()).active, 0U);
}

TEST_P(ProxyTest, SessionsAreSpreadEvenlyOverGroups) {
  EchoServer server;
  AddUpstream(server.address());
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Echo(clients.back(), "x"));
    const auto sizes = proxy_->sessions_per_group();
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0U), clients.size());
    EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()),
              *std::min_element(sizes.begin(), sizes.end()) + 1);
  }
  clients.clear();
  WaitIdle();
}

TEST_P(ProxyTest, RefusedConnectsGoToAnother) {
  const DeadPort dead;
  EchoServer server;
  AddUpstream(dead.address());
  AddUpstream(server.address());
  Start();
  for (int i = 0; i < 10; ++i) {
    const UniqueFd client = Connect();
    ASSERT_TRUE(Echo(client, "hello"));
  }
  WaitIdle();
  // After three failures in a row nobody tries it any more.
  const auto upstreams = proxy_->upstreams();
  EXPECT_EQ(upstreams[0]->statistics(NowNs()).failures, 3U);
  EXPECT_TRUE(upstreams[0]->statistics(NowNs()).paused);
  EXPECT_EQ(upstreams[1]->statistics(NowNs()).connections, 10U);
  EXPECT_EQ(Statistics().connect_failures, 3U);
  EXPECT_EQ(Statistics().retries, 3U);
  EXPECT_EQ(Statistics().unserved, 0U);
}

TEST_P(ProxyTest, NoUpstreamAtAll) {
  const DeadPort dead[3];
  for (const auto& it : dead) AddUpstream(it.address());
  config_.connect_attempts = 2;
  Start();
  const UniqueFd client = Connect();
  EXPECT_EQ(ReceiveEnd(client.get()), 0);
  const SessionReport report = WaitReport();
  EXPECT_EQ(report.end, SessionEnd::kNoUpstream);
  EXPECT_EQ(report.error, ECONNREFUSED);
  EXPECT_EQ(report.attempts, 2);
  EXPECT_EQ(report.connected_ns, 0);
  WaitIdle();
  EXPECT_EQ(Statistics().unserved, 1U);
}

TEST_P(ProxyTest, ClientsOverTheLimitAreClosed) {
  EchoServer server;
  AddUpstream(server.address());
  config_.max_connections = 2;
  Start();
  UniqueFd first = Connect();
  const UniqueFd second = Connect();
  ASSERT_TRUE(Echo(first, "1"));
  ASSERT_TRUE(Echo(second, "2"));
  const UniqueFd third = Connect();
  EXPECT_EQ(ReceiveEnd(third.get()), 0);
  EXPECT_EQ(WaitReport().end, SessionEnd::kOverLimit);
  EXPECT_EQ(Statistics().refused, 1U);
  first.Reset();
  WaitReport(2);
  // The place is free again, at the latest shortly after the report.
  for (bool served = false; !served;) {
    const UniqueFd fourth = Connect();
    served = Echo(fourth, "4");
  }
  proxy_->CutAll();
  WaitIdle();
}

TEST_P(ProxyTest, UpstreamsThatAreFullAreLeftOut) {
  EchoServer servers[2];
  for (const auto& server : servers) AddUpstream(server.address());
  config_.max_connections_per_upstream = 1;
  Start();
  const UniqueFd first = Connect();
  const UniqueFd second = Connect();
  ASSERT_TRUE(Echo(first, "1"));
  ASSERT_TRUE(Echo(second, "2"));
  const UniqueFd third = Connect();
  EXPECT_EQ(ReceiveEnd(third.get()), 0);
  EXPECT_EQ(WaitReport().error, EBUSY);
  proxy_->CutAll();
  WaitIdle();
}

TEST_P(ProxyTest, HalfCloseGoesThrough) {
  Endpoint address;
  const UniqueFd listener = PlainListener(&address);
  AddUpstream(address);
  Start();
  UniqueFd client = Connect();
  UniqueFd server = PlainAccept(listener);
  ASSERT_TRUE(SendAll(client.get(), "request"));
  ::shutdown(client.get(), SHUT_WR);
  EXPECT_EQ(Receive(server.get(), 8), "request");
  const std::string reply = Pattern(1'000'000);
  std::thread sender([&] {
    EXPECT_TRUE(SendAll(server.get(), reply));
    server.Reset();
  });
  EXPECT_TRUE(Receive(client.get(), reply.size() + 1) == reply);
  sender.join();
  EXPECT_EQ(WaitReport().end, SessionEnd::kFinished);
  WaitIdle();
}

TEST_P(ProxyTest, ResetsGoThroughBothWays) {
  Endpoint address;
  const UniqueFd listener = PlainListener(&address);
  AddUpstream(address);
  Start();
  for (const bool by_client : {true, false}) {
    UniqueFd client = Connect();
    UniqueFd server = PlainAccept(listener);
    ASSERT_TRUE(SendAll(client.get(), "up"));
    ASSERT_TRUE(SendAll(server.get(), "down"));
    EXPECT_EQ(Receive(server.get(), 2), "up");
    EXPECT_EQ(Receive(client.get(), 4), "down");
    UniqueFd& broken = by_client ? client : server;
    ResetOnClose(broken.get());
    broken.Reset();
    EXPECT_EQ(ReceiveEnd((by_client ? server : client).get()), ECONNRESET);
    EXPECT_EQ(
        WaitReport(by_client ? 1 : 2).end,
        by_client ? SessionEnd::kClientAborted : SessionEnd::kUpstreamAborted);
  }
  WaitIdle();
  EXPECT_EQ(Statistics().aborted, 2U);
}

TEST_P(ProxyTest, ProxyHeadersComeInAndGoOut) {
  Endpoint address;
  const UniqueFd listener = PlainListener(&address);
  AddUpstream(address);
  config_.accept_proxy_protocol = true;
  config_.send_proxy_protocol = ProxyProtocol::kV1;
  Start();
  const std::string header = "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n";
  UniqueFd client = Connect();
  // In pieces, and with the first bytes behind it.
  ASSERT_TRUE(SendAll(client.get(), header.substr(0, 9)));
  ASSERT_TRUE(SendAll(client.get(), header.substr(9) + "hello"));
  UniqueFd server = PlainAccept(listener);
  EXPECT_EQ(Receive(server.get(), header.size() + 5), header + "hello");
  client.Reset();
  server.Reset();
  const SessionReport report = WaitReport();
  EXPECT_EQ(report.source, flare::MustParseEndpoint("192.0.2.1:1234"));
  EXPECT_EQ(report.client.host(), "127.0.0.1");
  EXPECT_EQ(report.bytes_to_upstream, 5U);

  const UniqueFd rude = Connect();
  ASSERT_TRUE(SendAll(rude.get(), "GET / HTTP/1.1\r\n"));
  EXPECT_EQ(Receive(rude.get(), 1), "");
  EXPECT_EQ(WaitReport(2).end, SessionEnd::kBadHeader);
  WaitIdle();
}

TEST_P(ProxyTest, UnixSocketsOnBothSides) {
  const std::string base = "unix:@proxy_test." + std::to_string(::getpid());
  EchoServer server(flare::MustParseEndpoint(base + ".upstream"));
  AddUpstream(server.address());
  config_.listeners = {{flare::MustParseEndpoint(base), "--listen"}};
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(Connect());
    ASSERT_TRUE(Echo(clients.back(), Pattern(50'000, i)));
  }
  clients.clear();
  EXPECT_EQ(WaitReport().end, SessionEnd::kFinished);
  WaitIdle();
}

// No other upstream helps, and the one that was tried is not to blame.
TEST_P(ProxyTest, WithoutDescriptorsOneIsTried) {
  EchoServer servers[2];
  for (const auto& server : servers) AddUpstream(server.address());
  config_.accept_proxy_protocol = true;
  Start();
  const UniqueFd client = Connect();
  const std::int64_t deadline = flare::io::testing::Deadline();
  while (Statistics().active == 0 && NowNs() < deadline) {
    std::this_thread::yield();
  }
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(SendAll(client.get(), "PROXY UNKNOWN\r\n"));
  const SessionReport report = WaitReport();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(report.end, SessionEnd::kNoUpstream);
  EXPECT_EQ(report.error, EMFILE);
  EXPECT_EQ(report.attempts, 1);
  WaitIdle();
  EXPECT_EQ(Statistics().retries, 0U);
  EXPECT_EQ(Statistics().connect_failures, 0U);
}

TEST_P(ProxyTest, AFullBacklogOfAUnixSocketIsWaitedFor) {
  AddUpstream(flare::MustParseEndpoint("unix:@proxy_test.full." +
                                       std::to_string(::getpid())));
  FullServer server(config_.upstreams.front().address);
  config_.max_failures = 1;
  Start();
  UniqueFd client = Connect();
  ASSERT_TRUE(SendAll(client.get(), "hello"));
  const auto upstream = proxy_->upstreams().front();
  const std::int64_t deadline = flare::io::testing::Deadline();
  while (upstream->statistics(NowNs()).active == 0 && NowNs() < deadline) {
    std::this_thread::yield();
  }
  UniqueFd peer = server.AcceptNext();
  EXPECT_EQ(Receive(peer.get(), 5), "hello");
  EXPECT_FALSE(upstream->statistics(NowNs()).paused);
  client.Reset();
  peer.Reset();
  EXPECT_EQ(WaitReport().attempts, 1);
  EXPECT_EQ(WaitReport().end, SessionEnd::kFinished);
  WaitIdle();
  EXPECT_EQ(Statistics().connect_failures, 0U);
}

TEST_P(ProxyTest, AFullBacklogOfAUnixSocketIsWaitedForUntilTheTimeout) {
  AddUpstream(flare::MustParseEndpoint("unix:@proxy_test.full." +
                                       std::to_string(::getpid())));
  const FullServer server(config_.upstreams.front().address);
  config_.connect_timeout = std::chrono::milliseconds(30);
  Start();
  const UniqueFd client = Connect();
  const SessionReport report = WaitReport();
  EXPECT_EQ(report.end, SessionEnd::kNoUpstream);
  EXPECT_EQ(report.error, ETIMEDOUT);
  EXPECT_GE(report.ended_ns - report.accepted_ns, 30'000'000);
  WaitIdle();
  EXPECT_EQ(Statistics().connect_failures, 1U);
}

}  // namespace
}  // namespace example::proxy
