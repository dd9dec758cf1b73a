// Calls, answers, limits and configuration. What hostile input does is in
// server_input_test.cc, stopping in server_stop_test.cc.
#include "flare/rpc/server.h"

#include <sys/socket.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/server_group.h"
#include "flare/rpc/testing/server_fixture.h"

namespace flare::rpc::testing {
namespace {

using ServerCallTest = ServerTest;

TEST_F(ServerCallTest, AnswersACall) {
  StartServer();
  RawClient client(endpoint());
  client.Call(7, kCall, MakeRequest("hello", 42));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 7u);
  EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_EQ(reply->As<TestResponse>().body(), "hello");
  EXPECT_EQ(reply->As<TestResponse>().number(), 42);
}

TEST_F(ServerCallTest, AnswersManyOnOneConnectionInAnyProtocol) {
  StartServer({"flare", "http+pb", "http+proto3-json", "http", "bolt"});
  for (const char* scheme : {"flare", "http+pb", "http+proto3-json", "bolt"}) {
    RawClient client(endpoint(), scheme);
    constexpr int kCalls = 500;
    std::string batch;
    for (int i = 1; i <= kCalls; ++i) {
      batch += client.Encode(i, i % 2 ? kCall : kOther,
                             MakeRequest(std::string(i, 'x'), i));
    }
    client.Send(batch);
    std::map<std::uint64_t, int> seen;
    for (int i = 0; i != kCalls; ++i) {
      const auto reply = client.ReadReply();
      ASSERT_TRUE(reply) << scheme;
      EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
      if (scheme != std::string_view("http+proto3-json")) {
        EXPECT_EQ(reply->As<TestResponse>().body().size(), reply->id);
      }
      ++seen[reply->id];
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(kCalls)) << scheme;
  }
  EXPECT_EQ(server().statistics().calls, 2000u);
  EXPECT_EQ(server().statistics().calls_failed, 0u);
}

// Bodies from nothing to more than a read, in pieces of any size.
TEST_F(ServerCallTest, AnswersBodiesOfAllSizes) {
  StartServer({"flare"});
  RawClient client(endpoint());
  std::uint64_t id = 0;
  for (std::size_t size :
       {0, 1, 15, 16, 100, 1000, 4096, 70'000, 1 << 20, 4'000'000}) {
    std::string body(size, 'a');
    for (std::size_t i = 0; i < size; i += 7) body[i] = 'A' + i % 26;
    const std::string bytes = client.Encode(++id, kCall, MakeRequest(body));
    std::thread sender([&] {
      const std::size_t piece = 1 + size / 3;
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        client.Send(std::string_view(bytes).substr(at, piece));
      }
    });
    const auto reply = client.ReadReply();
    sender.join();
    ASSERT_TRUE(reply) << size;
    EXPECT_EQ(reply->id, id);
    EXPECT_TRUE(reply->As<TestResponse>().body() == body) << size;
  }
}

TEST_F(ServerCallTest, ManyConnectionsAndThreads) {
  StartServer();
  constexpr int kClients = 8;
  constexpr int kRounds = 40;
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int c = 0; c != kClients; ++c) {
    threads.emplace_back([&, c] {
      RawClient client(endpoint(), c % 2 ? "flare" : "http+pb");
      for (int round = 0; round != kRounds; ++round) {
        std::string batch;
        for (int i = 1; i <= 10; ++i) {
          batch += client.Encode(i, kCall, MakeRequest("x", c));
        }
        client.Send(batch);
        for (int i = 0; i != 10; ++i) {
          const auto reply = client.ReadReply();
          ASSERT_TRUE(reply);
          EXPECT_EQ(reply->As<TestResponse>().number(), c);
          ++answered;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(answered, kClients * kRounds * 10);
  const auto statistics = server().statistics();
  EXPECT_EQ(statistics.calls, static_cast<std::uint64_t>(answered));
  EXPECT_EQ(statistics.connections_accepted, kClients);
}

TEST_F(ServerCallTest, ServiceFailsTheCall) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234, "no luck");
    EXPECT_TRUE(call.controller->Failed());
    call.Reply("filled in all the same");
  };
  service().on_other = [](TestCall call) {
    call.controller->SetFailed("because");
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 1234);
  EXPECT_EQ(reply->description, "no luck");
  EXPECT_EQ(reply->As<TestResponse>().body(), "filled in all the same");
  client.Call(2, kOther, MakeRequest(""));
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_FAILED);
  EXPECT_EQ(reply->description, "because");
  EXPECT_EQ(server().statistics().calls_failed, 2u);
}

TEST_F(ServerCallTest, ResponseThatCannotBeSerialisedIsAnError) {
  StartServer();
  RawClient client(endpoint());
  Strict request;
  request.set_body("empty");
  client.Call(1, kCallStrict, request);
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_SERIALIZE_RESPONSE) << reply->description;
  EXPECT_EQ(reply->body, "");
  request.set_body("full");
  client.Call(2, kCallStrict, request);
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<Strict>().body(), "full");
}

