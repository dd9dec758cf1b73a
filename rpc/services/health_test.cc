#include "flare/rpc/services/health.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"
#include "rpc/services/health.flare.pb.h"

namespace flare {
namespace {

using grpc::health::v1::Health_SyncStub;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kStreamer[] = "flare.rpc.testing.Streamer";

HealthCheckRequest RequestFor(std::string service) {
  HealthCheckRequest request;
  request.set_service(std::move(service));
  return request;
}

class HealthTest : public rpc::testing::RpcTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(Server::Options{.service_name = "test"});
    server_->AddProtocols({"flare", "http+pb", "http+proto3-json", "baidu-std",
                           "trpc", "bolt", "grpc"});
    health_ = AddHealthService(&*server_);
    server_->AddService(std::make_unique<rpc::testing::FlexibleStreamer>());
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  }
  void TearDown() override {
    rpc::ShutdownClientSide();
    server_.reset();
    RpcTest::TearDown();
  }

  void Open(RpcChannel* channel, std::string_view protocol) {
    ASSERT_TRUE(channel->Open(std::string(protocol) + "://" +
                              server_->endpoint().ToString()));
  }

  std::optional<Server> server_;
  std::shared_ptr<Health> health_;
};

TEST_F(HealthTest, AllServicesServeFromTheStartToTheStop) {
  health_->Set(kStreamer, Health::Status::kNotServing);
  EXPECT_EQ(health_->Get(""), std::nullopt);
  ASSERT_TRUE(server_->Start());
  EXPECT_EQ(health_->Get(""), Health::Status::kServing);
  EXPECT_EQ(health_->Get("grpc.health.v1.Health"), Health::Status::kServing);
  EXPECT_EQ(health_->Get(kStreamer), Health::Status::kNotServing);
  health_->SetAll(Health::Status::kUnknown);
  EXPECT_EQ(health_->Get(""), Health::Status::kUnknown);
  health_->Set("own", Health::Status::kServing);
  server_->Stop();
  for (const char* const service : {"", kStreamer, "own"}) {
    EXPECT_EQ(health_->Get(service), Health::Status::kNotServing) << service;
  }
  health_->Set("own", Health::Status::kServing);
  health_->SetAll(Health::Status::kServing);
  EXPECT_EQ(health_->Get("own"), Health::Status::kNotServing);
}

TEST_F(HealthTest, ASecondOneIsRefused) {
  EXPECT_NE(AddHealthService(&*server_), nullptr);
  EXPECT_FALSE(server_->Start());
  EXPECT_NE(server_->error().message().find("grpc.health.v1.Health was added"),
            std::string::npos)
      << server_->error().message();
}

TEST_F(HealthTest, WatchWaitsForAChange) {
  std::stop_source stop;
  const std::stop_token token = stop.get_token();
  auto change = health_->Watch("own", Health::Status::kServing, token);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->status, std::nullopt);
  std::thread setter([&] { health_->Set("own", Health::Status::kNotServing); });
  change = health_->Watch("own", std::nullopt, token);
  setter.join();
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->status, Health::Status::kNotServing);
  EXPECT_FALSE(change->final);
  std::thread stopper([&] { stop.request_stop(); });
  EXPECT_FALSE(
      health_->Watch("own", Health::Status::kNotServing, token).has_value());
  stopper.join();
}

class HealthCheckTest : public HealthTest,
                        public ::testing::WithParamInterface<const char*> {};

TEST_P(HealthCheckTest, TellsTheStatus) {
  ASSERT_TRUE(server_->Start());
  RpcChannel channel;
  ASSERT_NO_FATAL_FAILURE(Open(&channel, GetParam()));
  const Health_SyncStub stub(&channel);
  auto reply = stub.Check(RequestFor(""));
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(reply->status(), HealthCheckResponse::SERVING);
  health_->Set(kStreamer, Health::Status::kNotServing);
  reply = stub.Check(RequestFor(kStreamer));
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(reply->status(), HealthCheckResponse::NOT_SERVING);
  reply = stub.Check(RequestFor("nobody"));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(),
            rpc::StatusFromGrpc(rpc::GrpcCode::kNotFound));
}

INSTANTIATE_TEST_SUITE_P(All, HealthCheckTest,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "trpc", "bolt", "grpc"));

