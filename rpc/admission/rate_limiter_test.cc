// Limits by rate from end to end: real servers and channels, over each
// protocol. Tokens come once in a quarter of an hour, so that no test depends
// on time.
#include "flare/rpc/rate_limiter.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/rpc/admission/admission_counters.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/serving/http_interception.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kSlow = 0.001;

class RateLimiterTest : public ServerTest {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve(RateLimiterOptions options) {
    auto limiter = RateLimiter::Create(std::move(options));
    ASSERT_TRUE(limiter) << limiter.error().ToString();
    server().AddInterceptor(*limiter);
    server().AddService(&streamer_);
    server().AddHttpHandler(
        "/page", NewHttpGetHandler(
                     [](const HttpRequest&, HttpResponse* response,
                        HttpServerContext*) { response->set_body("hello"); }));
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc", "http"});
  }

  void Connect(const std::string& protocol) {
    channel_ =
        std::make_unique<RpcChannel>(protocol + "://" + endpoint().ToString());
  }
  RpcChannel* channel() { return channel_.get(); }

  int Call(const std::string& tenant = "", std::string* text = nullptr) {
    TestedCall call;
    if (!tenant.empty()) call.controller.AddMetadata("x-tenant", tenant);
    const int status = call.Start(channel())->Await();
    if (text != nullptr) *text = call.controller.ErrorText();
    return status;
  }

  std::string Get(const std::string& path, const std::string& fields = "") {
    RawClient client(endpoint());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
                "Connection: close\r\n\r\n");
    return client.ReadAll();
  }

  FlexibleStreamer streamer_;

 private:
  std::unique_ptr<RpcChannel> channel_;
};

class LimitsOverProtocols : public RateLimiterTest,
                            public ::testing::WithParamInterface<const char*> {
};

TEST_P(LimitsOverProtocols, RefusesCallsBeyondTheRate) {
  int calls = 0;
  service().on_call = [&](TestCall call) {
    ++calls;
    FlexibleService::Echo(call);
  };
  const std::string name = std::string("over ") + GetParam();
  Serve({.limits = {{.name = name, .rate = kSlow, .burst = 2}}});
  Connect(GetParam());
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(Call(), 0);
  std::string text;
  EXPECT_EQ(Call("", &text), STATUS_OVERLOADED);
  EXPECT_THAT(text, HasSubstr("beyond the rate limit \"" + name + "\""));
  EXPECT_EQ(calls, 2);
  const AdmissionCounters& counters = *AdmissionCountersOf(name);
  EXPECT_EQ(counters.admitted.Value(), 2u);
  EXPECT_EQ(counters.refused.Value(), 1u);
  EXPECT_THAT(Get("/metrics"),
              HasSubstr("flare_rate_limit_calls_total{limit=\"" + name +
                        "\",outcome=\"refused\"} 1\n"));
}

