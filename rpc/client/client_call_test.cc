// Calls against a server whose every byte the test decides: that they are made,
// answered, and refused where there is too much. Others are in
// client_end_test.cc and client_messages_test.cc.
#include "flare/rpc/client/client_call.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/testing/foreign_controller.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientCallTest : public RawServerTest {};

class OneWorkerClientCallTest : public ClientCallTest {
 protected:
  int workers() const override { return 1; }
};

TEST_F(ClientCallTest, Replies) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->method, "flare.rpc.testing.TestService.Call");
  EXPECT_EQ(request->body, call.request.SerializeAsString());
  EXPECT_NE(request->id, 0);
  EXPECT_FALSE(call.HasEnded());
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "pong");
  EXPECT_TRUE(call.on_worker);
  EXPECT_EQ(call.controller.GetRemotePeer(), server.endpoint());
  EXPECT_FALSE(call.controller.Failed());
}

TEST_F(ClientCallTest, TimestampsAreInOrder) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  EXPECT_EQ(call.controller.GetElapsedTime().count(), 0);
  const auto before = ReadSteadyClock();
  call.Start(&channel);
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  call.Await();
  // Between workers the clock may differ by a microsecond.
  constexpr auto kSlack = std::chrono::microseconds(2);
  const RpcClientController& c = call.controller;
  EXPECT_GE(c.GetTimestampSent() + kSlack, before);
  EXPECT_GE(c.GetTimestampReceived() + kSlack, c.GetTimestampSent());
  EXPECT_GE(c.GetTimestampParsed() + kSlack, c.GetTimestampReceived());
  EXPECT_LE(c.GetTimestampParsed(), ReadSteadyClock() + kSlack);
  EXPECT_GT(c.GetElapsedTime().count(), 0);
}

TEST_F(ClientCallTest, BlocksFiberAndThread) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    for (int i = 0; i != 2; ++i) peer->Reply(peer->ReadRequest()->id, "pong");
  });
  const auto call = [&] {
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
    EXPECT_EQ(response.body(), "pong");
  };
  OnFiber(call);
  call();
  answering.join();
}

TEST_F(ClientCallTest, AFiberThatWaitsIsListed) {
  RawServer server;
  RpcChannel channel(server.uri());
  fiber::Event ended;
  fiber::Spawn([&] {
    this_fiber::SetName("caller");
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
    ended.Set();
  });
  auto peer = server.Accept();
  const auto request = peer->ReadRequest();
  const auto waits = [] {
    for (const fiber::FiberSnapshot& fiber : fiber::ListFibers()) {
      if (fiber.name == "caller") return fiber.waits_for;
    }
    return std::string();
  };
  // It may not have gone to wait yet.
  const std::int64_t deadline_ns = NowNs() + 10'000'000'000;
  while (waits() != "call" && NowNs() < deadline_ns) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(waits(), "call");
  peer->Reply(request->id, "pong");
  ended.Wait();
}

TEST_F(ClientCallTest, NeedsNoController) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
    peer->Fail(peer->ReadRequest()->id, 1234, "no");
  });
  OnFiber([&] {
    TestService_Stub stub(&channel);
    TestRequest request;
    TestResponse response;
    stub.Call(nullptr, &request, &response, nullptr);
    EXPECT_EQ(response.body(), "pong");
    stub.Call(nullptr, &request, &response, nullptr);  // Nobody hears of it.
  });
  answering.join();
}

TEST_F(ClientCallTest, ForeignControllerHearsOfFailure) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->Fail(peer->ReadRequest()->id, 1234, "not today");
    peer->Reply(peer->ReadRequest()->id, "pong");
  });
  TestService_Stub stub(&channel);
  TestRequest request;
  TestResponse response;
  ForeignController refused;
  stub.Call(&refused, &request, &response, nullptr);
  EXPECT_EQ(refused.ErrorText(), "not today");
  ForeignController accepted;
  stub.Call(&accepted, &request, &response, nullptr);
  EXPECT_FALSE(accepted.Failed());
  answering.join();
}

TEST_F(ClientCallTest, FailureOfServiceIsPassedOn) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.Start(&channel);
  peer->Fail(peer->ReadRequest()->id, 4711, "out of stock");
  EXPECT_EQ(call.Await(), 4711);
  EXPECT_EQ(call.controller.ErrorText(), "out of stock");
  EXPECT_EQ(call.response.body(), "");
}