// The question of channels that check their servers (health_check_options.h).
TEST_F(HealthTest, ChecksOfChannelsBelieveIt) {
  ASSERT_TRUE(server_->Start());
  rpc::ServerCheck check{.options = {.kind = HealthCheckKind::kGrpc,
                                     .timeout = std::chrono::seconds(20)},
                         .endpoint = server_->endpoint(),
                         .host = server_->endpoint().ToString()};
  const auto ask = [&](const std::string& service) {
    check.options.target = service;
    Status status;
    Fiber([&] { status = rpc::CheckServer(check, {}); }).join();
    return status;
  };
  EXPECT_EQ(ask(""), Status());
  EXPECT_EQ(ask(kStreamer), Status());
  health_->Set(kStreamer, Health::Status::kNotServing);
  EXPECT_EQ(ask(kStreamer).message(),
            "flare.rpc.testing.Streamer is NOT_SERVING");
  EXPECT_EQ(ask(""), Status());
  EXPECT_NE(ask("nobody").message().find("the check's call failed"),
            std::string::npos);
  health_->SetAll(Health::Status::kUnknown);
  EXPECT_EQ(ask("").message(), "the server is UNKNOWN");
}

TEST_F(HealthTest, AServerThatIsNotServingGetsNoCalls) {
  ASSERT_TRUE(server_->Start());
  Server other({.service_name = "test"});
  other.AddProtocols({"flare", "grpc"});
  const std::shared_ptr<Health> others = AddHealthService(&other);
  other.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(other.Start());
  RpcChannel::Options options;
  options.health.slow_start = std::chrono::nanoseconds(0);
  options.health_check = {.kind = HealthCheckKind::kGrpc,
                          .interval = std::chrono::milliseconds(5),
                          .timeout = std::chrono::seconds(20)};
  RpcChannel channel("flare://" + server_->endpoint().ToString() + "," +
                         other.endpoint().ToString(),
                     options);
  const Health_SyncStub stub(&channel);
  // How many of some calls in a row go to the second server.
  const auto count = [&] {
    int there = 0;
    for (int i = 0; i != 20; ++i) {
      RpcClientController controller;
      EXPECT_TRUE(stub.Check(RequestFor(""), &controller));
      there += controller.GetRemotePeer() == other.endpoint();
    }
    return there;
  };
  EXPECT_TRUE(fiber::testing::Eventually([&] { return count() == 10; }));
  others->SetAll(Health::Status::kNotServing);
  EXPECT_TRUE(fiber::testing::Eventually([&] { return count() == 0; }));
  others->SetAll(Health::Status::kServing);
  EXPECT_TRUE(fiber::testing::Eventually([&] { return count() == 10; }));
  rpc::ShutdownClientSide();
}

class HealthWatchTest : public HealthCheckTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(HealthCheckTest::SetUp());
    ASSERT_TRUE(server_->Start());
    ASSERT_NO_FATAL_FAILURE(Open(&channel_, GetParam()));
  }

  // The next status that `reader` tells.
  static int Next(StreamReader<HealthCheckResponse>* reader) {
    auto response = reader->Read();
    return response ? static_cast<int>(response->status()) : -1;
  }

  RpcChannel channel_;
  const Health_SyncStub stub_{&channel_};
};

TEST_P(HealthWatchTest, TellsChanges) {
  auto reader = stub_.Watch(RequestFor("own"));
  EXPECT_EQ(Next(&reader), HealthCheckResponse::SERVICE_UNKNOWN);
  health_->Set("another", Health::Status::kServing);
  health_->Set("own", Health::Status::kServing);
  EXPECT_EQ(Next(&reader), HealthCheckResponse::SERVING);
  health_->SetAll(Health::Status::kNotServing);
  EXPECT_EQ(Next(&reader), HealthCheckResponse::NOT_SERVING);
}

TEST_P(HealthWatchTest, TheStopIsToldAndEndsIt) {
  RpcClientController controller;
  auto reader = stub_.Watch(RequestFor(""), &controller);
  EXPECT_EQ(Next(&reader), HealthCheckResponse::SERVING);
  server_->Stop();
  EXPECT_EQ(Next(&reader), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  // Trpc has another code for it.
  EXPECT_EQ(reader.status().message(), "the server stops");
  // No watch holds it up.
  EXPECT_EQ(server_->Join(), 0u);
}

TEST_P(HealthWatchTest, EndsWhenTheCallerLeaves) {
  {
    auto reader = stub_.Watch(RequestFor(""));
    EXPECT_EQ(Next(&reader), HealthCheckResponse::SERVING);
  }
  while (server_->statistics().calls_running != 0) std::this_thread::yield();
}

INSTANTIATE_TEST_SUITE_P(Streams, HealthWatchTest,
                         ::testing::Values("flare", "trpc", "grpc"));

}  // namespace
}  // namespace flare