INSTANTIATE_TEST_SUITE_P(All, LimitsOverProtocols,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"));

TEST_F(RateLimiterTest, AStreamIsOneCall) {
  Serve({.limits = {{.name = "streams", .rate = kSlow, .burst = 1}}});
  Connect("grpc");
  Streamer_SyncStub stub(channel());
  const auto count = [&] {
    RpcClientController controller;
    auto reader = stub.Count(MakeNumber(3), &controller);
    while (reader.Read()) {
    }
    return reader.status().code();
  };
  EXPECT_EQ(count(), 0);
  EXPECT_EQ(count(), STATUS_OVERLOADED);
}

TEST_F(RateLimiterTest, HttpIsToldWhenToComeAgain) {
  Serve({.limits = {{.name = "page",
                     .methods = {"/page", kCall},
                     .per = RateLimit::Per::kMethod,
                     .rate = kSlow,
                     .burst = 1}}});
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 200 "));
  const std::string refused = Get("/page");
  EXPECT_THAT(refused, HasSubstr("HTTP/1.1 429 "));
  EXPECT_THAT(refused, ::testing::ContainsRegex("\r\nRetry-After: [0-9]+\r\n"));
  EXPECT_THAT(refused, HasSubstr("beyond the rate limit \"page\""));
  // Each method has a bucket of its own.
  const auto call = [&] {
    RawClient client(endpoint());
    client.Send(std::string("POST /rpc/") + kCall +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                "Content-Type: application/json\r\nContent-Length: 2\r\n"
                "\r\n{}");
    return client.ReadAll();
  };
  EXPECT_THAT(call(), HasSubstr("HTTP/1.1 200 "));
  const std::string refused_call = call();
  EXPECT_THAT(refused_call, HasSubstr("HTTP/1.1 503 "));
  EXPECT_THAT(refused_call,
              ::testing::ContainsRegex("\r\nretry-after: [0-9]+\r\n"));
  // Pages of the server itself are for its operators.
  EXPECT_THAT(Get("/inspect/server"), HasSubstr("HTTP/1.1 200 "));
}

TEST_F(RateLimiterTest, CallersAreToldApartByMetadata) {
  Serve({.limits = {{.name = "tenants",
                     .per = RateLimit::Per::kMetadata,
                     .metadata = "x-tenant",
                     .rate = kSlow,
                     .burst = 1}}});
  Connect("flare");
  for (const char* tenant : {"a", "b", ""}) {
    EXPECT_EQ(Call(tenant), 0) << tenant;
    EXPECT_EQ(Call(tenant), STATUS_OVERLOADED) << tenant;
  }
  EXPECT_THAT(Get("/page", "X-Tenant: c\r\n"), HasSubstr("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/page", "X-Tenant: c\r\n"), HasSubstr("HTTP/1.1 429 "));
  EXPECT_THAT(Get("/page", "X-Tenant: d\r\n"), HasSubstr("HTTP/1.1 200 "));
}

// Stands for AccessControl.
class NameByTenant final : public ServerInterceptor {
 public:
  void Intercept(InterceptedCall& call, ServerNext& next) override {
    const auto tenant = call.controller().GetRequestMetadata().Get("x-tenant");
    if (tenant) call.controller().SetCaller(std::string(*tenant));
    next.Run();
  }
};

TEST_F(RateLimiterTest, CallersAreToldApartByNameAndAddress) {
  server().AddInterceptor(std::make_shared<NameByTenant>());
  Serve({.limits = {{.name = "callers",
                     .per = RateLimit::Per::kCaller,
                     .rate = kSlow,
                     .burst = 1}}});
  Connect("flare");
  EXPECT_EQ(Call("alice"), 0);
  EXPECT_EQ(Call("alice"), STATUS_OVERLOADED);
  EXPECT_EQ(Call("bob"), 0);
  EXPECT_EQ(Call(), 0);
  // Another connection, from another port of the same address.
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 429 "));
}

TEST_F(RateLimiterTest, AnAddressHasOneBucket) {
  Serve({.limits = {{.name = "addresses",
                     .per = RateLimit::Per::kAddress,
                     .rate = kSlow,
                     .burst = 2}}});
  for (int i = 0; i != 2; ++i) {
    EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 200 "));
  }
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 429 "));
}

TEST_F(RateLimiterTest, OneThatOnlyCountsRefusesNothing) {
  Serve(
      {.limits = {
           {.name = "trial", .rate = kSlow, .burst = 1, .only_count = true}}});
  Connect("flare");
  for (int i = 0; i != 4; ++i) EXPECT_EQ(Call(), 0);
  const AdmissionCounters& counters = *AdmissionCountersOf("trial");
  EXPECT_EQ(counters.admitted.Value(), 1u);
  EXPECT_EQ(counters.refused.Value(), 0u);
  EXPECT_EQ(counters.would_refuse.Value(), 3u);
}

TEST_F(RateLimiterTest, ARefusedCallCostsNoTokensOfOtherLimits) {
  Serve({.limits = {{.name = "both", .rate = kSlow, .burst = 2},
                    {.name = "tenant only",
                     .per = RateLimit::Per::kMetadata,
                     .metadata = "x-tenant",
                     .rate = kSlow,
                     .burst = 1}}});
  Connect("flare");
  EXPECT_EQ(Call("a"), 0);
  for (int i = 0; i != 5; ++i) EXPECT_EQ(Call("a"), STATUS_OVERLOADED);
  EXPECT_EQ(Call("b"), 0);
  EXPECT_EQ(Call("c"), STATUS_OVERLOADED);
  EXPECT_EQ(AdmissionCountersOf("both")->refused.Value(), 1u);
  EXPECT_EQ(AdmissionCountersOf("tenant only")->refused.Value(), 5u);
}

class LimitsFileTest : public RateLimiterTest {
 protected:
  void TearDown() override {
    RateLimiterTest::TearDown();
    std::filesystem::remove(file());
  }

  std::string file() const {
    // By the test, as /metrics counts by the name of the file.
    return ::testing::TempDir() + "limits" + std::to_string(::getpid()) +
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // In one step, by a name of its own: never half written.
  void Write(const std::string& limits) {
    const std::string fresh = file() + ".new";
    std::ofstream(fresh) << "{\"limits\": [" << limits << "]}";
    std::filesystem::rename(fresh, file());
  }
  // The series of the file in /metrics.
  std::string Versions(const char* outcome) const {
    return "flare_rate_limit_file_versions_total{file=\"" + file() +
           "\",outcome=\"" + outcome + "\"} ";
  }
};

TEST_F(LimitsFileTest, LimitsComeFromAFile) {
  Write(R"({"name": "of a file", "method": "flare.rpc.testing.TestService.*",
            "rate": 0.001, "burst": 1})");
  Serve({.limits_file = file()});
  Connect("flare");
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 200 "));
  Write("\n  {\"name\": \"a\"}\n");
  const auto limiter = RateLimiter::Create({.limits_file = file()});
  ASSERT_FALSE(limiter);
  EXPECT_THAT(limiter.error().message(), HasSubstr(file() + ":2:3: rate: "));
  std::filesystem::remove(file());
  const auto none = RateLimiter::Create({.limits_file = file()});
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr(file()));
}

