// A call that blocks its thread doesn't delay the others.
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <string>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/histogram.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

constexpr std::uint32_t kOthers = 99;

// A thread-blocking call at the head of each batch of a hundred: all others
// wait behind it in its worker's queue. It goes on blocking until they are
// through, so if they weren't taken away from it, each batch would last for the
// deadline, and say so.
class ServerLatencyTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    service().on_call = [this](TestCall call) {
      const std::int64_t deadline = NowNs() + 5'000'000'000;
      std::uint32_t seen;
      // acquire: pairs with the release of the others.
      while ((seen = served_.load(std::memory_order_acquire)) != kOthers) {
        if (FutexWait(&served_, seen, deadline) == FutexResult::kTimedOut) {
          ++stuck_;
          break;
        }
      }
      FlexibleService::Echo(call);
    };
    service().on_other = [this](TestCall call) {
      delays_ns_.Record(
          std::max<std::int64_t>(0, call.controller->GetElapsedTime().count()));
      FlexibleService::Echo(call);
      // release: pairs with the acquire of the slow call.
      served_.fetch_add(1, std::memory_order_release);
      FutexWake(&served_, INT_MAX);
    };
  }

  void RunBatches(int batches, const char* scheme) {
    RawClient client(endpoint(), scheme);
    std::uint64_t id = 0;
    for (int batch = 0; batch != batches; ++batch) {
      served_ = 0;
      std::string bytes = client.Encode(++id, kCall, MakeRequest("slow"));
      for (std::uint32_t i = 0; i != kOthers; ++i) {
        bytes += client.Encode(++id, kOther, MakeRequest("fast"));
      }
      client.Send(bytes);
      int slow_at = 0;
      for (int i = 0; i != kOthers + 1; ++i) {
        const auto reply = client.ReadReply();
        ASSERT_TRUE(reply);
        if (reply->As<TestResponse>().body() == "slow") slow_at = i;
      }
      // Nor were their replies held back until the slow one was there: it is
      // the last, unless it overtook the few that were served at its end.
      EXPECT_GT(slow_at, 50);
    }
  }

  std::atomic<std::uint32_t> served_{0};
  std::atomic<int> stuck_{0};
  ConcurrentHistogram delays_ns_;
};

TEST_F(ServerLatencyTest, BlockedThreadDoesNotDelayOthers) {
  StartServer();
  RunBatches(30, "flare");
  RunBatches(30, "http+pb");
  EXPECT_EQ(stuck_, 0);
  const Histogram delays = delays_ns_.Snapshot();
  EXPECT_EQ(delays.count(), 60u * kOthers);
  // From the read off the socket to the method. About 0.1 ms on an idle
  // machine; the bound allows for one on which no thread runs for tens of
  // milliseconds, and is still below the cost of the slow calls.
  EXPECT_LT(delays.ValueAtQuantile(0.5), 500'000'000);
  RecordProperty("p50_us",
                 static_cast<int>(delays.ValueAtQuantile(0.5) / 1000));
  RecordProperty("p99_us",
                 static_cast<int>(delays.ValueAtQuantile(0.99) / 1000));
}

// Fibers that block don't even hold their worker, so one worker will do.
class OneWorkerLatencyTest : public ServerTest {
 protected:
  int workers() const override { return 1; }
};

// The worker is held until the reply is there, so the reply has to leave with
// the call.
TEST_F(OneWorkerLatencyTest, TheOnlyReplyLeavesAtOnce) {
  std::atomic<std::uint32_t> arrived{0};
  service().on_call = [&](TestCall call) {
    const auto number = static_cast<std::uint32_t>(call.request->number());
    FlexibleService::Echo(call);
    FutexWait(&arrived, number, NowNs() + 10'000'000'000);
    // acquire: pairs with the release below.
    EXPECT_GT(arrived.load(std::memory_order_acquire), number);
  };
  StartServer();
  std::uint32_t number = 0;
  for (const char* const scheme : {"flare", "http+pb"}) {
    RawClient client(endpoint(), scheme);
    client.Call(1, kCall, MakeRequest("hello", static_cast<int>(number)));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->As<TestResponse>().body(), "hello");
    arrived.store(++number, std::memory_order_release);
    FutexWake(&arrived, INT_MAX);
  }
  StopServer();
}

TEST_F(OneWorkerLatencyTest, BlockedFibersDoNotDelayOthers) {
  constexpr int kBlocked = 500;
  fiber::Latch all_blocked(kBlocked);
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    all_blocked.count_down();
    go.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (int i = 1; i <= kBlocked; ++i) {
    batch += client.Encode(i, kCall, MakeRequest("blocked"));
  }
  client.Send(batch);
  all_blocked.wait();
  client.Call(1000, kOther, MakeRequest("free"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 1000u);
  go.Set();
  for (int i = 1; i <= kBlocked; ++i) {
    const auto late = client.ReadReply();
    ASSERT_TRUE(late);
    EXPECT_EQ(late->As<TestResponse>().body(), "blocked");
  }
}

}  // namespace
}  // namespace flare::rpc::testing
