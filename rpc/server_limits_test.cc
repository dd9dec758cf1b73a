// How much a server takes: of calls, connections, waiting, and output.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/rpc/testing/server_fixture.h"

namespace flare::rpc::testing {
namespace {

using ServerLimitsTest = ServerTest;

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

TEST_F(ServerLimitsTest, MethodsHaveLimitsOfTheirOwn) {
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

class OneWorkerTest : public ServerTest {
 protected:
  int workers() const override { return 1; }

  // Sends two calls, the second of which waits for the worker until the first
  // has blocked it for 600 ms; returns the reply to the second. (So a limit of
  // 500 ms is for the second only: the first waits for the kernel at most.)
  RawClient::Reply QueueBehindASlowCall(std::uint32_t timeout_ms,
                                        std::string_view scheme = "flare") {
    service().on_call = [&](TestCall call) {
      // Blocks the only worker's thread.
      const auto until = call.controller->GetTimestampReceived() +
                         std::chrono::milliseconds(600);
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
  server_options().max_request_queueing_delay = std::chrono::milliseconds(500);
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

TEST_F(ServerLimitsTest, ConnectionsOverTheLimitAreClosed) {
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

TEST_F(ServerLimitsTest, FilterRefusesConnections) {
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

TEST_F(ServerLimitsTest, IdleConnectionsAreClosed) {
  // So long that no call comes too late on a connection that was just made.
  server_options().connection_max_idle = std::chrono::milliseconds(1000);
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