TEST_F(ClientCallTest, RepliesMayComeInAnyOrder) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  std::vector<TestedCall> calls(10);
  for (int i = 0; i != 10; ++i) {
    calls[i].request.set_body(std::to_string(i));
    calls[i].Start(&channel);
  }
  std::vector<RawPeer::Request> requests;
  for (int i = 0; i != 10; ++i) requests.push_back(*peer->ReadRequest());
  std::string replies;
  for (int i = 9; i >= 0; --i) {
    TestRequest request;
    ASSERT_TRUE(request.ParseFromString(requests[i].body));
    replies += peer->Encode(requests[i].id, "re " + request.body());
  }
  peer->Send(replies);
  for (int i = 0; i != 10; ++i) {
    EXPECT_EQ(calls[i].Await(), STATUS_SUCCESS);
    EXPECT_EQ(calls[i].response.body(), "re " + std::to_string(i));
  }
}

// A press loop: the next call from the completion of the last one, with the
// same objects.
TEST_F(ClientCallTest, CompletionMayMakeTheNextCall) {
  struct Loop : google::protobuf::Closure {
    void Start() {
      controller.Reset();
      request.set_body(std::to_string(left));
      channel->CallMethod(MethodNamed("Call"), &controller, &request, &response,
                          this);
    }
    void Run() override {
      EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
      EXPECT_EQ(response.body(), request.body());
      if (--left == 0) return ended.Set();
      Start();
    }
    RpcChannel* channel = nullptr;
    RpcClientController controller;
    TestRequest request;
    TestResponse response;
    int left = 2000;
    fiber::Event ended;
  };
  RawServer server;
  RpcChannel channel(server.uri());
  Loop loop;
  loop.channel = &channel;
  std::thread answering([&] {
    auto peer = server.Accept();
    for (int i = 0; i != 2000; ++i) {
      const auto request = peer->ReadRequest();
      TestRequest message;
      ASSERT_TRUE(message.ParseFromString(request->body));
      peer->Reply(request->id, message.body());
    }
  });
  loop.Start();
  loop.ended.Wait();
  answering.join();
}

TEST_F(ClientCallTest, TooMuchOutputIsRefusedOrAwaited) {
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const Buffer large = CreateBufferSlow(std::string(4 << 20, 'x'));
  std::vector<std::unique_ptr<TestedCall>> calls;
  bool refused = false;
  while (!refused && calls.size() < 40) {  // Shared bytes: it costs nothing.
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->controller.SetRequestAttachment(large);
    calls.back()->controller.SetTimeout(seconds(30));
    calls.back()->Start(&channel);
    refused = calls.back()->HasEnded();
  }
  // One that blocks waits until its deadline, or until it is cancelled.
  const auto call_and_wait = [&](RpcClientController* controller) {
    TestRequest request;
    TestResponse response;
    TestService_Stub(&channel).Call(controller, &request, &response, nullptr);
  };
  RpcClientController cancelled;
  cancelled.SetTimeout(seconds(30));
  cancelled.SetMaxRetries(3);
  fiber::Event ended;
  fiber::Spawn([&] {
    call_and_wait(&cancelled);
    ended.Set();
  });
  OnFiber([&] {
    RpcClientController controller;
    // Enough to begin, on a busy machine, too.
    controller.SetTimeout(milliseconds(300));
    controller.SetMaxRetries(3);
    call_and_wait(&controller);
    EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
    EXPECT_TRUE(controller.ErrorText().ends_with(
        "; nothing was sent, too many bytes were queued before"))
        << controller.ErrorText();
  });
  EXPECT_FALSE(ended.IsSet());
  const std::int64_t begin = NowNs();
  cancelled.StartCancel();
  ended.Wait();
  EXPECT_LT(NowNs() - begin, 10'000'000'000);
  EXPECT_TRUE(cancelled.IsCanceled()) << cancelled.ErrorText();
  peer->Close();
  int overloaded = 0;
  for (auto& call : calls) {
    const int code = call->Await();
    overloaded += code == STATUS_OVERLOADED;
    EXPECT_TRUE(code == STATUS_OVERLOADED || code == STATUS_IO_ERROR) << code;
  }
  EXPECT_GT(overloaded, 0);
}

// A dead server fails attempts at once until it is time for the next one.
TEST_F(OneWorkerClientCallTest, ManyAttemptsLetOthersRun) {
  DeadAddress dead;
  RpcChannel channel(dead.uri());
  const auto cancel_later = [](RpcClientController* controller) {
    controller->SetMaxRetries(1'000'000'000);
    controller->SetTimeout(seconds(5));
    return Fiber([controller] {
      for (int i = 0; i < 100; ++i) this_fiber::Yield();
      controller->StartCancel();
    });
  };
  TestedCall call;
  OnFiber([&] {
    TestRequest request;
    TestResponse response;
    RpcClientController controller;
    Fiber canceller = cancel_later(&controller);
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_TRUE(controller.IsCanceled()) << controller.ErrorText();
    canceller.join();
    canceller = cancel_later(&call.controller);
    call.Start(&channel);
    call.Await();
    EXPECT_TRUE(call.controller.IsCanceled()) << call.controller.ErrorText();
    canceller.join();
  });
}

}  // namespace
}  // namespace flare::rpc::testing
