#include "flare/rpc/policy/service_config.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/policy/method_policy.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc {
namespace {

using std::chrono::milliseconds;

constexpr char kConfig[] = R"({
  "methodConfig": [
    {
      "name": [
        {"service": "flare.rpc.testing.TestService", "method": "Call"}
      ],
      "timeout": "1.5s",
      "waitForReady": true,
      "retryPolicy": {
        "maxAttempts": 4,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 1.5,
        "retryableStatusCodes": ["UNAVAILABLE", 10],
        "perAttemptRecvTimeout": "0.25s"
      }
    },
    {
      "name": [{"service": "flare.rpc.testing.TestService"}, {}],
      "hedgingPolicy": {
        "maxAttempts": 3,
        "hedgingDelay": "0.010s",
        "hedgingPercentile": 0.95,
        "nonFatalStatusCodes": ["UNAVAILABLE"]
      }
    }
  ]
})";

bool Has(const std::vector<int>& statuses, int status) {
  return std::find(statuses.begin(), statuses.end(), status) != statuses.end();
}

TEST(ServiceConfigTest, FillsInPolicies) {
  const auto policies = CallPolicies::FromServiceConfig(kConfig);
  ASSERT_TRUE(policies) << policies.error().ToString();
  const auto* const service = testing::TestService::descriptor();
  const CallPolicies::Found call =
      (*policies)->Find(service->FindMethodByName("Call")->full_name());
  ASSERT_NE(call.policy, nullptr);
  EXPECT_TRUE(call.by_name);
  const CallPolicy& policy = call.policy->policy();
  EXPECT_EQ(policy.timeout, milliseconds(1500));
  EXPECT_EQ(policy.wait_for_ready, true);
  ASSERT_TRUE(policy.retry);
  EXPECT_FALSE(policy.hedging);
  EXPECT_EQ(policy.retry->max_attempts, 4);
  EXPECT_EQ(policy.retry->initial_backoff, milliseconds(100));
  EXPECT_EQ(policy.retry->max_backoff, milliseconds(2000));
  EXPECT_EQ(policy.retry->multiplier, 1.5);
  EXPECT_EQ(policy.retry->attempt_timeout, milliseconds(250));
  EXPECT_TRUE(Has(policy.retry->statuses, STATUS_FAIL_TO_CONNECT));
  EXPECT_TRUE(Has(policy.retry->statuses, STATUS_IO_ERROR));
  EXPECT_TRUE(Has(policy.retry->statuses, StatusFromGrpc(GrpcCode::kAborted)));
  EXPECT_FALSE(Has(policy.retry->statuses, STATUS_OVERLOADED));
  EXPECT_FALSE(Has(policy.retry->statuses, STATUS_SUCCESS));
}

TEST(ServiceConfigTest, TheNarrowestNameCounts) {
  const auto policies = CallPolicies::FromServiceConfig(kConfig);
  ASSERT_TRUE(policies) << policies.error().ToString();
  const auto* const service = testing::TestService::descriptor();
  const CallPolicies::Found other =
      (*policies)->Find(service->FindMethodByName("Other")->full_name());
  ASSERT_NE(other.policy, nullptr);
  EXPECT_FALSE(other.by_name);
  const CallPolicies::Found elsewhere =
      (*policies)->Find(testing::OtherService::descriptor()
                            ->FindMethodByName("Call")
                            ->full_name());
  ASSERT_NE(elsewhere.policy, nullptr);
  EXPECT_NE(elsewhere.policy, other.policy);
  const CallPolicy& policy = elsewhere.policy->policy();
  ASSERT_TRUE(policy.hedging);
  EXPECT_EQ(policy.hedging->max_attempts, 3);
  EXPECT_EQ(policy.hedging->delay, milliseconds(10));
  EXPECT_EQ(policy.hedging->percentile, 0.95);
  EXPECT_FALSE(policy.timeout);
  EXPECT_FALSE(policy.wait_for_ready);
  CallPolicies none;
  EXPECT_EQ(none.Find(service->FindMethodByName("Call")->full_name()).policy,
            nullptr);
}

