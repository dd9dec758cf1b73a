// Calls over gRPC, by both of our sides: the differences to other protocols.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ClientGrpcTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    StartServer({"grpc"});
    ASSERT_TRUE(channel_.Open("grpc://" + endpoint().ToString()));
  }
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  RpcChannel channel_;
};

TEST_F(ClientGrpcTest, AStatusOfGrpcComesAsItIs) {
  for (const GrpcCode code : {GrpcCode::kNotFound, GrpcCode::kAborted}) {
    service().on_call = [code](TestCall call) {
      call.controller->SetFailed(StatusFromGrpc(code), "50% \xe2\x98\xba\n");
      call.done->Run();
    };
    TestedCall call;
    EXPECT_EQ(call.Start(&channel_)->Await(), StatusFromGrpc(code));
    EXPECT_EQ(call.controller.ErrorText(), "50% \xe2\x98\xba\n");
  }
}

TEST_F(ClientGrpcTest, AStatusThatGrpcLacksComesAsItIs) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(4711, "mine");
    call.done->Run();
  };
  TestedCall call;
  EXPECT_EQ(call.Start(&channel_)->Await(), 4711);
}

TEST_F(ClientGrpcTest, LargeMessagesGoBothWays) {
  for (const CompressionAlgorithm algorithm :
       {CompressionAlgorithm::kNone, CompressionAlgorithm::kGzip,
        CompressionAlgorithm::kZlib, CompressionAlgorithm::kZstd,
        CompressionAlgorithm::kSnappy}) {
    TestedCall call;
    call.request.set_body(std::string(3'000'000, 'x'));
    call.controller.SetCompressionAlgorithm(algorithm);
    EXPECT_EQ(call.Start(&channel_)->Await(), STATUS_SUCCESS)
        << call.controller.ErrorText();
    EXPECT_TRUE(call.response.body() == call.request.body());
  }
}

TEST_F(ClientGrpcTest, ManyCancelledCallsLeaveTheOthersAlone) {
  constexpr int kCalls = 2000;
  fiber::Event go;
  service().on_call = FlexibleService::EchoAfter(&go);
  RpcChannel::Options options;
  options.max_connections_per_server = 1;
  RpcChannel channel("grpc://" + endpoint().ToString(), options);
  TestedCall kept;
  kept.controller.SetTimeout(std::chrono::seconds(60));
  kept.Start(&channel);
  for (int i = 0; i != kCalls; ++i) {
    TestedCall call;
    call.controller.SetTimeout(std::chrono::seconds(60));
    call.Start(&channel);
    call.controller.StartCancel();
    EXPECT_EQ(call.Await(), STATUS_FAILED) << call.controller.ErrorText();
  }
  go.Set();
  EXPECT_EQ(kept.Await(), STATUS_SUCCESS) << kept.controller.ErrorText();
  StopServer();  // Before `go` is gone.
}

// More than may be reset in a second, and no other calls whose frames the rest
// could go with.
TEST_F(ClientGrpcTest, TheServerHearsOfManyCancelledCallsInTime) {
  constexpr int kCalls = 1200;
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    ++begun;
    fiber::Event never;
    static_cast<void>(never.Wait(call.controller->GetStopToken()));
    FlexibleService::Echo(call);
  };
  RpcChannel::Options options;
  options.max_connections_per_server = 1;
  RpcChannel channel("grpc://" + endpoint().ToString(), options);
  std::vector<std::unique_ptr<TestedCall>> calls;
  for (int i = 0; i != kCalls; ++i) {
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->controller.SetTimeout(std::chrono::seconds(600));
    calls.back()->Start(&channel);
  }
  EXPECT_TRUE(fiber::testing::Eventually([&] { return begun == kCalls; }));
  for (auto& call : calls) call->controller.StartCancel();
  for (auto& call : calls) EXPECT_EQ(call->Await(), STATUS_FAILED);
  EXPECT_TRUE(fiber::testing::Eventually(
      [&] { return server().statistics().calls_running == 0; }));
}

