// Calls and answers. Setting up is in server_setup_test.cc, payloads in
// server_payload_test.cc, refusals in server_limits_test.cc, hostile input in
// server_input_test.cc, stopping in server_stop_test.cc.
#include "flare/rpc/server.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/latch.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

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

// No test of this program may have an ExecutionLocal: those that do are in
// request_context_test.cc.
TEST_F(ServerCallTest, RunsInAContextAlsoWithoutLocals) {
  EXPECT_FALSE(fiber::ExecutionContext::AnyLocals());
  service().on_call = [](TestCall call) {
    const auto* const context = fiber::ExecutionContext::Current();
    ASSERT_NE(context, nullptr);
    EXPECT_TRUE(context->IsAsNew());
    EXPECT_EQ(context->deadline_ns(), 0);
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "hello");
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
  service().on_call = FlexibleService::EchoAfter(&go);
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

TEST_F(ServerCallTest, DoneMustNotRunTwice) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  service().on_call = [](TestCall call) {
    call.done->Run();
    call.done->Run();
  };
  StartServer();
  EXPECT_DEATH(
      {
        RawClient client(endpoint());
        client.Call(1, kCall, MakeRequest(""));
        client.ReadAll();
      },
      "done->Run\\(\\) was called twice");
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
    // Between workers the clock may differ by a microsecond.
    constexpr auto kSlack = std::chrono::microseconds(2);
    EXPECT_LE(c.GetTimestampReceived(), c.GetTimestampDispatched() + kSlack);
    EXPECT_LE(c.GetTimestampDispatched(), c.GetTimestampParsed() + kSlack);
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

}  // namespace
}  // namespace flare::rpc::testing