std::string ErrorOf(const std::string& json) {
  const auto policies = CallPolicies::FromServiceConfig(json);
  return policies ? "" : policies.error().message();
}
std::string ErrorOfMethod(const std::string& fields) {
  return ErrorOf(R"({"methodConfig": [{"name": [{}], )" + fields + "}]}");
}

TEST(ServiceConfigTest, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(ErrorOf("{}"), "");
  EXPECT_EQ(ErrorOf("[]").substr(0, 16), "no JSON object: ");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": [)").substr(0, 16), "no JSON object: ");
  EXPECT_EQ(ErrorOf(R"({"methodConfigs": []})"),
            "methodConfigs: no such field is known, there are: methodConfig");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": 1})"),
            "methodConfig: it must be a list");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": [{}]})"),
            "methodConfig[0].name: it must be a list such as "
            "[{\"service\": \"package.Service\", \"method\": \"Method\"}]; "
            "[{}] are all methods");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": [{"name": [{"method": "M"}]}]})"),
            "methodConfig[0].name[0]: a method needs its service");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": [{"name": [{"service": 1}]}]})"),
            "methodConfig[0].name[0].service: it must be a string");
  EXPECT_EQ(ErrorOf(R"({"methodConfig": [{"name": [{}, {}]}]})"),
            "methodConfig[0].name[1]: there is a policy for all methods "
            "already");
  EXPECT_EQ(ErrorOfMethod(R"("color": 1)"),
            "methodConfig[0].color: no such field is known, there are: name, "
            "timeout, waitForReady, retryPolicy, hedgingPolicy");
  EXPECT_EQ(ErrorOfMethod(R"("timeout": 5)"),
            "methodConfig[0].timeout: it must be seconds such as \"0.25s\"");
  EXPECT_EQ(ErrorOfMethod(R"("timeout": "-1s")"),
            "methodConfig[0].timeout: it must be seconds such as \"0.25s\"");
  EXPECT_EQ(ErrorOfMethod(R"("waitForReady": "yes")"),
            "methodConfig[0].waitForReady: it must be true or false");
  EXPECT_EQ(ErrorOfMethod(R"("retryPolicy": {})"),
            "methodConfig[0].retryPolicy.maxAttempts: it is missing");
  EXPECT_EQ(ErrorOfMethod(R"("retryPolicy": {"maxAttempts": 2.5})"),
            "methodConfig[0].retryPolicy.maxAttempts: it must be a whole "
            "number from 2 to 100");
  EXPECT_EQ(ErrorOfMethod(R"("retryPolicy": {"maxAttempts": 3,
                             "retryableStatusCodes": ["BUSY"]})"),
            "methodConfig[0].retryPolicy.retryableStatusCodes: each must be a "
            "code of gRPC, such as \"UNAVAILABLE\" or 14");
  EXPECT_EQ(ErrorOfMethod(R"("retryPolicy": {"maxAttempts": 3,
                             "backoffMultiplier": 0.5})"),
            "methodConfig[0].name[0]: multiplier must be at least 1");
  EXPECT_EQ(ErrorOfMethod(R"("retryPolicy": {"maxAttempts": 3},
                             "hedgingPolicy": {"maxAttempts": 3})"),
            "methodConfig[0].name[0]: a method can have a retry policy or a "
            "hedging policy, not both");
}

TEST(ServiceConfigTest, MayBeAFile) {
  const std::string path = ::testing::TempDir() + "/calls.json";
  std::ofstream(path) << kConfig;
  EXPECT_TRUE(CallPolicies::FromFile(path));
  std::ofstream(path) << R"({"methodConfig": 1})";
  const auto bad = CallPolicies::FromFile(path);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message(), path + ": methodConfig: it must be a list");
  std::remove(path.c_str());
  const auto none = CallPolicies::FromFile(path);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message().find(path), std::string::npos);
}

}  // namespace
}  // namespace flare::rpc
