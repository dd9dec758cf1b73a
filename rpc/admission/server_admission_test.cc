// Rules of admission from end to end: real servers and channels, over each
// protocol. A limit begins with 20 calls, so that no test depends on time.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/admission/adaptive_limit.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using ::testing::HasSubstr;
using Mode = AdmissionOptions::Mode;

constexpr std::size_t kFirst = AdaptiveLimit::kFirst;

class AdmissionTest : public ServerTest {
 protected:
  void TearDown() override {
    calls_.clear();
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve(const std::string& protocol, AdmissionOptions rules) {
    server_options().admission = rules;
    service().on_call = [this](TestCall call) { Hold(call); };
    server().AddHttpHandler(
        "/page", NewHttpGetHandler(
                     [](const HttpRequest&, HttpResponse* response,
                        HttpServerContext*) { response->set_body("hello"); }));
    StartServer({protocol, "http"});
    channel_ =
        std::make_unique<RpcChannel>(protocol + "://" + endpoint().ToString());
  }

  TestedCall* Start(const std::string& priority = "") {
    calls_.push_back(std::make_unique<TestedCall>());
    if (!priority.empty()) {
      calls_.back()->controller.AddMetadata("x-priority", priority);
    }
    calls_.back()->controller.SetTimeout(std::chrono::seconds(60));
    return calls_.back()->Start(channel_.get());
  }

  // So many calls more are held by the method when it returns.
  void StartHeld(std::size_t count, const std::string& priority = "") {
    for (std::size_t i = 0; i != count; ++i) Start(priority);
    expected_ += count;
    std::unique_lock guard(mutex_);
    held_more_.wait(guard, [&] { return held_.size() == expected_; });
  }

  // All held calls succeed.
  void Release() {
    std::vector<TestCall> held;
    {
      const std::scoped_lock guard(mutex_);
      released_ = true;
      held.swap(held_);
    }
    for (const TestCall& call : held) FlexibleService::Echo(call);
  }

  RpcChannel* channel() { return channel_.get(); }
  const std::vector<std::unique_ptr<TestedCall>>& calls() { return calls_; }

  std::string Get(const std::string& path) {
    RawClient client(endpoint());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" +
                "Connection: close\r\n\r\n");
    return client.ReadAll();
  }

  std::uint64_t RefusedBy(AdmissionRule rule) {
    return server()
        .statistics()
        .admission.refused[static_cast<std::size_t>(rule)];
  }

 private:
  void Hold(TestCall call) {
    {
      const std::scoped_lock guard(mutex_);
      if (!released_) {
        held_.push_back(call);
        return held_more_.notify_one();
      }
    }
    FlexibleService::Echo(call);
  }

  std::unique_ptr<RpcChannel> channel_;
  std::vector<std::unique_ptr<TestedCall>> calls_;
  std::size_t expected_ = 0;
  std::mutex mutex_;
  std::condition_variable held_more_;
  bool released_ = false;
  std::vector<TestCall> held_;
};

class AdmissionOverProtocols
    : public AdmissionTest,
      public ::testing::WithParamInterface<const char*> {};

