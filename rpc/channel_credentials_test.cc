#include "flare/rpc/channel_credentials.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;

Credential Valid(std::string value, std::chrono::nanoseconds span) {
  return {.value = std::move(value), .expires = ReadSteadyClock() + span};
}

std::string ValueOf(const ChannelCredentials& credentials) {
  Metadata metadata;
  const flare::Status added = credentials.AddTo(&metadata);
  if (!added.ok()) return added.ToString();
  return std::string(metadata.Get("authorization").value_or("none"));
}

TEST(ChannelCredentials, FailsAsTheFirstFetchDoes) {
  auto made = ChannelCredentials::Create([]() -> Expected<Credential> {
    return flare::Status(4711, "the token server is down");
  });
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message(), "the token server is down");
  made = ChannelCredentials::Create(
      []() -> Expected<Credential> { return Credential{.value = "a\nb"}; });
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("isn't printable ASCII"));
  made = ChannelCredentials::Create(
      []() -> Expected<Credential> { return Credential{.value = "a"}; },
      {.name = "grpc-status"});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("grpc-status"));
}

TEST(ChannelCredentials, OneWithoutEndIsFetchedOnce) {
  std::atomic<int> fetched = 0;
  auto made = ChannelCredentials::Create([&]() -> Expected<Credential> {
    ++fetched;
    return Credential{.value = "Bearer a"};
  });
  ASSERT_TRUE(made);
  EXPECT_EQ(ValueOf(**made), "Bearer a");
  Metadata own;
  ASSERT_TRUE(own.Add("authorization", "mine").ok());
  EXPECT_TRUE((*made)->AddTo(&own).ok());
  EXPECT_EQ(own.size(), 1u);
  EXPECT_EQ(own.Get("authorization"), "mine");
  EXPECT_EQ(fetched, 1);
}

TEST(ChannelCredentials, IsRenewedAheadOfItsEnd) {
  const auto first = Valid("Bearer 1", 6s);
  std::atomic<int> fetched = 0;
  std::promise<bool> in_time;
  auto made = ChannelCredentials::Create([&]() -> Expected<Credential> {
    if (++fetched == 1) return first;
    in_time.set_value(ReadSteadyClock() < first.expires);
    return Credential{.value = "Bearer 2"};
  });
  ASSERT_TRUE(made);
  EXPECT_EQ(ValueOf(**made), "Bearer 1");
  EXPECT_TRUE(in_time.get_future().get());
  while (ValueOf(**made) != "Bearer 2") std::this_thread::sleep_for(1ms);
  EXPECT_EQ(fetched, 2);
}

TEST(ChannelCredentials, TheOldOneLastsWhileRenewalsFail) {
  std::atomic<bool> down = true;
  std::atomic<int> fetched = 0;
  std::promise<void> failed;
  auto made = ChannelCredentials::Create(
      [&]() -> Expected<Credential> {
        const int number = ++fetched;
        if (number == 1) return Valid("Bearer old", 40ms);
        if (number == 2) failed.set_value();
        if (down) return flare::Status(4711, "the token server is down");
        return Credential{.value = "Bearer new"};
      },
      {.retry_after = 10ms});
  ASSERT_TRUE(made);
  failed.get_future().wait();
  std::string text = ValueOf(**made);
  // Valid until then, and refused from then on.
  while (text == "Bearer old") text = ValueOf(**made);
  EXPECT_THAT(text, HasSubstr("the channel's credential (authorization) "
                              "expired "));
  down = false;
  while (text != "Bearer new") {
    EXPECT_THAT(text, HasSubstr("expired"));
    text = ValueOf(**made);
  }
}

TEST(ChannelCredentials, OneThatHasExpiredReplacesNone) {
  std::atomic<int> fetched = 0;
  auto made = ChannelCredentials::Create(
      [&]() -> Expected<Credential> {
        if (++fetched == 1) return Valid("Bearer first", 6s);
        if (fetched == 2) return Valid("Bearer late", -1s);
        return Credential{.value = "Bearer third"};
      },
      {.retry_after = 10ms});
  ASSERT_TRUE(made);
  std::string text = ValueOf(**made);
  while (text != "Bearer third") {
    ASSERT_EQ(text, "Bearer first");
    std::this_thread::sleep_for(1ms);
    text = ValueOf(**made);
  }
}

// --- with channels ---------------------------------------------------------

