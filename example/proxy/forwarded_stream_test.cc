// Streaming calls of each protocol, passed on in each.
#include "example/proxy/forwarded_stream.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>

#include "example/proxy/forwarding_service.h"
#include "example/proxy/routes_testing.h"
#include "example/proxy/rpc_routes.h"
#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::RpcServerController;
using flare::StreamError;
using flare::StreamReader;
using flare::StreamWriter;
using flare::rpc::testing::MakeNumber;
using flare::rpc::testing::Number;
using flare::rpc::testing::Streamer;
using flare::rpc::testing::StreamerTest;

// The caller's protocol, and the server's.
using Pair = std::tuple<const char*, const char*>;

class ForwardedStreamTest : public StreamerTest,
                            public ::testing::WithParamInterface<Pair> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    google::protobuf::FileDescriptorSet set;
    Streamer::descriptor()->file()->CopyTo(set.add_file());
    const auto [caller, server] = GetParam();
    const auto routed =
        RoutedMethods::Build(set, Routes(std::string("*=") + server + "://" +
                                         server_->endpoint().ToString()));
    ASSERT_TRUE(routed) << routed.error().message();
    proxy_.emplace(flare::Server::Options{.service_name = "proxy"});
    for (const auto& [service, methods] : routed->services()) {
      ForwardingService::Channels channels;
      for (const auto& [method, uri] : methods) {
        channels.emplace(method, std::make_shared<flare::RpcChannel>(uri));
      }
      proxy_->AddService(std::make_unique<ForwardingService>(
          routed->pool(), service, std::move(channels), [] {}));
    }
    proxy_->AddProtocols({"flare", "baidu-std", "trpc", "grpc"});
    proxy_->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(proxy_->Start());
    ASSERT_TRUE(channel_.Open(std::string(caller) + "://" +
                              proxy_->endpoint().ToString()));
  }
  void TearDown() override {
    flare::rpc::ShutdownClientSide();
    proxy_.reset();
    StreamerTest::TearDown();
  }

  std::optional<flare::Server> proxy_;
};

TEST_P(ForwardedStreamTest, MessagesGoBothWays) {
  constexpr int kMessages = 100;
  EXPECT_EQ(stub_.Double(MakeNumber(21), &controller_)->value(), 42);
  {
    controller_.Reset();
    auto [reader, writer] = stub_.Sum(&controller_);
    for (int i = 0; i != kMessages; ++i) {
      ASSERT_TRUE(writer.Write(MakeNumber(1, 10'000)))
          << i << reader.status().ToString();
    }
    writer.Close();
    auto sum = reader.Read();
    ASSERT_TRUE(sum) << reader.status().ToString();
    EXPECT_EQ(sum->value(), kMessages);
  }
  {
    controller_.Reset();
    auto reader = stub_.Count(MakeNumber(kMessages, 10'000), &controller_);
    int next = 0;
    for (const Number& number : reader) {
      EXPECT_EQ(number.value(), next++);
      EXPECT_EQ(number.padding().size(), 10'000u);
    }
    EXPECT_EQ(next, kMessages);
    EXPECT_EQ(reader.error(), StreamError::EndOfStream);
  }
  controller_.Reset();
  auto [reader, writer] = stub_.Echo(&controller_);
  for (int i = 0; i != 10; ++i) {
    ASSERT_TRUE(writer.Write(MakeNumber(i)));
    auto number = reader.Read();
    ASSERT_TRUE(number) << reader.status().ToString();
    EXPECT_EQ(number->value(), i);
  }
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

TEST_P(ForwardedStreamTest, MetadataAndDeadlineGoAlong) {
  service_.on_echo = [](StreamReader<Number> reader,
                        StreamWriter<Number> writer,
                        RpcServerController* controller) {
    EXPECT_EQ(controller->GetRequestMetadata().Get("who"), "me");
    EXPECT_EQ(controller->GetRequestMetadata().Get("b-bin"),
              std::string("\0\xff", 2));
    if (std::get<0>(GetParam()) != std::string("trpc")) {  // Has no deadline.
      EXPECT_GT(*controller->GetTimeout() - flare::ReadSteadyClock(),
                std::chrono::minutes(30));
    }
    EXPECT_TRUE(controller->AddResponseMetadata("first", "1"));
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    while (reader.Read()) continue;
    EXPECT_TRUE(controller->AddResponseTrailer("last-bin", "2"));
    writer.Close();
  };
  controller_.SetTimeout(std::chrono::hours(1));
  controller_.AddMetadata("who", "me");
  controller_.AddMetadata("b-bin", std::string("\0\xff", 2));
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(0)));  // Opens streams of flare.
  EXPECT_TRUE(reader.Read());
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream)
      << reader.status().ToString();
  EXPECT_EQ(controller_.GetResponseMetadata().Get("first"), "1");
  EXPECT_EQ(controller_.GetResponseMetadata().Get("last-bin"), "2");
}

TEST_P(ForwardedStreamTest, FailuresKeepCodeAndText) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(7)));
    controller->SetFailed(4711, "because");
  };
  service_.on_sum = [](StreamReader<Number>, Number*,
                       RpcServerController* controller) {
    controller->SetFailed(4711, "because");
  };
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_TRUE(reader.Read());
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), 4711);
  EXPECT_EQ(reader.status().message(), "because");
  // Before the caller has sent all.
  controller_.Reset();
  auto [sum, writer] = stub_.Sum(&controller_);
  // Over baidu-std it waits for the server's answer, which may be the failure.
  static_cast<void>(writer.Write(MakeNumber(1)));
  EXPECT_FALSE(sum.Read());
  EXPECT_EQ(sum.status().code(), 4711);
}

TEST_P(ForwardedStreamTest, ACallThatIsGivenUpEndsEverywhere) {
  flare::fiber::Event ended;
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer, RpcServerController*) {
    EXPECT_TRUE(reader.Read());
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    EXPECT_EQ(reader.Read().error(), StreamError::IoError);
    ended.Set();
  };
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(0)));
  EXPECT_TRUE(reader.Read());
  controller_.StartCancel();
  ended.Wait();
}

TEST_P(ForwardedStreamTest, ASilentServerHearsThatTheCallerIsGone) {
  flare::fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    flare::fiber::Event canceled;
    std::stop_callback on_stop(controller->GetStopToken(),
                               [&] { canceled.Set(); });
    canceled.Wait();
    ended.Set();
  };
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_TRUE(reader.Read());
  controller_.StartCancel();
  ended.Wait();
}

INSTANTIATE_TEST_SUITE_P(, ForwardedStreamTest,
                         ::testing::Values(Pair("grpc", "grpc"),
                                           Pair("grpc", "flare"),
                                           Pair("flare", "grpc"),
                                           Pair("trpc", "grpc"),
                                           Pair("baidu-std", "grpc")));

}  // namespace
}  // namespace example::proxy
