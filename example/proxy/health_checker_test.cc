#include "example/proxy/health_checker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "example/proxy/full_server.h"
#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/testing/loopback.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/checks/server_check.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::Endpoint;
using flare::RefPtr;
using flare::Status;
using flare::io::UniqueFd;
using namespace std::literals;
using Type = HealthCheckConfig::Type;

// A server on a plain thread: gives each visitor `answer`, having read
// something, and closes. Without an answer, or if it `stays`, it waits for the
// visitor to go.
class CannedServer {
 public:
  explicit CannedServer(std::optional<std::string> answer, bool stays = false)
      : answer_(std::move(answer)),
        stays_(stays),
        listener_(flare::io::testing::PlainListener(&address_)),
        thread_([this] { Run(); }) {}

  ~CannedServer() {
    ending_ = true;
    UniqueFd last = flare::io::testing::PlainConnect(address_);
    thread_.join();
  }

  const Endpoint& address() const { return address_; }
  std::string request() {
    std::scoped_lock guard(lock_);
    return request_;
  }

 private:
  void Run() {
    for (;;) {
      const UniqueFd peer = flare::io::testing::PlainAccept(listener_);
      if (ending_) return;
      char bytes[4096];
      const ssize_t n = ::recv(peer.get(), bytes, sizeof(bytes), 0);
      {
        std::scoped_lock guard(lock_);
        request_.assign(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
      }
      if (answer_) flare::io::testing::SendAll(peer.get(), *answer_);
      if (!answer_ || stays_) flare::io::testing::Receive(peer.get(), 1);
    }
  }

  const std::optional<std::string> answer_;
  const bool stays_;
  Endpoint address_;
  const UniqueFd listener_;
  std::atomic<bool> ending_{false};
  std::mutex lock_;
  std::string request_;
  std::thread thread_;
};

// Bound, so that nobody else gets it, but not listened on.
class DeadAddress {
 public:
  DeadAddress() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage storage;
    const socklen_t size =
        flare::MustParseEndpoint("127.0.0.1:0").ToSockaddr(&storage);
    EXPECT_EQ(
        ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&storage), size), 0);
  }
  Endpoint address() const {
    return flare::io::GetLocalEndpoint(socket_.get());
  }
  void Listen() { EXPECT_EQ(::listen(socket_.get(), 64), 0); }

 private:
  const UniqueFd socket_;
};

class HealthTest : public flare::io::testing::IoTest {
 protected:
  static void OnFiber(const std::function<void()>& f) {
    flare::Fiber(f).join();
  }

  static ProxyConfig With(const HealthCheckConfig& health_check) {
    ProxyConfig config;
    config.health_check = health_check;
    return config;
  }

  static Status Probe(const HealthCheckConfig& config, const Endpoint& address,
                      const std::string& header = "",
                      const std::stop_token& stop = {}) {
    flare::rpc::ServerCheck check = CheckOf(With(config), "server", address);
    check.first_bytes = header;
    Status status;
    OnFiber([&] { status = flare::rpc::CheckServer(check, stop); });
    return status;
  }

  static Status ProbeHttp(const std::string& answer, bool stays = false) {
    const CannedServer server(answer, stays);
    return Probe({.type = Type::kHttp, .timeout = 20s}, server.address());
  }
};
INSTANTIATE_TEST_SUITE_P(
    Shapes, HealthTest,
    ::testing::Values(flare::fiber::testing::RuntimeShape{1, 1, "io-heavy"},
                      flare::fiber::testing::RuntimeShape{2, 1, "io-heavy"}),
    flare::fiber::testing::RuntimeShapeName);

TEST_P(HealthTest, TcpProbe) {
  CannedServer server(std::nullopt);
  HealthCheckConfig config{.type = Type::kTcp, .timeout = 20s};
  EXPECT_EQ(Probe(config, server.address()), Status());
  const DeadAddress dead;
  const Status refused = Probe(config, dead.address());
  EXPECT_EQ(refused.code(), ECONNREFUSED) << refused;
  const Status no_file =
      Probe(config, flare::EndpointFromUnix("/no/such/socket"));
  EXPECT_EQ(no_file.code(), ENOENT) << no_file;
}