TEST_F(ServerCallTest, AsynchronousServiceAnswersLaterInAnyOrder) {
  std::mutex mutex;
  std::vector<TestCall> kept;
  fiber::Latch all_there(3);
  service().on_call = [&](TestCall call) {
    {
      std::scoped_lock guard(mutex);
      kept.push_back(call);
    }
    all_there.count_down();
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 1; i <= 3; ++i) client.Call(i, kCall, MakeRequest("", i));
  all_there.wait();
  EXPECT_EQ(server().statistics().calls_running, 3u);
  // From this plain thread, the last first.
  std::sort(kept.begin(), kept.end(), [](const TestCall& a, const TestCall& b) {
    return a.request->number() > b.request->number();
  });
  for (const TestCall& call : kept) {
    call.Reply("late " + std::to_string(call.request->number()));
  }
  for (int i = 3; i >= 1; --i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->id, static_cast<std::uint64_t>(i));
    EXPECT_EQ(reply->As<TestResponse>().body(), "late " + std::to_string(i));
  }
}

TEST_F(ServerCallTest, ConnectionMayCloseWhileACallRuns) {
  fiber::Event started, client_gone, finished;
  service().on_call = [&](TestCall call) {
    started.Set();
    client_gone.Wait();
    call.Reply("for nobody");
    finished.Set();
  };
  StartServer();
  {
    RawClient client(endpoint());
    client.Call(1, kCall, MakeRequest(""));
    started.Wait();
    // A reset rather than an orderly end.
    const linger reset{1, 0};
    setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  client_gone.Set();
  finished.Wait();
  StopServer();
  EXPECT_EQ(server().statistics().connections_open, 0u);
  EXPECT_EQ(server().statistics().calls_running, 0u);
}

TEST_F(ServerCallTest, AnswersAPeerThatHasShutDownItsSide) {
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    go.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("still there?"));
  client.Shutdown();
  go.Set();
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "still there?");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerCallTest, EarlyReplyIsSentOnce) {
  fiber::Event answered;
  service().on_call = [&](TestCall call) {
    call.response->set_body("early");
    call.controller->WriteResponseImmediately();
    call.controller->WriteResponseImmediately();
    answered.Wait();
    call.Reply("too late");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "early");
  EXPECT_EQ(server().statistics().calls_running, 1u);
  answered.Set();
  // Nothing else comes for the first call.
  client.Call(2, kOther, MakeRequest("next"));
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 2u);
  client.Close();
  StopServer();  // The first call ends before `answered` does.
}

TEST_F(ServerCallTest, ControllerKnowsTheCall) {
  service().on_call = [&](TestCall call) {
    const RpcServerController& c = *call.controller;
    EXPECT_EQ(c.GetRemotePeer().host(), "127.0.0.1");
    EXPECT_NE(c.GetRemotePeer().port(), 0);
    EXPECT_LE(c.GetTimestampReceived(), c.GetTimestampDispatched());
    EXPECT_LE(c.GetTimestampDispatched(), c.GetTimestampParsed());
    EXPECT_GE(c.GetElapsedTime().count(), 0);
    const auto timeout = c.GetTimeout();
    call.Reply(timeout ? std::to_string((*timeout - c.GetTimestampReceived()) /
                                        std::chrono::milliseconds(1))
                       : "none");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""), 5000);
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "5000");
  client.Call(2, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "none");
}

