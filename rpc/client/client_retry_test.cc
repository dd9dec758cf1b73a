// Calls that are made again after a failure.
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "flare/rpc/load_balancer.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::seconds;

class ClientRetryTest : public RawServerTest {};

// Calls on an established connection.
class OneServerRetryTest : public ClientRetryTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ClientRetryTest::SetUp());
    server_ = std::make_unique<RawServer>();
    channel_ = std::make_unique<RpcChannel>(server_->uri());
    peer_ = Connect(channel_.get(), server_.get());
  }

  void TearDown() override {
    peer_.reset();
    channel_.reset();
    server_.reset();
    ClientRetryTest::TearDown();
  }

  // Starts a call that is made so many times at most.
  void Start(TestedCall* call, int attempts) {
    call->controller.SetMaxRetries(attempts);
    call->Start(channel_.get());
  }

  // The server's answer to the next attempt.
  void FailAttempt(int status, const std::string& text) {
    peer_->Fail(peer_->ReadRequest()->id, status, text);
  }
  void AnswerAttempt(OutboundResponse response) {
    peer_->Send(peer_->Encode(peer_->ReadRequest()->id, std::move(response)));
  }

  std::unique_ptr<RawServer> server_;
  std::unique_ptr<RpcChannel> channel_;
  std::unique_ptr<RawPeer> peer_;
};

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

using ClientRetryDeathTest = ClientRetryTest;

// The call's end would never come.
TEST_F(ClientRetryDeathTest, LoadBalancersMustNotThrow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Throwing : LoadBalancer {
    std::size_t Next(std::size_t) override {
      throw std::runtime_error("nobody is next");
    }
  };
  RegisterLoadBalancer("test-throwing",
                       [] { return std::make_unique<Throwing>(); });
  RawServer server;
  RpcChannel channel(server.uri() + "," + server.endpoint().ToString(),
                     {.override_nslb = "list+test-throwing"});
  const auto call = [&] {
    TestedCall call;
    try {
      call.Start(&channel);
    } catch (const std::runtime_error&) {
      std::_Exit(0);
    }
  };
  EXPECT_EXIT(call(), ::testing::KilledBySignal(SIGABRT), "nobody is next");
}

TEST_F(OneServerRetryTest, GivesUpAfterTheLastAttempt) {
  TestedCall call;
  Start(&call, 3);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    FailAttempt(STATUS_OVERLOADED, "busy " + std::to_string(attempt));
  }
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "busy 3");
}

// Nothing of an earlier attempt is left in the controller.
TEST_F(OneServerRetryTest, OnlyTheLastAttemptIsTold) {
  TestedCall call;
  Start(&call, 2);
  OutboundResponse unreadable;
  unreadable.body = CreateBufferSlow("\xff\xff\xff");
  unreadable.attachment = CreateBufferSlow("attached");
  AnswerAttempt(std::move(unreadable));
  FailAttempt(STATUS_OVERLOADED, "busy");
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

TEST_F(OneServerRetryTest, DoesNotRetryWhatIsFinal) {
  for (int code :
       {static_cast<int>(STATUS_FAILED), static_cast<int>(STATUS_FROM_USER),
        1001, 70000, -3, static_cast<int>(STATUS_NOT_SUPPORTED),
        static_cast<int>(STATUS_TIMEOUT)}) {
    TestedCall call;
    Start(&call, 5);
    FailAttempt(code, "no");
    EXPECT_EQ(call.Await(), code);
  }
}

// Nothing of an attempt that failed is left over for the next one.
TEST_F(OneServerRetryTest, MessagesOfFailedAttemptsAreDropped) {
  TestedCall call;
  Start(&call, 2);
  TestResponse message;
  message.set_body("why");
  OutboundResponse response;
  response.status = STATUS_OVERLOADED;
  response.body = CreateBufferSlow(message.SerializeAsString());
  response.attachment = CreateBufferSlow("attached");
  AnswerAttempt(std::move(response));
  FailAttempt(STATUS_OVERLOADED, "busy");
  EXPECT_EQ(call.Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.response.body(), "");
  EXPECT_TRUE(call.controller.GetResponseAttachment().empty());
}

TEST_F(OneServerRetryTest, DeadlineHoldsForAllAttempts) {
  TestedCall call;
  // Enough for five attempts on a busy machine.
  call.controller.SetTimeout(seconds(2));
  Start(&call, 1000);
  std::uint32_t last = 2000;
  for (int i = 0; i != 5; ++i) {
    while (!peer_->HasInput() && !call.HasEnded()) std::this_thread::yield();
    if (!peer_->HasInput()) break;  // A very busy machine.
    const auto request = peer_->ReadRequest();
    EXPECT_LE(request->timeout_ms, last);
    last = request->timeout_ms;
    peer_->Fail(request->id, STATUS_OVERLOADED, "busy");
  }
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
}

// The channel may go while a call is under way.
TEST_F(OneServerRetryTest, OneAttemptOutlivesChannel) {
  TestedCall call;
  call.Start(channel_.get());
  const auto request = peer_->ReadRequest();
  channel_.reset();
  peer_->Reply(request->id, "pong");
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "pong");
}

// ... also while a call retries, and so keeps its part of the channel.
TEST_F(OneServerRetryTest, OutlivesChannel) {
  TestedCall once, again;
  once.Start(channel_.get());
  const auto first = peer_->ReadRequest();
  Start(&again, 2);
  // It may have got a second connection.
  auto other = server_->Accept();
  const auto second = other->ReadRequest();
  channel_.reset();
  peer_->Reply(first->id, "pong");
  EXPECT_EQ(once.Await(), STATUS_SUCCESS);
  other->Close();
  peer_->Reply(peer_->ReadRequest()->id, "pong");
  EXPECT_EQ(again.Await(), STATUS_SUCCESS) << again.controller.ErrorText();
}

}  // namespace
}  // namespace flare::rpc::testing
