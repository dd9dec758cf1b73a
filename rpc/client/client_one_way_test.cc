// Calls without a reply (RpcClientController::SetOneWay()).
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/servers_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using fiber::testing::Eventually;
using std::chrono_literals::operator""ms;
using ::testing::HasSubstr;

class ClientOneWayTest : public ServersTest,
                         public ::testing::WithParamInterface<const char*> {
 protected:
  // Counts calls by `calls_`.
  void StartCounting() {
    StartServers(1, GetParam());
    service(0).on_call = [this](TestCall call) {
      ++calls_;
      call.Reply("unheard");
    };
  }
  std::string UriOf(const Endpoint& endpoint) {
    return std::string(GetParam()) + "://" + endpoint.ToString();
  }

  std::atomic<std::size_t> calls_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Protocols, ClientOneWayTest,
                         ::testing::Values("trpc", "bolt"));

TEST_P(ClientOneWayTest, EndsWithoutTheMethod) {
  StartServers(1, GetParam());
  service(0).on_call = Silent();
  RpcChannel channel(uri(0));
  for (int i = 0; i != 2; ++i) {  // Before the connection is there, and after.
    TestedCall call;
    call.controller.SetOneWay(true);
    call.response.set_body("mine");
    call.Start(&channel);
    EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
    EXPECT_TRUE(call.on_worker);
    EXPECT_EQ(call.response.body(), "mine");
  }
  // Calls of other kinds go on.
  service(0).on_other = Says("heard");
  RpcClientController controller;
  TestRequest request;
  TestResponse response;
  TestService_Stub(&channel).Other(&controller, &request, &response, nullptr);
  EXPECT_EQ(response.body(), "heard") << controller.ErrorText();
}

TEST_P(ClientOneWayTest, IsRunByTheServer) {
  const std::uint64_t late_replies = GetClientStatistics().late_replies;
  StartCounting();
  RpcChannel channel(uri(0));
  RpcClientController controller;
  controller.SetOneWay(true);
  const TestRequest request;
  TestResponse response;
  for (int i = 0; i != 3; ++i) {
    TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
    EXPECT_EQ(controller.ErrorText(), "");
  }
  EXPECT_TRUE(Eventually([this] { return calls_ == 3; }));
  // Replies that come for them would have come by the next one.
  controller.Reset();
  EXPECT_FALSE(controller.GetOneWay());
  TestService_Stub(&channel).Call(&controller, &request, &response, nullptr);
  EXPECT_EQ(response.body(), "unheard");
  EXPECT_EQ(GetClientStatistics().late_replies, late_replies);
}

// Nothing of it may be lost, or left waiting, while connections come about.
TEST_P(ClientOneWayTest, MeetsConnectionsThatAreEstablished) {
  constexpr int kRounds = 30;
  constexpr int kCallers = 8;
  StartCounting();
  std::atomic<int> failures = 0;
  for (int round = 0; round != kRounds; ++round) {
    RpcChannel::Options options;
    options.pool = ConnectionPool::Create();
    RpcChannel channel(uri(0), options);
    std::vector<Fiber> callers;
    for (int i = 0; i != kCallers; ++i) {
      callers.emplace_back([&] {
        TestedCall call;
        call.controller.SetOneWay(true);
        failures += call.Start(&channel)->Await() == STATUS_SUCCESS ? 0 : 1;
      });
    }
    for (Fiber& caller : callers) caller.join();
    // Those whose connection is there by now.
    EXPECT_TRUE(Eventually([&] {
      return calls_ == static_cast<std::size_t>((round + 1) * kCallers);
    }));
  }
  EXPECT_EQ(failures, 0);
}

TEST_P(ClientOneWayTest, GoesToAServerThatCanBeConnectedTo) {
  StartCounting();
  DeadAddress dead;
  RpcChannel channel(UriOf(dead.endpoint()) + "," + address(0));
  for (std::size_t i = 0; i != 4; ++i) {
    TestedCall call;
    call.controller.SetOneWay(true);
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
        << call.controller.ErrorText();
  }
  EXPECT_TRUE(Eventually([this] { return calls_ == 4; }));
}

TEST_P(ClientOneWayTest, FailsIfNoServerCanBeConnectedTo) {
  StartServers(0, GetParam());
  DeadAddress dead;
  RpcChannel refused(UriOf(dead.endpoint()));
  TestedCall call;
  call.controller.SetOneWay(true);
  EXPECT_EQ(call.Start(&refused)->Await(), STATUS_FAIL_TO_CONNECT);

  SilentAddress silent;
  RpcChannel unanswered(UriOf(silent.endpoint()));
  for (const bool cancelled : {false, true}) {
    TestedCall waiting;
    waiting.controller.SetOneWay(true);
    if (!cancelled) waiting.controller.SetTimeout(20ms);
    waiting.Start(&unanswered);
    if (cancelled) waiting.controller.StartCancel();
    EXPECT_EQ(waiting.Await(), cancelled ? STATUS_FAILED : STATUS_TIMEOUT);
  }
}

TEST_P(ClientOneWayTest, NeedsASharedConnection) {
  StartServers(1, GetParam());
  RpcChannel::Options options;
  options.connection_kind = ConnectionKind::kPooled;
  RpcChannel channel(uri(0), options);
  TestedCall call;
  call.controller.SetOneWay(true);
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NOT_SUPPORTED);
}

using ClientOneWayRefusalTest = ServersTest;

TEST_F(ClientOneWayRefusalTest, OtherProtocolsHaveNone) {
  for (const char* protocol : {"flare", "http+pb", "baidu-std", "grpc"}) {
    RpcChannel channel(std::string(protocol) + "://127.0.0.1:1");
    TestedCall call;
    call.controller.SetOneWay(true);
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NOT_SUPPORTED);
    EXPECT_THAT(call.controller.ErrorText(),
                HasSubstr("has no one-way calls; trpc and bolt do"));
  }
}

}  // namespace
}  // namespace flare::rpc::testing