// The timer that sends the last resets is the last to use the connection.
TEST_F(ClientGrpcTest, AConnectionEndsWithResetsThatWerePutOff) {
  constexpr int kCalls = 1200;
  static constexpr std::string_view kSettings{"\0\0\0\4\0\0\0\0\0", 9};
  // GOAWAY: all streams were looked at. PING, and its answer.
  static constexpr std::string_view kNoMoreCalls{
      "\0\0\x8\7\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0"
      "\0\0\x8\6\0\0\0\0\0eight123",
      34};
  static constexpr std::string_view kPong{"\0\0\x8\6\1\0\0\0\0eight123", 17};
  RawServer raw;
  RpcChannel::Options options;
  options.max_connections_per_server = 1;
  RpcChannel channel("grpc://" + raw.endpoint().ToString(), options);
  std::vector<std::unique_ptr<TestedCall>> calls;
  for (int i = 0; i != kCalls; ++i) {
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->controller.SetTimeout(std::chrono::seconds(600));
    calls.back()->Start(&channel);
  }
  const auto peer = raw.Accept();
  peer->Send(kSettings);
  for (int i = 0; i != kCalls; ++i) peer->ReadUntil("ping");
  peer->Send(kNoMoreCalls);
  peer->ReadUntil(kPong);
  for (auto& call : calls) call->controller.StartCancel();
  for (auto& call : calls) EXPECT_EQ(call->Await(), STATUS_FAILED);
  const auto began = std::chrono::steady_clock::now();
  peer->ReadAll();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
}

// The session queues requests itself; a retry of a refused one would run twice.
TEST_F(ClientGrpcTest, CallsThatAreRefusedForTooMuchOutputArentSent) {
  // SETTINGS, WINDOW_UPDATE, PING.
  static constexpr std::string_view kLargeWindows{
      "\0\0\6\4\0\0\0\0\0\0\4\x7f\xff\xff\xff"
      "\0\0\4\x8\0\0\0\0\0\x7f\xff\0\0"
      "\0\0\x8\6\0\0\0\0\0eight123",
      45};
  static constexpr std::string_view kPing{"\0\0\x8\6\0\0\0\0\0eight456", 17};
  static constexpr std::string_view kPong{"\0\0\x8\6\1\0\0\0\0eight123", 17};
  RawServer raw;
  RpcChannel::Options options;
  options.max_connections_per_server = 1;
  RpcChannel channel("grpc://" + raw.endpoint().ToString(), options);
  TestedCall first;
  first.Start(&channel);
  const auto peer = raw.Accept();
  peer->Send(kLargeWindows);
  peer->ReadUntil(kPong);
  const Buffer large = CreateBufferSlow(std::string(4 << 20, 'x'));
  std::vector<std::unique_ptr<TestedCall>> calls;
  do {
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->controller.SetTimeout(std::chrono::seconds(60));
    calls.back()->controller.SetRequestRawBytes(large);
    calls.back()->Start(&channel);
  } while (!calls.back()->HasEnded() && calls.size() < 40);
  peer->Send(kPing);
  std::size_t sent = 0;
  for (;;) {
    const std::string head = peer->ReadExactly(9);
    ASSERT_EQ(head.size(), 9u);
    const auto byte = [&](int i) {
      return static_cast<unsigned char>(head[i]);
    };
    peer->ReadExactly(byte(0) << 16 | byte(1) << 8 | byte(2));
    if (byte(3) == 6) break;  // PING.
    sent += byte(3) == 1;     // HEADERS.
  }
  peer->Close();
  std::size_t refused = 0;
  for (auto& call : calls) refused += call->Await() == STATUS_OVERLOADED;
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(sent + refused, calls.size());
  first.Await();
}

