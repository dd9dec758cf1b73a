// Calls that come before the next attempt to connect to a server that was away.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_defaults.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/peer_connections.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientWaitTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    FLAGS_flare_rpc_client_max_connections_per_server = 1;
    ASSERT_TRUE(channel_.Open(dead_.uri()));
  }

  static std::uint64_t Opened() {
    return GetClientStatistics().connections_opened;
  }
  static std::uint64_t Failed() {
    return GetClientStatistics().connections_failed;
  }

  // When the server is tried again.
  std::int64_t RetryAt() const {
    return ConnectionPool::Default()
        ->Find(fiber::GetCurrentSchedulingGroupIndex(),
               {"flare",
                {dead_.endpoint(), dead_.endpoint().ToString()},
                FillDefaults({}).connections})
        ->retry_at_ns();
  }

  // Nothing that hangs ends by itself before the test has failed.
  static void Start(TestedCall* call, RpcChannel* channel) {
    call->controller.SetTimeout(seconds(30));
    call->Start(channel);
  }

  // Refused calls, until the next attempt is far away.
  void FailUntilPausesAreLong() {
    const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
    do {
      TestedCall call;
      Start(&call, &channel_);
      ASSERT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
      ASSERT_LT(NowNs(), give_up_ns);
    } while (RetryAt() < NowNs() + 400'000'000);
  }

  DeadAddress dead_;
  RpcChannel channel_;
};

// An earlier call's failure doesn't end them at once: so one that finds the
// server back succeeds.
TEST_F(ClientWaitTest, CallsWaitForTheNextAttempt) {
  FailUntilPausesAreLong();
  const std::int64_t due = RetryAt();
  const std::uint64_t before = Opened();
  std::vector<TestedCall> calls(100);
  for (TestedCall& call : calls) Start(&call, &channel_);
  OnFiber([&] {
    TestRequest request;
    TestResponse response;
    RpcClientController controller;
    controller.SetTimeout(seconds(30));
    TestService_Stub(&channel_).Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorCode(), STATUS_FAIL_TO_CONNECT);
    EXPECT_TRUE(controller.ErrorText().ends_with("Connection refused"))
        << controller.ErrorText();
    EXPECT_GE(NowNs(), due);
  });
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_FAIL_TO_CONNECT);
    EXPECT_TRUE(call.controller.ErrorText().ends_with("Connection refused"))
        << call.controller.ErrorText();
  }
  // They have shared one. (Starting them may have taken until it was due.)
  EXPECT_GE(Opened(), before + 1);
  EXPECT_LE(Opened(), before + 2);
}

TEST_F(ClientWaitTest, TheServerIsBackInTime) {
  FailUntilPausesAreLong();
  const std::int64_t due = RetryAt();
  std::vector<TestedCall> calls(10);
  for (TestedCall& call : calls) Start(&call, &channel_);
  std::thread plain([&] {
    TestRequest request;
    TestResponse response;
    RpcClientController controller;
    controller.SetTimeout(seconds(30));
    controller.SetWaitForReady(true);
    TestService_Stub(&channel_).Call(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  });
  RawServer server(&dead_);
  const bool in_time = NowNs() < due;  // Unless the machine is very busy.
  std::thread serving([&] {
    auto peer = server.Accept();
    while (auto request = peer->ReadRequest()) peer->Reply(request->id, "pong");
  });
  for (TestedCall& call : calls) {
    EXPECT_TRUE(call.Await() == STATUS_SUCCESS || !in_time)
        << call.controller.ErrorText();
  }
  plain.join();
  ShutdownClientSide();
  serving.join();
}

TEST_F(ClientWaitTest, CancellingEndsTheWait) {
  FailUntilPausesAreLong();
  TestedCall call;
  call.controller.SetWaitForReady(true);
  Start(&call, &channel_);
  call.controller.StartCancel();
  // Else it would be refused.
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
}

TEST_F(ClientWaitTest, TheDeadlineEndsTheWait) {
  FailUntilPausesAreLong();
  TestedCall call;
  call.controller.SetWaitForReady(true);
  call.controller.SetTimeout(milliseconds(300));
  call.Start(&channel_);
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
  EXPECT_TRUE(call.controller.ErrorText().ends_with("Connection refused)"))
      << call.controller.ErrorText();
}

TEST_F(ClientWaitTest, TheEndOfTheClientSideEndsTheWait) {
  FailUntilPausesAreLong();
  TestedCall call;
  call.controller.SetWaitForReady(true);
  Start(&call, &channel_);
  ShutdownClientSide();
  EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN);
}

TEST_F(ClientWaitTest, WaitsUntilAServerAppears) {
  const std::uint64_t failed = Failed();
  TestedCall call;
  call.controller.SetWaitForReady(true);
  Start(&call, &channel_);
  ASSERT_TRUE(Eventually([&] { return Failed() >= failed + 3; }));
  EXPECT_FALSE(call.HasEnded());
  RawServer server(&dead_);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
}

TEST_F(ClientWaitTest, AChannelSaysItForItsCalls) {
  RpcChannel channel(dead_.uri(), {.wait_for_ready = true});
  TestedCall other;
  other.controller.SetWaitForReady(false);
  Start(&other, &channel);
  EXPECT_EQ(other.Await(), STATUS_FAIL_TO_CONNECT);
  const std::uint64_t failed = Failed();
  TestedCall call;
  Start(&call, &channel);
  ASSERT_TRUE(Eventually([&] { return Failed() >= failed + 3; }));
  EXPECT_FALSE(call.HasEnded());
  RawServer server(&dead_);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
}

TEST_F(ClientWaitTest, AnyServerMayAppear) {
  DeadAddress other;
  RpcChannel channel(dead_.uri() + "," + other.endpoint().ToString());
  const std::uint64_t failed = Failed();
  std::vector<TestedCall> calls(5);
  for (TestedCall& call : calls) {
    call.controller.SetWaitForReady(true);
    Start(&call, &channel);
  }
  ASSERT_TRUE(Eventually([&] { return Failed() >= failed + 4; }));
  RawServer server(&other);
  auto peer = server.Accept();
  for (int i = 0; i != 5; ++i) peer->Reply(peer->ReadRequest()->id, "pong");
  for (TestedCall& call : calls) {
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  }
}

TEST_F(ClientWaitTest, NothingWaitsForAServerThatCantBeVerified) {
  // No certificate can name an address of a link.
  RpcChannel channel("tls+flare://[fe80::1%1]:1", {.wait_for_ready = true});
  ASSERT_TRUE(channel.status().ok()) << channel.status().ToString();
  TestedCall call;
  Start(&call, &channel);
  EXPECT_EQ(call.Await(), STATUS_INVALID_CHANNEL);
  EXPECT_NE(call.controller.ErrorText().find("server_name"), std::string::npos)
      << call.controller.ErrorText();
}

}  // namespace
}  // namespace flare::rpc::testing
