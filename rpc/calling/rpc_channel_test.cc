// Opening channels, and calls through them to a real server.
#include "flare/rpc/rpc_channel.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/compression.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class RpcChannelTest : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  std::string Uri(const std::string& protocol) {
    return protocol + "://" + endpoint().ToString();
  }

  // The reason why it can't be opened; "" if it can.
  static std::string Refusal(const std::string& uri,
                             const RpcChannel::Options& options = {}) {
    RpcChannel channel;
    if (channel.Open(uri, options)) return "";
    EXPECT_EQ(channel.status().code(), STATUS_INVALID_CHANNEL);
    // Calls fail in the same words.
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_INVALID_CHANNEL);
    EXPECT_EQ(call.controller.ErrorText(), channel.status().message());
    return channel.status().message();
  }

  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(RpcChannelTest, UnopenedFailsCalls) {
  RpcChannel channel;
  EXPECT_EQ(channel.status().code(), STATUS_INVALID_CHANNEL);
  RpcClientController controller;
  TestRequest request;
  TestResponse response;
  TestService_Stub stub(&channel);
  stub.Call(&controller, &request, &response, nullptr);
  EXPECT_EQ(controller.ErrorCode(), STATUS_INVALID_CHANNEL);
  EXPECT_NE(controller.ErrorText(), "");
  stub.Call(nullptr, &request, &response, nullptr);  // Nobody hears of it.
}

TEST_F(RpcChannelTest, UnreadableUris) {
  for (const char* uri : {"", "127.0.0.1:5567", "flare:", "flare://", "://x:1",
                          "flare:/127.0.0.1:1"}) {
    const std::string text = Refusal(uri);
    EXPECT_TRUE(Has(text, "protocol://address")) << uri << ": " << text;
    EXPECT_TRUE(Has(text, '"' + std::string(uri) + '"')) << text;
  }
}

TEST_F(RpcChannelTest, UnknownProtocolListsTheKnown) {
  const std::string text = Refusal("svrkit://127.0.0.1:1");
  EXPECT_TRUE(Has(text, "svrkit")) << text;
  EXPECT_TRUE(Has(text, "flare")) << text;
  EXPECT_TRUE(Has(text, "http+pb")) << text;
}

TEST_F(RpcChannelTest, UnusableOverrides) {
  const std::string uri = "flare://127.0.0.1:1";
  for (const char* nslb : {"list", "+rr", "list+", "+"}) {
    EXPECT_TRUE(
        Has(Refusal(uri, {.override_nslb = nslb}), "resolver+balancer"));
  }
  EXPECT_TRUE(Has(Refusal(uri, {.override_nslb = "etcd+rr"}), "known are "));
  EXPECT_TRUE(Has(Refusal(uri, {.override_nslb = "list+magic"}), "known are "));
  EXPECT_EQ(Refusal(uri, {.override_nslb = "list+rr"}), "");
}

TEST_F(RpcChannelTest, UnusableAddresses) {
  EXPECT_TRUE(Has(Refusal("flare://127.0.0.1"), "127.0.0.1"));
  EXPECT_TRUE(Has(Refusal("flare://127.0.0.1:1,,127.0.0.1:2"), "empty server"));
}

TEST_F(RpcChannelTest, OpensAgain) {
  StartServer();
  RpcChannel channel("nonsense");
  EXPECT_FALSE(channel.status().ok());
  EXPECT_TRUE(channel.Open(Uri("flare")));
  EXPECT_TRUE(channel.status().ok());
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_FALSE(channel.Open("nonsense"));
  TestedCall again;
  EXPECT_EQ(again.Start(&channel)->Await(), STATUS_INVALID_CHANNEL);
}

TEST_F(RpcChannelTest, NoPeer) {
  RpcChannel channel("flare://service", {.override_nslb = NobodyNslb()});
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_NO_PEER);
  EXPECT_TRUE(Has(call.controller.ErrorText(), "service"));
}

