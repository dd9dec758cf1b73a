// Calls against a server whose every byte the test decides.
#include "flare/rpc/client_call.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ClientCallTest : public ClientTest {
 protected:
  std::uint64_t LateReplies() { return GetClientStatistics().late_replies; }

  // One call through, so that the connection stands.
  std::unique_ptr<RawPeer> Connect(RpcChannel* channel, RawServer* server) {
    TestedCall call;
    call.Start(channel);
    auto peer = server->Accept();
    peer->Reply(peer->ReadRequest()->id, "pong");
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    return peer;
  }
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
  class Foreign : public google::protobuf::RpcController {
   public:
    void Reset() override {}
    bool Failed() const override { return !text.empty(); }
    std::string ErrorText() const override { return text; }
    void StartCancel() override {}
    void SetFailed(const std::string& reason) override { text = reason; }
    bool IsCanceled() const override { return false; }
    void NotifyOnCancel(google::protobuf::Closure*) override {}
    std::string text;
  };
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
  Foreign refused;
  stub.Call(&refused, &request, &response, nullptr);
  EXPECT_EQ(refused.text, "not today");
  Foreign accepted;
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

// ---------------------------------------------------------------------------
// Deadlines
// ---------------------------------------------------------------------------

TEST_F(ClientCallTest, EndsAtDeadline) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const auto begin = std::chrono::steady_clock::now();
  TestedCall call;
  call.controller.SetTimeout(milliseconds(50));
  call.Start(&channel);
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(elapsed, milliseconds(50));
  EXPECT_LT(elapsed, seconds(2));
  EXPECT_NE(call.controller.ErrorText().find("TestService.Call"),
            std::string::npos);
}

TEST_F(ClientCallTest, DeadlineCoversConnecting) {
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

TEST_F(ClientCallTest, PastDeadlineEndsAtOnce) {
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
  }
  RpcClientController controller;
  controller.SetTimeout(seconds(-1));
  TestService_Stub(&channel).Call(&controller, &zero.request, &zero.response,
                                  nullptr);
  EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientCallTest, DefaultDeadlineIsTheFlags) {
  FLAGS_flare_rpc_client_default_rpc_timeout_ms = 25;
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.Start(&channel);
  auto peer = server.Accept();
  EXPECT_LE(peer->ReadRequest()->timeout_ms, 25);
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
}

// What is sent is what is left, not what the controller was once given.
TEST_F(ClientCallTest, SendsTheTimeThatIsLeft) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall late;
  late.controller.SetTimeout(std::chrono::steady_clock::now() + seconds(60));
  TestedCall waste;  // A tenth of a second passes.
  waste.controller.SetTimeout(milliseconds(100));
  waste.Start(&channel);
  auto peer = server.Accept();
  const std::uint32_t wasted = peer->ReadRequest()->timeout_ms;
  EXPECT_GT(wasted, 0);
  EXPECT_LE(wasted, 100);
  EXPECT_EQ(waste.Await(), STATUS_TIMEOUT);

  late.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_LE(request->timeout_ms, 59'901);
  EXPECT_GT(request->timeout_ms, 30'000);
  peer->Reply(request->id, "pong");
  EXPECT_EQ(late.Await(), STATUS_SUCCESS);
}

TEST_F(ClientCallTest, SendsHugeTimeoutsCapped) {
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

TEST_F(ClientCallTest, LateReplyIsDropped) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const std::uint64_t late = LateReplies();
  TestedCall call;
  call.controller.SetTimeout(milliseconds(10));
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);

  TestedCall next;
  next.Start(&channel);
  const auto second = peer->ReadRequest();
  EXPECT_NE(second->id, request->id);
  peer->Send(peer->Encode(request->id, "too late") +
             peer->Encode(second->id, "pong"));
  EXPECT_EQ(next.Await(), STATUS_SUCCESS);
  EXPECT_EQ(next.response.body(), "pong");
  EXPECT_EQ(call.response.body(), "");
  EXPECT_EQ(LateReplies(), late + 1);
}