TEST_F(ServerCallTest, AttachmentsGoBothWays) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  for (std::size_t size : {1, 1000, 1'000'000}) {
    OutboundRequest request;
    request.correlation_id = size;
    request.method = kCall;
    request.body = CreateBufferSlow(MakeRequest("x").SerializeAsString());
    request.attachment = CreateBufferSlow(std::string(size, 'z'));
    client.Send(client.Encode(std::move(request)));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
    EXPECT_TRUE(reply->attachment == std::string(size, 'z')) << size;
    EXPECT_EQ(reply->As<TestResponse>().body(), "x");
  }
}

TEST_F(ServerCallTest, AttachmentThatTheProtocolCannotCarryFailsTheCall) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(CreateBufferSlow("attached"));
    call.Reply("x");
  };
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest(""));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_NOT_SUPPORTED) << reply->description;
}

TEST_F(ServerCallTest, RawBytesReplaceTheMessage) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseRawBytes(CreateBufferSlow("raw"));
    call.Reply("not this");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->body, "raw");
}

class CompressionTest
    : public ServerTest,
      public ::testing::WithParamInterface<CompressionAlgorithm> {
 protected:
  static OutboundRequest MakeCompressed(CompressionAlgorithm algorithm) {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = kCall;
    request.compression = algorithm;
    request.body =
        *Compress(algorithm,
                  CreateBufferSlow(
                      MakeRequest(std::string(5000, 'c')).SerializeAsString()));
    request.attachment =
        *Compress(algorithm, CreateBufferSlow(std::string(9000, 'd')));
    request.attachment_compressed = true;
    return request;
  }
};

TEST_P(CompressionTest, BothWays) {
  service().on_call = [](TestCall call) {
    EXPECT_EQ(FlattenSlow(call.controller->GetRequestAttachment()),
              std::string(9000, 'd'));
    call.controller->SetCompressionAlgorithm(GetParam());
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_EQ(reply->compression, GetParam());
  EXPECT_TRUE(reply->attachment_compressed);
  EXPECT_LT(reply->body.size(), 1000u);
  EXPECT_LT(reply->attachment.size(), 1000u);
  const auto body =
      Decompress(GetParam(), CreateBufferSlow(reply->body), 1 << 20);
  ASSERT_TRUE(body);
  TestResponse response;
  ASSERT_TRUE(response.ParseFromString(FlattenSlow(*body)));
  EXPECT_EQ(response.body(), std::string(5000, 'c'));
  const auto attachment =
      Decompress(GetParam(), CreateBufferSlow(reply->attachment), 1 << 20);
  ASSERT_TRUE(attachment);
  EXPECT_EQ(FlattenSlow(*attachment), std::string(9000, 'd'));
}

TEST_P(CompressionTest, GarbageIsAnswered) {
  StartServer();
  RawClient client(endpoint());
  OutboundRequest request = MakeCompressed(GetParam());
  request.body = CreateBufferSlow("this was never compressed");
  client.Send(client.Encode(std::move(request)));
  auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  request = MakeCompressed(GetParam());
  request.attachment = CreateBufferSlow("nor this");
  client.Send(client.Encode(std::move(request)));
  reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  EXPECT_EQ(server().statistics().calls_malformed, 2u);
}

TEST_P(CompressionTest, PrecompressedAttachmentIsLeftAlone) {
  const Buffer packed =
      *Compress(GetParam(), CreateBufferSlow(std::string(9000, 'd')));
  service().on_call = [&](TestCall call) {
    call.controller->SetCompressionAlgorithm(GetParam());
    call.controller->SetResponseAttachment(packed);
    call.controller->SetResponseAttachmentPrecompressed(true);
    call.Reply("");
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(MakeCompressed(GetParam())));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  EXPECT_TRUE(reply->attachment_compressed);
  EXPECT_EQ(reply->attachment, FlattenSlow(packed));
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CompressionTest,
                         ::testing::Values(CompressionAlgorithm::kGzip,
                                           CompressionAlgorithm::kLz4Frame,
                                           CompressionAlgorithm::kSnappy,
                                           CompressionAlgorithm::kZstd));

TEST_F(ServerCallTest, CompressionIsLeftOutWhereTheProtocolHasNone) {
  service().on_call = [](TestCall call) {
    EXPECT_EQ(call.controller->GetPreferredCompressionAlgorithm(),
              CompressionAlgorithm::kNone);
    call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest("plain"));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "plain");
}

// --- Limits ---