TEST_F(RpcChannelTest, SpeaksEveryProtocol) {
  server().AddProtocols({"http+pb-text", "bolt"});
  StartServer();
  for (const char* protocol : {"flare", "http+pb", "http", "http+proto3-json",
                               "http+pb-text", "bolt"}) {
    RpcChannel channel(Uri(protocol));
    ASSERT_TRUE(channel.status().ok()) << channel.status().message();
    TestedCall call;
    call.request.set_body("hello \x01\xc3\xa4 \"there\"");
    call.request.set_number(-7);
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
        << protocol << ": " << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), call.request.body()) << protocol;
    EXPECT_EQ(call.response.number(), -7) << protocol;
  }
}

// HTTP has no name for these servers.
TEST_F(RpcChannelTest, SpeaksEveryProtocolOverUnixSockets) {
  for (const char* kind :
       {"unix:@flare rpc_channel_test/", "unix:/tmp/flare rpc_channel_test."}) {
    const std::string address = kind + std::to_string(::getpid());
    Server server;
    server.AddProtocols({"flare", "http+pb", "http+pb-text", "http+proto3-json",
                         "bolt", "trpc", "baidu-std"});
    server.AddService(&service());
    server.ListenOn(MustParseEndpoint(address));
    ASSERT_TRUE(server.Start()) << server.error().ToString();
    for (const char* protocol : {"flare", "http+pb", "http+proto3-json",
                                 "http+pb-text", "bolt", "trpc", "baidu-std"}) {
      RpcChannel channel(std::string(protocol) + "://" + address);
      TestedCall call;
      EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
          << protocol << ": " << call.controller.ErrorText();
      EXPECT_EQ(call.response.body(), "ping") << protocol;
    }
  }
}

TEST_F(RpcChannelTest, PacketsMayBeOfAnySize) {
  constexpr auto kAny = std::numeric_limits<std::size_t>::max();
  server_options().maximum_packet_size = kAny;
  StartServer();
  for (const char* protocol : {"flare", "http+pb"}) {
    RpcChannel channel(Uri(protocol), {.maximum_packet_size = kAny});
    TestedCall call;
    call.request.set_body(std::string(6'000'000, 'b'));
    EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
        << protocol << ": " << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), call.request.body());
  }
}

TEST_F(RpcChannelTest, FailuresOfServices) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(4711, "out of stock");
    call.Reply();
  };
  StartServer({"flare", "http+pb", "bolt"});
  for (const char* protocol : {"flare", "http+pb", "bolt"}) {
    RpcChannel channel(Uri(protocol));
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), 4711) << protocol;
    EXPECT_EQ(call.controller.ErrorText(), "out of stock");
    RpcClientController unknown;
    TestRequest request;
    TestResponse response;
    OtherService_Stub(&channel).Call(&unknown, &request, &response, nullptr);
    EXPECT_EQ(unknown.ErrorCode(), STATUS_METHOD_NOT_FOUND) << protocol;
  }
}

TEST_F(RpcChannelTest, AttachmentsAndCompression) {
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    call.controller->SetCompressionAlgorithm(
        call.controller->GetCompressionAlgorithm());
    FlexibleService::Echo(call);
  };
  StartServer();
  RpcChannel channel(Uri("flare"));
  for (auto algorithm :
       {CompressionAlgorithm::kNone, CompressionAlgorithm::kGzip,
        CompressionAlgorithm::kLz4Frame, CompressionAlgorithm::kSnappy,
        CompressionAlgorithm::kZstd}) {
    for (std::size_t size : {0, 1, 1000, 1'000'000}) {
      TestedCall call;
      call.controller.SetCompressionAlgorithm(algorithm);
      call.request.set_body(std::string(size, 'b'));
      call.controller.SetRequestAttachment(
          CreateBufferSlow(std::string(size, 'a')));
      EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
          << call.controller.ErrorText();
      EXPECT_EQ(call.response.body(), call.request.body());
      EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()),
                std::string(size, 'a'));
    }
  }
}

TEST_F(RpcChannelTest, ServerSeesTheDeadline) {
  std::chrono::nanoseconds left(0);
  service().on_call = [&](TestCall call) {
    left = *call.controller->GetTimeout() - ReadSteadyClock();
    call.Reply();
  };
  StartServer();
  RpcChannel channel(Uri("flare"));
  TestedCall call;
  call.controller.SetTimeout(std::chrono::seconds(40));
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_GT(left, std::chrono::seconds(20));
  EXPECT_LE(left, std::chrono::seconds(40) + std::chrono::milliseconds(2));
}

