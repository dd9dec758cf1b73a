// How calls end that nobody answers in time: deadlines, cancellation.
#include <chrono>
#include <cstddef>
#include <limits>
#include <stop_token>
#include <string>
#include <thread>

#include "flare/base/status.h"
#include "flare/fiber/task_group.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "flare/rpc/wire/flood_guard.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientEndTest : public RawServerTest {
 protected:
  std::uint64_t LateReplies() { return GetClientStatistics().late_replies; }
};

TEST_F(ClientEndTest, EndsAtDeadline) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto begin = std::chrono::steady_clock::now();
  TestedCall call;
  // Enough to begin, on a busy machine, too.
  call.controller.SetTimeout(milliseconds(300));
  call.Start(&channel);
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(elapsed, milliseconds(300));
  EXPECT_LT(elapsed, seconds(10));  // Half of the default.
  EXPECT_EQ(call.controller.ErrorText(),
            "no reply to " + TestService::descriptor()->full_name() +
                ".Call from " + server.endpoint().ToString() +
                " until the deadline");
}

TEST_F(ClientEndTest, DeadlineCoversConnecting) {
  RawServer server;  // Connects, for the kernel does; nobody accepts.
  RpcChannel channel(server.uri());
  OnFiber([&] {
    RpcClientController controller;
    controller.SetTimeout(std::chrono::system_clock::now() + milliseconds(20));
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
  });
}

TEST_F(ClientEndTest, PastDeadlineEndsAtOnce) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall zero, negative, past, epoch;
  zero.controller.SetTimeout(seconds(0));
  negative.controller.SetTimeout(seconds(-1));
  past.controller.SetTimeout(std::chrono::system_clock::now() - seconds(1));
  epoch.controller.SetTimeout(std::chrono::steady_clock::time_point::min());
  for (TestedCall* call : {&zero, &negative, &past, &epoch}) {
    EXPECT_EQ(call->Start(&channel)->Await(), STATUS_TIMEOUT);
    EXPECT_TRUE(call->on_worker);
    EXPECT_EQ(call->controller.ErrorText(),
              "the deadline had passed before the request to "
              "flare.rpc.testing.TestService.Call was sent");
  }
  RpcClientController controller;
  controller.SetTimeout(seconds(-1));
  TestService_Stub(&channel).Call(&controller, &zero.request, &zero.response,
                                  nullptr);
  EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientEndTest, DefaultDeadlineIsTheFlags) {
  FLAGS_flare_rpc_client_default_rpc_timeout_ms = 200;
  RawServer server;
  RpcChannel channel(server.uri());
  const auto call = StartShort(&channel);
  auto peer = server.Accept();
  const auto request = peer->ReadRequest();
  ASSERT_TRUE(request);
  EXPECT_LE(request->timeout_ms, 200);
  EXPECT_EQ(call->Await(), STATUS_TIMEOUT);
}

// The time left is sent, instead of the controller's.
TEST_F(ClientEndTest, SendsTheTimeThatIsLeft) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall late;
  late.controller.SetTimeout(std::chrono::steady_clock::now() + seconds(60));
  // A tenth of a second passes.
  const auto waste = StartShort(&channel, milliseconds(100));
  auto peer = server.Accept();
  const auto wasted = peer->ReadRequest();
  ASSERT_TRUE(wasted);
  EXPECT_GT(wasted->timeout_ms, 0);
  EXPECT_LE(wasted->timeout_ms, 100);
  EXPECT_EQ(waste->Await(), STATUS_TIMEOUT);

  late.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_LE(request->timeout_ms, 59'901);
  EXPECT_GT(request->timeout_ms, 30'000);
  peer->Reply(request->id, "pong");
  EXPECT_EQ(late.Await(), STATUS_SUCCESS);
}

TEST_F(ClientEndTest, SendsHugeTimeoutsCapped) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.controller.SetTimeout(std::chrono::hours(24 * 365 * 200));
  call.Start(&channel);
  auto peer = server.Accept();
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->timeout_ms, 0xffffffff);
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
}

TEST_F(ClientEndTest, LateReplyIsDropped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const std::uint64_t late = LateReplies();
  const auto call = StartShort(&channel, milliseconds(50));
  const auto request = peer->ReadRequest();
  ASSERT_TRUE(request);
  EXPECT_EQ(call->Await(), STATUS_TIMEOUT);

  TestedCall next;
  next.Start(&channel);
  const auto second = peer->ReadRequest();
  EXPECT_NE(second->id, request->id);
  peer->Send(peer->Encode(request->id, "too late") +
             peer->Encode(second->id, "pong"));
  EXPECT_EQ(next.Await(), STATUS_SUCCESS);
  EXPECT_EQ(next.response.body(), "pong");
  EXPECT_EQ(call->response.body(), "");
  EXPECT_EQ(LateReplies(), late + 1);
}

