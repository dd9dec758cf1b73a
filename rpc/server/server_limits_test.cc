// A server's limits of calls, waiting, and output. Those of connections:
// server_connection_limits_test.cc.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/limited_service.pb.h"

namespace flare::rpc::testing {
namespace {

using ServerLimitsTest = ServerTest;

constexpr char kOneAtATime[] = "flare.rpc.testing.LimitedService.OneAtATime";
constexpr char kPrompt[] = "flare.rpc.testing.LimitedService.Prompt";
constexpr char kPatient[] = "flare.rpc.testing.LimitedService.Patient";
constexpr char kUnlimited[] = "flare.rpc.testing.LimitedService.Unlimited";

// All its methods do what the test says; by default they echo.
class LimitedServiceImpl : public LimitedService {
 public:
  void CallMethod(const google::protobuf::MethodDescriptor*,
                  google::protobuf::RpcController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response,
                  google::protobuf::Closure* done) override {
    on_call({static_cast<RpcServerController*>(controller),
             static_cast<const TestRequest*>(request),
             static_cast<TestResponse*>(response), done});
  }

  FlexibleService::Handler on_call = FlexibleService::Echo;
};

TEST_F(ServerLimitsTest, CallsOverTheLimitAreRefusedAndCounted) {
  server_options().max_concurrent_requests = 2;
  fiber::Event go;
  fiber::Latch two_run(2);
  service().on_call = [&](TestCall call) {
    two_run.count_down();
    go.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  client.Call(2, kCall, MakeRequest(""));
  two_run.wait();
  std::string batch;
  for (int i = 3; i <= 202; ++i) {
    batch += client.Encode(i, kOther, MakeRequest(""));
  }
  client.Send(batch);
  for (int i = 3; i <= 202; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->id, static_cast<std::uint64_t>(i));
    EXPECT_EQ(reply->status, STATUS_OVERLOADED);
    EXPECT_EQ(reply->description, "Server overloaded.");
  }
  RawClient http(endpoint(), "http+pb");
  http.Send("GET /any HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(http.ReadUntil("\r\n"), "HTTP/1.1 503 Service Unavailable\r\n");
  go.Set();
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  // There is room again.
  client.Call(300, kOther, MakeRequest("again"));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  EXPECT_EQ(server().statistics().calls_overloaded, 201u);
}

TEST_F(ServerLimitsTest, ConnectionsMayAlwaysHaveOneRequest) {
  server_options().max_concurrent_requests_per_connection = 0;
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != 2; ++i) {
    client.Send("HEAD /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(client.ReadUntil("\r\n\r\n").substr(0, 12), "HTTP/1.1 404");
  }
}

TEST_F(ServerLimitsTest, DecompressedRequestsAreLimitedTogether) {
  server_options().max_concurrent_decompressed_bytes = 1'000'000;
  fiber::Event go;
  fiber::Latch two_run(2);
  service().on_call = [&](TestCall call) {
    if (call.request->body().size() > 100) {
      two_run.count_down();
      go.Wait();
    }
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  const auto call_compressed = [&](std::uint64_t id, std::size_t body,
                                   std::size_t attachment) {
    OutboundRequest request;
    request.correlation_id = id;
    request.method = kCall;
    request.compression = CompressionAlgorithm::kZstd;
    request.body =
        *Compress(CompressionAlgorithm::kZstd,
                  CreateBufferSlow(
                      MakeRequest(std::string(body, 'x')).SerializeAsString()));
    request.attachment =
        *Compress(CompressionAlgorithm::kZstd,
                  CreateBufferSlow(std::string(attachment, 'y')));
    request.attachment_compressed = true;
    client.Send(client.Encode(std::move(request)));
  };
  const auto reply_status = [&](std::uint64_t id) {
    const auto reply = client.ReadReply();
    if (!reply) return -1;
    EXPECT_EQ(reply->id, id);
    return reply->status;
  };
  call_compressed(1, 500'000, 1);
  call_compressed(2, 101, 600'000);  // Attachments count, too.
  two_run.wait();
  call_compressed(3, 50, 50);
  EXPECT_EQ(reply_status(3), STATUS_OVERLOADED);
  client.Call(4, kCall, MakeRequest("not compressed"));
  EXPECT_EQ(reply_status(4), STATUS_SUCCESS);
  EXPECT_EQ(server().statistics().calls_overloaded, 1u);
  go.Set();
  EXPECT_TRUE(client.ReadReply() && client.ReadReply());
  call_compressed(5, 50, 50);
  EXPECT_EQ(reply_status(5), STATUS_SUCCESS);
}

TEST_F(ServerLimitsTest, MethodsHaveLimitsOfTheirOwn) {
  server_options().max_concurrent_requests_per_method =
      std::string(kCall) + ":1,some.other.Method:5";
  server_options().status_code_for_overloaded = 4321;
  fiber::Event go, runs;
  service().on_call = FlexibleService::EchoAfter(&go, &runs);
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  runs.Wait();
  client.Call(2, kCall, MakeRequest(""));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 2u);
  EXPECT_EQ(reply->status, 4321);
  client.Call(3, kOther, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  go.Set();
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  client.Call(4, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
}

// A code of another protocol would be taken for the service's own failure,
// after which callers don't try another server.
TEST_F(ServerLimitsTest, ProtocolsWithTheirOwnCodeForOverloadKeepIt) {
  server_options().max_concurrent_requests_per_method =
      std::string(kCall) + ":1";
  server_options().status_code_for_overloaded = 2004;
  fiber::Event go, runs;
  service().on_call = FlexibleService::EchoAfter(&go, &runs);
  StartServer({"flare", "baidu-std", "http+pb", "trpc", "bolt"});
  RawClient first(endpoint());
  first.Call(1, kCall, MakeRequest(""));
  runs.Wait();
  struct Case {
    const char* scheme;
    int status;
  } cases[] = {{"flare", 2004},
               {"baidu-std", 2004},
               {"http+pb", 2004},
               {"trpc", STATUS_OVERLOADED},
               {"bolt", STATUS_OVERLOADED}};
  for (const Case& c : cases) {
    RawClient client(endpoint(), c.scheme);
    client.Call(2, kCall, MakeRequest(""));
    const auto reply = client.ReadReply();
    EXPECT_TRUE(reply) << c.scheme;
    if (!reply) continue;  // The first call has still to go on.
    EXPECT_EQ(reply->status, c.status) << c.scheme;
    EXPECT_EQ(reply->description, "Server overloaded.") << c.scheme;
  }
  // SOFARPC goes by the frame's status: thread pool busy.
  RawClient bolt(endpoint(), "bolt");
  bolt.Call(2, kCall, MakeRequest(""));
  const std::string frame = bolt.ReadExactly(20);
  go.Set();
  ASSERT_EQ(frame.size(), 20u);
  EXPECT_EQ(frame.substr(10, 2), std::string("\0\4", 2));
  EXPECT_EQ(first.ReadReply()->status, STATUS_SUCCESS);
}

TEST_F(ServerLimitsTest, MethodsHaveTheLimitsOfTheirProtoFile) {
  // Its own limit is the smaller one.
  server_options().max_concurrent_requests_per_method =
      std::string(kOneAtATime) + ":5";
  fiber::Event go, runs;
  LimitedServiceImpl limited;
  server().AddService(&limited);
  limited.on_call = [&](TestCall call) {
    if (call.request->body() == "wait") {
      runs.Set();
      go.Wait();
    }
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kOneAtATime, MakeRequest("wait"));
  runs.Wait();
  // One that is running counts in all protocols.
  std::uint64_t id = 2;
  for (const char* scheme : {"flare", "http+pb", "http+proto3-json"}) {
    RawClient another(endpoint(), scheme);
    another.Call(id, kOneAtATime, MakeRequest(""));
    const auto reply = another.ReadReply();
    ASSERT_TRUE(reply) << scheme;
    EXPECT_EQ(reply->status, STATUS_OVERLOADED) << scheme;
    EXPECT_EQ(reply->description, "Server overloaded.") << scheme;
    another.Call(++id, kUnlimited, MakeRequest(""));
    EXPECT_EQ(another.ReadReply()->status, STATUS_SUCCESS) << scheme;
  }
  EXPECT_EQ(server().statistics().calls_overloaded, 3u);
  go.Set();
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  client.Call(10, kOneAtATime, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  client.Close();
  StopServer();  // The service ends before the fixture.
}

TEST_F(ServerLimitsTest, ProtoFilesWithNegativeLimitsAreRefused) {
  class : public NegativeDelay {
  } borrowed;
  EXPECT_FALSE(server().AddService(&borrowed));
  class Owned : public NegativeLimit {};
  EXPECT_FALSE(server().AddService(std::make_unique<Owned>()));
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  // The first of the two.
  EXPECT_NE(server().error().message().find(
                "method flare.rpc.testing.NegativeDelay.Call has the option "
                "(flare.max_queueing_delay_ms) = -20"),
            std::string::npos)
      << server().error().message();
}

class OneWorkerTest : public ServerTest {
 protected:
  int workers() const override { return 1; }

  // Sends two calls, the second of which waits for the worker until the first
  // has blocked it for 600 ms; returns the reply to the second. (So a limit of
  // 500 ms is for the second only. On a busy machine the first may wait as long
  // for the worker, and is refused, too: then there are two others.)
  RawClient::Reply QueueBehindASlowCall(std::uint32_t timeout_ms,
                                        std::string_view scheme = "flare",
                                        std::string_view method = kOther) {
    service().on_call = [&](TestCall call) {
      // Blocks the only worker's thread.
      const auto until = call.controller->GetTimestampReceived() +
                         std::chrono::milliseconds(600);
      while (std::chrono::steady_clock::now() < until) {
      }
      FlexibleService::Echo(call);
    };
    server().AddService(&limited_);
    StartServer({std::string(scheme)});
    const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
    for (;;) {
      RawClient client(endpoint(), scheme);
      client.Send(client.Encode(1, kCall, MakeRequest("")) +
                  client.Encode(2, method, MakeRequest(""), timeout_ms));
      const auto first = client.ReadReply();
      auto second = client.ReadReply();
      if (!first || !second) break;
      if (first->status == STATUS_OVERLOADED && NowNs() < give_up_ns) continue;
      EXPECT_EQ(first->status, STATUS_SUCCESS);
      return *std::move(second);
    }
    ADD_FAILURE() << "no reply";
    return {};
  }

 private:
  LimitedServiceImpl limited_;
};

TEST_F(OneWorkerTest, CallsThatWaitedTooLongAreRefused) {
  server_options().max_request_queueing_delay = std::chrono::milliseconds(500);
  EXPECT_EQ(QueueBehindASlowCall(0).status, STATUS_OVERLOADED);
}

// By default.
TEST_F(OneWorkerTest, CallsThatWaitTooLongForTheirCallersAreRefused) {
  server_options().max_request_queueing_delay = std::chrono::nanoseconds(-1);
  EXPECT_EQ(QueueBehindASlowCall(640).status, STATUS_OVERLOADED);
}

TEST_F(OneWorkerTest, PatientCallersMayWait) {
  server_options().max_request_queueing_delay = std::chrono::nanoseconds(-1);
  EXPECT_EQ(QueueBehindASlowCall(60'000).status, STATUS_SUCCESS);
}

TEST_F(OneWorkerTest, CallsMayWaitAsLongAsTheirMethodSays) {
  server_options().max_request_queueing_delay = std::chrono::nanoseconds(-1);
  EXPECT_EQ(QueueBehindASlowCall(0, "flare", kPatient).status, STATUS_SUCCESS);
}

TEST_F(OneWorkerTest, CallsWhoseCallerHasGivenUpAreRefused) {
  EXPECT_EQ(QueueBehindASlowCall(2).status, STATUS_OVERLOADED);
}

// Where the protocol tells them from an overload.
TEST_F(OneWorkerTest, CallsWhoseTimeIsOverHaveTimedOutInTrpc) {
  EXPECT_EQ(QueueBehindASlowCall(2, "trpc").status, STATUS_TIMEOUT);
}

TEST_F(OneWorkerTest, WaitingIsNoErrorByItself) {
  EXPECT_EQ(QueueBehindASlowCall(0).status, STATUS_SUCCESS);
}

// The limit of the method's .proto file, and those of others, of which the
// smallest one holds.

TEST_F(OneWorkerTest, CallsThatWaitedTooLongForTheirMethodAreRefused) {
  server_options().max_request_queueing_delay = std::chrono::hours(1);
  const auto reply = QueueBehindASlowCall(0, "flare", kPrompt);
  EXPECT_EQ(reply.status, STATUS_OVERLOADED);
  EXPECT_EQ(reply.description, "Server overloaded.");
  EXPECT_EQ(server().statistics().calls_overloaded, 1u);
}

// No matter how patient the caller is; and in trpc, too, it is an overload.
TEST_F(OneWorkerTest, CallsMayHaveMoreTimeThanTheirMethodMayWait) {
  EXPECT_EQ(QueueBehindASlowCall(60'000, "trpc", kPrompt).status,
            STATUS_OVERLOADED);
}

TEST_F(OneWorkerTest, CallersMayBeLessPatientThanTheMethod) {
  EXPECT_EQ(QueueBehindASlowCall(2, "trpc", kPatient).status, STATUS_TIMEOUT);
}

TEST_F(OneWorkerTest, ServersMayBeLessPatientThanTheMethod) {
  server_options().max_request_queueing_delay = std::chrono::milliseconds(500);
  EXPECT_EQ(QueueBehindASlowCall(0, "flare", kPatient).status,
            STATUS_OVERLOADED);
}

TEST_F(OneWorkerTest, CallsMayWaitAsLongAsTheirMethodLets) {
  EXPECT_EQ(QueueBehindASlowCall(60'000, "flare", kPatient).status,
            STATUS_SUCCESS);
}

TEST_F(OneWorkerTest, WaitingForNoLimitIsNoError) {
  EXPECT_EQ(QueueBehindASlowCall(0, "flare", kUnlimited).status,
            STATUS_SUCCESS);
}

// A peer that sends and sends, but reads late, doesn't fill our memory: calls
// wait with their replies.
TEST_F(ServerLimitsTest, SlowReaderIsHeldBack) {
  server_options().max_concurrent_requests = 100;
  service().on_call = [](TestCall call) {
    call.Reply(std::string(4'000'000, 'x'));
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (int i = 1; i <= 50; ++i) {
    batch += client.Encode(i, kCall, MakeRequest(""));
  }
  client.Send(batch);
  // It still answers others, which it would not if workers were blocked.
  RawClient other(endpoint());
  other.Call(1, kOther, MakeRequest("fine"));
  EXPECT_EQ(other.ReadReply()->As<TestResponse>().body(), "fine");
  // And all replies arrive once they are read.
  for (int i = 1; i <= 50; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    ASSERT_EQ(reply->As<TestResponse>().body().size(), 4'000'000u);
  }
}

}  // namespace
}  // namespace flare::rpc::testing