TEST_P(HealthTest, ProbeSendsTheHeaderFirst) {
  CannedServer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  HealthCheckConfig config{
      .type = Type::kHttp, .timeout = 20s, .path = "/health?x=1"};
  EXPECT_EQ(Probe(config, server.address(), "PROXY UNKNOWN\r\n"), Status());
  EXPECT_TRUE(server.request().starts_with(
      "PROXY UNKNOWN\r\nGET /health?x=1 HTTP/1.1\r\nHost: server\r\n"))
      << server.request();
  config.host = "example.org";
  EXPECT_EQ(Probe(config, server.address()), Status());
  EXPECT_TRUE(server.request().starts_with(
      "GET /health?x=1 HTTP/1.1\r\nHost: example.org\r\n"))
      << server.request();
  config.type = Type::kTcp;
  EXPECT_EQ(Probe(config, server.address(), "PROXY UNKNOWN\r\n"), Status());
  EXPECT_EQ(server.request(), "PROXY UNKNOWN\r\n");
}

TEST_P(HealthTest, ProbeNamesTheHostAsHttpDoes) {
  CannedServer server("HTTP/1.1 200 OK\r\n\r\n");
  for (const auto& [name, host] : {std::pair{"a.test:80@10.0.0.1", "a.test:80"},
                                   {"[fe80::1%eth0]:80", "[fe80::1]:80"},
                                   {"unix:@abstract", "localhost"}}) {
    const auto check = CheckOf(With({.type = Type::kHttp, .timeout = 20s}),
                               name, server.address());
    OnFiber([&] { EXPECT_EQ(flare::rpc::CheckServer(check, {}), Status()); });
    EXPECT_TRUE(server.request().starts_with(
        "GET / HTTP/1.1\r\nHost: " + std::string(host) + "\r\n"))
        << server.request();
  }
}

