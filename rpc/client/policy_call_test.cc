// Calls that are repeated by a policy.
#include "flare/rpc/client/policy_call.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/policy/retry_budget.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/servers_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Quoted by docs/retries.md.
std::shared_ptr<CallPolicies> Policies() {
  auto policies = std::make_shared<CallPolicies>();
  // A method: three attempts of 200 ms each.
  RetryPolicy retry;
  retry.max_attempts = 3;
  retry.attempt_timeout = milliseconds(200);
  CHECK(policies->Set("flare.rpc.testing.TestService.Call", {.retry = retry})
            .ok());
  // Those others of the service that are idempotent: a second server, if the
  // first one takes longer than it does for 95 of 100 calls.
  HedgingPolicy hedging;
  hedging.percentile = 0.95;
  CHECK(policies->Set("flare.rpc.testing.TestService", {.hedging = hedging})
            .ok());
  return policies;
}

class PolicyCallTest : public ServersTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ServersTest::SetUp());
    // Other tests have taken from it.
    for (int i = 0; i != 1000; ++i) RetryBudget::Default().OnCall();
  }

  // Retries without long pauses.
  static RetryPolicy Quick(std::size_t max_attempts) {
    return {.max_attempts = max_attempts,
            .initial_backoff = std::chrono::microseconds(100)};
  }

  static RpcChannel::Options With(CallPolicy policy,
                                  const std::string& name = kCall) {
    auto policies = std::make_shared<CallPolicies>();
    const flare::Status set = policies->Set(name, std::move(policy));
    EXPECT_TRUE(set.ok()) << set.ToString();
    RpcChannel::Options options;
    options.policies = std::move(policies);
    return options;
  }

  // Fails the first `failures` calls, and says how.
  FlexibleService::Handler FailsAtFirst(int failures, int code,
                                        const std::string& pushback = {}) {
    return [this, failures, code, pushback](TestCall call) {
      if (calls_++ >= failures) return FlexibleService::Echo(call);
      if (!pushback.empty()) {
        call.controller->AddResponseMetadata("grpc-retry-pushback-ms",
                                             pushback);
      }
      call.controller->SetFailed(code, "no");
      call.Reply();
    };
  }

  std::atomic<int> calls_{0};
};

TEST_F(PolicyCallTest, RepeatsUntilACallSucceeds) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(2, STATUS_OVERLOADED);
  RpcChannel channel(uri(0), With({.retry = Quick(3)}));
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.controller.ErrorText(), "");
  EXPECT_EQ(call.response.body(), "ping");
  EXPECT_EQ(calls_, 3);
  const auto blocking = [&] {
    calls_ = 0;
    RpcClientController controller;
    const TestRequest request = MakeRequest("x");
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorText(), "");
    EXPECT_EQ(response.body(), "x");
    EXPECT_EQ(calls_, 3);
  };
  blocking();
  OnFiber(blocking);
}

TEST_F(PolicyCallTest, GivesUpAfterTheLastAttempt) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(1000, STATUS_OVERLOADED);
  RpcChannel channel(uri(0), With({.retry = Quick(3)}));
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(call.controller.ErrorText(), "no");
  EXPECT_EQ(calls_, 3);
}

// The method has run, and may not run twice.
TEST_F(PolicyCallTest, ACallWithTooLargeAReplyIsNotRepeated) {
  StartServers(1, "grpc");
  service(0).on_call = [this](TestCall call) {
    ++calls_;
    call.Reply(std::string(5000, 'x'));
  };
  auto options = With({.retry = Quick(3)}, "flare.rpc.testing.TestService");
  options.maximum_packet_size = 2000;
  RpcChannel channel(uri(0), options);
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_MALFORMED_DATA);
  EXPECT_EQ(calls_, 1);
}

TEST_F(PolicyCallTest, OnlySomeStatusesAreRepeated) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(1000, 1234);
  RpcChannel by_default(uri(0), With({.retry = Quick(3)}));
  TestedCall once;
  EXPECT_EQ(once.Start(&by_default)->Await(), 1234);
  EXPECT_EQ(calls_, 1);
  RetryPolicy retry = Quick(3);
  retry.statuses = {1234};
  RpcChannel channel(uri(0), With({.retry = retry}));
  TestedCall thrice;
  EXPECT_EQ(thrice.Start(&channel)->Await(), 1234);
  EXPECT_EQ(calls_, 4);
}

