// Compiles what the plugin generates and makes calls through it, over a channel
// that stays in memory.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/protoc_plugin/testdata/messages.flare.pb.h"
#include "tools/protoc_plugin/testdata/own_services.flare.pb.h"
#include "tools/protoc_plugin/testdata/stock_services.flare.pb.h"

namespace flare_test {
namespace {

namespace pb = google::protobuf;
using ::testing::AllOf;
using ::testing::HasSubstr;

using messages::Ping;
using services::Calculator;
using services::Calculator_AsyncStub;
using services::Calculator_Stub;
using services::Calculator_SyncStub;
using services::Pair;
using services::Pinger_SyncStub;
using services::Result;
using services::SyncCalculator;
using services::SyncPinger;

// A function as a closure that deletes itself.
template <class F>
class FunctionClosure : public pb::Closure {
 public:
  explicit FunctionClosure(F f) : f_(std::move(f)) {}
  void Run() override {
    f_();
    delete this;
  }

 private:
  F f_;
};

template <class F>
pb::Closure* MakeClosure(F f) {
  return new FunctionClosure<F>(std::move(f));
}

// Hands calls to a service in the same process, by way of bytes. Calls that
// don't block end when Complete() is called.
class LoopbackChannel : public pb::RpcChannel {
 public:
  explicit LoopbackChannel(pb::Service* service, bool* destroyed = nullptr)
      : service_(service), destroyed_(destroyed) {}
  ~LoopbackChannel() override {
    if (destroyed_ != nullptr) *destroyed_ = true;
  }

  void CallMethod(const pb::MethodDescriptor* method,
                  pb::RpcController* controller, const pb::Message* request,
                  pb::Message* response, pb::Closure* done) override {
    ++calls;
    last_controller = controller;
    auto end = [this, method, controller, response, done,
                bytes = request->SerializeAsString()] {
      Serve(method, bytes, static_cast<flare::RpcClientController*>(controller),
            response);
      if (done != nullptr) done->Run();
    };
    if (done == nullptr) {
      end();
    } else {
      pending_.push_back(MakeClosure(std::move(end)));
    }
  }

  // Ends all calls that have not ended.
  void Complete() {
    for (auto* end : std::exchange(pending_, {})) end->Run();
  }

  int calls = 0;
  pb::RpcController* last_controller = nullptr;

 private:
  void Serve(const pb::MethodDescriptor* method, const std::string& bytes,
             flare::RpcClientController* client, pb::Message* response) {
    std::unique_ptr<pb::Message> request(
        service_->GetRequestPrototype(method).New());
    std::unique_ptr<pb::Message> reply(
        service_->GetResponsePrototype(method).New());
    ASSERT_TRUE(request->ParseFromString(bytes));
    flare::RpcServerController server;
    bool done = false;
    service_->CallMethod(method, &server, request.get(), reply.get(),
                         MakeClosure([&] { done = true; }));
    ASSERT_TRUE(done) << "the service did not run its closure";
    if (server.Failed()) {
      client->SetFailed(server.ErrorCode(), server.ErrorText());
    }
    ASSERT_TRUE(response->ParseFromString(reply->SerializeAsString()));
  }

  pb::Service* service_;
  bool* destroyed_;
  std::vector<pb::Closure*> pending_;
};

Pair MakePair(std::int64_t left, std::int64_t right) {
  Pair pair;
  pair.set_left(left);
  pair.set_right(right);
  return pair;
}

constexpr int kDivisionByZero = 1001;

// Leaves nothing out.
class FullCalculator : public SyncCalculator {
 public:
  void Add(const Pair& request, Result* response,
           flare::RpcServerController*) override {
    response->set_value(request.left() + request.right());
  }

