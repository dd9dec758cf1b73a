// Told to quit while calls hold all workers, a server begins no further call;
// behind an ordinary queue it serves on.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "flare/base/clock.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/start_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

FLARE_OVERRIDE_FLAG(logtostderr, true);

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kWorkers = 2;

// The observations of a client of the server below.
struct Seen {
  int answered = 0;
  int stopping = 0;
  int begun = 0;
};

// Sends calls in `scheme` that hold all workers, and others behind them; raises
// SIGTERM, waits until the server stops, lets the workers go and reads all
// replies. `stopping`: the status of calls that weren't begun.
Seen QuitBehindHeldWorkers(const std::string& scheme, int stopping) {
  constexpr int kCalls = 20;
  Seen seen;
  const LoggedLines warnings(google::WARNING);
  std::atomic<int> begun{0};
  std::atomic<bool> go{false};
  StartWith({"--flare_concurrency_hint=2", "--flare_fiber_reserve_workers=0",
             "--flare_fiber_stuck_threshold_ms=0"},
            [&](int, char**) {
              EXPECT_FALSE(CheckForQuitSignal());  // From here on it is heard.
              FlexibleService service;
              service.on_call = [&](TestCall call) {
                ++begun;
                while (!go) {
                  std::this_thread::sleep_for(std::chrono::microseconds(100));
                }
                FlexibleService::Echo(call);
              };
              Server server({.max_request_queueing_delay = {}});
              server.AddProtocol(scheme);
              server.AddService(&service);
              server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
              EXPECT_TRUE(server.Start());
              std::thread peer([&] {
                RawClient client(server.endpoint(), scheme);
                std::string batch;
                for (int i = 1; i <= kCalls; ++i) {
                  batch += client.Encode(i, kCall, MakeRequest("hello"));
                }
                client.Send(batch);
                EXPECT_TRUE(fiber::testing::Eventually(
                    [&] { return begun == kWorkers; }));
                raise(SIGTERM);
                EXPECT_TRUE(fiber::testing::Eventually([&] {
                  return warnings.Have("begins none of the queued");
                }));
                go = true;
                for (int i = 0; i != kCalls; ++i) {
                  const auto reply = client.ReadReply();
                  if (!reply) break;
                  seen.answered += reply->status == STATUS_SUCCESS;
                  seen.stopping += reply->status == stopping;
                  if (reply->status == STATUS_SUCCESS) continue;
                  EXPECT_EQ(reply->status, stopping) << reply->description;
                }
              });
              WaitForQuitSignal();
              server.Stop();
              EXPECT_EQ(server.Join(), 0u);
              peer.join();
              return 0;
            });
  seen.begun = begun;
  EXPECT_EQ(seen.answered, static_cast<int>(kWorkers));
  EXPECT_EQ(seen.stopping, kCalls - static_cast<int>(kWorkers));
  return seen;
}

struct Case {
  const char* scheme;
  int stopping;  // As a client sees it.
};

class ServerQuitTest : public StartTest,
                       public ::testing::WithParamInterface<Case> {};

TEST_P(ServerQuitTest, QueuedCallsAreNotBegun) {
  const Seen seen =
      QuitBehindHeldWorkers(GetParam().scheme, GetParam().stopping);
  EXPECT_EQ(seen.begun, static_cast<int>(kWorkers));
}

INSTANTIATE_TEST_SUITE_P(
    Protocols, ServerQuitTest,
    ::testing::Values(Case{"flare", STATUS_OUT_OF_SERVICE},
                      Case{"http+pb", STATUS_OUT_OF_SERVICE},
                      Case{"baidu-std", 2003}, Case{"trpc", STATUS_OVERLOADED},
                      Case{"bolt", STATUS_OUT_OF_SERVICE}),
    [](const auto& info) {
      std::string name = info.param.scheme;
      std::erase_if(name, [](char c) { return c == '+' || c == '-'; });
      return name;
    });

// The program has its turn behind the calls that were queued before the signal.
TEST_F(StartTest, AQueueOfShortCallsIsServedAfterASignal) {
  constexpr int kCalls = 20;
  const LoggedLines warnings(google::WARNING);
  int answered = 0;
  StartWith({"--flare_concurrency_hint=2", "--flare_fiber_reserve_workers=0"},
            [&](int, char**) {
              EXPECT_FALSE(CheckForQuitSignal());
              std::atomic<int> begun{0};
              FlexibleService service;
              service.on_call = [&](TestCall call) {
                ++begun;
                const std::int64_t until_ns = NowNs() + 80 * kNsPerMs;
                while (NowNs() < until_ns) continue;
                FlexibleService::Echo(call);
              };
              Server server({.max_request_queueing_delay = {}});
              server.AddProtocol("flare");
              server.AddService(&service);
              server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
              EXPECT_TRUE(server.Start());
              std::thread peer([&] {
                RawClient client(server.endpoint());
                std::string batch;
                for (int i = 1; i <= kCalls; ++i) {
                  batch += client.Encode(i, kCall, MakeRequest("hello"));
                }
                client.Send(batch);
                EXPECT_TRUE(fiber::testing::Eventually(
                    [&] { return begun >= kWorkers; }));
                raise(SIGTERM);
                for (int i = 0; i != kCalls; ++i) {
                  const auto reply = client.ReadReply();
                  if (!reply) break;
                  EXPECT_EQ(reply->status, STATUS_SUCCESS)
                      << reply->description;
                  ++answered;
                }
              });
              WaitForQuitSignal();
              server.Stop();
              EXPECT_EQ(server.Join(), 0u);
              peer.join();
              return 0;
            });
  EXPECT_EQ(answered, kCalls);
  EXPECT_FALSE(warnings.Have("begins none of the queued"));
}

// A program that has its workers decides by itself when its servers stop.
TEST_F(StartTest, AServerWithFreeWorkersServesOnAfterASignal) {
  const LoggedLines warnings(google::WARNING);
  StartWith({"--flare_concurrency_hint=2"}, [&](int, char**) {
    EXPECT_FALSE(CheckForQuitSignal());
    FlexibleService service;
    Server server({.max_request_queueing_delay = {}});
    server.AddProtocol("flare");
    server.AddService(&service);
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    EXPECT_TRUE(server.Start());
    raise(SIGTERM);
    WaitForQuitSignal();
    std::thread peer([&] {
      RawClient client(server.endpoint());
      // For longer than workers would have to be held.
      const std::int64_t until = NowNs() + 700 * kNsPerMs;
      for (int i = 1; NowNs() < until; ++i) {
        client.Call(i, kCall, MakeRequest("hello"));
        const auto reply = client.ReadReply();
        ASSERT_TRUE(reply && reply->status == STATUS_SUCCESS);
      }
    });
    peer.join();
    return 0;
  });
  EXPECT_FALSE(warnings.Have("as the process was told to quit"));
}

}  // namespace
}  // namespace flare::rpc::testing
