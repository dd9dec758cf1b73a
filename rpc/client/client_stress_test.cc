// Calls by the ten thousand, from many fibers and threads at once, against
// servers that answer late, twice, never, or with garbage, and break
// connections. Invariants: each call ends exactly once, with the reply to its
// own request or with an error, and everything can be used again at once.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/testing/rounds.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A server on plain threads, one per connection, that misbehaves at random.
class UnreliableServer {
 public:
  explicit UnreliableServer(unsigned seed) : seed_(seed) {
    accepting_ = std::thread([this] { Accept(); });
  }

  ~UnreliableServer() {
    stop_ = true;
    accepting_.join();
    for (std::thread& thread : serving_) thread.join();
  }

  std::string uri() const { return server_.uri(); }

 private:
  void Accept() {
    while (!stop_) {
      if (!server_.HasVisitor()) {
        std::this_thread::yield();
        continue;
      }
      serving_.emplace_back([this, seed = seed_++,
                             peer = std::shared_ptr<RawPeer>(
                                 server_.Accept())] { Serve(*peer, seed); });
    }
  }

  static void Serve(RawPeer& peer, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::string> held_back;
    while (auto request = peer.ReadRequest()) {
      TestRequest message;
      ASSERT_TRUE(message.ParseFromString(request->body));
      const std::string reply = peer.Encode(request->id, message.body());
      switch (random() % 400) {
        case 0:
          return;  // Closes, with whatever was under way.
        case 1:
          peer.Send("garbage, long enough to be recognised as such");
          return;
        case 2:
          peer.Send(reply + reply);
          break;
        case 3:
          break;  // Never.
        case 4:
          peer.Send(reply.substr(0, reply.size() / 2));
          return;
        case 5:
          peer.Fail(request->id, STATUS_OVERLOADED, "busy");
          break;
        default:
          held_back.push_back(reply);
      }
      if (random() % 4 == 0 || !peer.HasInput()) {
        std::shuffle(held_back.begin(), held_back.end(), random);
        std::string all;
        for (const std::string& r : held_back) all += r;
        held_back.clear();
        peer.Send(all);
      }
    }
  }

  RawServer server_;
  std::atomic<bool> stop_{false};
  unsigned seed_;
  std::thread accepting_;
  std::vector<std::thread> serving_;
};

struct Tally {
  void Count(const RpcClientController& controller, const TestRequest& request,
             const TestResponse& response) {
    if (!controller.Failed()) {
      ++succeeded;
      EXPECT_EQ(response.body(), request.body());
      return;
    }
    ++failed;
    EXPECT_NE(controller.ErrorText(), "");
    switch (controller.ErrorCode()) {
      case STATUS_TIMEOUT:
      case STATUS_FAIL_TO_CONNECT:
      case STATUS_IO_ERROR:
      case STATUS_OVERLOADED:
        break;
      case STATUS_FAILED:
        EXPECT_TRUE(controller.IsCanceled());
        break;
      default:
        ADD_FAILURE() << controller.ErrorCode() << " "
                      << controller.ErrorText();
    }
  }
  std::atomic<int> succeeded{0};
  std::atomic<int> failed{0};
};

// Calls one after the other from their own completions, with the same objects.
class Loop : public google::protobuf::Closure {
 public:
  void Start(RpcChannel* channel, int calls, unsigned seed, Tally* tally,
             fiber::Latch* ended) {
    channel_ = channel;
    left_ = calls;
    random_.seed(seed);
    tally_ = tally;
    ended_ = ended;
    Next();
  }

  void Run() override {
    EXPECT_TRUE(running_.exchange(false)) << "a call ended twice";
    tally_->Count(controller_, request_, response_);
    if (--left_ == 0) return ended_->count_down();
    Next();
  }

  // By others, at any time.
  void Cancel() { controller_.StartCancel(); }

 private:
  void Next() {
    // A cancellation may come between the calls, but not during Reset().
    request_.set_body(std::to_string(random_()));
    if (random_() % 8 == 0) {
      controller_.SetTimeout(microseconds(random_() % 3000));
    } else {
      // Only calls that are never answered take so long, even on a busy
      // machine.
      controller_.SetTimeout(milliseconds(1000));
    }
    controller_.SetMaxRetries(1 + random_() % 3);
    running_ = true;
    channel_->CallMethod(MethodNamed("Call"), &controller_, &request_,
                         &response_, this);
  }

  RpcChannel* channel_ = nullptr;
  int left_ = 0;
  std::mt19937 random_;
  Tally* tally_ = nullptr;
  fiber::Latch* ended_ = nullptr;
  std::atomic<bool> running_{false};
  RpcClientController controller_;
  TestRequest request_;
  TestResponse response_;
};

class ClientStressTest : public ClientTest {
 protected:
  int workers() const override { return 4; }
};

TEST_F(ClientStressTest, LoopsAgainstUnreliableServers) {
  constexpr int kLoops = 40;
  constexpr int kCalls = 300;
  UnreliableServer one(1), two(1001);
  RpcChannel channel(one.uri() + "," + two.uri().substr(8));
  Tally tally;
  {
    fiber::Latch ended(kLoops);
    std::vector<Loop> loops(kLoops);
    for (int i = 0; i != kLoops; ++i) {
      fiber::Spawn(
          [&, i] { loops[i].Start(&channel, kCalls, i, &tally, &ended); });
    }
    ended.wait();
  }
  EXPECT_EQ(tally.succeeded + tally.failed, kLoops * kCalls);
  EXPECT_GT(tally.succeeded, kLoops * kCalls / 4);
  EXPECT_GT(tally.failed, 0);
  ShutdownClientSide();
}

