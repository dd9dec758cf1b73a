// A server whose runtime has too few stacks for the calls that come.
#include <string>

#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/task.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ServerShortageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fiber::RuntimeOptions options;
    options.concurrency = 2;
    options.max_stacks = 8;
    options.make_poller = io::EpollPoller::Factory();
    const flare::Status started = fiber::StartRuntime(options);
    ASSERT_TRUE(started.ok()) << started.ToString();
    server_.AddProtocol("flare");
    server_.AddService(&service_);
    server_.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_.Start());
  }
  void TearDown() override {
    server_.Stop();
    server_.Join();
    fiber::TerminateRuntime();
  }

  FlexibleService service_;
  Server server_;
};

// All calls block. Each is answered in the end, either served or refused as
// overload, and the server serves as before when the shortage is over.
TEST_F(ServerShortageTest, EveryCallIsAnswered) {
  constexpr int kRounds = 20;
  constexpr int kCalls = 50;
  fiber::Semaphore go(0);
  service_.on_call = [&](TestCall call) {
    go.acquire();
    FlexibleService::Echo(call);
  };
  RawClient client(server_.endpoint());
  std::uint64_t refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 1; i <= kCalls; ++i) {
      client.Call(round * kCalls + i, kCall, MakeRequest("hello"));
    }
    go.release(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      const auto reply = client.ReadReply();
      ASSERT_TRUE(reply);
      if (reply->status == STATUS_OVERLOADED) {
        ++refused;
      } else {
        EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
      }
    }
    while (go.try_acquire()) {  // The rest that the refused ones left.
    }
  }
  EXPECT_EQ(server_.statistics().calls_overloaded, refused);
  EXPECT_EQ(fiber::GetRuntimeStatistics().tasks_aside, 0U);
  EXPECT_LE(fiber::GetRuntimeStatistics().stacks, 8U);
  go.release();
  while (fiber::ShortOfStacks()) {
  }
  client.Call(999'999, kCall, MakeRequest("hello"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_SUCCESS);
}

}  // namespace
}  // namespace flare::rpc::testing
