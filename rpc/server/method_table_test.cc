#include "flare/rpc/server/method_table.h"

#include <google/protobuf/descriptor.pb.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "flare/rpc/rpc_options.pb.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/logged_lines.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "rpc/testing/limited_service.pb.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
namespace {

class Service : public TestService {};
class Unknown : public OtherService {};

TEST(MethodTable, FindsMethodsByFullName) {
  MethodTable table;
  Service service;
  ASSERT_TRUE(table.Add(&service).ok());
  const Method* const call = table.Find("flare.rpc.testing.TestService.Call");
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->service, &service);
  EXPECT_EQ(call->descriptor, TestService::descriptor()->method(0));
  EXPECT_EQ(call->name(), "flare.rpc.testing.TestService.Call");
  EXPECT_EQ(call->request_prototype, &TestRequest::default_instance());
  EXPECT_EQ(call->response_prototype, &TestResponse::default_instance());
  EXPECT_FALSE(call->streaming());
  EXPECT_TRUE(
      table.Find("flare.rpc.testing.TestService.CallStreaming")->streaming());
  for (const char* wrong : {"", "Call", "flare.rpc.testing.TestService",
                            "flare.rpc.testing.TestService.call",
                            "flare.rpc.testing.TestService.Call ",
                            "flare.rpc.testing.TestService.Call.x",
                            "flare.rpc.testing.OtherService.Call"}) {
    EXPECT_EQ(table.Find(wrong), nullptr) << wrong;
  }
}

// "another.TestService", with a method "Call" and one of its own.
class Namesake : public TestService {
 public:
  const google::protobuf::ServiceDescriptor* GetDescriptor() override {
    static const auto* const descriptor = [] {
      google::protobuf::FileDescriptorProto file;
      TestService::descriptor()->file()->CopyTo(&file);
      file.set_name("another.proto");
      file.set_package("another");
      file.mutable_service()->DeleteSubrange(1, file.service_size() - 1);
      auto* const service = file.mutable_service(0);
      service->mutable_method(1)->set_name("OfItsOwn");
      for (auto& method : *service->mutable_method()) {
        method.set_input_type(".another.TestRequest");
        method.set_output_type(".another.TestResponse");
      }
      static google::protobuf::DescriptorPool pool;
      return pool.BuildFile(file)->service(0);
    }();
    return descriptor;
  }
  const google::protobuf::Message& GetRequestPrototype(
      const google::protobuf::MethodDescriptor*) const override {
    return TestRequest::default_instance();
  }
  const google::protobuf::Message& GetResponsePrototype(
      const google::protobuf::MethodDescriptor*) const override {
    return TestResponse::default_instance();
  }
};

TEST(MethodTable, FindsMethodsByTheirServicesShortName) {
  MethodTable table;
  Service service;
  ASSERT_TRUE(table.Add(&service).ok());
  const std::string prefix = "flare.rpc.testing.";
  for (std::string name : {"TestService.Call", "TestService.Other"}) {
    EXPECT_EQ(table.Find(name), nullptr);
    ASSERT_NE(table.FindByShortName(name), nullptr);
    EXPECT_EQ(table.FindByShortName(name), table.Find(prefix + name));
    EXPECT_EQ(table.FindByShortName(prefix + name), nullptr);
  }
  // One that could be either is neither.
  Namesake namesake;
  ASSERT_TRUE(table.Add(&namesake).ok());
  EXPECT_EQ(table.FindByShortName("TestService.Call"), nullptr);
  EXPECT_NE(table.FindByShortName("TestService.Other"), nullptr);
  EXPECT_NE(table.FindByShortName("TestService.OfItsOwn"), nullptr);
  EXPECT_EQ(table.Find("another.TestService.Call")->service, &namesake);
}

TEST(MethodTable, TakesEachServiceOnce) {
  MethodTable table;
  Service first, second;
  EXPECT_TRUE(table.Add(&first).ok());
  const flare::Status again = table.Add(&second);
  EXPECT_FALSE(again.ok());
  EXPECT_NE(again.message().find("TestService"), std::string::npos);
  EXPECT_EQ(table.Find("flare.rpc.testing.TestService.Call")->service, &first);
}