TEST_F(ServerCallTest, CallsOverTheLimitAreRefusedAndCounted) {
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

TEST_F(ServerCallTest, MethodsHaveLimitsOfTheirOwn) {
  server_options().max_concurrent_requests_per_method =
      std::string(kCall) + ":1,some.other.Method:5";
  server_options().status_code_for_overloaded = 4321;
  fiber::Event go, runs;
  service().on_call = [&](TestCall call) {
    runs.Set();
    go.Wait();
    FlexibleService::Echo(call);
  };
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

TEST_F(ServerCallTest, BrpcsClientsMayLeaveThePackageOut) {
  StartServer({"baidu-std", "flare"});
  RawClient client(endpoint(), "baidu-std");
  client.Call(1, "TestService.Call", MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  client.Call(2, "TestService.NoSuch", MakeRequest(""));
  EXPECT_EQ(client.ReadReply()->status, STATUS_METHOD_NOT_FOUND);
  RawClient other(endpoint());
  other.Call(1, "TestService.Call", MakeRequest(""));
  EXPECT_EQ(other.ReadReply()->status, STATUS_METHOD_NOT_FOUND);
}

class OneWorkerTest : public ServerTest {
 protected:
  int workers() const override { return 1; }

  // Sends two calls, the second of which waits for the worker until the first
  // has blocked it for long enough; returns the reply to the second.
  RawClient::Reply QueueBehindASlowCall(std::uint32_t timeout_ms,
                                        std::string_view scheme = "flare") {
    service().on_call = [&](TestCall call) {
      // Blocks the only worker's thread.
      const auto until = call.controller->GetTimestampReceived() +
                         std::chrono::milliseconds(5);
      while (std::chrono::steady_clock::now() < until) {
      }
      FlexibleService::Echo(call);
    };
    StartServer({std::string(scheme)});
    RawClient client(endpoint(), scheme);
    client.Send(client.Encode(1, kCall, MakeRequest("")) +
                client.Encode(2, kOther, MakeRequest(""), timeout_ms));
    EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
    return *client.ReadReply();
  }
};

TEST_F(OneWorkerTest, CallsThatWaitedTooLongAreRefused) {
  server_options().max_request_queueing_delay = std::chrono::milliseconds(2);
  EXPECT_EQ(QueueBehindASlowCall(0).status, STATUS_OVERLOADED);
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

TEST_F(ServerCallTest, ConnectionsOverTheLimitAreClosed) {
  server_options().max_concurrent_connections = 2;
  StartServer();
  {
    RawClient first(endpoint()), second(endpoint());
    for (RawClient* client : {&first, &second}) {
      client->Call(1, kCall, MakeRequest(""));
      EXPECT_TRUE(client->ReadReply());
    }
    RawClient third(endpoint());
    EXPECT_TRUE(third.AtEnd());
    EXPECT_EQ(server().statistics().connections_refused, 1u);
    EXPECT_EQ(server().statistics().connections_open, 2u);
    first.Shutdown();
    EXPECT_TRUE(first.AtEnd());
  }
  StopServer();
  EXPECT_EQ(server().statistics().connections_open, 0u);
}

TEST_F(ServerCallTest, FilterRefusesConnections) {
  std::atomic<int> asked{0};
  server_options().conn_filter = [&](const Endpoint& peer) {
    EXPECT_EQ(peer.host(), "127.0.0.1");
    return ++asked != 1;
  };
  StartServer();
  EXPECT_TRUE(RawClient(endpoint()).AtEnd());
  RawClient second(endpoint());
  second.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(second.ReadReply());
  EXPECT_EQ(server().statistics().connections_refused, 1u);
}

TEST_F(ServerCallTest, IdleConnectionsAreClosed) {
  server_options().connection_max_idle = std::chrono::milliseconds(20);
  server_options().remove_idle_connection_interval =
      std::chrono::milliseconds(5);
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    go.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient busy(endpoint());
  busy.Call(1, kCall, MakeRequest("busy"));
  RawClient idle(endpoint());
  EXPECT_TRUE(idle.AtEnd());
  // The one with a running call has lived as long.
  go.Set();
  const auto reply = busy.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "busy");
  EXPECT_TRUE(busy.AtEnd());
  idle.Close();
  busy.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_idle, 2u);
  EXPECT_EQ(server().statistics().connections_broken, 0u);
}

// A peer that sends and sends, but reads late, doesn't fill our memory: calls
// wait with their replies.
TEST_F(ServerCallTest, SlowReaderIsHeldBack) {
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

// --- Setting up ---

TEST_F(ServerCallTest, UnknownProtocolIsAnErrorThatNamesTheKnownOnes) {
  EXPECT_FALSE(server().AddProtocol("svrkit"));
  EXPECT_NE(server().error().message().find("svrkit"), std::string::npos);
  EXPECT_NE(server().error().message().find("http+pb"), std::string::npos)
      << server().error().ToString();
  EXPECT_TRUE(server().AddProtocol("flare"));
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
}

TEST_F(ServerCallTest, IncompleteSetUpIsAnError) {
  Server no_address;
  no_address.AddProtocol("flare");
  EXPECT_FALSE(no_address.Start());
  EXPECT_NE(no_address.error().message().find("ListenOn"), std::string::npos);

  Server no_protocol;
  no_protocol.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(no_protocol.Start());
  EXPECT_NE(no_protocol.error().message().find("AddProtocol"),
            std::string::npos);

  Server bad_address;
  EXPECT_FALSE(bad_address.ListenOn(EndpointFromIpv4("1.2.3", 1)));
  Server two_addresses;
  EXPECT_TRUE(two_addresses.ListenOn(EndpointFromIpv4("127.0.0.1", 0)));
  EXPECT_FALSE(two_addresses.ListenOn(EndpointFromIpv4("127.0.0.1", 0)));

  Server bad_limits(
      Server::Options{.max_concurrent_requests_per_method = "not a limit"});
  bad_limits.AddProtocol("flare");
  bad_limits.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(bad_limits.Start());
  EXPECT_NE(bad_limits.error().message().find("not a limit"),
            std::string::npos);
}

TEST_F(ServerCallTest, EachServiceAndPathOnce) {
  FlexibleService again;
  EXPECT_FALSE(server().AddService(&again));
  Server other;
  const auto handler = [](const HttpRequest&, HttpResponse*,
                          HttpServerContext*) {};
  EXPECT_TRUE(other.AddHttpHandler("/a", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpHandler("/a", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpHandler("b", NewHttpGetHandler(handler)));
  EXPECT_FALSE(other.AddHttpPrefixHandler("", NewHttpGetHandler(handler)));
}

TEST_F(ServerCallTest, PortInUseIsAnError) {
  StartServer();
  Server second;
  second.AddProtocol("flare");
  second.ListenOn(endpoint());
  EXPECT_FALSE(second.Start());
  EXPECT_NE(second.error().message().find(endpoint().ToString()),
            std::string::npos)
      << second.error().ToString();
  // The first goes on; once it has stopped the port is free.
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  client.Close();
  StopServer();
  Server third;
  third.AddProtocol("flare");
  third.ListenOn(endpoint());
  EXPECT_TRUE(third.Start()) << third.error().ToString();
}

TEST_F(ServerCallTest, GroupStartsAllOrNone) {
  ServerGroup group;
  Endpoint taken;
  {
    auto good = std::make_unique<Server>();
    good->AddProtocol("flare");
    good->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    group.AddServer(std::move(good));
    auto bad = std::make_unique<Server>();
    bad->AddProtocol("flare");
    group.AddServer(std::move(bad));
  }
  EXPECT_FALSE(group.Start());

  ServerGroup two;
  std::vector<Server*> servers;
  for (int i = 0; i != 2; ++i) {
    auto member = std::make_unique<Server>();
    member->AddProtocol("flare");
    member->AddService(std::make_unique<FlexibleService>());
    member->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    servers.push_back(two.AddServer(std::move(member)));
  }
  ASSERT_TRUE(two.Start());
  for (Server* member : servers) {
    RawClient client(member->endpoint());
    client.Call(1, kCall, MakeRequest(""));
    EXPECT_TRUE(client.ReadReply());
  }
  two.Stop();
  two.Join();
}

TEST_F(ServerCallTest, ListensOnUnixSockets) {
  // Not TempDir(): a socket's path has at most 107 characters.
  const std::string path = "/tmp/flare_server_test." + std::to_string(getpid());
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromUnix(path));
  ASSERT_TRUE(server().Start()) << server().error().ToString();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("local"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "local");
}

}  // namespace
}  // namespace flare::rpc::testing
