// Watchers of calls, callers that leave, deadlines and the ends of calls, all
// at once. In each shape of the runtime. The sanitizers find who comes too
// late; here it is counted that every call ends, and every callback runs once.
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/async.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::ExecutionContext;
using std::chrono::microseconds;

class ServerCancelStressTest : public InEachShape<ServerTest> {
 protected:
  // One of the ways in which a call is watched and ends.
  void Serve(TestCall call) {
    const int kind = call.request->number() % 7;
    const microseconds length(call.request->number() % 1000);
    switch (kind) {
      case 0:
        return call.Reply();
      case 1:
        Wait(call.controller->GetStopToken(), length);
        return call.Reply();
      case 2:  // The end comes while the method asks for the token.
        fiber::Spawn([call] { call.Reply(); });
        return Wait(ExecutionContext::Current()->stop_token(), length);
      case 3:  // Somebody asks for it later, maybe after the end.
        ++begun_;
        static_cast<void>(fiber::Async([this, length] {
          Wait(ExecutionContext::Current()->stop_token(), length);
          ++ended_;
        }));
        return call.Reply();
      case 4:
        ++asked_;
        call.controller->NotifyOnCancel(new Callback(&notified_));
        Wait(call.controller->GetStopToken(), length);
        return call.Reply();
      case 5:
        static_cast<void>(call.controller->GetStopToken());
        throw std::runtime_error("one of them");
      default:
        while (!call.controller->IsCanceled() && NowNs() % 8 != 0) {
          this_fiber::Yield();
        }
        return call.Reply();
    }
  }

  // Connects, calls, and leaves in some way.
  void Call(std::minstd_rand* random) {
    RawClient client(endpoint());
    const int calls = static_cast<int>((*random)() % 16) + 1;
    std::string batch;
    for (int i = 0; i != calls; ++i) {
      const auto number = static_cast<int>((*random)() % 10'000);
      batch += client.Encode(i, kCall, MakeRequest("", number),
                             number % 3 == 0 ? 1 : 0);
    }
    client.Send(batch);
    switch ((*random)() % 4) {
      case 0:
        for (int i = 0; i != calls; ++i) client.ReadReply();
        return;
      case 1: {
        const linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        return;
      }
      case 2:
        client.Shutdown();
        client.ReadAll();
        return;
      default:
        return;
    }
  }

  void CallUntilAllEnd() {
    service().on_call = [this](TestCall call) { Serve(call); };
    StartServer({"flare"});
    const std::int64_t end = NowNs() + fiber::testing::StressNs(200'000'000);
    std::vector<std::thread> clients;
    for (unsigned i = 0; i != 3; ++i) {
      clients.emplace_back([this, i, end] {
        std::minstd_rand random(i + 1);
        do {
          Call(&random);
        } while (NowNs() < end && !HasFailure());
      });
    }
    for (std::thread& client : clients) client.join();
    server().Stop();
    EXPECT_EQ(server().Join(), 0u);
    EXPECT_EQ(server().statistics().calls_running, 0u);
    EXPECT_TRUE(
        fiber::testing::Eventually([this] { return notified_ == asked_; }));
    // The server doesn't wait for these, and the runtime abandons fibers that
    // wait.
    EXPECT_TRUE(
        fiber::testing::Eventually([this] { return ended_ == begun_; }));
  }

 private:
  class Callback : public google::protobuf::Closure {
   public:
    explicit Callback(std::atomic<int>* runs) : runs_(runs) {}
    void Run() override {
      ++*runs_;
      delete this;
    }

   private:
    std::atomic<int>* const runs_;
  };

  static void Wait(const std::stop_token& stop, microseconds length) {
    static_cast<void>(this_fiber::SleepFor(stop, length));
  }

  std::atomic<int> asked_{0};
  std::atomic<int> notified_{0};
  // Fibers that outlive their calls.
  std::atomic<int> begun_{0};
  std::atomic<int> ended_{0};
};
FLARE_INSTANTIATE_RUNTIME_TEST(ServerCancelStressTest);

TEST_P(ServerCancelStressTest, AllEnd) { CallUntilAllEnd(); }

// It asks for the token when the method has answered.
TEST_P(ServerCancelStressTest, AllEndWithAnInterceptor) {
  struct Interceptor : ServerInterceptor {
    void Intercept(InterceptedCall& call, ServerNext& next) override {
      next.Run();
      static_cast<void>(call.controller().GetStopToken());
    }
  };
  server().AddInterceptor(std::make_shared<Interceptor>());
  CallUntilAllEnd();
}

}  // namespace
}  // namespace flare::rpc::testing
