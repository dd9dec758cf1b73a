#include "example/proxy/forwarding_service.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "example/proxy/routes_testing.h"
#include "example/proxy/rpc_routes.h"
#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace example::proxy {
namespace {

using flare::rpc::testing::DeadAddress;
using flare::rpc::testing::kCall;
using flare::rpc::testing::kOther;
using flare::rpc::testing::MakeRequest;
using flare::rpc::testing::RawClient;
using flare::rpc::testing::RawServer;
using flare::rpc::testing::ServerTest;
using flare::rpc::testing::TestCall;
using flare::rpc::testing::TestedCall;
using flare::rpc::testing::TestResponse;
using google::protobuf::FileDescriptorSet;

// A server on the routes. Everything else that is needed is the services'.
std::unique_ptr<flare::Server> NewProxy(
    const FileDescriptorSet& set, const RpcRoutes& routes,
    std::chrono::nanoseconds drain_timeout) {
  const auto routed = RoutedMethods::Build(set, routes);
  EXPECT_TRUE(routed) << routed.error().message();
  flare::Server::Options options;
  options.drain_timeout = drain_timeout;
  auto proxy = std::make_unique<flare::Server>(options);
  proxy->AddProtocols({"flare", "http+pb", "http+proto3-json"});
  for (const auto& [service, methods] : routed->services()) {
    ForwardingService::Channels channels;
    for (const auto& [method, uri] : methods) {
      if (uri.empty()) continue;
      channels.emplace(method, std::make_shared<flare::RpcChannel>(uri));
    }
    proxy->AddService(std::make_unique<ForwardingService>(
        routed->pool(), service, std::move(channels), [] {}));
  }
  proxy->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_TRUE(proxy->Start());
  return proxy;
}

// The backend is the fixture's server.
class ForwardingTest : public ServerTest {
 protected:
  void TearDown() override {
    proxy_.reset();
    flare::rpc::ShutdownClientSide();
    ServerTest::TearDown();
  }

  std::string BackendUri(const std::string& protocol = "flare") {
    return protocol + "://" + endpoint().ToString();
  }
  void StartProxy(const std::string& routes) {
    proxy_ = NewProxy(TestDescriptors(), Routes(routes), drain_timeout_);
  }
  void StartOpaqueProxy(const std::string& routes) {
    proxy_ = NewProxy(*DeclareOpaqueMethods(Routes(routes)), Routes(routes),
                      drain_timeout_);
  }
  RawClient::Reply Call(const std::string& method, std::string_view body = "x",
                        const std::string& attachment = "",
                        std::string_view scheme = "flare") {
    RawClient client(proxy_->endpoint(), scheme);
    flare::rpc::OutboundRequest request;
    request.correlation_id = 7;
    request.method = method;
    request.body = flare::CreateBufferSlow(
        MakeRequest(std::string(body), 42).SerializeAsString());
    request.attachment = flare::CreateBufferSlow(attachment);
    client.Send(client.Encode(std::move(request)));
    auto reply = client.ReadReply();
    EXPECT_TRUE(reply);
    return reply ? *reply : RawClient::Reply();
  }

  std::chrono::nanoseconds drain_timeout_ = std::chrono::milliseconds(1);
  std::unique_ptr<flare::Server> proxy_;
};

TEST_F(ForwardingTest, PassesOnMessagesAndAttachments) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    flare::rpc::testing::FlexibleService::Echo(call);
  };
  StartServer();
  StartProxy("*=" + BackendUri());
  const std::string attachment(300'000, 'a');
  const auto reply = Call(kCall, "hello", attachment);
  EXPECT_EQ(reply.status, 0) << reply.description;
  EXPECT_EQ(reply.As<TestResponse>().body(), "hello");
  EXPECT_EQ(reply.As<TestResponse>().number(), 42);
  EXPECT_EQ(reply.attachment, attachment);
}

TEST_F(ForwardingTest, SaysWhoCantCarryAnAttachment) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(flare::CreateBufferSlow("a"));
    call.Reply("b");
  };
  StartServer();
  StartProxy(std::string(kCall) + "=" + BackendUri("http+pb") + ";" + kOther +
             "=" + BackendUri());
  service().on_other = service().on_call;
  const auto to_http = Call(kCall, "x", "attached");
  EXPECT_EQ(to_http.status, flare::rpc::STATUS_NOT_SUPPORTED);
  EXPECT_TRUE(to_http.description.starts_with("the proxy's route of " +
                                              std::string(kCall) + ": "))
      << to_http.description;
  // To the caller the reply goes without it.
  const auto from_http = Call(kOther, "x", "", "http+pb");
  EXPECT_EQ(from_http.status, flare::rpc::STATUS_SUCCESS);
  EXPECT_EQ(from_http.As<TestResponse>().body(), "b");
}

