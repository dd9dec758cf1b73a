// Calls that a server's method makes: they belong to its own call.
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// TestService.Call calls TestService.Other of the same server, by `nested`.
class NestedCallsTest : public ServerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ServerTest::SetUp());
    service().on_call = [this](TestCall call) {
      TestResponse response;
      TestService_Stub(&*channel_)
          .Other(&nested_, call.request, &response, nullptr);
      nested_ended_.Set();
      call.Reply("nested");
    };
    StartServer();
    channel_.emplace("flare://" + endpoint().ToString());
    ASSERT_TRUE(channel_->status().ok());
  }
  void TearDown() override {
    ShutdownClientSide();
    channel_.reset();
    ServerTest::TearDown();
  }
  // Other() waits until its own call is stopped.
  void LetOtherWait() {
    service().on_other = [this](TestCall call) {
      inside_.Set();
      stopped_ = call.controller->GetStopToken();
      fiber::Event never;
      static_cast<void>(never.Wait(stopped_));
      other_ended_.Set();
      call.Reply("late");
    };
  }

  std::optional<RpcChannel> channel_;
  RpcClientController nested_;
  fiber::Event inside_;
  fiber::Event nested_ended_;
  fiber::Event other_ended_;
  std::stop_token stopped_;
};

TEST_F(NestedCallsTest, EndWithTheCallerOfTheirCaller) {
  LetOtherWait();
  {
    RawClient client(endpoint());
    client.Call(1, kCall, MakeRequest("hello"), /*timeout_ms=*/60'000);
    inside_.Wait();
  }  // It leaves.
  nested_ended_.Wait();
  EXPECT_EQ(nested_.ErrorCode(), STATUS_FAILED);
  EXPECT_TRUE(nested_.IsCanceled());
  EXPECT_THAT(nested_.ErrorText(), HasSubstr("in whose context"));
  // Of the nested call the second server hears only by the connection's end.
  ShutdownClientSide();
  other_ended_.Wait();
}

TEST_F(NestedCallsTest, HaveTheDeadlineOfTheirCaller) {
  service().on_other = [this](TestCall call) {
    EXPECT_TRUE(call.controller->GetTimeout());
    EXPECT_LE(*call.controller->GetTimeout(),
              std::chrono::steady_clock::now() + 5s);
    FlexibleService::Echo(call);
  };
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"), /*timeout_ms=*/5'000);
  EXPECT_TRUE(client.ReadReply());
  EXPECT_FALSE(nested_.Failed()) << nested_.ErrorText();
}

TEST_F(NestedCallsTest, KeepTheirOwnIfThatIsEarlier) {
  nested_.SetTimeout(1s);
  service().on_other = [this](TestCall call) {
    EXPECT_TRUE(call.controller->GetTimeout());
    EXPECT_LE(*call.controller->GetTimeout(),
              std::chrono::steady_clock::now() + 1s);
    FlexibleService::Echo(call);
  };
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"), /*timeout_ms=*/50'000);
  EXPECT_TRUE(client.ReadReply());
}

TEST_F(NestedCallsTest, AreOnTheirOwnIfTheyWish) {
  for (const bool by_flag : {false, true}) {
    nested_.Reset();
    nested_.SetTimeout(60s);
    FLAGS_flare_rpc_propagate_deadline = !by_flag;
    nested_.SetInheritsContext(by_flag);
    service().on_other = [this](TestCall call) {
      EXPECT_TRUE(call.controller->GetTimeout());
      EXPECT_GE(*call.controller->GetTimeout(),
                std::chrono::steady_clock::now() + 30s);
      FlexibleService::Echo(call);
    };
    RawClient client(endpoint());
    client.Call(1, kCall, MakeRequest("hello"), /*timeout_ms=*/10'000);
    EXPECT_TRUE(client.ReadReply());
    EXPECT_FALSE(nested_.Failed()) << nested_.ErrorText();
  }
}

TEST_F(NestedCallsTest, LeaveNothingBehindInTheirController) {
  RpcClientController controller;
  OnFiber([&] {
    auto context = fiber::ExecutionContext::Create();
    TestResponse response;
    const TestRequest request = MakeRequest("hello");
    TestService_Stub stub(&*channel_);
    context->RequestStop(fiber::StopCause::kCancelled);
    context->Execute(
        [&] { stub.Other(&controller, &request, &response, nullptr); });
    EXPECT_TRUE(controller.IsCanceled());
    stub.Other(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  });
}

}  // namespace
}  // namespace flare::rpc::testing