TEST_F(ClientStressTest, BlockingCallsFromFibersAndThreads) {
  constexpr int kFibers = 30;
  constexpr int kThreads = 3;
  constexpr int kCalls = 150;
  UnreliableServer server(2001);
  RpcChannel channel(server.uri());
  Tally tally;
  fiber::Latch ended(kFibers);
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    TestService_Stub stub(&channel);
    for (int i = 0; i != kCalls; ++i) {
      RpcClientController controller;
      controller.SetTimeout(random() % 8 == 0 ? microseconds(random() % 3000)
                                              : microseconds(100'000));
      controller.SetMaxRetries(1 + random() % 3);
      TestRequest request;
      TestResponse response;
      request.set_body(std::to_string(random()));
      stub.Call(&controller, &request, &response, nullptr);
      tally.Count(controller, request, response);
    }
  };
  for (int i = 0; i != kFibers; ++i) {
    fiber::Spawn([&, i] {
      work(i);
      ended.count_down();
    });
  }
  std::vector<std::thread> threads;
  for (int i = 0; i != kThreads; ++i) threads.emplace_back(work, 100 + i);
  ended.wait();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tally.succeeded + tally.failed, (kFibers + kThreads) * kCalls);
  EXPECT_GT(tally.succeeded, 0);
  ShutdownClientSide();
}

// Each call is cancelled by somebody else at a moment that may be before,
// while or after it ends.
TEST_F(ClientStressTest, CancellationRacesWithEverything) {
  constexpr int kFibers = 8;
  constexpr int kCalls = 400;
  UnreliableServer server(3001);
  RpcChannel channel(server.uri());
  Tally tally;
  std::atomic<int> cancelled{0};
  fiber::Latch ended(kFibers);
  for (int f = 0; f != kFibers; ++f) {
    fiber::Spawn([&, f] {
      std::mt19937 random(f);
      for (int i = 0; i != kCalls; ++i) {
        TestedCall call;
        call.controller.SetTimeout(milliseconds(100));
        call.request.set_body(std::to_string(random()));
        fiber::Latch both(2);
        for (int who = 0; who != 2; ++who) {
          fiber::Spawn([&, spins = random() % 200] {
            for (unsigned s = 0; s != spins; ++s) this_fiber::Yield();
            call.controller.StartCancel();
            both.count_down();
          });
        }
        call.Start(&channel);
        call.Await();
        both.wait();
        tally.Count(call.controller, call.request, call.response);
        cancelled += call.controller.IsCanceled();
      }
      ended.count_down();
    });
  }
  ended.wait();
  EXPECT_EQ(tally.succeeded + tally.failed, kFibers * kCalls);
  EXPECT_GT(cancelled, 0);
  ShutdownClientSide();
}

// The end of the client side in the middle of everything.
TEST_F(ClientStressTest, ShutdownUnderLoad) {
  for (int round = 0; round != 10; ++round) {
    UnreliableServer server(4001 + round * 100);
    RpcChannel channel(server.uri());
    std::vector<TestedCall> calls(300);
    fiber::Latch started(3);
    for (int f = 0; f != 3; ++f) {
      fiber::Spawn([&, f] {
        for (int i = f * 100; i != f * 100 + 100; ++i) {
          calls[i].controller.SetTimeout(seconds(20));
          calls[i].controller.SetMaxRetries(i % 3);
          calls[i].Start(&channel);
        }
        started.count_down();
      });
    }
    calls[round * 25].Await();
    ShutdownClientSide();
    started.wait();
    for (TestedCall& call : calls) call.Await();
  }
}

// With a real server, whose connections are closed under load by stopping it;
// another one then takes its place.
class RestartTest : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }
};

TEST_F(RestartTest, LoopsGoOnAcrossRestartsOfTheServer) {
  constexpr int kLoops = 20;
  constexpr int kCalls = flare::testing::Rounds(2000);
  FlexibleService echo;
  std::unique_ptr<Server> server;
  std::uint16_t port = 0;
  const auto start = [&] {
    server = std::make_unique<Server>();
    server->AddProtocol("flare");
    server->AddService(&echo);
    server->ListenOn(EndpointFromIpv4("127.0.0.1", port));
    ASSERT_TRUE(server->Start()) << server->error().ToString();
    port = server->endpoint().port();
  };
  start();
  RpcChannel channel("flare://127.0.0.1:" + std::to_string(port));
  Tally tally;
  fiber::Latch ended(kLoops);
  std::vector<Loop> loops(kLoops);
  for (int i = 0; i != kLoops; ++i) {
    loops[i].Start(&channel, kCalls, i, &tally, &ended);
  }
  for (int restart = 0; restart != 3; ++restart) {
    const int before = tally.succeeded;
    while (tally.succeeded < before + 200 && !ended.try_wait()) {
      std::this_thread::yield();
    }
    server->Stop();
    server->Join();
    start();
  }
  ended.wait();
  EXPECT_EQ(tally.succeeded + tally.failed, kLoops * kCalls);
  TestedCall last;
  last.controller.SetTimeout(seconds(20));
  const std::int64_t deadline = NowNs() + 20'000'000'000;
  while (last.Start(&channel)->Await() != STATUS_SUCCESS &&
         NowNs() < deadline) {
    last.controller.Reset();
  }
  EXPECT_FALSE(last.controller.Failed()) << last.controller.ErrorText();
  ShutdownClientSide();
  server->Stop();
  server->Join();
}

}  // namespace
}  // namespace flare::rpc::testing
