// Calls whose callers leave, whose time is over, and whose server stops.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::ExecutionContext;
using fiber::StopCause;
using fiber::testing::Eventually;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::string_literals::operator""s;

// Closes it by a reset.
void Reset(RawClient* client) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(client->fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now)),
            0);
  client->Close();
}

// The message by which the caller of a call gives it up, over `flare`: id,
// method_type SINGLE, reset.
std::string ResetOf(char id) {
  return "CPRF\x07\0\0\0\0\0\0\0\0\0\0\0\x08"s + id + "\x38\x01\xb0\x3f\x63";
}

class SettingClosure : public google::protobuf::Closure {
 public:
  explicit SettingClosure(fiber::Event* event) : event_(event) {}
  void Run() override {
    ++runs;
    event_->Set();
  }
  std::atomic<int> runs{0};

 private:
  fiber::Event* const event_;
};

class ServerCancelTest : public ServerTest {
 protected:
  // Has Call() wait until it is stopped, and then fail with the cause as text.
  void WaitForStop() {
    service().on_call = [this](TestCall call) {
      started.Set();
      EXPECT_FALSE(
          this_fiber::SleepFor(call.controller->GetStopToken(), hours(1)));
      EXPECT_TRUE(call.controller->IsCanceled());
      cause = ExecutionContext::Current()->stop_cause();
      call.controller->SetFailed(1234, ToString(cause));
      call.Reply();
      ended.Set();
    };
  }
  std::uint64_t Cancelled() { return server().statistics().calls_cancelled; }

  fiber::Event started;
  fiber::Event ended;
  StopCause cause = StopCause::kNone;
};

TEST_F(ServerCancelTest, ByTheLossOfTheConnection) {
  WaitForStop();
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  Reset(&client);
  ended.Wait();
  EXPECT_EQ(cause, StopCause::kCallerGone);
  EXPECT_EQ(Cancelled(), 1u);
}

// Without a farewell, as when its machine fails.
TEST_F(ServerCancelTest, ByAClientThatVanishes) {
  server_options().tcp_keep_alive = std::chrono::seconds(1);
  WaitForStop();
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  constexpr int kOn = 1;
  if (setsockopt(client.fd(), IPPROTO_TCP, TCP_REPAIR, &kOn, sizeof(kOn)) !=
      0) {
    client.Close();
    ended.Wait();
    GTEST_SKIP() << "only root can have a socket vanish";
  }
  client.Close();
  ended.Wait();
  EXPECT_EQ(cause, StopCause::kCallerGone);
}

// As one does that is killed. A caller that has only ended its output still
// gets the reply.
TEST_F(ServerCancelTest, ByTheEndOfItsInput) {
  WaitForStop();
  StartServer({"flare", "http+pb"});
  for (const char* scheme : {"flare", "http+pb"}) {
    started.Reset();
    ended.Reset();
    RawClient client(endpoint(), scheme);
    client.Call(1, kCall, MakeRequest(""));
    started.Wait();
    client.Shutdown();
    ended.Wait();
    EXPECT_EQ(cause, StopCause::kCallerGone);
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply) << scheme;
    EXPECT_EQ(reply->status, 1234);
    EXPECT_EQ(reply->description, "the caller is gone");
    EXPECT_TRUE(client.AtEnd());
  }
}

class OneWorkerServerCancelTest : public ServerCancelTest {
 protected:
  int workers() const override { return 1; }
};

// The end of input is read before the call of another connection that comes
// after it.
TEST_F(OneWorkerServerCancelTest, NotByTheEndOfItsInputIfSoSet) {
  server_options().cancel_calls_at_end_of_input = false;
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    const std::stop_token stop = call.controller->GetStopToken();
    started.Set();
    go.Wait();
    EXPECT_FALSE(stop.stop_requested());
    EXPECT_FALSE(call.controller->IsCanceled());
    call.Reply("answered");
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  client.Shutdown();
  RawClient other(endpoint());
  other.Call(1, kOther, MakeRequest(""));
  EXPECT_TRUE(other.ReadReply());
  go.Set();
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "answered");
  EXPECT_EQ(Cancelled(), 0u);
}

