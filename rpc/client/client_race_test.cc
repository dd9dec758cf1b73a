// Deadlines of calls that pass at the very moment when something else ends
// them: the reply, a canceller, the end of the connection, or that of the
// client side. In each shape of the runtime, and with all that a call refers to
// gone and overwritten as soon as it has ended.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/testing/overwrite_stack.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using flare::testing::OverwriteStack;
using std::chrono::nanoseconds;

// On a fiber without keeping others from its worker.
void AwaitTime(std::int64_t at_ns) {
  while (NowNs() < at_ns) {
    fiber::IsFiberWorker() ? this_fiber::Yield() : std::this_thread::yield();
  }
}

class ClientRaceTest : public InEachShape<ServerTest> {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // Runs `f` on so many fibers and on a thread. Waits for the end of all.
  template <class F>
  static void OnAll(int fibers, const F& f) {
    fiber::Latch ended(fibers);
    for (int i = 0; i != fibers; ++i) {
      fiber::Spawn([&, i] {
        f(i);
        ended.count_down();
      });
    }
    std::thread thread([&] { f(fibers); });
    ended.wait();
    thread.join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(ClientRaceTest);

// Makes calls whose deadlines draw near to the time that replies take: later
// after each that has passed, sooner after each that hasn't.
class Caller {
 public:
  Caller(RpcChannel* channel, unsigned seed)
      : channel_(channel), random_(seed) {}

  [[gnu::noinline]] void Call(int i) {
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    request.set_body(std::to_string(random_()));
    controller.SetTimeout(nanoseconds(timeout_ns_));
    controller.SetMaxRetries(1 + i % 3);
    const bool cancels = i % 4 == 0;
    fiber::Latch cancelled(1);
    if (cancels) {
      const std::int64_t at_ns = NowNs() + timeout_ns_ - 20'000 +
                                 static_cast<std::int64_t>(random_() % 40'000);
      fiber::Spawn([&, at_ns] {
        AwaitTime(at_ns);
        controller.StartCancel();
        cancelled.count_down();
      });
    }
    TestService_Stub(channel_).Call(&controller, &request, &response, nullptr);
    if (cancels) cancelled.wait();
    switch (controller.ErrorCode()) {
      case STATUS_SUCCESS:
        ++succeeded;
        EXPECT_EQ(response.body(), request.body());
        break;
      case STATUS_FAILED:
        EXPECT_TRUE(controller.IsCanceled());
        break;
      case STATUS_TIMEOUT:
        ++timed_out;
        break;
      default:
        // Closed as idle or as stuck, or the server has found that it is late.
        EXPECT_TRUE(controller.ErrorCode() == STATUS_IO_ERROR ||
                    controller.ErrorCode() == STATUS_FAIL_TO_CONNECT ||
                    controller.ErrorCode() == STATUS_OVERLOADED)
            << controller.ErrorText();
    }
    timeout_ns_ += (controller.Failed() ? timeout_ns_ : -timeout_ns_) / 8;
    timeout_ns_ = std::clamp<std::int64_t>(timeout_ns_, 10'000, 50'000'000);
  }

  static inline std::atomic<int> succeeded{0};
  static inline std::atomic<int> timed_out{0};

 private:
  RpcChannel* const channel_;
  std::mt19937 random_;
  std::int64_t timeout_ns_ = 300'000;
};

TEST_P(ClientRaceTest, DeadlinesAndReplies) {
  constexpr int kCalls = 120;
  service().on_call = [](TestCall call) {
    if (call.request->body().size() % 2 == 0) this_fiber::Yield();
    FlexibleService::Echo(call);
  };
  StartServer({"flare"});
  RpcChannel channel("flare://" + endpoint().ToString());
  Caller::succeeded = Caller::timed_out = 0;
  std::atomic<bool> done{false};
  // Idle connections go all the time.
  std::thread closing([&] {
    const ConnectionKey key{"flare",
                            {endpoint(), endpoint().ToString()},
                            FillDefaults({}).connections};
    while (!done) {
      for (std::size_t g = 0; g != fiber::GetSchedulingGroupCount(); ++g) {
        ConnectionPool::Default()->Find(g, key)->CloseIdle(NowNs());
      }
      AwaitTime(NowNs() + 500'000);
    }
  });
  OnAll(5, [&](int i) {
    Caller caller(&channel, i);
    for (int call = 0; call != kCalls; ++call) {
      caller.Call(call);
      OverwriteStack();
    }
  });
  done = true;
  closing.join();
  EXPECT_GT(Caller::succeeded, 0);
  EXPECT_GT(Caller::timed_out, 0);
  ShutdownClientSide();
  StopServer();
}

// Answers each request in two pieces.
void ServeHaltingly(RawPeer* peer) {
  while (const auto request = peer->ReadRequest()) {
    TestRequest message;
    ASSERT_TRUE(message.ParseFromString(request->body));
    const std::string reply = peer->Encode(request->id, message.body());
    peer->Send(reply.substr(0, reply.size() / 2));
    AwaitTime(NowNs() + 50'000);
    peer->Send(reply.substr(reply.size() / 2));
  }
}

// Each that passes within a message may end the connection.
TEST_P(ClientRaceTest, DeadlinesWithinMessages) {
  constexpr int kCalls = 40;
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  std::atomic<bool> done{false};
  std::thread accepting([&] {
    std::vector<std::jthread> serving;
    while (!done) {
      if (!server.HasVisitor()) {
        std::this_thread::yield();
        continue;
      }
      serving.emplace_back(
          [peer = server.Accept()] { ServeHaltingly(peer.get()); });
    }
  });
  OnAll(3, [&](int i) {
    Caller caller(&channel, i);
    for (int call = 0; call != kCalls; ++call) {
      caller.Call(call);
      OverwriteStack();
    }
  });
  ShutdownClientSide();
  done = true;
  accepting.join();
}

// Each call is cancelled before it begins, finds that out by itself, and is
// found by those who go on cancelling it.
TEST_P(ClientRaceTest, CancellersAndWhoWasCancelled) {
  constexpr int kCalls = 500;
  constexpr int kFibers = 2;
  const RawServer server;  // Never answers.
  RpcChannel channel(server.uri());
  std::array<RpcClientController, kFibers + 1> controllers;
  for (RpcClientController& controller : controllers) controller.StartCancel();
  std::atomic<bool> done{false};
  std::vector<std::jthread> cancelling;
  for (int t = 0; t != 2; ++t) {
    cancelling.emplace_back([&] {
      while (!done) {
        for (RpcClientController& controller : controllers) {
          controller.StartCancel();
        }
      }
    });
  }
  OnAll(kFibers, [&](int i) {
    TestService_Stub stub(&channel);
    for (int call = 0; call != kCalls; ++call) {
      TestRequest request;
      TestResponse response;
      stub.Call(&controllers[i], &request, &response, nullptr);
      OverwriteStack();
      EXPECT_TRUE(controllers[i].IsCanceled()) << controllers[i].ErrorText();
    }
  });
  done = true;
}

[[gnu::noinline]] int CallBriefly(RpcChannel* channel, std::int64_t at_ns,
                                  const Buffer& attachment = {}) {
  RpcClientController controller;
  controller.SetTimeout(ToTimePoint(at_ns));
  controller.SetRequestAttachment(attachment);
  TestRequest request;
  TestResponse response;
  TestService_Stub(channel).Call(&controller, &request, &response, nullptr);
  return controller.ErrorCode();
}

TEST_P(ClientRaceTest, DeadlinesAndTheEnd) {
  constexpr int kRounds = 40;
  constexpr int kAsync = 4;
  std::mt19937 random(5);
  for (int round = 0; round != kRounds; ++round) {
    const RawServer server;  // Never answers.
    auto channel = std::make_unique<RpcChannel>(server.uri());
    const std::int64_t end_ns = NowNs() + 1'500'000;
    const auto deadline = [&] {
      return end_ns - 60'000 + static_cast<std::int64_t>(random() % 120'000);
    };
    std::vector<std::unique_ptr<TestedCall>> calls;
    for (int i = 0; i != kAsync; ++i) {
      calls.push_back(std::make_unique<TestedCall>());
      calls.back()->controller.SetTimeout(ToTimePoint(deadline()));
      calls.back()->controller.SetMaxRetries(1 + i % 3);
      calls.back()->Start(channel.get());
    }
    std::thread ending([&] {
      AwaitTime(end_ns);
      ShutdownClientSide();
    });
    std::vector<std::int64_t> deadlines(4);
    for (std::int64_t& at_ns : deadlines) at_ns = deadline();
    OnAll(3, [&](int i) {
      const int code = CallBriefly(channel.get(), deadlines[i]);
      OverwriteStack();
      EXPECT_TRUE(code == STATUS_TIMEOUT || code == STATUS_CHANNEL_SHUTDOWN)
          << code;
    });
    channel.reset();
    for (auto& call : calls) {
      const int code = call->Await();
      EXPECT_TRUE(code == STATUS_TIMEOUT || code == STATUS_CHANNEL_SHUTDOWN)
          << code;
    }
    calls.clear();
    ending.join();
  }
}

// Deadlines of calls that wait until the server takes more.
TEST_P(ClientRaceTest, DeadlinesAndRoom) {
  constexpr int kRounds = 6;
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  // Shared bytes, which stay queued when their calls have ended: soon no
  // connection has room.
  const Buffer large = CreateBufferSlow(std::string(8 << 20, 'x'));
  for (int round = 0; round != kRounds; ++round) {
    RawServer server;  // Takes nothing.
    RpcChannel channel(server.uri());
    std::atomic<int> made{0};
    std::atomic<bool> ended{false};
    std::thread ending([&] {
      while (made < 60) std::this_thread::yield();
      ended = true;
      if (round % 2 == 0) {
        ShutdownClientSide();
      } else {
        while (server.HasVisitor()) server.Accept();  // And closes.
      }
    });
    OnAll(4, [&](int i) {
      std::mt19937 random(round * 10 + i);
      while (!ended) {
        const int code = CallBriefly(
            &channel, NowNs() + static_cast<std::int64_t>(random() % 100'000),
            large);
        OverwriteStack();
        ++made;
        // The next connection isn't made at once.
        EXPECT_TRUE(code == STATUS_TIMEOUT || code == STATUS_IO_ERROR ||
                    code == STATUS_FAIL_TO_CONNECT ||
                    code == STATUS_CHANNEL_SHUTDOWN)
            << code;
      }
    });
    ending.join();
    ShutdownClientSide();
  }
}

// The time for connecting is over when the connection is established.
TEST_P(ClientRaceTest, ConnectingAndItsDeadline) {
  constexpr int kRounds = 50;
  FLAGS_flare_rpc_client_connect_timeout_ms = 1;
  std::mt19937 random(6);
  for (int round = 0; round != kRounds; ++round) {
    const RawServer server;  // The kernel connects; nobody accepts.
    RpcChannel channel(server.uri());
    const int busy = GetParam().workers;
    fiber::Latch ended(busy);
    const std::int64_t at_ns =
        NowNs() + 1'000'000 + static_cast<std::int64_t>(random() % 100'000);
    for (int i = 0; i != busy; ++i) {
      fiber::Spawn([&] {
        while (NowNs() < at_ns) CpuRelax();
        ended.count_down();
      });
    }
    TestedCall call;
    call.controller.SetTimeout(
        ToTimePoint(at_ns + static_cast<std::int64_t>(random() % 200'000)));
    const int code = call.Start(&channel)->Await();
    EXPECT_TRUE(code == STATUS_TIMEOUT || code == STATUS_FAIL_TO_CONNECT)
        << code << ": " << call.controller.ErrorText();
    ended.wait();
    // The next server may get this one's port: not its connection, too.
    ShutdownClientSide();
  }
}

// The client side ends meanwhile.
TEST_P(ClientRaceTest, ConnectingAndTheEnd) {
  constexpr int kRounds = 50;
  FLAGS_flare_rpc_client_connect_timeout_ms = 1;
  std::mt19937 random(7);
  for (int round = 0; round != kRounds; ++round) {
    const SilentAddress nobody;
    RpcChannel channel(nobody.uri());
    TestedCall call;
    const std::int64_t at_ns = NowNs() + 980'000;
    call.Start(&channel);
    AwaitTime(at_ns + static_cast<std::int64_t>(random() % 60'000));
    ShutdownClientSide();
    const int code = call.Await();
    EXPECT_TRUE(code == STATUS_CHANNEL_SHUTDOWN ||
                code == STATUS_FAIL_TO_CONNECT)
        << code;
  }
}

}  // namespace
}  // namespace flare::rpc::testing