// Every call looks at the file.
constexpr std::chrono::nanoseconds kAlways(1);

TEST_F(LimitsFileTest, IsReadAgainWhenItChanges) {
  Write(R"({"name": "changing", "rate": 0.001, "burst": 1})");
  Serve({.limits_file = file(), .reload_interval = kAlways});
  Connect("flare");
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  // Another rate: all tokens of it.
  Write(R"({"name": "changing", "rate": 0.001, "burst": 2})");
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(Call(), 0);
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  // A limit that only looks different keeps its lack of tokens, beside a new
  // one.
  Write(R"({"name": "more", "method": "/page", "rate": 0.001, "burst": 1},
           {"burst": 2, "rate": 0.001, "name": "changing"})");
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/metrics"), HasSubstr(Versions("used") + "3\n"));
  // No limits.
  Write("");
  EXPECT_EQ(Call(), 0);
  EXPECT_THAT(Get("/page"), HasSubstr("HTTP/1.1 200 "));
}

TEST_F(LimitsFileTest, AWrongVersionChangesNothing) {
  Write(R"({"name": "kept", "rate": 0.001, "burst": 1})");
  Serve({.limits = {{.name = "of the program", .rate = 1000}},
         .limits_file = file(),
         .reload_interval = kAlways});
  Connect("flare");
  EXPECT_EQ(Call(), 0);
  {
    const LoggedLines errors(google::ERROR);
    Write("\n {\"name\": \"kept\", \"rate\": -1}");
    for (int i = 0; i != 3; ++i) EXPECT_EQ(Call(), STATUS_OVERLOADED);
    // Once, however often it is looked at.
    EXPECT_EQ(errors.Count("limits by rate stay as they were: " + file() +
                           ":2:2: rate: expects calls in a second"),
              1u);
  }
  EXPECT_THAT(Get("/metrics"), HasSubstr(Versions("wrong") + "1\n"));
  Write(R"({"name": "of the program", "rate": 1})");
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  std::filesystem::remove(file());
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/metrics"), HasSubstr(Versions("wrong") + "3\n"));
  // Each version counts, if it has the mistake of the one before, too.
  Write(R"({"name": "kept"})");
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  Write(R"({"name": "kept"   })");
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
  EXPECT_THAT(Get("/metrics"), HasSubstr(Versions("wrong") + "5\n"));
  Write(R"({"name": "kept", "rate": 1000})");
  EXPECT_EQ(Call(), 0);
}