TEST_F(PolicyCallTest, PoliciesOfTheDocument) {
  const auto policies = Policies();
  const auto call = policies->Find(MethodNamed("Call")->full_name());
  EXPECT_TRUE(call.by_name);
  ASSERT_TRUE(call.policy->policy().retry);
  EXPECT_EQ(call.policy->policy().retry->attempt_timeout, milliseconds(200));
  const auto other = policies->Find(MethodNamed("Other")->full_name());
  EXPECT_FALSE(other.by_name);
  ASSERT_TRUE(other.policy->policy().hedging);
  EXPECT_EQ(other.policy->policy().hedging->percentile, 0.95);
}

// Calls of other methods are none of its business.
TEST_F(PolicyCallTest, OtherMethodsHaveNone) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(1000, STATUS_OVERLOADED);
  RpcChannel channel(uri(0), With({.retry = Quick(3)}, kOther));
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(calls_, 1);
}

TEST_F(PolicyCallTest, ANewAttemptGoesToAnotherServer) {
  StartServers(2);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  RpcChannel channel(uri(0) + "," + address(1), With({.retry = Quick(2)}));
  for (int i = 0; i != 10; ++i) {
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
    EXPECT_EQ(call.controller.GetRemotePeer().ToString(), address(1));
  }
}

// Its server may have run a call that was lost.
TEST_F(PolicyCallTest, LostCallsAreRepeatedIfTheyMayRunTwice) {
  const auto lose = [](const RpcChannel::Options& options, const char* method) {
    RawServer server;
    RpcChannel channel(server.uri(), options);
    TestedCall call;
    channel.CallMethod(MethodNamed(method), &call.controller, &call.request,
                       &call.response, &call);
    auto peer = server.Accept();
    EXPECT_TRUE(peer->ReadRequest());
    peer->Close();
    std::thread answering([&] {
      while (!call.HasEnded()) {
        if (!server.HasVisitor()) {
          std::this_thread::yield();
          continue;
        }
        peer = server.Accept();
        if (const auto request = peer->ReadRequest()) {
          peer->Reply(request->id, "pong");
        }
      }
    });
    const int code = call.Await();
    answering.join();
    return code;
  };
  EXPECT_EQ(lose(With({.retry = Quick(3)}), "Call"), STATUS_SUCCESS);
  const std::string of_all;
  EXPECT_EQ(lose(With({.retry = Quick(3)}, of_all), "Call"), STATUS_IO_ERROR);
  EXPECT_EQ(lose(With({.retry = Quick(3)}, of_all), "Other"), STATUS_SUCCESS);
}

