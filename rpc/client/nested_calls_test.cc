// Calls that are made in an execution context: those of a server's method
// belong to its own call.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

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
#include "flare/rpc/testing/raw_server_fixture.h"
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
  // The second server hears of the nested call's end only by the connection's
  // end.
  ShutdownClientSide();
  other_ended_.Wait();
}

TEST_F(NestedCallsTest, HaveTheDeadlineOfTheirCaller) {
  service().on_other = [this](TestCall call) {
    EXPECT_TRUE(call.controller->GetTimeout());
    EXPECT_LE(*call.controller->GetTimeout(),
              std::chrono::steady_clock::now() + 15s);
    FlexibleService::Echo(call);
  };
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"), /*timeout_ms=*/15'000);
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
    channel_.emplace("flare://" + endpoint().ToString());  // It heeds the flag.
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

// --------------------------------------------------------------------------
// Calls in a context that no server has made
// --------------------------------------------------------------------------

constexpr char kEnded[] = "the call in whose context it was made has ended: ";

class CallInContextTest : public RawServerTest {
 protected:
  static RefPtr<fiber::ExecutionContext> EndingIn(std::chrono::seconds span) {
    return fiber::ExecutionContext::Create(NowNs() + ToNs(span));
  }

  // The time in milliseconds that the server is told by a call of `channel`,
  // made in `context`, that would have a minute.
  std::uint32_t ToldTimeout(RpcChannel* channel, RawServer* server,
                            fiber::ExecutionContext* context,
                            bool on_its_own = false) {
    TestedCall call;
    call.controller.SetTimeout(std::chrono::seconds(60));
    call.controller.SetInheritsContext(!on_its_own);
    context->Execute([&] { call.Start(channel); });
    auto peer = server->Accept();
    const auto request = peer->ReadRequest();
    peer->Reply(request->id, "pong");
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    peer->Close();
    return request->timeout_ms;
  }
};

TEST_F(CallInContextTest, TakesWhatIsLeftOfTheContext) {
  RawServer server;
  const RpcChannel::Options options{.connection_kind = ConnectionKind::kShort};
  RpcChannel channel(server.uri(), options);
  const auto short_one = EndingIn(std::chrono::seconds(30));
  EXPECT_LE(ToldTimeout(&channel, &server, short_one.Get()), 30'000);
  const auto long_one = EndingIn(std::chrono::seconds(100));
  EXPECT_GT(ToldTimeout(&channel, &server, long_one.Get()), 30'000);
  const auto endless = fiber::ExecutionContext::Create();
  EXPECT_GT(ToldTimeout(&channel, &server, endless.Get()), 30'000);
}

TEST_F(CallInContextTest, ControllersOptionsAndTheFlagOptOut) {
  RawServer server;
  const auto context = EndingIn(std::chrono::seconds(30));
  RpcChannel channel(server.uri(), {.connection_kind = ConnectionKind::kShort});
  EXPECT_GT(ToldTimeout(&channel, &server, context.Get(), true), 30'000);
  RpcChannel apart(server.uri(), {.inherits_context = false,
                                  .connection_kind = ConnectionKind::kShort});
  EXPECT_GT(ToldTimeout(&apart, &server, context.Get()), 30'000);
  FLAGS_flare_rpc_propagate_deadline = false;
  RpcChannel by_flag(server.uri(), {.connection_kind = ConnectionKind::kShort});
  EXPECT_GT(ToldTimeout(&by_flag, &server, context.Get()), 30'000);
}

TEST_F(CallInContextTest, EndsWhenItsContextIsStopped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto context = fiber::ExecutionContext::Create();
  TestedCall call;
  context->Execute([&] { call.Start(&channel); });
  ASSERT_TRUE(peer->ReadRequest());
  context->RequestStop(fiber::StopCause::kCallerGone);
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  EXPECT_EQ(call.controller.ErrorText(),
            std::string(kEnded) + ToString(fiber::StopCause::kCallerGone));
}

// On a fiber and on a plain thread.
TEST_F(CallInContextTest, BlockedCallersGoOnWhenTheirContextIsStopped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (const bool on_fiber : {true, false}) {
    const auto context = fiber::ExecutionContext::Create();
    RpcClientController controller;
    controller.SetTimeout(std::chrono::seconds(60));
    const auto call = [&] {
      context->Execute([&] {
        TestRequest request;
        TestResponse response;
        TestService_Stub(&channel).Call(&controller, &request, &response,
                                        nullptr);
      });
    };
    std::thread stopping([&] {
      EXPECT_TRUE(peer->ReadRequest());
      context->RequestStop(fiber::StopCause::kCancelled);
    });
    if (on_fiber) {
      OnFiber(call);
    } else {
      call();
    }
    stopping.join();
    EXPECT_EQ(controller.ErrorCode(), STATUS_FAILED);
    EXPECT_TRUE(controller.IsCanceled());
    EXPECT_EQ(controller.ErrorText(),
              std::string(kEnded) + ToString(fiber::StopCause::kCancelled));
  }
}

// Nothing is sent for a request that is over, and no further attempt made.
TEST_F(CallInContextTest, StoppedContextEndsCallsAtOnce) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (const fiber::StopCause cause :
       {fiber::StopCause::kCancelled, fiber::StopCause::kDeadline}) {
    const auto context = fiber::ExecutionContext::Create();
    context->RequestStop(cause);
    TestedCall call;
    call.controller.SetTimeout(std::chrono::seconds(60));
    call.controller.SetMaxRetries(1'000'000);
    context->Execute([&] { call.Start(&channel); });
    // A deadline ends calls in the same way, on either side.
    const bool cancelled = cause == fiber::StopCause::kCancelled;
    EXPECT_EQ(call.Await(), cancelled ? STATUS_FAILED : STATUS_TIMEOUT);
    EXPECT_EQ(call.controller.IsCanceled(), cancelled);
  }
  EXPECT_FALSE(peer->HasInput());
}

TEST_F(CallInContextTest, StopEndsTheWaitForAServerThatIsDown) {
  DeadAddress dead;
  RpcChannel channel(dead.uri());
  const auto context = fiber::ExecutionContext::Create();
  TestedCall call;
  call.controller.SetTimeout(std::chrono::seconds(60));
  call.controller.SetWaitForReady(true);
  context->Execute([&] { call.Start(&channel); });
  context->RequestStop(fiber::StopCause::kCallerGone);
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
}

TEST_F(CallInContextTest, IgnoredContextsStopNothing) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto context = fiber::ExecutionContext::Create();
  TestedCall call;
  call.controller.SetInheritsContext(false);
  context->Execute([&] { call.Start(&channel); });
  const auto request = peer->ReadRequest();
  context->RequestStop(fiber::StopCause::kCallerGone);
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
}

// Replies and stops at the same moment: each call ends once.
TEST_F(CallInContextTest, StopsRaceWithReplies) {
  RawServer server;
  RpcChannel channel(server.uri(), {.max_connections_per_server = 1});
  std::thread serving([&] { Serve(server.Accept().get()); });
  int answered = 0;
  int stopped = 0;
  for (int i = 0; i != 2000; ++i) {
    const auto context = fiber::ExecutionContext::Create();
    TestedCall call;
    context->Execute([&] { call.Start(&channel); });
    const std::int64_t until = NowNs() + i % 100 * 1000;
    while (NowNs() < until) {
    }
    context->RequestStop(fiber::StopCause::kCancelled);
    (call.Await() == STATUS_SUCCESS ? answered : stopped) += 1;
  }
  EXPECT_EQ(answered + stopped, 2000);
  EXPECT_GT(stopped, 0);
  ShutdownClientSide();
  serving.join();
}

}  // namespace
}  // namespace flare::rpc::testing