  void Divide(const Pair& request, Result* response,
              flare::RpcServerController* controller) override {
    if (request.right() == 0) {
      controller->SetFailed(kDivisionByZero, "division by zero");
    } else {
      response->set_value(request.left() / request.right());
    }
  }
};

// ---------------------------------------------------------------------------
// Blocking calls
// ---------------------------------------------------------------------------

class SyncStub : public ::testing::Test {
 protected:
  FullCalculator service_;
  LoopbackChannel channel_{&service_};
  Calculator_SyncStub stub_{&channel_};
  flare::RpcClientController controller_;
};

TEST_F(SyncStub, ReturnsTheResponse) {
  auto sum = stub_.Add(MakePair(2, 3), &controller_);
  ASSERT_TRUE(sum) << sum.error().ToString();
  EXPECT_EQ(sum->value(), 5);
  auto quotient = stub_.Divide(MakePair(7, 2), &controller_);
  ASSERT_TRUE(quotient) << quotient.error().ToString();
  EXPECT_EQ(quotient->value(), 3);
  EXPECT_EQ(channel_.calls, 2);
}

TEST_F(SyncStub, ReturnsCodeAndTextOfAFailure) {
  auto quotient = stub_.Divide(MakePair(7, 0), &controller_);
  ASSERT_FALSE(quotient);
  EXPECT_EQ(quotient.error().code(), kDivisionByZero);
  EXPECT_EQ(quotient.error().message(), "division by zero");
  EXPECT_EQ(controller_.ErrorCode(), kDivisionByZero);
}

TEST_F(SyncStub, PassesTheCallersControllerOn) {
  (void)stub_.Add(MakePair(1, 1), &controller_);
  EXPECT_EQ(channel_.last_controller, &controller_);
}

TEST_F(SyncStub, WorksWithoutController) {
  auto sum = stub_.Add(MakePair(2, 3));
  ASSERT_TRUE(sum) << sum.error().ToString();
  EXPECT_EQ(sum->value(), 5);
  auto quotient = stub_.Divide(MakePair(1, 0));
  ASSERT_FALSE(quotient);
  EXPECT_EQ(quotient.error().code(), kDivisionByZero);
}

TEST_F(SyncStub, OwnsAChannelGivenAsUniquePtr) {
  bool destroyed = false;
  {
    std::optional<Calculator_SyncStub> stub(
        std::in_place,
        std::make_unique<LoopbackChannel>(&service_, &destroyed));
    EXPECT_EQ(stub->Add(MakePair(20, 22))->value(), 42);
    Calculator_SyncStub moved = std::move(*stub);
    stub.reset();
    EXPECT_FALSE(destroyed);
    EXPECT_EQ(moved.Add(MakePair(1, 2))->value(), 3);
  }
  EXPECT_TRUE(destroyed);
}

TEST_F(SyncStub, LeavesABorrowedChannelAlone) {
  bool destroyed = false;
  LoopbackChannel channel(&service_, &destroyed);
  { Calculator_SyncStub stub(&channel); }
  EXPECT_FALSE(destroyed);
}

TEST_F(SyncStub, FailsEachCallIfItsUriIsNoGood) {
  Calculator_SyncStub stub("there-is-no-such-protocol://127.0.0.1:1");
  for (int i = 0; i != 2; ++i) {
    auto sum = stub.Add(MakePair(1, 2));
    ASSERT_FALSE(sum);
    EXPECT_EQ(sum.error().code(), flare::rpc::STATUS_INVALID_CHANNEL);
  }
}

TEST(SyncService, FailsMethodsThatAreNotOverridden) {
  SyncCalculator empty;
  LoopbackChannel channel(&empty);
  auto sum = Calculator_SyncStub(&channel).Add(MakePair(1, 2));
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().code(), flare::rpc::STATUS_FAILED);
  EXPECT_THAT(sum.error().message(),
              AllOf(HasSubstr("flare_test.services.Calculator.Add"),
                    HasSubstr("not implemented")));
}

TEST(SyncService, NeedsNoClosure) {
  FullCalculator service;
  flare::RpcServerController controller;
  Pair request = MakePair(4, 5);
  Result response;
  service.CallMethod(Calculator::descriptor()->FindMethodByName("Add"),
                     &controller, &request, &response, nullptr);
  EXPECT_EQ(response.value(), 9);
}

TEST(SyncService, TakesMessagesFromOtherFilesAndNestedOnes) {
  class Service : public SyncPinger {
    void Hop(const Ping& request, Ping::Body* response,
             flare::RpcServerController*) override {
      response->set_text(request.body().text() + "!");
    }
  };
  Service service;
  LoopbackChannel channel(&service);
  Ping ping;
  ping.mutable_body()->set_text("hi");
  auto pong = Pinger_SyncStub(&channel).Hop(ping);
  ASSERT_TRUE(pong) << pong.error().ToString();
  EXPECT_EQ(pong->text(), "hi!");
}

// ---------------------------------------------------------------------------
// Calls with futures
// ---------------------------------------------------------------------------

using Outcome = flare::Expected<Result, flare::Status>;

class AsyncStub : public ::testing::Test {
 protected:
  // Puts the future's value into `*outcome` once it is there.
  static void Watch(flare::Future<Outcome> future,
                    std::optional<Outcome>* outcome) {
    (void)future.Then(
        [outcome](Outcome value) { *outcome = std::move(value); });
  }

