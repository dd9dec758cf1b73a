// Servers that give their calls up when these may just be ending, on fibers and
// on plain threads. In each shape of the runtime.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::nanoseconds;

// A plain thread that answers calls.
class Replier {
 public:
  Replier() : thread_([this] { Run(); }) {}
  ~Replier() {
    Answer(std::nullopt);
    thread_.join();
  }
  // nullopt: no more come.
  void Answer(std::optional<TestCall> call) {
    std::scoped_lock guard(mutex_);
    calls_.push_back(call);
    changed_.notify_one();
  }

 private:
  void Run() {
    for (;;) {
      std::unique_lock guard(mutex_);
      changed_.wait(guard, [this] { return !calls_.empty(); });
      const std::optional<TestCall> call = calls_.front();
      calls_.pop_front();
      guard.unlock();
      if (!call) return;
      FlexibleService::Echo(*call);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<TestCall>> calls_;
  std::thread thread_;
};

// Answers in various ways, and counts.
class Answering {
 public:
  explicit Answering(Replier* replier) : replier_(replier) {
    service_.on_call = [this](TestCall call) { OnCall(call); };
  }

  FlexibleService* service() { return &service_; }
  int begun() const { return begun_; }
  // Until the method has returned as often as it was called. Calls that come to
  // a worker after the drain timeout are refused.
  void Await() const {
    while (left_ != begun_) std::this_thread::yield();
  }
  // The sum that calls have written before they ended.
  int sum() const {
    int sum = 0;
    for (const int one : ended_) sum += one;
    return sum;
  }

  static constexpr int kCalls = 24;

 private:
  void OnCall(TestCall call) {
    ++begun_;
    const int number = call.request->number();
    ended_[number] = 1;
    switch (number % 4) {
      case 0:
        FlexibleService::Echo(call);
        break;
      case 1:
        replier_->Answer(call);
        break;
      case 2:
        this_fiber::SleepFor(nanoseconds(number * 10'000));
        FlexibleService::Echo(call);
        break;
      case 3:
        call.controller->WriteResponseImmediately();
        this_fiber::Yield();
        replier_->Answer(call);
        break;
    }
    ++left_;
  }

  Replier* const replier_;
  std::atomic<int> begun_{0};
  std::atomic<int> left_{0};
  // No atomics: the end of the server orders them.
  int ended_[kCalls] = {};
  FlexibleService service_;
};

class ServerRaceTest : public InEachShape<RpcTest> {
 protected:
  Answering* NewService() {
    services_.push_back(std::make_unique<Answering>(&replier_));
    return services_.back().get();
  }

 private:
  // Abandoned calls that a thread answers may end after the runtime.
  std::vector<std::unique_ptr<Answering>> services_;
  Replier replier_;
};
FLARE_INSTANTIATE_RUNTIME_TEST(ServerRaceTest);

TEST_P(ServerRaceTest, TheDrainTimeoutAndReplies) {
  constexpr int kRounds = 60;
  constexpr int kCalls = Answering::kCalls;
  std::mt19937 random(3);
  for (int round = 0; round != kRounds; ++round) {
    Answering* const answering = NewService();
    Server::Options options;
    options.drain_timeout = nanoseconds(random() % 400'000);
    Server server(options);
    // In one of them replies wait for each other.
    server.AddProtocols({"flare", "http+pb"});
    server.AddService(answering->service());
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server.Start());
    RawClient client(server.endpoint(), round % 2 == 0 ? "flare" : "http+pb");
    std::string batch;
    for (int i = 0; i != kCalls; ++i) {
      batch += client.Encode(i + 1, kCall, MakeRequest("x", i));
    }
    client.Send(batch);
    const int enough = static_cast<int>(random() % kCalls);
    while (answering->begun() < enough) std::this_thread::yield();
    server.Stop();
    if (round % 3 == 0) client.Close();
    while (server.Join() != 0) std::this_thread::yield();
    EXPECT_EQ(answering->sum(), answering->begun());
    answering->Await();
  }
}

// Nobody waits for abandoned calls.
TEST_P(ServerRaceTest, AbandonedCallsAndTheirServer) {
  constexpr int kRounds = 60;
  std::mt19937 random(4);
  std::vector<const Answering*> services;
  for (int round = 0; round != kRounds; ++round) {
    Answering* const answering = NewService();
    Server::Options options;
    options.drain_timeout = nanoseconds(random() % 100'000);
    Server server(options);
    server.AddProtocol("flare");
    server.AddService(answering->service());
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server.Start());
    RawClient client(server.endpoint());
    std::string batch;
    for (int i = 0; i != Answering::kCalls; ++i) {
      batch += client.Encode(i + 1, kCall, MakeRequest("x", i));
    }
    client.Send(batch);
    while (answering->begun() < 4) std::this_thread::yield();
    server.Join();
    services.push_back(answering);
  }
  for (const Answering* const answering : services) answering->Await();
}

// Connections that are closed as idle, or as too slow, all the time.
TEST_P(ServerRaceTest, SweepingAndCalls) {
  constexpr int kClients = 3;
  FlexibleService service;
  service.on_call = [](TestCall call) {
    this_fiber::Yield();
    FlexibleService::Echo(call);
  };
  Server::Options options;
  options.connection_max_idle = nanoseconds(20'000);
  options.message_timeout = nanoseconds(40'000);
  options.remove_idle_connection_interval = nanoseconds(50'000);
  Server server(options);
  server.AddProtocol("flare");
  server.AddService(&service);
  server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(server.Start());
  std::atomic<int> replies{0};
  std::vector<std::jthread> clients;
  for (int c = 0; c != kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int i = 0; i != 60; ++i) {
        RawClient client(server.endpoint());
        const std::string call = client.Encode(1, kCall, MakeRequest("x"));
        bool sent = client.TrySend(call.substr(0, call.size() / 2));
        const std::int64_t go_on_ns =
            NowNs() + static_cast<std::int64_t>(random() % 100'000);
        while (NowNs() < go_on_ns) std::this_thread::yield();
        sent = sent && client.TrySend(call.substr(call.size() / 2));
        if (i % 4 != 0) replies += client.ReadReply().has_value();
      }
    });
  }
  clients.clear();
  EXPECT_EQ(server.Join(), 0u);
  const auto statistics = server.statistics();
  EXPECT_GE(statistics.calls, static_cast<std::uint64_t>(replies));
  EXPECT_EQ(statistics.connections_open, 0u);
}

// Replies in pieces, which wait for their turns and for room.
TEST_P(ServerRaceTest, TheDrainTimeoutAndPieces) {
  constexpr int kRounds = 40;
  std::mt19937 random(5);
  for (int round = 0; round != kRounds; ++round) {
    Server::Options options;
    options.drain_timeout = nanoseconds(random() % 400'000);
    options.max_output_per_connection = 4000;
    Server server(options);
    std::atomic<int> running{0};
    server.AddHttpHandler(
        "/", NewHttpGetHandler([&](auto&, auto*, HttpServerContext* context) {
          ++running;
          const Buffer piece = CreateBufferSlow(std::string(2000, 'x'));
          for (int i = 0; i != 30 && context->body->Write(piece).ok(); ++i) {
            this_fiber::Yield();
          }
          --running;
        }));
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server.Start());
    RawClient client(server.endpoint());
    for (int i = 0; i != 4; ++i) {
      client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    if (round % 3 == 0) client.ReadExactly(1000);
    server.Stop();
    if (round % 3 == 1) client.Close();
    while (server.Join() != 0) std::this_thread::yield();
    EXPECT_EQ(running, 0);
  }
}

}  // namespace
}  // namespace flare::rpc::testing