// One of two servers doesn't answer once, which isn't held against it.
TEST_F(PolicyCallTest, AnAttemptMayTakeTooLong) {
  StartServers(2);
  // An attempt that was given up may outlive the test.
  const auto answers = std::make_shared<std::array<std::atomic<int>, 2>>();
  for (int i = 0; i != 2; ++i) {
    service(i).on_call = [this, answers, i, silent = Silent()](TestCall call) {
      if (calls_++ == 0) return silent(call);
      ++(*answers)[i];
      FlexibleService::Echo(call);
    };
  }
  RetryPolicy retry = Quick(10);
  retry.attempt_timeout = seconds(1);
  RpcChannel::Options options = With({.retry = retry});
  options.health.consecutive_failures = 1;
  RpcChannel channel(uri(0) + "," + address(1), options);
  TestedCall first;
  EXPECT_EQ(first.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_GE(calls_, 2);
  EXPECT_GE(first.controller.GetElapsedTime(), seconds(1));
  for (int i = 0; i != 4; ++i) {
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  }
  EXPECT_GE((*answers)[0], 2);
  EXPECT_GE((*answers)[1], 2);
}

TEST_F(PolicyCallTest, ServersSayWhenToRepeat) {
  StartServers(1);
  RpcChannel channel(uri(0), With({.retry = Quick(3)}));
  service(0).on_call = FailsAtFirst(1, STATUS_OVERLOADED, "1");
  TestedCall soon;
  EXPECT_EQ(soon.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(calls_, 2);
  calls_ = 0;
  service(0).on_call = FailsAtFirst(1, STATUS_OVERLOADED, "-1");
  TestedCall never;
  EXPECT_EQ(never.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(calls_, 1);
  calls_ = 0;
  // Later than the deadline.
  service(0).on_call = FailsAtFirst(1, STATUS_OVERLOADED, "60000");
  TestedCall late;
  EXPECT_EQ(late.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(calls_, 1);
}

TEST_F(PolicyCallTest, CancellationEndsThePause) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(1, STATUS_OVERLOADED, "15000");
  RpcChannel channel(uri(0), With({.retry = Quick(2)}));
  TestedCall call;
  const std::uint64_t before = RetryBudget::Default().counters().retries;
  call.Start(&channel);
  // It pauses once it has taken a token.
  while (RetryBudget::Default().counters().retries == before &&
         !call.HasEnded()) {
    std::this_thread::yield();
  }
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  EXPECT_LT(call.controller.GetElapsedTime(), seconds(10));
  EXPECT_EQ(calls_, 1);
}

TEST_F(PolicyCallTest, TheBudgetEndsRetries) {
  StartServers(1);
  service(0).on_call = [this](TestCall call) {
    ++calls_;
    while (RetryBudget::Default().Take(RetryBudget::Use::kRetry, NowNs())) {
    }
    call.controller->SetFailed(STATUS_OVERLOADED, "no");
    call.Reply();
  };
  RpcChannel channel(uri(0), With({.retry = Quick(100)}));
  const std::uint64_t before = RetryBudget::Default().counters().refused;
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_LT(calls_, 100);
  EXPECT_GT(RetryBudget::Default().counters().refused, before);
}

TEST_F(PolicyCallTest, TimeoutsAreLimited) {
  StartServers(1);
  service(0).on_call = Silent();
  RpcChannel channel(uri(0), With({.timeout = milliseconds(500)}));
  TestedCall call;
  call.controller.SetTimeout(seconds(20));
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_TIMEOUT);
  EXPECT_GE(call.controller.GetElapsedTime(), milliseconds(500));
  // The caller's wish is as it was.
  EXPECT_GT(call.controller.GetTimeout() - std::chrono::steady_clock::now(),
            seconds(15));
}

TEST_F(PolicyCallTest, InterceptorsSeeOneCall) {
  struct Counting : ClientInterceptor {
    void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
      ++calls;
      next.Run();
      EXPECT_FALSE(call.controller().Failed());
    }
    std::atomic<int> calls{0};
  };
  StartServers(1);
  service(0).on_call = FailsAtFirst(2, STATUS_OVERLOADED);
  RpcChannel::Options options = With({.retry = Quick(3)});
  const auto counting = std::make_shared<Counting>();
  options.interceptors = {counting};
  RpcChannel channel(uri(0), options);
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(counting->calls, 1);
  EXPECT_EQ(calls_, 3);
}

// ---------------------------------------------------------------------------
// Hedged calls
// ---------------------------------------------------------------------------

class HedgedCallTest : public PolicyCallTest {
 protected:
  static HedgingPolicy After(std::chrono::nanoseconds delay,
                             std::size_t attempts = 2) {
    return {.max_attempts = attempts, .delay = delay};
  }
  // The first call has no answer, others do.
  FlexibleService::Handler SilentOnce() {
    return [this, silent = Silent()](TestCall call) {
      if (calls_++ == 0) return silent(call);
      FlexibleService::Echo(call);
    };
  }
};

TEST_F(HedgedCallTest, TheSecondServerAnswers) {
  StartServers(2);
  std::atomic<int> calls[2] = {};
  for (int i = 0; i != 2; ++i) {
    service(i).on_call = [&, i, then = SilentOnce()](TestCall call) {
      ++calls[i];
      EXPECT_EQ(call.controller->GetRequestMetadata().Get("x-who"), "me");
      call.controller->SetResponseAttachment(
          call.controller->GetRequestAttachment());
      then(call);
    };
  }
  RpcChannel channel(uri(0) + "," + address(1),
                     With({.hedging = After(milliseconds(10))}));
  const std::uint64_t before = RetryBudget::Default().counters().hedges;
  TestedCall call;
  call.controller.AddMetadata("x-who", "me");
  call.controller.SetRequestAttachment(CreateBufferSlow("attached"));
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(call.response.body(), "ping");
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()), "attached");
  EXPECT_FALSE(call.controller.GetRemotePeer().empty());
  EXPECT_EQ(calls[0], 1);
  EXPECT_EQ(calls[1], 1);
  EXPECT_EQ(RetryBudget::Default().counters().hedges, before + 1);
}

TEST_F(HedgedCallTest, AQuickAnswerNeedsNoSecondServer) {
  StartServers(2);
  for (int i = 0; i != 2; ++i) service(i).on_call = FailsAtFirst(0, 0);
  RpcChannel channel(uri(0) + "," + address(1),
                     With({.hedging = After(seconds(15))}));
  const auto blocking = [&] {
    calls_ = 0;
    RpcClientController controller;
    const TestRequest request = MakeRequest("x");
    TestResponse response;
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorText(), "");
    EXPECT_EQ(response.body(), "x");
    EXPECT_EQ(calls_, 1);
    EXPECT_LT(controller.GetElapsedTime(), seconds(10));
  };
  blocking();
  OnFiber(blocking);
}

