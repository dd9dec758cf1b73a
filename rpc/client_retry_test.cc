// Calls that are made again after a failure.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "flare/rpc/load_balancer.h"
#include "flare/rpc/testing/raw_server_fixture.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::seconds;

class ClientRetryTest : public RawServerTest {};

TEST_F(ClientRetryTest, RetriesOnTheNextServer) {
  RawServer one, two;
  RpcChannel channel(one.uri() + "," + two.endpoint().ToString());
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.controller.SetRequestAttachment(CreateBufferSlow("attached"));
  call.Start(&channel);
  while (!one.HasVisitor() && !two.HasVisitor()) std::this_thread::yield();
  RawServer& first = one.HasVisitor() ? one : two;
  RawServer& second = one.HasVisitor() ? two : one;
  auto busy = first.Accept();
  const auto request = busy->ReadRequest();
  busy->Fail(request->id, STATUS_OVERLOADED, "busy");
  auto idle = second.Accept();
  const auto again = idle->ReadRequest();
  EXPECT_EQ(again->body, request->body);
  EXPECT_EQ(again->attachment, "attached");
  idle->Reply(again->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.controller.ErrorText(), "");
  EXPECT_EQ(call.response.body(), "pong");
  EXPECT_EQ(call.controller.GetRemotePeer(), second.endpoint());
}

// However many calls have asked the load balancer meanwhile: as if they came
// around to the same server every time.
TEST_F(ClientRetryTest, EachAttemptGoesToAnotherServer) {
  struct First : LoadBalancer {
    std::size_t Next(std::size_t) override { return 0; }
  };
  RegisterLoadBalancer("test-first", [] { return std::make_unique<First>(); });
  RawServer servers[3];
  RpcChannel channel(servers[0].uri() + "," + servers[1].endpoint().ToString() +
                         "," + servers[2].endpoint().ToString(),
                     {.override_nslb = "list+test-first"});
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.Start(&channel);
  for (RawServer& server : servers) {
    auto peer = server.Accept();
    ASSERT_NE(peer, nullptr);
    peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED,
               "busy: " + server.uri());
  }
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy: " + servers[2].uri());
}

TEST_F(ClientRetryTest, GivesUpAfterTheLastAttempt) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(3);
  call.Start(&channel);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED,
               "busy " + std::to_string(attempt));
  }
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy 3");
}

// Nothing of an earlier attempt is left in the controller.
TEST_F(ClientRetryTest, OnlyTheLastAttemptIsTold) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(2);
  call.Start(&channel);
  OutboundResponse unreadable;
  unreadable.body = CreateBufferSlow("\xff\xff\xff");
  unreadable.attachment = CreateBufferSlow("attached");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(unreadable)));
  const auto id = peer->ReadRequest()->id;
  peer->Fail(id, STATUS_OVERLOADED, "busy");
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.GetTimestampParsed().time_since_epoch().count(), 0);
  EXPECT_TRUE(call.controller.GetResponseAttachment().empty());
  const std::chrono::nanoseconds elapsed = call.controller.GetElapsedTime();
  EXPECT_GE(elapsed.count(), (call.controller.GetTimestampReceived() -
                              call.controller.GetTimestampSent())
                                 .count());
}

TEST_F(ClientRetryTest, BlockedCallRetries) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->ReadRequest();
    peer->Close();  // The request may be lost: retried on a new connection.
    peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
  });
  OnFiber([&] {
    RpcClientController controller;
    controller.SetMaxRetries(2);
    controller.SetTimeout(seconds(20));
    TestRequest request;
    TestResponse response;
    do {
      TestService_Stub(&channel).Call(&controller, &request, &response,
                                      nullptr);
    } while (controller.Failed());
    EXPECT_EQ(response.body(), "pong");
  });
  answering.join();
}

TEST_F(ClientRetryTest, DoesNotRetryWhatIsFinal) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (int code :
       {static_cast<int>(STATUS_FAILED), static_cast<int>(STATUS_FROM_USER),
        1001, 70000, -3, static_cast<int>(STATUS_NOT_SUPPORTED),
        static_cast<int>(STATUS_TIMEOUT)}) {
    TestedCall call;
    call.controller.SetMaxRetries(5);
    call.Start(&channel);
    peer->Fail(peer->ReadRequest()->id, code, "no");
    EXPECT_EQ(call.Await(), code);
  }
}

// Nothing of an attempt that failed is left over for the next one.
TEST_F(ClientRetryTest, MessagesOfFailedAttemptsAreDropped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(2);
  call.Start(&channel);
  TestResponse message;
  message.set_body("why");
  OutboundResponse response;
  response.status = STATUS_OVERLOADED;
  response.body = CreateBufferSlow(message.SerializeAsString());
  response.attachment = CreateBufferSlow("attached");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
  peer->Fail(peer->ReadRequest()->id, STATUS_OVERLOADED, "busy");
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.response.body(), "");
  EXPECT_TRUE(call.controller.GetResponseAttachment().empty());
}

TEST_F(ClientRetryTest, DeadlineHoldsForAllAttempts) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(1000);
  // Enough for five attempts on a busy machine.
  call.controller.SetTimeout(seconds(2));
  call.Start(&channel);
  std::uint32_t last = 2000;
  for (int i = 0; i != 5; ++i) {
    const auto request = peer->ReadRequest();
    EXPECT_LE(request->timeout_ms, last);
    last = request->timeout_ms;
    peer->Fail(request->id, STATUS_OVERLOADED, "busy");
  }
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
}

// The channel may go while a call is under way.
TEST_F(ClientRetryTest, OneAttemptOutlivesChannel) {
  RawServer server;
  auto channel = std::make_unique<RpcChannel>(server.uri());
  auto peer = Connect(channel.get(), &server);
  TestedCall call;
  call.Start(channel.get());
  const auto request = peer->ReadRequest();
  channel.reset();
  peer->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "pong");
}

// ... also while one is that retries, and so keeps what it needs of it.
TEST_F(ClientRetryTest, OutlivesChannel) {
  RawServer server;
  auto channel = std::make_unique<RpcChannel>(server.uri());
  auto peer = Connect(channel.get(), &server);
  TestedCall once, again;
  once.Start(channel.get());
  const auto first = peer->ReadRequest();
  again.controller.SetMaxRetries(2);
  again.Start(channel.get());
  // It may have got a second connection.
  auto other = server.Accept();
  const auto second = other->ReadRequest();
  channel.reset();
  peer->Reply(first->id, "pong");
  EXPECT_EQ(once.Await(), STATUS_SUCCESS);
  other->Close();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(again.Await(), STATUS_SUCCESS) << again.controller.ErrorText();
}

}  // namespace
}  // namespace flare::rpc::testing