TEST(MethodTable, ExplainsWhatIsMissing) {
  const std::string name = "flare.rpc.testing.OtherService.Call";
  MethodTable another_servers;
  Unknown service;
  ASSERT_TRUE(another_servers.Add(&service).ok());
  EXPECT_EQ(MethodTable::ExplainMissing(name).code(), STATUS_SERVICE_NOT_FOUND);
  EXPECT_EQ(MethodTable::ExplainMissing(name).message(),
            "Service [flare.rpc.testing.OtherService] is not found.");
  EXPECT_EQ(MethodTable::ExplainMissing(name + "x").code(),
            STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(MethodTable::ExplainMissing(name + "x").message(),
            "Method [" + name + "x] is not implemented.");
}

TEST(MethodTable, KnowsWhoseServiceAMethodWouldBe) {
  MethodTable table;
  Service service;
  ASSERT_TRUE(table.Add(&service).ok());
  EXPECT_TRUE(table.HasServiceOf("flare.rpc.testing.TestService.NoMethod"));
  EXPECT_FALSE(table.HasServiceOf("flare.rpc.testing.TestService"));
  EXPECT_FALSE(table.HasServiceOf("flare.rpc.testing.OtherService.Call"));
  EXPECT_FALSE(table.HasServiceOf("TestService"));
  EXPECT_FALSE(table.HasServiceOf(""));
}

TEST(MethodTable, WithoutLimitAnyNumberMayRun) {
  MethodTable table;
  Service service;
  ASSERT_TRUE(table.Add(&service).ok());
  const Method* const call = table.Find("flare.rpc.testing.TestService.Call");
  for (int i = 0; i != 100'000; ++i) ASSERT_TRUE(call->TryEnter());
}

TEST(MethodTable, LimitHoldsForConcurrentCalls) {
  MethodTable table;
  Service service;
  ASSERT_TRUE(table.Add(&service).ok());
  ASSERT_TRUE(table
                  .SetLimits("flare.rpc.testing.TestService.Call:3, "
                             "not.Here.Method:1")
                  .ok());
  const Method* const call = table.Find("flare.rpc.testing.TestService.Call");
  std::atomic<int> inside{0}, most{0}, entered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t != 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i != 20'000; ++i) {
        if (!call->TryEnter()) continue;
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        ++entered;
        --inside;
        call->Leave();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  EXPECT_GT(entered, 0);
  for (int i = 0; i != 3; ++i) EXPECT_TRUE(call->TryEnter());
  EXPECT_FALSE(call->TryEnter());
  call->Leave();
  EXPECT_TRUE(call->TryEnter());
  EXPECT_TRUE(table.Find("flare.rpc.testing.TestService.Other")->TryEnter());
}

class Limited : public LimitedService {};

const std::string kLimited = "flare.rpc.testing.LimitedService.";

TEST(MethodTable, TakesLimitsFromProtoFiles) {
  constexpr auto kForever = std::numeric_limits<std::int64_t>::max();
  MethodTable table;
  Service without_options;
  Limited service;
  ASSERT_TRUE(table.Add(&without_options).ok());
  ASSERT_TRUE(table.Add(&service).ok());
  const auto expect = [&](const std::string& name, std::size_t max_running,
                          std::int64_t max_wait_ns) {
    const Method* const method = table.Find(name);
    ASSERT_NE(method, nullptr) << name;
    EXPECT_EQ(method->max_running, max_running) << name;
    EXPECT_EQ(method->max_wait_ns, max_wait_ns) << name;
  };
  expect("flare.rpc.testing.TestService.Call", 0, kForever);
  expect(kLimited + "Unlimited", 0, kForever);
  expect(kLimited + "OneAtATime", 1, kForever);
  expect(kLimited + "Prompt", 0, 500'000'000);
  expect(kLimited + "Patient", 0, 2'147'483'647'000'000);
}

TEST(MethodTable, TheSmallerOfTwoLimitsHolds) {
  MethodTable table;
  Limited service;
  ASSERT_TRUE(table.Add(&service).ok());
  ASSERT_TRUE(table
                  .SetLimits(kLimited + "OneAtATime:5," + kLimited +
                             "Unlimited:7," + kLimited + "Prompt:9," +
                             kLimited + "Prompt:3")
                  .ok());
  EXPECT_EQ(table.Find(kLimited + "OneAtATime")->max_running, 1u);
  EXPECT_EQ(table.Find(kLimited + "Unlimited")->max_running, 7u);
  EXPECT_EQ(table.Find(kLimited + "Prompt")->max_running, 3u);
  EXPECT_EQ(table.Find(kLimited + "Patient")->max_running, 0u);
  const Method* const one = table.Find(kLimited + "OneAtATime");
  EXPECT_TRUE(one->TryEnter());
  EXPECT_FALSE(one->TryEnter());
  one->Leave();
  EXPECT_TRUE(one->TryEnter());
}

TEST(MethodTable, WarnsOfLimitsForWhatNoServiceHas) {
  const LoggedLines warnings(google::WARNING);
  MethodTable table;
  Service service;
  EXPECT_TRUE(table.Add(&service).ok());
  // The last one is of a service that this server doesn't have.
  EXPECT_TRUE(table
                  .SetLimits("flare.rpc.testing.TestService.Call:3,"
                             "flare.rpc.testing.TestService.Cal:3,"
                             "flare.rpc.testing.LimitedService.OneAtATime:1")
                  .ok());
  ASSERT_EQ(warnings.Get().size(), 1u);
  EXPECT_TRUE(warnings.Have("flare.rpc.testing.TestService.Cal,"))
      << warnings.All();
}

TEST(MethodTable, RefusesNegativeLimits) {
  MethodTable table;
  class : public NegativeLimit {
  } limit;
  const flare::Status bad_limit = table.Add(&limit);
  EXPECT_EQ(bad_limit.code(), EINVAL);
  EXPECT_EQ(bad_limit.message(),
            "method flare.rpc.testing.NegativeLimit.Call has the option "
            "(flare.max_ongoing_requests) = -1 in its .proto file; it must be "
            "at least 0, which means no limit");
  // None of its methods was added.
  EXPECT_EQ(table.Find("flare.rpc.testing.NegativeLimit.Fine"), nullptr);
  class : public NegativeDelay {
  } delay;
  const flare::Status bad_delay = table.Add(&delay);
  EXPECT_EQ(bad_delay.code(), EINVAL);
  EXPECT_EQ(bad_delay.message(),
            "method flare.rpc.testing.NegativeDelay.Call has the option "
            "(flare.max_queueing_delay_ms) = -20 in its .proto file; it must "
            "be at least 0, which means no limit");
}

// Old files, and bytes of descriptors, have these numbers.
TEST(RpcOptions, HaveTheNumbersOfTencentsFlare) {
  EXPECT_EQ(flare::kQzoneServiceIdFieldNumber, 11000);
  EXPECT_EQ(flare::kQzoneMethodIdFieldNumber, 11000);
  EXPECT_EQ(flare::kSvrkitServiceIdFieldNumber, 11001);
  EXPECT_EQ(flare::kSvrkitMethodIdFieldNumber, 11001);
  EXPECT_EQ(flare::kMaxQueueingDelayMsFieldNumber, 11003);
  EXPECT_EQ(flare::kMaxOngoingRequestsFieldNumber, 11004);
  EXPECT_EQ(flare::kTestingOnlyNoWarningOnGdtStreamingResponseFieldNumber,
            10999);
  const auto* const service = LimitedService::descriptor();
  EXPECT_EQ(service->options().GetExtension(flare::qzone_service_id), 7);
  EXPECT_EQ(service->options().GetExtension(flare::svrkit_service_id), 9);
  const auto& options = service->method(0)->options();
  EXPECT_EQ(options.GetExtension(flare::qzone_method_id), 8);
  EXPECT_EQ(options.GetExtension(flare::svrkit_method_id), 10);
  EXPECT_TRUE(options.GetExtension(
      flare::testing_only_no_warning_on_gdt_streaming_response));
}

}  // namespace
}  // namespace flare::rpc::testing