TEST_F(ClientGrpcTest, TheServerHearsOfACancelledCall) {
  fiber::Event begun;
  fiber::Event cancelled;
  service().on_call = [&](TestCall call) {
    if (call.request->body() == "next") return FlexibleService::Echo(call);
    call.controller->NotifyOnCancel(
        google::protobuf::NewCallback(&cancelled, &fiber::Event::Set));
    begun.Set();
    cancelled.Wait();
    FlexibleService::Echo(call);
  };
  TestedCall call;
  call.Start(&channel_);
  begun.Wait();
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  cancelled.Wait();
  // The connection goes on.
  TestedCall next;
  next.request.set_body("next");
  EXPECT_EQ(next.Start(&channel_)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(server().statistics().connections_accepted, 1u);
  // The method may yet have to look at the events.
  while (server().statistics().calls_running != 0) std::this_thread::yield();
}

// The first of two servers stops while calls go to both.
TEST_F(ClientGrpcTest, NoCallFailsWhenAServerStops) {
  Server other(Server::Options{.service_name = "other"});
  FlexibleService other_service;
  other.AddProtocol("grpc");
  other.AddService(&other_service);
  other.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(other.Start());
  // One connection to each: none is new, and unknown to the server, when that
  // stops.
  RpcChannel::Options options;
  options.max_connections_per_server = 1;
  RpcChannel both;
  ASSERT_TRUE(both.Open(
      "grpc://" + endpoint().ToString() + "," + other.endpoint().ToString(),
      options));
  std::atomic<bool> stopped{false};
  std::atomic<int> served{0};
  service().on_call = [&](TestCall call) {
    ++served;
    FlexibleService::Echo(call);
  };
  constexpr int kCallers = 8;
  fiber::Event ended[kCallers];
  for (fiber::Event& each : ended) {
    fiber::Spawn([&] {
      // Some after it has stopped.
      for (int more = 20; more != 0; more -= stopped ? 1 : 0) {
        TestedCall call;
        EXPECT_EQ(call.Start(&both)->Await(), STATUS_SUCCESS)
            << call.controller.ErrorText();
      }
      each.Set();
    });
  }
  while (served < 100) std::this_thread::yield();
  server().Stop();
  EXPECT_EQ(server().Join(), 0u);
  stopped = true;
  for (fiber::Event& each : ended) each.Wait();
  ShutdownClientSide();
  other.Stop();
  EXPECT_EQ(other.Join(), 0u);
}

// Frames of HTTP/2.
constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
constexpr std::string_view kPing("\0\0\x8\6\0\0\0\0\0", 9);
constexpr std::string_view kPong(
    "\0\0\x8\6\1\0\0\0\0"
    "12345678",
    17);

TEST_F(ClientGrpcTest, ASilentServerIsAskedAndGivenUp) {
  RawServer silent;
  RpcChannel channel(
      "grpc://" + silent.endpoint().ToString(),
      RpcChannel::Options{.keep_alive = std::chrono::milliseconds(50)});
  TestedCall call;
  call.controller.SetTimeout(std::chrono::seconds(60));
  call.Start(&channel);
  auto peer = silent.Accept();
  peer->Send(kSettings);
  EXPECT_EQ(call.Await(), STATUS_IO_ERROR);
  EXPECT_THAT(call.controller.ErrorText(),
              ::testing::HasSubstr("keep-alive: nothing has come for 50 ms"));
  // By a question, with which it ends.
  const std::string got = peer->ReadAll();
  EXPECT_EQ(got.rfind(kPing) + kPing.size() + 8, got.size());
}

TEST_F(ClientGrpcTest, AServerThatAnswersMayBeSlow) {
  RawServer slow;
  RpcChannel channel(
      "grpc://" + slow.endpoint().ToString(),
      RpcChannel::Options{.keep_alive = std::chrono::seconds(5)});
  TestedCall call;
  call.controller.SetTimeout(std::chrono::seconds(60));
  call.Start(&channel);
  auto peer = slow.Accept();
  peer->Send(kSettings);
  for (int i = 0; i != 2; ++i) {
    peer->ReadUntil(kPing);
    peer->Send(kPong);
  }
  call.controller.StartCancel();  // It was waiting all the while.
  EXPECT_EQ(call.Await(), STATUS_FAILED) << call.controller.ErrorText();
}

TEST_F(ClientGrpcTest, ManyCallersShareConnections) {
  constexpr int kCalls = 2000;
  std::vector<std::unique_ptr<TestedCall>> calls;
  for (int i = 0; i != kCalls; ++i) {
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->request.set_body(std::string(i % 7 * 1000, 'x') +
                                   std::to_string(i));
    calls.back()->Start(&channel_);
  }
  for (auto& call : calls) {
    ASSERT_EQ(call->Await(), STATUS_SUCCESS) << call->controller.ErrorText();
    EXPECT_TRUE(call->response.body() == call->request.body());
  }
}

}  // namespace
}  // namespace flare::rpc::testing
