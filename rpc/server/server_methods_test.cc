// A server's counters of each method: Server::method_statistics().
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "flare/fiber/event.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
namespace {

class ServerMethodsTest : public ServerTest {
 protected:
  // A connection that is still open would hold up the server's stop.
  void TearDown() override {
    client_.reset();
    ServerTest::TearDown();
  }

  // Starts the server with a call of kCall that runs until `finish_`.
  void StartWithACall() {
    service().on_call = FlexibleService::EchoAfter(&finish_, &inside_);
    StartServer();
    client_.emplace(endpoint());
    client_->Call(1, kCall, MakeRequest("hello"));
    inside_.Wait();
  }
  void FinishTheCall() {
    finish_.Set();
    ASSERT_TRUE(client_->ReadReply());
  }
  // A further call, of which only the reply matters.
  void CallBesideIt(const char* method) {
    client_->Call(2, method, MakeRequest("hello"));
    ASSERT_TRUE(client_->ReadReply());
  }

  Server::MethodStatistics Of(const std::string& name) {
    for (const auto& each : server().method_statistics()) {
      if (each.name == name) return each;
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  void ExpectCounts(const std::string& name, std::uint64_t calls,
                    std::uint64_t running, std::uint64_t failed,
                    std::uint64_t overloaded) {
    const Server::MethodStatistics s = Of(name);
    EXPECT_EQ(s.calls, calls);
    EXPECT_EQ(s.running, running);
    EXPECT_EQ(s.failed, failed);
    EXPECT_EQ(s.overloaded, overloaded);
  }

 private:
  fiber::Event inside_;
  fiber::Event finish_;
  std::optional<RawClient> client_;
};

TEST_F(ServerMethodsTest, RepliesThatHaveComeAreCounted) {
  service().on_call = [](TestCall call) {
    if (call.request->number() % 2 == 0) call.controller->SetFailed("even");
    FlexibleService::Echo(call);
  };
  StartServer();
  for (const char* protocol : {"flare", "http+pb"}) {
    const std::uint64_t before = Of(kCall).calls;
    RawClient client(endpoint(), protocol);
    for (int i = 1; i <= 20; ++i) {
      client.Call(i, kCall, MakeRequest("", i));
      ASSERT_TRUE(client.ReadReply());
      const std::uint64_t calls = before + static_cast<std::uint64_t>(i);
      ExpectCounts(kCall, calls, 0, calls / 2, 0);
      EXPECT_EQ(Of(kCall).latencies_ns.count(), calls);
    }
  }
  ExpectCounts(kOther, 0, 0, 0, 0);
}

TEST_F(ServerMethodsTest, CallsThatRunAreCounted) {
  StartWithACall();
  const std::int64_t since_ns = NowNs();
  ExpectCounts(kCall, 1, 1, 0, 0);
  EXPECT_EQ(Of(kCall).latencies_ns.count(), 0u);
  for (int i = 0; i < 20; ++i) CallBesideIt(kOther);
  const std::int64_t took_ns = NowNs() - since_ns;
  FinishTheCall();
  ExpectCounts(kCall, 1, 0, 0, 0);
  constexpr std::int64_t kClocksDiffer = 10'000;
  const Histogram latencies = Of(kCall).latencies_ns;
  EXPECT_GE(latencies.max(), took_ns - kClocksDiffer);
  EXPECT_GE(latencies.ValueAtQuantile(0.5), took_ns - kClocksDiffer);
  EXPECT_GE(latencies.mean(), static_cast<double>(took_ns - kClocksDiffer));
}

TEST_F(ServerMethodsTest, AnAnswerBeforeTheEndCounts) {
  fiber::Event finish;
  service().on_call = [&](TestCall call) {
    call.controller->WriteResponseImmediately();
    finish.Wait();
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("hello"));
  ASSERT_TRUE(client.ReadReply());
  ExpectCounts(kCall, 1, 0, 0, 0);
  finish.Set();
  client.Close();
  StopServer();
  ExpectCounts(kCall, 1, 0, 0, 0);
  EXPECT_EQ(Of(kCall).latencies_ns.count(), 1u);
}

TEST_F(ServerMethodsTest, AnswersOfThreadsCount) {
  constexpr int kCalls = 10;
  TestCall calls[kCalls];
  fiber::Event came[kCalls];
  service().on_call = [&](TestCall call) {
    const auto i = static_cast<std::size_t>(call.request->number());
    calls[i] = call;
    came[i].Set();
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 0; i != kCalls; ++i) {
    client.Call(i + 1, kCall, MakeRequest("hello", i));
    came[i].Wait();
    const auto before = static_cast<std::uint64_t>(i);
    ExpectCounts(kCall, before + 1, 1, 0, 0);
    FlexibleService::Echo(calls[i]);  // This is a thread.
    ASSERT_TRUE(client.ReadReply());
    ExpectCounts(kCall, before + 1, 0, 0, 0);
  }
  EXPECT_EQ(Of(kCall).latencies_ns.count(), std::uint64_t{kCalls});
}

TEST_F(ServerMethodsTest, CallsOverTheMethodsLimitAreCounted) {
  server_options().max_concurrent_requests_per_method =
      std::string(kCall) + ":1";
  StartWithACall();
  CallBesideIt(kCall);
  ExpectCounts(kCall, 2, 1, 1, 1);
  FinishTheCall();
  ExpectCounts(kCall, 2, 0, 1, 1);
  EXPECT_EQ(Of(kCall).latencies_ns.count(), 1u);
}

TEST_F(ServerMethodsTest, CallsOverTheServersLimitAreCounted) {
  server_options().max_concurrent_requests = 1;
  StartWithACall();
  for (const char* method : {kOther, "no.such.Method"}) CallBesideIt(method);
  ExpectCounts(kCall, 1, 1, 0, 0);
  ExpectCounts(kOther, 1, 0, 1, 1);
  FinishTheCall();
}

TEST_F(ServerMethodsTest, CallsThatTheServiceNeverSeesAreCounted) {
  constexpr char kStreaming[] = "flare.rpc.testing.TestService.CallStreaming";
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCallStrict, TestResponse());  // Without its required field.
  ASSERT_TRUE(client.ReadReply());
  ExpectCounts(kCallStrict, 1, 0, 1, 0);
  client.Call(2, kStreaming, MakeRequest("hello"));
  ASSERT_TRUE(client.ReadReply());
  ExpectCounts(kStreaming, 1, 0, 1, 0);
  client.Call(3, "flare.rpc.testing.TestService.Nothing", MakeRequest("hello"));
  ASSERT_TRUE(client.ReadReply());
  std::uint64_t calls = 0;
  for (const auto& each : server().method_statistics()) {
    calls += each.calls;
    EXPECT_EQ(each.latencies_ns.count(), 0u);
  }
  EXPECT_EQ(calls, 2u);
}

}  // namespace
}  // namespace flare::rpc::testing