  FullCalculator service_;
  LoopbackChannel channel_{&service_};
  Calculator_AsyncStub stub_{&channel_};
};

TEST_F(AsyncStub, FutureIsReadyWhenTheCallHasEnded) {
  flare::RpcClientController controller;
  std::optional<Outcome> sum;
  Watch(stub_.Add(MakePair(2, 3), &controller), &sum);
  EXPECT_EQ(channel_.last_controller, &controller);
  EXPECT_FALSE(sum);
  channel_.Complete();
  ASSERT_TRUE(sum);
  ASSERT_TRUE(*sum) << sum->error().ToString();
  EXPECT_EQ((*sum)->value(), 5);
}

TEST_F(AsyncStub, FutureCarriesTheFailure) {
  flare::RpcClientController controller;
  std::optional<Outcome> quotient;
  Watch(stub_.Divide(MakePair(2, 0), &controller), &quotient);
  channel_.Complete();
  ASSERT_TRUE(quotient);
  ASSERT_FALSE(*quotient);
  EXPECT_EQ(quotient->error().code(), kDivisionByZero);
  EXPECT_EQ(quotient->error().message(), "division by zero");
}

TEST_F(AsyncStub, BringsAControllerOfItsOwn) {
  std::optional<Outcome> sum, quotient;
  Watch(stub_.Add(MakePair(2, 3)), &sum);
  Watch(stub_.Divide(MakePair(2, 0)), &quotient);
  channel_.Complete();
  ASSERT_TRUE(sum && *sum);
  EXPECT_EQ((*sum)->value(), 5);
  ASSERT_TRUE(quotient);
  EXPECT_EQ(quotient->error().code(), kDivisionByZero);
}

TEST_F(AsyncStub, CallsDoNotDisturbEachOther) {
  constexpr int kCalls = 100;
  std::vector<std::optional<Outcome>> sums(kCalls);
  for (int i = 0; i != kCalls; ++i) {
    Watch(stub_.Add(MakePair(i, 1000)), &sums[i]);
  }
  channel_.Complete();
  for (int i = 0; i != kCalls; ++i) {
    ASSERT_TRUE(sums[i] && *sums[i]) << i;
    EXPECT_EQ((*sums[i])->value(), i + 1000);
  }
}

TEST_F(AsyncStub, RequestAndStubMayGoBeforeTheCallEnds) {
  std::optional<Outcome> sum;
  {
    Calculator_AsyncStub stub(&channel_);
    auto request = std::make_unique<Pair>(MakePair(30, 12));
    Watch(stub.Add(*request), &sum);
  }
  channel_.Complete();
  ASSERT_TRUE(sum && *sum);
  EXPECT_EQ((*sum)->value(), 42);
}

TEST_F(AsyncStub, FutureMayBeIgnored) {
  (void)stub_.Add(MakePair(1, 2));
  channel_.Complete();
  EXPECT_EQ(channel_.calls, 1);
}

// The controller may be freed, or used for the next call, by what waits for the
// future.
TEST_F(AsyncStub, NextCallCanBeMadeFromTheContinuation) {
  constexpr int kCalls = 10;
  auto controller = std::make_unique<flare::RpcClientController>();
  std::int64_t value = 0;
  std::function<void()> call = [&] {
    auto future = stub_.Add(MakePair(value, 1), controller.get());
    (void)future.Then([&](Outcome sum) {
      value = sum->value();
      if (value == kCalls) {
        controller.reset();
      } else {
        controller->Reset();
        call();
      }
    });
  };
  call();
  for (int i = 0; i != kCalls; ++i) channel_.Complete();
  EXPECT_EQ(value, kCalls);
  EXPECT_EQ(controller, nullptr);
}

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