TEST_F(ForwardingTest, OpaqueMessagesKeepTheirFields) {
  StartServer();
  StartOpaqueProxy(std::string(kCall) + "=" + BackendUri());
  for (const char* scheme : {"flare", "http+pb"}) {
    const auto reply = Call(kCall, "hello", "", scheme);
    EXPECT_EQ(reply.status, 0) << reply.description;
    EXPECT_EQ(reply.As<TestResponse>().body(), "hello");
    EXPECT_EQ(reply.As<TestResponse>().number(), 42);
  }
}

TEST_F(ForwardingTest, MethodsHaveBackendsOfTheirOwn) {
  service().on_other = [](TestCall call) { call.Reply("other"); };
  StartServer();
  RawServer second;
  StartProxy(std::string(kService) + "=" + BackendUri() + ";" + kOther + "=" +
             second.uri());
  EXPECT_EQ(Call(kCall, "first").As<TestResponse>().body(), "first");
  RawClient client(proxy_->endpoint());
  client.Call(1, kOther, MakeRequest("x"));
  auto peer = second.Accept();
  const auto request = peer->ReadRequest();
  EXPECT_EQ(request->method, kOther);
  peer->Reply(request->id, "second");
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "second");
}

TEST_F(ForwardingTest, TheDeadlineIsTheCallers) {
  std::chrono::nanoseconds left{0};
  service().on_call = [&left](TestCall call) {
    left = *call.controller->GetTimeout() - flare::ReadSteadyClock();
    call.Reply();
  };
  StartServer();
  StartProxy("*=" + BackendUri());
  RawClient client(proxy_->endpoint());
  for (const int seconds : {600, 6000}) {
    client.Call(1, kCall, MakeRequest("x"), seconds * 1000);
    EXPECT_EQ(client.ReadReply()->status, 0);
    EXPECT_GT(left, std::chrono::seconds(seconds / 2));
    EXPECT_LE(left,
              std::chrono::seconds(seconds) + std::chrono::milliseconds(1));
  }
}

// The caller's connection to the proxy, and the proxy's to the backend, go on.
TEST_F(ForwardingTest, PassesOnThatTheCallerGivesUp) {
  // Else the next call might open a second one: for a moment the call that was
  // given up still uses the first one, though the backend knows already.
  FLAGS_flare_rpc_client_max_connections_per_server = 1;
  flare::fiber::Event started;
  flare::fiber::Event ended;
  service().on_call = [&](TestCall call) {
    if (ended.IsSet()) return flare::rpc::testing::FlexibleService::Echo(call);
    const std::stop_token stop = call.controller->GetStopToken();
    started.Set();
    EXPECT_FALSE(flare::this_fiber::SleepFor(stop, std::chrono::hours(1)));
    EXPECT_EQ(flare::fiber::ExecutionContext::Current()->stop_cause(),
              flare::fiber::StopCause::kCancelled);
    call.Reply();
    ended.Set();
  };
  StartServer();
  StartProxy("*=" + BackendUri());
  flare::RpcChannel channel("flare://" + proxy_->endpoint().ToString());
  TestedCall call;
  call.Start(&channel);
  started.Wait();
  call.controller.StartCancel();
  EXPECT_EQ(call.Await(), flare::rpc::STATUS_FAILED);
  ended.Wait();
  TestedCall next;
  EXPECT_EQ(next.Start(&channel)->Await(), flare::rpc::STATUS_SUCCESS);
  EXPECT_EQ(proxy_->statistics().connections_accepted, 1u);
  EXPECT_EQ(server().statistics().connections_accepted, 1u);
}

TEST_F(ForwardingTest, ABackendThatIsTooLateIsATimeout) {
  RawServer silent;
  StartProxy("*=" + silent.uri());
  RawClient client(proxy_->endpoint());
  // With less it might have waited too long for the proxy itself.
  client.Call(1, kCall, MakeRequest("x"), 500);
  const auto reply = client.ReadReply();
  EXPECT_EQ(reply->status, flare::rpc::STATUS_TIMEOUT);
  EXPECT_NE(reply->description.find(kCall), std::string::npos);
}