TEST_F(ClientEndTest, RepeatedAndUnknownRepliesAreDropped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const std::uint64_t late = LateReplies();
  TestedCall call;
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  const std::uint64_t id = request->id;
  std::string replies;
  for (std::uint64_t foreign :
       {std::uint64_t{0}, id + 1, id + 64, id | (std::uint64_t{1} << 32),
        ~std::uint64_t{0}}) {
    replies += peer->Encode(foreign, "stray");
  }
  replies += peer->Encode(id, "pong");
  replies += peer->Encode(id, "again");
  peer->Send(replies);
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "pong");

  TestedCall next;
  next.Start(&channel);
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(next.Await(), STATUS_SUCCESS);
  EXPECT_EQ(LateReplies(), late + 6);
}

// More of them than calls there were, and many: the server is a hostile one.
TEST_F(ClientEndTest, RepliesWithoutEndEndTheConnection) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  // Late ones may be as many as calls that weren't answered.
  std::string late;
  for (int i = 0; i != 3; ++i) {
    const auto call = StartShort(&channel, milliseconds(50));
    late += peer->Encode(peer->ReadRequest()->id, "too late");
    EXPECT_EQ(call->Await(), STATUS_TIMEOUT);
  }
  peer->Send(late);
  TestedCall next;
  next.Start(&channel);
  const std::uint64_t id = peer->ReadRequest()->id;
  peer->Reply(id, "pong");
  EXPECT_EQ(next.Await(), STATUS_SUCCESS);
  // No call is under way.
  const std::string reply = peer->Encode(id, "again");
  std::string many;
  for (int i = 0; i != 2 * FloodGuard::kMaxReplies; ++i) many += reply;
  peer->Send(many);
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(ClientEndTest, CancelEndsCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_FALSE(call.HasEnded());
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  call.controller.StartCancel();  // Too late, no harm.

  // The controller can be used again; the reply to the first call is dropped.
  TestedCall next;
  next.Start(&channel);
  peer->Send(peer->Encode(request->id, "late") +
             peer->Encode(peer->ReadRequest()->id, "pong"));
  EXPECT_EQ(next.Await(), STATUS_SUCCESS);
  EXPECT_FALSE(next.controller.IsCanceled());
}

TEST_F(ClientEndTest, CancelEndsBlockedCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  RpcClientController controller;
  std::thread cancelling([&] {
    auto peer = server.Accept();
    peer->ReadRequest();
    controller.StartCancel();
    EXPECT_TRUE(peer->AtEnd());
  });
  OnFiber([&] {
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
  });
  EXPECT_EQ(controller.ErrorCode(), STATUS_FAILED);
  EXPECT_TRUE(controller.IsCanceled());
  ShutdownClientSide();
  cancelling.join();
}

// The use that fiber/task_group.h recommends.
TEST_F(ClientEndTest, StopOfATaskGroupMayCancelACall) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  RpcClientController controller;
  fiber::TaskGroup group;
  group.Spawn([&](const std::stop_token& stop) {
    std::stop_callback cancel(stop, [&] { controller.StartCancel(); });
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
  });
  EXPECT_TRUE(peer->ReadRequest());
  group.Spawn([] { return flare::Status(7, "fails at once"); });
  EXPECT_EQ(group.Wait().code(), 7);
  EXPECT_EQ(controller.ErrorCode(), STATUS_FAILED);
  EXPECT_TRUE(controller.IsCanceled());
}

TEST_F(ClientEndTest, CancelBeforeCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.controller.StartCancel();
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  call.controller.Reset();
  EXPECT_FALSE(call.controller.IsCanceled());
}

// Nor does it matter that there is no connection, and none is tried for now.
TEST_F(ClientEndTest, CancelBeforeACallToADeadServer) {
  DeadAddress dead;
  RpcChannel channel(dead.uri());
  EXPECT_EQ(CallOnce(&channel), STATUS_FAIL_TO_CONNECT);
  TestedCall call;
  call.controller.StartCancel();
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
}

TEST_F(ClientEndTest, CancelEndsACallThatTriesForEver) {
  DeadAddress dead;
  RpcChannel channel(dead.uri());
  TestedCall call;
  call.controller.SetMaxRetries(std::numeric_limits<std::size_t>::max());
  call.controller.SetTimeout(std::chrono::hours(1));
  call.Start(&channel);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(call.HasEnded());
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
}

}  // namespace
}  // namespace flare::rpc::testing