TEST_F(ClientCallTest, RepeatedAndUnknownRepliesAreDropped) {
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

// ---------------------------------------------------------------------------
// Cancellation
// ---------------------------------------------------------------------------

TEST_F(ClientCallTest, CancelEndsCall) {
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

TEST_F(ClientCallTest, CancelEndsBlockedCall) {
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

TEST_F(ClientCallTest, CancelBeforeCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  TestedCall call;
  call.controller.StartCancel();
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  call.controller.Reset();
  EXPECT_FALSE(call.controller.IsCanceled());
}

// ---------------------------------------------------------------------------
// What can be wrong with messages
// ---------------------------------------------------------------------------

TEST_F(ClientCallTest, UnserialisableRequest) {
  RawServer server;
  RpcChannel channel(server.uri());
  RpcClientController controller;
  Strict request, response;
  channel.CallMethod(MethodNamed("CallStrict"), &controller, &request,
                     &response, nullptr);
  EXPECT_EQ(controller.ErrorCode(), STATUS_SERIALIZE_REQUEST);
  EXPECT_NE(controller.ErrorText(), "");
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientCallTest, UnparsableReply) {
  RawServer server;
  RpcChannel channel(server.uri());
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->Send(peer->Encode(peer->ReadRequest()->id, OutboundResponse{}));
    OutboundResponse garbage;
    garbage.body = CreateBufferSlow("\xff\xff\xff");
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(garbage)));
  });
  Strict request, response;
  request.set_body("x");
  for (int i = 0; i != 2; ++i) {
    RpcClientController controller;
    channel.CallMethod(MethodNamed("CallStrict"), &controller, &request,
                       &response, nullptr);
    EXPECT_EQ(controller.ErrorCode(), STATUS_MALFORMED_DATA);
    EXPECT_NE(controller.ErrorText(), "");
  }
  answering.join();
}

TEST_F(ClientCallTest, CompressesBothWays) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (auto algorithm :
       {CompressionAlgorithm::kGzip, CompressionAlgorithm::kLz4Frame,
        CompressionAlgorithm::kSnappy, CompressionAlgorithm::kZstd}) {
    const std::string text(10000, 'a');
    TestedCall call;
    call.request.set_body(text);
    call.controller.SetCompressionAlgorithm(algorithm);
    call.controller.SetRequestAttachment(CreateBufferSlow(text));
    call.Start(&channel);
    const auto request = peer->ReadRequest();
    EXPECT_EQ(request->compression, algorithm);
    EXPECT_TRUE(request->attachment_compressed);
    EXPECT_LT(request->body.size(), 1000);
    const auto body =
        Decompress(algorithm, CreateBufferSlow(request->body), 1 << 20);
    const auto attachment =
        Decompress(algorithm, CreateBufferSlow(request->attachment), 1 << 20);
    ASSERT_TRUE(body && attachment);
    EXPECT_EQ(FlattenSlow(*body), call.request.SerializeAsString());
    EXPECT_EQ(FlattenSlow(*attachment), text);

    OutboundResponse response;
    response.compression = algorithm;
    response.attachment_compressed = true;
    TestResponse message;
    message.set_body(text + "!");
    response.body =
        *Compress(algorithm, CreateBufferSlow(message.SerializeAsString()));
    response.attachment = *Compress(algorithm, CreateBufferSlow(text + "?"));
    peer->Send(peer->Encode(request->id, std::move(response)));
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), text + "!");
    EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()), text + "?");
  }
}

TEST_F(ClientCallTest, CorruptCompressionFailsOneCall) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall body, attachment, good;
  body.Start(&channel);
  OutboundResponse corrupt;
  corrupt.compression = CompressionAlgorithm::kZstd;
  corrupt.body = CreateBufferSlow("this is not zstd");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(corrupt)));
  EXPECT_EQ(body.Await(), STATUS_MALFORMED_DATA);

  attachment.Start(&channel);
  OutboundResponse other;
  other.compression = CompressionAlgorithm::kGzip;
  other.attachment_compressed = true;
  other.attachment = CreateBufferSlow("this is not gzip");
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(other)));
  EXPECT_EQ(attachment.Await(), STATUS_MALFORMED_DATA);

  good.Start(&channel);
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(good.Await(), STATUS_SUCCESS);
}

