// Compiles the plugin's output and makes calls through it: blocking ones, and
// such with futures.

#include <pthread.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "flare/rpc/rpc_options.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/protoc_plugin/testdata/loopback_channel.h"
#include "tools/protoc_plugin/testdata/messages.flare.pb.h"
#include "tools/protoc_plugin/testdata/own_services.flare.pb.h"

namespace flare_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using messages::Ping;
using services::Calculator;
using services::Calculator_AsyncStub;
using services::Calculator_SyncStub;
using services::Pair;
using services::Pinger_SyncStub;
using services::Result;
using services::SyncCalculator;
using services::SyncPinger;

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
  auto with_null = stub_.Divide(MakePair(1, 0), nullptr);
  ASSERT_FALSE(with_null);
  EXPECT_EQ(with_null.error().code(), kDivisionByZero);
}

class ClashService : public services::SyncClash {
 public:
  void Clash_(const Pair&, Result* result,
              flare::RpcServerController*) override {
    result->set_value(1);
  }
  void delete_(const Pair&, Result* result,
               flare::RpcServerController*) override {
    result->set_value(2);
  }
  void request(const Pair&, Result* result,
               flare::RpcServerController*) override {
    result->set_value(3);
  }
};

// Callers know methods by their own names.
TEST(NamesThatClash, AreGivenAnUnderscore) {
  ClashService service;
  LoopbackChannel channel{&service};
  services::Clash_SyncStub stub{&channel};
  auto clash = stub.Clash_(MakePair(0, 0));
  ASSERT_TRUE(clash) << clash.error().ToString();
  EXPECT_EQ(clash->value(), 1);
  auto deleted = stub.delete_(MakePair(0, 0));
  ASSERT_TRUE(deleted) << deleted.error().ToString();
  EXPECT_EQ(deleted->value(), 2);
  auto requested = stub.request(MakePair(0, 0));
  ASSERT_TRUE(requested) << requested.error().ToString();
  EXPECT_EQ(requested->value(), 3);

  const auto* descriptor = service.GetDescriptor();
  EXPECT_NE(descriptor->FindMethodByName("Clash"), nullptr);
  EXPECT_NE(descriptor->FindMethodByName("delete"), nullptr);
  EXPECT_EQ(services::register_::descriptor()->name(), "register");
  EXPECT_EQ(services::Syncregister_::descriptor()->name(), "register");
}

TEST(StubDeathTest, NeedsAChannel) {
  google::protobuf::RpcChannel* const none = nullptr;
  EXPECT_DEATH(Calculator_SyncStub{none}, "a stub needs a channel");
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

class ThrowingCalculator : public SyncCalculator {
 public:
  void Add(const Pair& request, Result*, flare::RpcServerController*) override {
    if (request.left() == 0) pthread_exit(nullptr);
    throw std::runtime_error("no such number");
  }
  void Divide(const Pair&, Result*, flare::RpcServerController*) override {
    throw 1;
  }
};

TEST(SyncService, FailsCallsByExceptions) {
  ThrowingCalculator service;
  LoopbackChannel channel(&service);
  Calculator_SyncStub stub(&channel);
  auto sum = stub.Add(MakePair(1, 2));
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().code(), flare::rpc::STATUS_FAILED);
  EXPECT_EQ(sum.error().message(),
            "Method flare_test.services.Calculator.Add has thrown "
            "std::runtime_error: no such number");
  auto quotient = stub.Divide(MakePair(1, 2));
  ASSERT_FALSE(quotient);
  EXPECT_EQ(quotient.error().code(), flare::rpc::STATUS_FAILED);
  EXPECT_EQ(quotient.error().message(),
            "Method flare_test.services.Calculator.Divide has thrown int");
}

TEST(SyncService, LetsAThreadEnd) {
  ThrowingCalculator service;
  bool returned = false;
  std::thread([&] {
    flare::RpcServerController controller;
    Pair request = MakePair(0, 0);
    Result response;
    service.CallMethod(Calculator::descriptor()->FindMethodByName("Add"),
                       &controller, &request, &response, nullptr);
    returned = true;
  }).join();
  EXPECT_FALSE(returned);
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

TEST(SyncService, KeepsTheOptionsOfItsMethods) {
  SyncCalculator service;
  const auto* const descriptor = service.GetDescriptor();
  EXPECT_EQ(descriptor->options().GetExtension(flare::qzone_service_id), 1);
  const auto& add = descriptor->FindMethodByName("Add")->options();
  EXPECT_FALSE(add.HasExtension(flare::max_ongoing_requests));
  const auto& divide = descriptor->FindMethodByName("Divide")->options();
  EXPECT_EQ(divide.GetExtension(flare::max_ongoing_requests), 10);
  EXPECT_EQ(divide.GetExtension(flare::max_queueing_delay_ms), 1000);
  EXPECT_EQ(divide.GetExtension(flare::qzone_method_id), 2);
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

// The controller may be freed, or used for the next call, by the continuation
// of the future.
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

}  // namespace
}  // namespace flare_test