TEST_P(HealthTest, HttpAnswers) {
  EXPECT_EQ(ProbeHttp("HTTP/1.1 200 OK\r\n\r\nand a body"), Status());
  EXPECT_EQ(ProbeHttp("HTTP/1.0 200 OK\r\nX: y\r\n\r\n"), Status());
  EXPECT_EQ(ProbeHttp("HTTP/1.1 503 Busy\r\n\r\n").message(),
            "status 503 rather than 200");
  EXPECT_EQ(ProbeHttp("").message(), "closed without an answer");
  EXPECT_NE(ProbeHttp("HTTP/1.1 200 OK\r")
                .message()
                .find("closed the connection in the middle of a message"),
            std::string::npos);
  for (const std::string& bad :
       {"SSH-2.0-x\r\n"s, "S"s, "HTTP/1.1 abc OK\r\n"s, "\n\n"s,
        "HTTP/1.1 200 OK\n"s, "HTTP/2 200\r\n"s,
        "HTTP/1.1 200 "s + std::string(20'000, 'x')}) {
    const Status status = ProbeHttp(bad, /*stays=*/true);  // Told at once.
    EXPECT_EQ(status.code(), EPROTO) << status;
    EXPECT_TRUE(status.message().starts_with("the answer is no HTTP"))
        << status;
  }
}

TEST_P(HealthTest, OnlyTheStatusLineIsLookedAt) {
  for (const std::string& fields :
       {""s, "A: b\r\n folded\r\n\r\n"s, "A : b\n\n"s,
        "Content-Type: a\r\nContent-Type: b\r\n\r\n"s,
        "Transfer-Encoding: gzip, chunked\r\n\r\n"s,
        std::string(20'000, 'x')}) {
    EXPECT_EQ(ProbeHttp("HTTP/1.1 200 OK\r\n" + fields, /*stays=*/true),
              Status());
    EXPECT_EQ(ProbeHttp("HTTP/1.1 404 No\r\n" + fields).message(),
              "status 404 rather than 200");
  }
}

// Responses before the answer don't count.
TEST_P(HealthTest, InterimResponses) {
  const std::string early =
      "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
  EXPECT_EQ(ProbeHttp("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            Status());
  EXPECT_EQ(ProbeHttp(early + early + "HTTP/1.1 200 OK\r\n\r\n"), Status());
  EXPECT_EQ(ProbeHttp(early + "HTTP/1.1 503 Busy\r\n\r\n").message(),
            "status 503 rather than 200");
  EXPECT_EQ(ProbeHttp(early).message(), "closed without an answer");
  EXPECT_EQ(ProbeHttp("HTTP/1.1 103 x\r\nA: b\n", /*stays=*/true).message(),
            "an interim response is no HTTP");
  EXPECT_EQ(ProbeHttp("HTTP/1.1 101 Switching Protocols\r\n\r\n").message(),
            "status 101 rather than 200");
  const CannedServer server(early);
  EXPECT_EQ(Probe({.type = Type::kHttp, .timeout = 20s, .status = 103},
                  server.address()),
            Status());
}

TEST_P(HealthTest, ProbesTimeOut) {
  const CannedServer silent(std::nullopt);
  // It never reads, nor answers.
  const Status status =
      Probe({.type = Type::kHttp, .timeout = 50ms}, silent.address());
  EXPECT_EQ(status.code(), ETIMEDOUT) << status;
  EXPECT_EQ(status.message(), "nothing within 50ms");
}

TEST_P(HealthTest, AFullBacklogOfAUnixSocketIsWaitedFor) {
  const Endpoint address = flare::MustParseEndpoint("unix:@health_test.full." +
                                                    std::to_string(::getpid()));
  FullServer server(address);
  const auto begin = flare::ReadSteadyClock();
  const Status full = Probe({.type = Type::kTcp, .timeout = 50ms}, address);
  EXPECT_GE(flare::ReadSteadyClock() - begin, 25ms);
  EXPECT_EQ(full.code(), EAGAIN) << full;
  std::thread acceptor([&] { server.AcceptNext(); });
  EXPECT_EQ(Probe({.type = Type::kTcp, .timeout = 20s}, address), Status());
  acceptor.join();
}

// A probe that waits for room in a backlog is stopped as well.
TEST_P(HealthTest, ProbesOfFullServersAreStopped) {
  const Endpoint address = flare::MustParseEndpoint(
      "unix:@health_test.stopped." + std::to_string(::getpid()));
  const FullServer server(address);
  std::stop_source stop;
  std::thread stopper([&] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  EXPECT_EQ(
      Probe({.type = Type::kTcp, .timeout = 1h}, address, "", stop.get_token())
          .code(),
      ECANCELED);
  stopper.join();
}

TEST_P(HealthTest, ProbesAreStopped) {
  const CannedServer silent(std::nullopt);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Probe({.type = Type::kHttp, .timeout = 20s}, silent.address(), "",
                  stop.get_token())
                .code(),
            ECANCELED);
  std::stop_source later;
  std::thread stopper([&] { later.request_stop(); });
  EXPECT_EQ(Probe({.type = Type::kHttp, .timeout = 20s}, silent.address(), "",
                  later.get_token())
                .code(),
            ECANCELED);
  stopper.join();
}

// Waits until the checker has found out.
void WaitForHealth(const Upstream& upstream, bool healthy) {
  const std::int64_t deadline = flare::io::testing::Deadline();
  while (upstream.healthy() != healthy && flare::NowNs() < deadline) {
    flare::this_fiber::SleepFor(1ms);
  }
  EXPECT_EQ(upstream.healthy(), healthy);
}

TEST_P(HealthTest, CheckerFindsOutAndTells) {
  CannedServer up(std::nullopt);
  DeadAddress down;
  ProxyConfig config;
  config.health_check = {
      .type = Type::kTcp, .interval = 10ms, .timeout = 20s, .rise = 2};
  const std::vector<RefPtr<Upstream>> upstreams = {
      flare::MakeRefCounted<Upstream>("up", up.address()),
      flare::MakeRefCounted<Upstream>("down", down.address())};
  OnFiber([&] {
    HealthChecker checker;
    checker.Update(config, upstreams);
    WaitForHealth(*upstreams[1], false);
    EXPECT_GT(checker.StatisticsOf(*upstreams[1]).failures, 0u);
    EXPECT_NE(checker.StatisticsOf(*upstreams[1]).last_error, "");
    EXPECT_TRUE(upstreams[0]->healthy());
    down.Listen();
    WaitForHealth(*upstreams[1], true);

    // The counts are kept; the new upstream is checked, too.
    const auto checks = checker.StatisticsOf(*upstreams[1]).checks;
    const DeadAddress third;
    auto more = upstreams;
    more.push_back(flare::MakeRefCounted<Upstream>("third", third.address()));
    checker.Update(config, more);
    EXPECT_GE(checker.StatisticsOf(*upstreams[1]).checks, checks);
    WaitForHealth(*more[2], false);

    // Unchecked ones count as healthy.
    config.health_check.type = Type::kNone;
    checker.Update(config, more);
    EXPECT_TRUE(more[2]->healthy());
    EXPECT_EQ(checker.StatisticsOf(*more[2]).checks, 0u);
    checker.Stop();
  });
}

// A successful connection is proof that others are possible.
TEST_P(HealthTest, GoodChecksEndPauses) {
  CannedServer server(std::nullopt);
  ProxyConfig config;
  config.health_check = {.type = Type::kTcp, .interval = 1ms, .timeout = 20s};
  const auto upstream = flare::MakeRefCounted<Upstream>("up", server.address());
  OnFiber([&] {
    HealthChecker checker;
    checker.Update(config, {upstream});
    WaitForHealth(*upstream, true);
    const std::int64_t deadline = flare::io::testing::Deadline();
    upstream->ReportFailure(1, INT64_MAX / 2, 0);
    while (upstream->paused(1) && flare::NowNs() < deadline) {
      flare::this_fiber::SleepFor(1ms);
    }
    EXPECT_FALSE(upstream->paused(1));
    checker.Stop();
  });
}

TEST_P(HealthTest, CheckerSendsAHeaderThatNamesNobody) {
  for (const auto& [version, header] :
       {std::pair{ProxyProtocol::kV1, "PROXY UNKNOWN\r\n"s},
        {ProxyProtocol::kV2, "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"s}}) {
    CannedServer server(std::nullopt);
    ProxyConfig config;
    config.send_proxy_protocol = version;
    config.health_check = {.type = Type::kTcp, .timeout = 20s};
    OnFiber([&] {
      HealthChecker checker;
      checker.Update(config, {flare::MakeRefCounted<Upstream>(
                                 "server", server.address())});
      const std::int64_t deadline = flare::io::testing::Deadline();
      while (server.request().empty() && flare::NowNs() < deadline) {
        flare::this_fiber::SleepFor(1ms);
      }
      checker.Stop();
    });
    EXPECT_EQ(server.request(), header);
  }
}

// That we are out of descriptors is no fault of the upstream's.
TEST_P(HealthTest, CheckerWithoutDescriptors) {
  Endpoint address;  // The kernel answers for it.
  const UniqueFd listener = flare::io::testing::PlainListener(&address);
  ProxyConfig config;
  config.health_check = {
      .type = Type::kTcp, .interval = 1ms, .timeout = 20s, .fall = 1};
  const std::vector<RefPtr<Upstream>> upstreams = {
      flare::MakeRefCounted<Upstream>("up", address)};
  OnFiber([&] {
    HealthChecker checker;
    checker.Update(config, upstreams);
    const auto statistics = [&] { return checker.StatisticsOf(*upstreams[0]); };
    while (statistics().checks == 0) flare::this_fiber::SleepFor(1ms);
    rlimit before;
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto failures = statistics().failures;
    while (statistics().failures < failures + 3) {
      flare::this_fiber::SleepFor(1ms);
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(upstreams[0]->healthy());
    checker.Stop();
  });
}

}  // namespace
}  // namespace example::proxy