TEST_F(ClientCallTest, AttachmentsGoAlong) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  const std::string large(300'000, 'z');
  TestedCall call;
  call.controller.SetRequestAttachment(CreateBufferSlow(large));
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->attachment, large);
  EXPECT_FALSE(request->attachment_compressed);
  OutboundResponse response;
  response.attachment = CreateBufferSlow(large + large);
  peer->Send(peer->Encode(request->id, std::move(response)));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()),
            large + large);
}

TEST_F(ClientCallTest, AttachmentOverHttpIsAnError) {
  RawServer server;
  RpcChannel channel("http://" + server.endpoint().ToString());
  TestedCall call;
  call.controller.SetRequestAttachment(CreateBufferSlow("x"));
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NOT_SUPPORTED);
  EXPECT_FALSE(server.HasVisitor());
}

TEST_F(ClientCallTest, RawBytesBothWays) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetRequestRawBytes(CreateBufferSlow("any bytes"));
  call.controller.SetAcceptResponseRawBytes(true);
  call.Start(&channel);
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->body, "any bytes");
  OutboundResponse response;
  response.compression = CompressionAlgorithm::kSnappy;
  response.body = CreateBufferSlow("\xff\xff as they are");
  peer->Send(peer->Encode(request->id, std::move(response)));
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseRawBytes()),
            "\xff\xff as they are");
  EXPECT_EQ(call.response.ByteSizeLong(), 0);
}

// ---------------------------------------------------------------------------
// Retries
// ---------------------------------------------------------------------------

TEST_F(ClientCallTest, RetriesOnTheNextServer) {
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

TEST_F(ClientCallTest, GivesUpAfterTheLastAttempt) {
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
TEST_F(ClientCallTest, OnlyTheLastAttemptIsTold) {
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

TEST_F(ClientCallTest, BlockedCallRetries) {
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

TEST_F(ClientCallTest, DoesNotRetryWhatIsFinal) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  for (int code : {static_cast<int>(STATUS_FAILED), 1001, 70000,
                   static_cast<int>(STATUS_NOT_SUPPORTED),
                   static_cast<int>(STATUS_TIMEOUT)}) {
    TestedCall call;
    call.controller.SetMaxRetries(5);
    call.Start(&channel);
    peer->Fail(peer->ReadRequest()->id, code, "no");
    EXPECT_EQ(call.Await(), code);
  }
}

TEST_F(ClientCallTest, DeadlineHoldsForAllAttempts) {
  RawServer server;
  RpcChannel channel(server.uri());
  auto peer = Connect(&channel, &server);
  TestedCall call;
  call.controller.SetMaxRetries(1000);
  call.controller.SetTimeout(milliseconds(200));
  call.Start(&channel);
  std::uint32_t last = 200;
  for (int i = 0; i != 5; ++i) {
    const auto request = peer->ReadRequest();
    EXPECT_LE(request->timeout_ms, last);
    last = request->timeout_ms;
    peer->Fail(request->id, STATUS_OVERLOADED, "busy");
  }
  EXPECT_EQ(call.Await(), STATUS_TIMEOUT);
}

// The channel may go while a call is under way, also one that retries.
TEST_F(ClientCallTest, OutlivesChannel) {
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

// ---------------------------------------------------------------------------
// Too much
// ---------------------------------------------------------------------------

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
    controller.SetTimeout(milliseconds(20));
    controller.SetMaxRetries(3);
    call_and_wait(&controller);
    EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT) << controller.ErrorText();
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

}  // namespace
}  // namespace flare::rpc::testing
