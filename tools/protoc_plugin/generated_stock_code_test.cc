// Compiles the plugin's output beside, and in the style of, the protobuf
// library's own services: calls through closures, and reflection.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <type_traits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/protoc_plugin/testdata/loopback_channel.h"
#include "tools/protoc_plugin/testdata/messages.flare.pb.h"
#include "tools/protoc_plugin/testdata/own_services.flare.pb.h"
#include "tools/protoc_plugin/testdata/stock_services.flare.pb.h"

namespace flare_test {
namespace {

using ::testing::HasSubstr;

using messages::Ping;
using services::Calculator;
using services::Calculator_Stub;
using services::Pair;
using services::Result;
using services::SyncCalculator;
using services::SyncPinger;

// ---------------------------------------------------------------------------
// The protobuf library's own style
// ---------------------------------------------------------------------------

TEST(StockService, AnswersThroughItsClosure) {
  class Service : public Calculator {
    void Add(pb::RpcController*, const Pair* request, Result* response,
             pb::Closure* done) override {
      response->set_value(request->left() + request->right());
      done->Run();
    }
  };
  Service service;
  LoopbackChannel channel(&service);
  Calculator_Stub stub(&channel);
  EXPECT_EQ(stub.channel(), &channel);

  flare::RpcClientController controller;
  Pair request = MakePair(2, 3);
  Result response;
  stub.Add(&controller, &request, &response, nullptr);
  EXPECT_FALSE(controller.Failed());
  EXPECT_EQ(response.value(), 5);

  bool done = false;
  request.set_left(5);
  stub.Add(&controller, &request, &response, MakeClosure([&] { done = true; }));
  EXPECT_FALSE(done);
  channel.Complete();
  EXPECT_TRUE(done);
  EXPECT_EQ(response.value(), 8);
}

TEST(StockService, FailsMethodsThatAreNotOverridden) {
  Calculator empty;
  LoopbackChannel channel(&empty);
  flare::RpcClientController controller;
  Pair request;
  Result response;
  Calculator_Stub(&channel).Divide(&controller, &request, &response, nullptr);
  EXPECT_TRUE(controller.Failed());
  EXPECT_THAT(controller.ErrorText(),
              HasSubstr("flare_test.services.Calculator.Divide"));
}

TEST(StockService, StubOwnsItsChannelIfToldSo) {
  Calculator service;
  bool destroyed = false;
  {
    Calculator_Stub stub(new LoopbackChannel(&service, &destroyed),
                         pb::Service::STUB_OWNS_CHANNEL);
  }
  EXPECT_TRUE(destroyed);
  destroyed = false;
  LoopbackChannel channel(&service, &destroyed);
  { Calculator_Stub stub(&channel, pb::Service::STUB_DOESNT_OWN_CHANNEL); }
  EXPECT_FALSE(destroyed);
}

TEST(StockService, StubIsAServiceItself) {
  static_assert(std::is_same_v<Calculator::Stub, Calculator_Stub>);
  FullCalculator behind;
  LoopbackChannel inner(&behind);
  Calculator_Stub forwarder(&inner);
  // The inner channel gets a server's controller: here nothing fails, so that
  // it doesn't look at it.
  Result response;
  Pair request = MakePair(2, 2);
  forwarder.CallMethod(Calculator::descriptor()->method(0), nullptr, &request,
                       &response, nullptr);
  EXPECT_EQ(response.value(), 4);
}

TEST(StockService, OfProtocItselfGoesTogetherWithOurStubs) {
  class Service : public StockPinger {
    void Hop(pb::RpcController*, const Ping* request, Ping* response,
             pb::Closure* done) override {
      response->set_hops(request->hops() + 1);
      done->Run();
    }
  };
  Service service;
  LoopbackChannel channel(&service);
  Ping ping;
  ping.set_hops(6);
  auto pong = StockPinger_SyncStub(&channel).Hop(ping);
  ASSERT_TRUE(pong) << pong.error().ToString();
  EXPECT_EQ(pong->hops(), 7);
}

// ---------------------------------------------------------------------------
// Reflection
// ---------------------------------------------------------------------------

TEST(Reflection, AllFormsOfAServiceShareItsDescriptor) {
  const auto* descriptor =
      pb::DescriptorPool::generated_pool()->FindServiceByName(
          "flare_test.services.Calculator");
  ASSERT_NE(descriptor, nullptr);
  EXPECT_EQ(Calculator::descriptor(), descriptor);
  EXPECT_EQ(SyncCalculator::descriptor(), descriptor);
  EXPECT_EQ(FullCalculator().GetDescriptor(), descriptor);
  EXPECT_EQ(Calculator().GetDescriptor(), descriptor);
}

// The file has no message that would draw its object file into the program.
TEST(Reflection, FindsServicesOfFilesWithoutMessages) {
  EXPECT_EQ(SyncStockPinger::descriptor()->full_name(), "StockPinger");
  EXPECT_EQ(SyncStockPinger::descriptor(), StockPinger::descriptor());
}

TEST(Reflection, PrototypesAreOfTheMethodsTypes) {
  SyncPinger service;
  const auto* hop = SyncPinger::descriptor()->FindMethodByName("Hop");
  ASSERT_NE(hop, nullptr);
  EXPECT_EQ(&service.GetRequestPrototype(hop), &Ping::default_instance());
  EXPECT_EQ(&service.GetResponsePrototype(hop),
            &Ping::Body::default_instance());
}

TEST(Reflection, ServiceMayHaveNoMethods) {
  EXPECT_EQ(services::SyncWithoutMethods::descriptor()->method_count(), 0);
}

TEST(ServiceDeathTest, RefusesMethodsOfOtherServices) {
  FullCalculator service;
  const auto* foreign = SyncPinger::descriptor()->method(0);
  EXPECT_DEATH(service.GetRequestPrototype(foreign),
               "flare_test.services.Pinger.Hop was called on an object of "
               "service flare_test.services.Calculator");
}

TEST(ServiceDeathTest, NamesAServiceThatIsNotLinked) {
  EXPECT_DEATH(flare::rpc::FindGeneratedService("no.such.Service"),
               "service no.such.Service .* is not linked");
}

}  // namespace
}  // namespace flare_test