TEST_F(ServerCancelTest, ByTheDeadline) {
  WaitForStop();
  StartServer();
  RawClient client(endpoint());
  std::optional<RawClient::Reply> reply;
  for (int id = 1; !started.IsSet(); ++id) {  // On a busy machine too late.
    client.Call(id, kCall, MakeRequest(""), /*timeout_ms=*/100);
    reply = client.ReadReply();
    ASSERT_TRUE(reply);
  }
  EXPECT_EQ(reply->description, "its deadline has passed");
  EXPECT_EQ(cause, StopCause::kDeadline);
}

TEST_F(ServerCancelTest, NotByADeadlineThatIsKept) {
  service().on_call = [&](TestCall call) {
    EXPECT_FALSE(call.controller->GetStopToken().stop_requested());
    const ExecutionContext* const here = ExecutionContext::Current();
    EXPECT_EQ(ToTimePoint(here->deadline_ns()), call.controller->GetTimeout());
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  for (int i = 1; i != 100; ++i) {
    client.Call(i, kCall, MakeRequest(""), /*timeout_ms=*/3'600'000);
    EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
  }
  EXPECT_EQ(Cancelled(), 0u);
}

// Nobody has watched it.
TEST_F(ServerCancelTest, IsSeenByALook) {
  service().on_call = [&](TestCall call) {
    started.Set();
    while (!call.controller->IsCanceled()) this_fiber::Yield();
    EXPECT_TRUE(call.controller->GetStopToken().stop_requested());
    call.Reply();
    ended.Set();
  };
  StartServer();
  {
    RawClient client(endpoint());
    for (int id = 1; !started.IsSet(); ++id) {  // On a busy machine too late.
      client.Call(id, kCall, MakeRequest(""), /*timeout_ms=*/50);
      ASSERT_TRUE(client.ReadReply());
    }
    ended.Wait();
  }
  started.Reset();
  ended.Reset();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  client.Close();
  ended.Wait();
}

TEST_F(ServerCancelTest, ReachesFibersThatWorkForTheCall) {
  service().on_call = [&](TestCall call) {
    auto child = fiber::Async([&] {
      const std::stop_token stop = ExecutionContext::Current()->stop_token();
      started.Set();
      return this_fiber::SleepFor(stop, hours(1));
    });
    EXPECT_FALSE(fiber::BlockingGet(std::move(child)));
    call.Reply();
    ended.Set();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  client.Close();
  ended.Wait();
}

// A fiber goes on in the context of a call that has been answered: nobody stops
// it, and the next call has a context of its own.
TEST_F(ServerCancelTest, ConcernsNobodyAfterTheEnd) {
  fiber::Event closed;
  service().on_call = [&](TestCall call) {
    static_cast<void>(fiber::Async([&] {
      closed.Wait();
      EXPECT_FALSE(ExecutionContext::Current()->stop_token().stop_requested());
      ended.Set();
    }));
    call.Reply();
    EXPECT_FALSE(ExecutionContext::Current()->stop_token().stop_requested());
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  Reset(&client);
  while (server().statistics().connections_open != 0) {
    std::this_thread::yield();
  }
  closed.Set();
  ended.Wait();
}

TEST_F(ServerCancelTest, RunsTheCallbackOfACancelledCall) {
  SettingClosure callback(&ended);
  SettingClosure late(&ended);
  std::optional<TestCall> kept;
  service().on_call = [&](TestCall call) {
    call.controller->NotifyOnCancel(&callback);
    kept = call;
    started.Set();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  client.Close();
  ended.Wait();
  EXPECT_TRUE(kept->controller->IsCanceled());
  kept->controller->NotifyOnCancel(&late);
  EXPECT_EQ(late.runs, 1);
  kept->Reply();
  EXPECT_EQ(callback.runs, 1);
  EXPECT_EQ(late.runs, 1);
}

TEST_F(ServerCancelTest, RunsTheCallbackAtTheEndOfOthers) {
  SettingClosure callback(&ended);
  fiber::Event returned;
  service().on_call = [&](TestCall call) {
    call.controller->NotifyOnCancel(&callback);
    EXPECT_EQ(callback.runs, 0);
    call.Reply();
    EXPECT_EQ(callback.runs, 1);
    returned.Set();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  ended.Wait();
  client.Close();
  returned.Wait();  // The method looks at the callback after its reply.
}

TEST_F(ServerCancelTest, ReachesHttpHandlers) {
  server().AddHttpHandler(
      "/wait", NewHttpGetHandler([&](const HttpRequest&, HttpResponse*, auto*) {
        started.Set();
        const std::stop_token stop = ExecutionContext::Current()->stop_token();
        EXPECT_FALSE(this_fiber::SleepFor(stop, hours(1)));
        ended.Set();
      }));
  StartServer();
  RawClient client(endpoint());
  client.Send("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
  started.Wait();
  client.Close();
  ended.Wait();
}

// They answer in the time that is left after the drain timeout.
TEST_F(ServerCancelTest, ByTheServersEnd) {
  server_options().drain_timeout = milliseconds(100);
  WaitForStop();
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  started.Wait();
  server().Stop();
  EXPECT_EQ(server().Join(), 0u);
  EXPECT_EQ(cause, StopCause::kShuttingDown);
  EXPECT_EQ(client.ReadReply()->description, "the server stops");
}

// The first call of many has its caller leave, and the others find that when
// workers come to them.
TEST_F(OneWorkerServerCancelTest, CallsThatHaveNotBegunAreDropped) {
  constexpr int kCalls = 500;
  std::atomic<int> begun{0};
  fiber::Event left;
  service().on_call = [&](TestCall call) {
    if (begun++ == 0) {
      started.Set();
      // The worker, too: no other call begins before.
      while (!left.IsSet()) std::this_thread::yield();
    }
    const std::int64_t end = NowNs() + 200'000;
    while (NowNs() < end) continue;
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (int i = 1; i <= kCalls; ++i) {
    batch += client.Encode(i, kCall, MakeRequest(""));
  }
  client.Send(batch);
  started.Wait();
  Reset(&client);
  left.Set();
  while (server().statistics().connections_open != 0 ||
         server().statistics().calls_running != 0) {
    std::this_thread::yield();
  }
  EXPECT_LT(begun, kCalls);
  EXPECT_GT(Cancelled(), 0u);
  EXPECT_LE(begun + Cancelled(), kCalls);
}

// The caller of each call gives it up before it begins.
TEST_F(OneWorkerServerCancelTest, CallsThatAreGivenUpDontBegin) {
  constexpr int kCalls = 10;
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    ++begun;
    static_cast<void>(
        this_fiber::SleepFor(call.controller->GetStopToken(), hours(1)));
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (int i = 1; i <= kCalls; ++i) {
    batch += client.Encode(i, kCall, MakeRequest(""));
  }
  for (char i = 1; i <= kCalls; ++i) batch += ResetOf(i);
  client.Send(batch + client.Encode(kCalls + 1, kOther, MakeRequest("other")));
  // The connection goes on. Nothing is sent for the others.
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, kCalls + 1u);
  EXPECT_TRUE(Eventually([&] { return Cancelled() == kCalls; }));
  EXPECT_EQ(begun, 0);
}

// More than are taken off the list of watched calls at once.
TEST_F(ServerCancelTest, ManyCallsThatAreGivenUpTogether) {
  constexpr char kCalls = 100;
  std::atomic<int> watched{0};
  std::atomic<int> stopped{0};
  service().on_call = [&](TestCall call) {
    const std::stop_token stop = call.controller->GetStopToken();
    ++watched;
    EXPECT_FALSE(this_fiber::SleepFor(stop, hours(1)));
    EXPECT_EQ(ExecutionContext::Current()->stop_cause(), StopCause::kCancelled);
    ++stopped;
    call.Reply();
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (char i = 1; i <= kCalls; ++i) {
    batch += client.Encode(i, kCall, MakeRequest(""));
  }
  client.Send(batch);
  ASSERT_TRUE(Eventually([&] { return watched == kCalls; }));
  batch.clear();
  // The first one goes on.
  for (char i = 2; i <= kCalls; ++i) batch += ResetOf(i);
  client.Send(batch);
  EXPECT_TRUE(Eventually([&] { return stopped == kCalls - 1; }));
  client.Send(client.Encode(kCalls + 1, kOther, MakeRequest("other")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, kCalls + 1u);
  EXPECT_EQ(stopped, kCalls - 1);
  client.Send(ResetOf(1));
  EXPECT_TRUE(Eventually([&] { return stopped == int{kCalls}; }));
}

// --- by StartCancel() of our own client ------------------------------------

struct CancelledCallCase {
  const char* protocol;
  ConnectionKind kind;
  StopCause cause;
};

class CancelledCallTest
    : public ServerCancelTest,
      public ::testing::WithParamInterface<CancelledCallCase> {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerCancelTest::TearDown();
  }
};

// No call of the connection was answered before.
TEST_P(CancelledCallTest, EndsAtTheServerAndAlone) {
  const auto& [protocol, kind, expected] = GetParam();
  WaitForStop();
  fiber::Event go;
  fiber::Event other_started;
  service().on_other = FlexibleService::EchoAfter(&go, &other_started);
  StartServer({protocol});
  RpcChannel channel(std::string(protocol) + "://" + endpoint().ToString(),
                     RpcChannel::Options{.connection_kind = kind,
                                         .max_connections_per_server = 1});
  ASSERT_TRUE(channel.status().ok()) << channel.status().ToString();
  RpcClientController other;
  const TestRequest request = MakeRequest("unharmed");
  TestResponse response;
  fiber::Event answered;
  SettingClosure done(&answered);
  TestService_Stub(&channel).Other(&other, &request, &response, &done);
  other_started.Wait();

  TestedCall call;
  call.Start(&channel);
  started.Wait();
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  ended.Wait();
  EXPECT_EQ(cause, expected);

  go.Set();
  answered.Wait();
  EXPECT_FALSE(other.Failed()) << other.ErrorText();
  EXPECT_EQ(response.body(), "unharmed");
  EXPECT_TRUE(Eventually([&] { return Cancelled() == 1; }));
  EXPECT_EQ(server().statistics().connections_accepted,
            kind == ConnectionKind::kMultiplexed ? 1u : 2u);
}

INSTANTIATE_TEST_SUITE_P(
    Protocols, CancelledCallTest,
    ::testing::Values(CancelledCallCase{"flare", ConnectionKind::kMultiplexed,
                                        StopCause::kCancelled},
                      CancelledCallCase{"grpc", ConnectionKind::kMultiplexed,
                                        StopCause::kCancelled},
                      // The connection was the call's own, and is closed.
                      CancelledCallCase{"http+pb", ConnectionKind::kPooled,
                                        StopCause::kCallerGone},
                      CancelledCallCase{"baidu-std", ConnectionKind::kPooled,
                                        StopCause::kCallerGone}),
    [](const auto& test) {
      const std::string name = test.param.protocol;
      return name.substr(0, name.find_first_of("+-"));
    });

TEST(RpcServerControllerCancel, OutsideOfAServerNothingIsCancelled) {
  RpcServerController controller;
  EXPECT_FALSE(controller.IsCanceled());
  EXPECT_FALSE(controller.GetStopToken().stop_possible());
  fiber::Event event;
  SettingClosure callback(&event);
  controller.NotifyOnCancel(&callback);
  EXPECT_EQ(callback.runs, 1);
}

}  // namespace
}  // namespace flare::rpc::testing