TEST_F(LimitsFileTest, WithoutAnIntervalItIsReadOnce) {
  Write(R"({"name": "once", "rate": 0.001, "burst": 1})");
  Serve({.limits_file = file(), .reload_interval = std::chrono::seconds(0)});
  Connect("flare");
  EXPECT_EQ(Call(), 0);
  Write("");
  EXPECT_EQ(Call(), STATUS_OVERLOADED);
}

// Calls by addresses that no socket of this machine has.
class CallsFrom {
 public:
  explicit CallsFrom(RateLimit limit) {
    limit.rate = kSlow;
    limit.burst = 1;
    interceptors_.push_back(*RateLimiter::Create({.limits = {limit}}));
    handler_ =
        InterceptHttp(NewHttpGetHandler([](const HttpRequest&, HttpResponse*,
                                           HttpServerContext*) {}),
                      &interceptors_);
  }

  bool Admitted(const char* ip) {
    HttpRequest request;
    request.set_method(HttpMethod::Get);
    request.set_uri("/");
    HttpResponse response;
    HttpServerContext context{
        .remote_peer =
            MustParseEndpoint(std::string(ip) + ":" + std::to_string(++port_))};
    handler_->HandleRequest(request, &response, &context);
    return response.status() == HttpStatus::OK;
  }

 private:
  Interceptors interceptors_;
  HttpHandlerPtr handler_;
  int port_ = 1;
};

TEST(RateLimiter, ANetworkOfIpv6IsOneCaller) {
  for (const auto per : {RateLimit::Per::kAddress, RateLimit::Per::kCaller}) {
    CallsFrom calls({.name = "networks", .per = per});
    EXPECT_TRUE(calls.Admitted("[2001:db8:0:1::1]"));
    EXPECT_FALSE(calls.Admitted("[2001:db8:0:1::1]"));
    EXPECT_FALSE(calls.Admitted("[2001:db8:0:1:ffff:ffff:ffff:ffff]"));
    EXPECT_TRUE(calls.Admitted("[2001:db8:0:2::1]"));
    EXPECT_TRUE(calls.Admitted("192.0.2.1"));
    EXPECT_FALSE(calls.Admitted("[::ffff:192.0.2.1]"));
    EXPECT_TRUE(calls.Admitted("[::ffff:192.0.2.2]"));
  }
}

TEST(RateLimiter, NetworksHaveTheSizesOfTheLimit) {
  CallsFrom calls({.name = "sizes",
                   .per = RateLimit::Per::kAddress,
                   .ipv4_prefix = 24,
                   .ipv6_prefix = 128});
  EXPECT_TRUE(calls.Admitted("192.0.2.1"));
  EXPECT_FALSE(calls.Admitted("192.0.2.255"));
  EXPECT_TRUE(calls.Admitted("192.0.3.1"));
  EXPECT_TRUE(calls.Admitted("[2001:db8::1]"));
  EXPECT_TRUE(calls.Admitted("[2001:db8::2]"));
  EXPECT_FALSE(calls.Admitted("[2001:db8::1]"));
}

TEST(RateLimiter, RefusesLimitsWithMistakes) {
  const auto error_of = [](std::vector<RateLimit> limits) {
    const auto limiter = RateLimiter::Create({.limits = std::move(limits)});
    return limiter ? std::string() : limiter.error().message();
  };
  EXPECT_EQ(error_of({{.name = "a", .rate = 1}}), "");
  EXPECT_THAT(error_of({{.name = "a"}}), HasSubstr("limit \"a\": rate: "));
  EXPECT_THAT(error_of({{.name = "a", .rate = 1}, {.name = "a", .rate = 2}}),
              HasSubstr("two limits named \"a\""));
  EXPECT_THAT(error_of({{.name = "a", .metadata = "x", .rate = 1}}),
              HasSubstr("isn't by metadata"));
  EXPECT_THAT(error_of({{.name = "a", .rate = 1, .ipv6_prefix = 129}}),
              HasSubstr("limit \"a\": ipv6_prefix: expects 0 to 128"));
  std::vector<RateLimit> many;
  for (int i = 0; i != 33; ++i) {
    many.push_back({.name = std::to_string(i), .rate = 1});
  }
  EXPECT_THAT(error_of(many), HasSubstr("there are 33 limits"));
}

}  // namespace
}  // namespace flare::rpc::testing