class CredentialedCalls : public ServerTest,
                          public ::testing::WithParamInterface<const char*> {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve() {
    server().AddService(&streamer_);
    StartServer({"flare", "http+pb", "baidu-std", "bolt", "trpc", "grpc"});
  }
  RpcChannel* Open(std::shared_ptr<ChannelCredentials> credentials) {
    channel_ = std::make_unique<RpcChannel>();
    EXPECT_TRUE(
        channel_->Open(std::string(GetParam()) + "://" + endpoint().ToString(),
                       {.credentials = std::move(credentials)}));
    return channel_.get();
  }
  static std::shared_ptr<ChannelCredentials> Make(
      ChannelCredentials::Fetch fetch) {
    auto made = ChannelCredentials::Create(
        std::move(fetch), {.retry_after = 1h, .allow_plaintext = true});
    EXPECT_TRUE(made);
    return made ? *made : nullptr;
  }

  FlexibleStreamer streamer_;

 private:
  std::unique_ptr<RpcChannel> channel_;
};

TEST_P(CredentialedCalls, CarryTheCredential) {
  Metadata seen;
  service().on_call = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  Serve();
  RpcChannel* const channel = Open(Make([]() -> Expected<Credential> {
    return Credential{.value = "Bearer abc"};
  }));
  TestedCall call;
  call.controller.AddMetadata("tag", "1");
  ASSERT_EQ(call.Start(channel)->Await(), 0) << call.controller.ErrorText();
  EXPECT_EQ(seen.Get("authorization"), "Bearer abc");
  EXPECT_EQ(seen.Get("tag"), "1");
  // A controller that is used again doesn't hand it to other channels.
  EXPECT_EQ(call.controller.MutableMetadata()->size(), 1u);
  TestedCall bare;
  ASSERT_EQ(bare.Start(channel)->Await(), 0);
  EXPECT_EQ(seen.Get("authorization"), "Bearer abc");
  EXPECT_EQ(seen.size(), 1u);
}

TEST_P(CredentialedCalls, FailWithoutOne) {
  Serve();
  RpcChannel* const channel = Open(
      Make([]() -> Expected<Credential> { return Valid("Bearer abc", -1s); }));
  TestedCall call;
  call.controller.SetMaxRetries(3);
  EXPECT_EQ(call.Start(channel)->Await(), STATUS_UNAUTHENTICATED);
  EXPECT_THAT(call.controller.ErrorText(),
              HasSubstr("the channel's credential (authorization) expired"));
  EXPECT_EQ(server().statistics().calls, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, CredentialedCalls,
                         ::testing::Values("flare", "http+pb", "baidu-std",
                                           "bolt", "trpc", "grpc"));

class CredentialedStreams : public CredentialedCalls {};

TEST_P(CredentialedStreams, CarryTheCredential) {
  std::string seen;
  streamer_.on_count = [&](const Number&, StreamWriter<Number> writer,
                           RpcServerController* controller) {
    seen = controller->GetRequestMetadata().Get("authorization").value_or("");
    writer.Close();
  };
  Serve();
  Streamer_SyncStub stub(Open(Make([]() -> Expected<Credential> {
    return Credential{.value = "Bearer abc"};
  })));
  RpcClientController controller;
  auto reader = stub.Count(MakeNumber(1), &controller);
  EXPECT_FALSE(reader.Read());
  EXPECT_TRUE(reader.status().ok()) << reader.status().ToString();
  EXPECT_EQ(seen, "Bearer abc");
}

TEST_P(CredentialedStreams, FailWithoutOne) {
  Serve();
  Streamer_SyncStub stub(Open(
      Make([]() -> Expected<Credential> { return Valid("Bearer abc", -1s); })));
  RpcClientController controller;
  auto reader = stub.Count(MakeNumber(1), &controller);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_UNAUTHENTICATED);
}

INSTANTIATE_TEST_SUITE_P(All, CredentialedStreams,
                         ::testing::Values("flare", "http+pb", "trpc", "grpc"));

TEST(ChannelCredentials, GoOverTlsUnlessToldOtherwise) {
  auto made = ChannelCredentials::Create(
      []() -> Expected<Credential> { return Credential{.value = "a"}; });
  ASSERT_TRUE(made);
  RpcChannel channel;
  EXPECT_FALSE(channel.Open("flare://127.0.0.1:1", {.credentials = *made}));
  EXPECT_TRUE(channel.Open("tls+flare://127.0.0.1:1", {.credentials = *made}));
}

}  // namespace
}  // namespace flare::rpc::testing