TEST_F(ForwardingTest, FailuresKeepCodeAndText) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234, "because");
    call.Reply("what failed calls say isn't heard");
  };
  StartServer();
  StartProxy("*=" + BackendUri());
  const auto reply = Call(kCall);
  EXPECT_EQ(reply.status, 1234);
  EXPECT_EQ(reply.description, "because");
  EXPECT_EQ(reply.body, "");
}

TEST_F(ForwardingTest, SaysWhenThereIsNoRoute) {
  StartServer();
  StartProxy(std::string(kCall) + "=" + BackendUri());
  const auto reply = Call(kOther);
  EXPECT_EQ(reply.status, flare::rpc::STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(reply.description,
            "There is no route for flare.rpc.testing.TestService.Other.");
}

TEST_F(ForwardingTest, SaysWhenTheBackendIsDead) {
  DeadAddress dead;
  StartProxy("*=" + dead.uri());
  const auto reply = Call(kCall);
  EXPECT_EQ(reply.status, flare::rpc::STATUS_FAIL_TO_CONNECT);
  EXPECT_NE(reply.description.find(dead.endpoint().ToString()),
            std::string::npos)
      << reply.description;
}

TEST_F(ForwardingTest, GoesOnToABackendThatCanBeConnectedTo) {
  StartServer();
  const DeadAddress dead;
  StartProxy("*=flare://" + dead.endpoint().ToString() + "," +
             endpoint().ToString());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Call(kCall).status, 0);
}

TEST_F(ForwardingTest, NothingOfAMalformedReplyIsPassedOn) {
  RawServer backend;
  StartProxy("*=" + backend.uri());
  RawClient client(proxy_->endpoint());
  client.Call(1, kCall, MakeRequest("x"), 20'000);
  auto peer = backend.Accept();
  flare::rpc::OutboundResponse malformed;
  malformed.body = flare::CreateBufferSlow(std::string("\x0a\x01y\x0a\xff", 5));
  peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(malformed)));
  const auto reply = client.ReadReply();
  EXPECT_EQ(reply->status, flare::rpc::STATUS_MALFORMED_DATA);
  EXPECT_NE(reply->description, "");
  EXPECT_EQ(reply->body, "");
}

TEST_F(ForwardingTest, AStoppedProxyAnswersWhatItHasForwarded) {
  std::optional<RawClient::Reply> reply;
  // Calls that are told to stop then have as long again to answer, which may be
  // too short on a busy machine.
  for (const int timeout_ms : {500, 5000}) {
    drain_timeout_ = std::chrono::milliseconds(timeout_ms);
    RawServer silent;
    StartProxy("*=" + silent.uri());
    RawClient client(proxy_->endpoint());
    client.Call(1, kCall, MakeRequest("x"), 3'600'000);
    auto peer = silent.Accept();
    EXPECT_TRUE(peer->ReadRequest());
    proxy_.reset();
    reply = client.ReadReply();
    if (!reply) continue;
    EXPECT_TRUE(client.AtEnd());
    break;
  }
  ASSERT_TRUE(reply);
  EXPECT_NE(reply->status, 0);
}

// The proxy has stopped, and all its parts are gone except the calls that it
// has abandoned.
TEST_F(ForwardingTest, AbandonedCallsCanEnd) {
  FLAGS_flare_rpc_propagate_deadline = false;  // Or they wouldn't be abandoned.
  RawServer late, broken;
  StartProxy(std::string(kCall) + "=" + late.uri() + ";" + kOther + "=" +
             broken.uri());
  RawClient client(proxy_->endpoint());
  client.Call(1, kCall, MakeRequest("x"), 3'600'000);
  client.Call(2, kOther, MakeRequest("x"), 3'600'000);
  auto late_peer = late.Accept();
  auto broken_peer = broken.Accept();
  const auto request = late_peer->ReadRequest();
  EXPECT_TRUE(broken_peer->ReadRequest());
  proxy_.reset();
  EXPECT_TRUE(client.AtEnd());
  late_peer->Reply(request->id, "too late");
  broken_peer->Close();
  // TearDown() waits for both.
}

}  // namespace
}  // namespace example::proxy