TEST_P(AdmissionOverProtocols, RefusesCallsBeyondTheLimit) {
  Serve(GetParam(), {.limit = Mode::kRefuse});
  StartHeld(kFirst);
  EXPECT_EQ(Start()->Await(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 503 "));
  EXPECT_EQ(RefusedBy(AdmissionRule::kLimit), 2u);
  // The pages of the server are served all the same.
  EXPECT_THAT(Get("/inspect/server"), HasSubstr("admission_limit 20\n"));
  EXPECT_THAT(Get("/inspect/server"), HasSubstr("admission_refused_limit 2\n"));
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, HasSubstr("\nflare_server_adaptive_limit 20\n"));
  EXPECT_THAT(metrics, HasSubstr("\nflare_server_admission_calls_total{"
                                 "rule=\"limit\",outcome=\"refused\"} 2\n"));
  Release();
  for (std::size_t i = 0; i != kFirst; ++i) EXPECT_EQ(calls()[i]->Await(), 0);
  EXPECT_EQ(Start()->Await(), 0);
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 200 "));
}

TEST_P(AdmissionOverProtocols, LowPrioritiesAreRefusedFirst) {
  Serve(GetParam(), {.limit = Mode::kRefuse, .priority_key = "x-priority"});
  StartHeld(12);
  // They may use 12 of the 20, 11, and the default 16.
  EXPECT_EQ(Start("sheddable")->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(Start("0")->Await(), STATUS_OVERLOADED);
  StartHeld(4);
  EXPECT_EQ(Start()->Await(), STATUS_OVERLOADED);
  StartHeld(4, "critical");
  EXPECT_EQ(Start("critical")->Await(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/inspect/server"),
              HasSubstr("admission_refused_priority_9 1\n"));
  const std::string metrics = Get("/metrics");
  for (const char* priority : {"0", "1", "5", "9"}) {
    EXPECT_THAT(metrics,
                HasSubstr("\nflare_server_admission_refused_total{priority=\"" +
                          std::string(priority) + "\"} 1\n"));
  }
  Release();
  int failed = 0;
  for (const auto& call : calls()) failed += call->Await() != 0;
  EXPECT_EQ(failed, 4);
  EXPECT_EQ(Start("0")->Await(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, AdmissionOverProtocols,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"));

TEST_F(AdmissionTest, EachMethodHasALimit) {
  Serve("flare", {.method_limits = Mode::kRefuse});
  StartHeld(kFirst);
  EXPECT_EQ(Start()->Await(), STATUS_OVERLOADED);
  EXPECT_EQ(RefusedBy(AdmissionRule::kMethodLimit), 1u);
  TestService::Stub stub(channel());
  RpcClientController controller;
  const TestRequest request = MakeRequest("other");
  TestResponse response;
  fiber::Event ended;
  stub.Other(&controller, &request, &response,
             google::protobuf::NewCallback(&ended, &fiber::Event::Set));
  ended.Wait();
  EXPECT_EQ(controller.ErrorCode(), 0);
  EXPECT_THAT(Get("/metrics"),
              HasSubstr("\nflare_server_method_adaptive_limit{method=\"" +
                        std::string(kCall) + "\"} 20\n"));
  Release();
  for (std::size_t i = 0; i != kFirst; ++i) EXPECT_EQ(calls()[i]->Await(), 0);
  EXPECT_EQ(Start()->Await(), 0);
}

TEST_F(AdmissionTest, CallsThatWaitForTheirPeerHaveNoPlace) {
  server_options().output_timeout = std::chrono::minutes(2);
  Serve("flare", {.method_limits = Mode::kRefuse});
  fiber::Event go;
  std::atomic<std::size_t> started{0};
  service().on_call = [&](TestCall call) {
    if (call.request->body() == "slow") {
      started.fetch_add(1);
      go.Wait();
    }
    FlexibleService::Echo(call);
  };
  service().on_other = [](TestCall call) {
    call.Reply(std::string(60'000'000, 'x'));
  };
  RawClient slow(endpoint());
  for (std::size_t i = 1; i <= kFirst; ++i) {
    slow.Call(i, kCall, MakeRequest("slow"));
  }
  ASSERT_TRUE(Eventually([&] { return started == kFirst; }));
  EXPECT_EQ(Start()->Await(), STATUS_OVERLOADED);
  // Its reply is being sent, and most of it waits.
  slow.Call(kFirst + 1, kOther, MakeRequest(""));
  EXPECT_EQ(slow.ReadExactly(100).size(), 100u);
  go.Set();
  EXPECT_TRUE(Eventually([&] { return Start()->Await() == 0; }));
  EXPECT_GE(server().statistics().calls_running, kFirst);
  slow.Close();
  ASSERT_TRUE(
      Eventually([&] { return server().statistics().calls_running == 0; }));
}

TEST_F(AdmissionTest, ALimitThatOnlyCountsRefusesNothing) {
  Serve("flare", {.limit = Mode::kCount});
  StartHeld(kFirst + 5);
  EXPECT_EQ(RefusedBy(AdmissionRule::kLimit), 0u);
  // At least those that came last; more if all were read before the first ran.
  constexpr auto kLimit = static_cast<std::size_t>(AdmissionRule::kLimit);
  const std::uint64_t count =
      server().statistics().admission.would_refuse[kLimit];
  EXPECT_GE(count, 5u);
  EXPECT_THAT(Get("/inspect/server"),
              HasSubstr("admission_would_refuse_limit " +
                        std::to_string(count) + "\n"));
  Release();
  for (const auto& call : calls()) EXPECT_EQ(call->Await(), 0);
}

TEST_F(AdmissionTest, CallsThatWouldComeTooLateAreRefused) {
  Serve("flare", {.late = Mode::kRefuse});
  service().on_call = [](TestCall call) {
    if (call.request->body() == "slow") {
      this_fiber::SleepFor(std::chrono::seconds(1));
    }
    FlexibleService::Echo(call);
  };
  TestedCall slow;
  slow.request.set_body("slow");
  slow.controller.SetTimeout(std::chrono::seconds(60));
  EXPECT_EQ(slow.Start(channel())->Await(), 0);
  // One of them may be tried. On a busy machine others may end by themselves.
  EXPECT_TRUE(Eventually([&] {
    std::vector<TestedCall> hurried(20);
    for (TestedCall& call : hurried) {
      call.controller.SetTimeout(std::chrono::milliseconds(700));
      call.Start(channel());
    }
    for (TestedCall& call : hurried) call.Await();
    return RefusedBy(AdmissionRule::kLate) != 0;
  }));
  EXPECT_EQ(Start()->Await(), 0);
}

TEST_F(AdmissionTest, RulesThatMakeNoSenseFailTheStart) {
  server_options().admission = {.queue = Mode::kRefuse,
                                .queue_target = std::chrono::seconds(1)};
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  EXPECT_THAT(server().error().message(), HasSubstr("queue_interval"));
}

TEST_F(AdmissionTest, NamesOfMetadataAreInLowerCase) {
  server_options().admission = {.limit = Mode::kRefuse,
                                .priority_key = "X-Priority"};
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  EXPECT_THAT(server().error().message(), HasSubstr("\"X-Priority\""));
}

}  // namespace
}  // namespace flare::rpc::testing