TEST_F(HedgedCallTest, AFailureNeedsNoDelay) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(2, STATUS_OVERLOADED);
  RpcChannel channel(uri(0), With({.hedging = After(seconds(15), 3)}));
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(calls_, 3);
  EXPECT_LT(call.controller.GetElapsedTime(), seconds(10));
  calls_ = -1;
  TestedCall failed;
  EXPECT_EQ(failed.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(calls_, 2);
}

TEST_F(HedgedCallTest, OtherFailuresEndTheCall) {
  StartServers(1);
  RpcChannel channel(uri(0), With({.hedging = After(seconds(15))}));
  service(0).on_call = FailsAtFirst(2, 1234);
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), 1234);
  EXPECT_EQ(calls_, 1);
  calls_ = 0;
  service(0).on_call = FailsAtFirst(2, STATUS_OVERLOADED, "-1");
  TestedCall never;
  EXPECT_EQ(never.Start(&channel)->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(calls_, 1);
}

// No attempt is under way that would hear of it.
TEST_F(HedgedCallTest, TheStopOfItsContextEndsAPause) {
  StartServers(1);
  service(0).on_call = FailsAtFirst(9, STATUS_OVERLOADED, "100000");
  RpcChannel channel(uri(0), With({.hedging = After(seconds(15))}));
  const auto context = fiber::ExecutionContext::Create();
  TestedCall call;
  call.controller.SetTimeout(seconds(200));
  context->Execute([&] { call.Start(&channel); });
  while (calls_ != 1) std::this_thread::yield();
  context->RequestStop(fiber::StopCause::kCallerGone);
  EXPECT_EQ(call.Await(), STATUS_FAILED);
  EXPECT_TRUE(call.controller.IsCanceled());
  EXPECT_EQ(calls_, 1);
  EXPECT_LT(call.controller.GetElapsedTime(), seconds(50));
}

TEST_F(HedgedCallTest, OnlyMethodsThatMayRunTwice) {
  StartServers(1);
  fiber::Event go;
  service(0).on_call = [&](TestCall call) {
    ++calls_;
    go.Wait();
    FlexibleService::Echo(call);
  };
  RpcChannel channel(uri(0), With({.hedging = After(milliseconds(0))}, ""));
  TestedCall call;
  call.Start(&channel);
  TestedCall other;  // Idempotent.
  std::atomic<int> others{0};
  service(0).on_other = [&, silent = Silent()](TestCall call) {
    if (others++ == 0) return silent(call);
    FlexibleService::Echo(call);
  };
  channel.CallMethod(MethodNamed("Other"), &other.controller, &other.request,
                     &other.response, &other);
  EXPECT_EQ(other.Await(), STATUS_SUCCESS);
  go.Set();
  EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  EXPECT_EQ(others, 2);
  EXPECT_EQ(calls_, 1);
}

TEST_F(HedgedCallTest, CancellationAndDeadlineEndAllAttempts) {
  StartServers(2);
  for (int i = 0; i != 2; ++i) {
    service(i).on_call = [this, silent = Silent()](TestCall call) {
      ++calls_;
      silent(call);
    };
  }
  RpcChannel channel(uri(0) + "," + address(1),
                     With({.hedging = After(milliseconds(0))}));
  TestedCall cancelled;
  cancelled.Start(&channel);
  while (calls_ != 2) std::this_thread::yield();
  cancelled.controller.StartCancel();
  EXPECT_EQ(cancelled.Await(), STATUS_FAILED);
  EXPECT_TRUE(cancelled.controller.IsCanceled());
  TestedCall late;
  late.controller.SetTimeout(milliseconds(500));
  EXPECT_EQ(late.Start(&channel)->Await(), STATUS_TIMEOUT);
}

// StartCancel() while attempts begin and end.
TEST_F(HedgedCallTest, CancellationAtAnyMoment) {
  StartServers(2);
  service(0).on_call = FailsWith(STATUS_OVERLOADED);
  RpcChannel channel(uri(0) + "," + address(1),
                     With({.hedging = After(milliseconds(0))}));
  for (int i = 0; i != 200; ++i) {
    TestedCall call;
    fiber::Event ended;
    fiber::Spawn([&] {
      call.controller.StartCancel();
      ended.Set();
    });
    const int code = call.Start(&channel)->Await();
    EXPECT_TRUE(code == STATUS_SUCCESS || code == STATUS_OVERLOADED ||
                call.controller.IsCanceled())
        << code << ' ' << call.controller.ErrorText();
    ended.Wait();
  }
}

}  // namespace
}  // namespace flare::rpc::testing