TEST_F(RpcChannelTest, BalancesAmongServers) {
  StartServer();
  FlexibleService there;
  there.on_call = [](TestCall call) { call.Reply("there"); };
  Server other;
  other.AddProtocol("flare");
  other.AddService(&there);
  other.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(other.Start());
  RpcChannel channel("flare://" + endpoint().ToString() + "," +
                     other.endpoint().ToString());
  // One after the other, so that both servers are connected to: one that isn't
  // yet may be passed over.
  const auto count_here = [&](int n) {
    int here = 0;
    for (int i = 0; i != n; ++i) {
      TestedCall call;
      EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
          << call.controller.ErrorText();
      here += call.response.body() == "ping";
    }
    return here;
  };
  count_here(4);
  EXPECT_EQ(count_here(10), 5);
  other.Stop();
  other.Join();
}

// As where a service is started before its name is in DNS.
TEST_F(RpcChannelTest, RecoversOnceItsHostIsKnown) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  StartServer();
  // The last look-up may outlive the test.
  const auto known = std::make_shared<std::atomic<bool>>(false);
  SetHostLookupForTesting(
      [known,
       here = endpoint()](std::string_view) -> Expected<std::vector<Endpoint>> {
        if (!*known) return flare::Status(EAGAIN, "no answer");
        return std::vector{here};
      });
  RpcChannel channel;
  EXPECT_FALSE(channel.Open("flare://service.test:1"));
  EXPECT_TRUE(Has(channel.status().message(), "no answer"));
  TestedCall first;
  EXPECT_EQ(first.Start(&channel)->Await(), STATUS_NO_PEER);
  *known = true;
  const std::int64_t deadline = NowNs() + 20'000'000'000;
  bool arrived = false;
  while (!arrived && NowNs() < deadline) {
    TestedCall call;
    arrived = call.Start(&channel)->Await() == STATUS_SUCCESS;
  }
  EXPECT_TRUE(arrived);
  StopNameResolution();
  SetHostLookupForTesting(nullptr);
  FLAGS_flare_name_resolver_update_interval_seconds = 3;
}

// The known part of a list is used meanwhile.
TEST_F(RpcChannelTest, CallsGoToServersWhoseHostsAreKnown) {
  StartServer();
  SetHostLookupForTesting(
      [](std::string_view) -> Expected<std::vector<Endpoint>> {
        return flare::Status(EAGAIN, "no answer");
      });
  RpcChannel channel;
  EXPECT_FALSE(channel.Open(Uri("flare") + ",service.test:1"));
  TestedCall call;
  EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  StopNameResolution();
  SetHostLookupForTesting(nullptr);
}

TEST_F(RpcChannelTest, FollowsTheNameResolver) {
  FLAGS_flare_name_resolver_update_interval_seconds = 1;
  StartServer();
  DeadAddress nowhere;
  // The last look-up may outlive the test.
  const auto moved = std::make_shared<std::atomic<bool>>(false);
  SetHostLookupForTesting(
      [moved, here = endpoint(), gone = nowhere.endpoint()](
          std::string_view) -> Expected<std::vector<Endpoint>> {
        return std::vector{*moved ? here : gone};
      });
  RpcChannel channel("flare://service.test:1");
  TestedCall first;
  EXPECT_EQ(first.Start(&channel)->Await(), STATUS_FAIL_TO_CONNECT);
  *moved = true;
  const std::int64_t deadline = NowNs() + 20'000'000'000;
  bool arrived = false;
  while (!arrived && NowNs() < deadline) {
    TestedCall call;
    arrived = call.Start(&channel)->Await() == STATUS_SUCCESS;
  }
  EXPECT_TRUE(arrived);
  StopNameResolution();
  SetHostLookupForTesting(nullptr);
  FLAGS_flare_name_resolver_update_interval_seconds = 3;
}

}  // namespace
}  // namespace flare::rpc::testing
