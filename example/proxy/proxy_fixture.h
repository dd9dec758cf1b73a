// Shared by tests of the whole data path: a proxy in several shapes of the
// runtime, servers behind it, and the reports of its sessions.

#ifndef EXAMPLE_PROXY_PROXY_FIXTURE_H_
#define EXAMPLE_PROXY_PROXY_FIXTURE_H_

#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "example/proxy/proxy.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/runtime.h"
#include "flare/io/acceptor.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {

// A server that sends back its input.
class EchoServer {
 public:
  explicit EchoServer(const flare::Endpoint& address) {
    auto acceptor = flare::io::Acceptor::Listen(
        address, {},
        [](flare::io::UniqueFd fd, flare::Endpoint, std::size_t group) {
          auto* const handler = new flare::io::testing::EchoHandler();
          handler->Serve(flare::io::StreamConnection::Accepted(std::move(fd),
                                                               group, handler));
        });
    EXPECT_TRUE(acceptor) << acceptor.error();
    acceptor_ = std::move(*acceptor);
  }
  EchoServer() : EchoServer(flare::EndpointFromIpv4("127.0.0.1", 0)) {}

  const flare::Endpoint& address() const { return acceptor_->local_endpoint(); }
  std::uint64_t accepted() const { return acceptor_->accepted(); }

 private:
  std::unique_ptr<flare::io::Acceptor> acceptor_;
};

// A free port on which nobody listens, for as long as this lives.
class DeadPort {
 public:
  DeadPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage storage;
    const socklen_t length =
        flare::EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&storage), length),
              0);
  }
  flare::Endpoint address() const {
    return flare::io::GetLocalEndpoint(fd_.get());
  }

 private:
  flare::io::UniqueFd fd_;
};

class ProxyTest : public flare::io::testing::IoTest {
 protected:
  void SetUp() override {
    IoTest::SetUp();
    Configure(&config_);
  }
  void TearDown() override {
    if (proxy_) {
      EXPECT_EQ(Statistics().active, 0U);
    }
    proxy_.reset();
    // Servers' ends of connections may still be on their way out.
    const std::int64_t deadline = flare::io::testing::Deadline();
    for (std::size_t i = 0; i < flare::fiber::GetSchedulingGroupCount(); ++i) {
      const auto* const poller = flare::io::EpollPoller::OfGroup(i);
      while (poller->size() != 0 && flare::NowNs() < deadline) {
        std::this_thread::yield();
      }
    }
    IoTest::TearDown();
  }

  static void Configure(ProxyConfig* config) {
    config->listeners = {{flare::EndpointFromIpv4("127.0.0.1", 0), "--listen"}};
    config->connect_timeout = flare::io::testing::kLimit;
    config->idle_timeout = std::chrono::seconds(0);
  }
  void AddUpstream(const flare::Endpoint& address) {
    config_.upstreams.push_back({address.ToString(), address, ""});
  }
  void Start() {
    auto proxy = Proxy::Start(std::make_shared<const ProxyConfig>(config_),
                              [this](const SessionReport& report) {
                                std::scoped_lock guard(mutex_);
                                reports_.push_back(report);
                                reported_.notify_all();
                              });
    ASSERT_TRUE(proxy) << proxy.error();
    proxy_ = std::move(*proxy);
  }
  flare::Status Reload() {
    return proxy_->Reload(std::make_shared<const ProxyConfig>(config_));
  }
  flare::Endpoint address() const { return proxy_->listening().front(); }
  flare::io::UniqueFd Connect() const {
    return flare::io::testing::PlainConnect(address());
  }
  ProxyStatistics Statistics() const { return proxy_->statistics(); }

  // One round trip.
  static bool Echo(const flare::io::UniqueFd& client, const std::string& text) {
    return flare::io::testing::SendAll(client.get(), text) &&
           flare::io::testing::Receive(client.get(), text.size()) == text;
  }

  // Waits for the n-th session's end, from 1.
  SessionReport WaitReport(std::size_t n = 1) {
    SessionReport report;
    {
      std::unique_lock guard(mutex_);
      const bool there =
          reported_.wait_for(guard, flare::io::testing::kLimit,
                             [&] { return reports_.size() >= n; });
      EXPECT_TRUE(there) << "no report";
      if (there) report = reports_[n - 1];
    }
    return report;
  }
  void WaitIdle() {
    EXPECT_TRUE(proxy_->WaitUntilIdle(flare::io::testing::Deadline()));
  }

  ProxyConfig config_;
  std::unique_ptr<Proxy> proxy_;
  std::mutex mutex_;
  std::condition_variable reported_;
  std::vector<SessionReport> reports_;
};

// For INSTANTIATE_TEST_SUITE_P: an event loop per worker, as it is meant to be,
// and workers that share one.
inline auto ProxyShapes() {
  using Shape = flare::fiber::testing::RuntimeShape;
  return ::testing::Values(Shape{1, 1, "neutral"}, Shape{4, 1, "neutral"},
                           Shape{4, 4, "io-heavy"});
}

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_PROXY_FIXTURE_H_
