// Metadata from end to end: real servers and channels, over each protocol.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/interceptor.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;

const std::string kBinary("\0\xff\r\n:", 5);

class MetadataCalls : public ServerTest,
                      public ::testing::WithParamInterface<const char*> {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  RpcChannel* Serve() {
    if (channel_ != nullptr) return channel_.get();
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc"});
    channel_ = std::make_unique<RpcChannel>(std::string(GetParam()) + "://" +
                                            endpoint().ToString());
    return channel_.get();
  }

 private:
  std::unique_ptr<RpcChannel> channel_;
};

TEST_P(MetadataCalls, TravelsBothWays) {
  Metadata seen;
  service().on_call = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata();
    EXPECT_TRUE(call.controller->AddResponseMetadata("X-Region", "north"));
    EXPECT_TRUE(call.controller->AddResponseMetadata("state-bin", kBinary));
    FlexibleService::Echo(call);
  };
  RpcChannel* const channel = Serve();
  TestedCall call;
  call.controller.AddMetadata("Authorization", "Bearer abc=");
  call.controller.AddMetadata("trace-bin", kBinary);
  call.controller.AddMetadata("tag", "1");
  call.controller.AddMetadata("tag", "2");
  call.controller.AddMetadata("empty", "");
  ASSERT_EQ(call.Start(channel)->Await(), 0) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "ping");
  EXPECT_EQ(seen.Get("authorization"), "Bearer abc=");
  EXPECT_EQ(seen.Get("trace-bin"), kBinary);
  EXPECT_EQ(seen.GetAll("tag"), (std::vector<std::string_view>{"1", "2"}));
  EXPECT_EQ(seen.Get("empty"), "");
  EXPECT_EQ(seen.size(), 5u);
  const Metadata& received = call.controller.GetResponseMetadata();
  EXPECT_EQ(received.Get("x-region"), "north");
  EXPECT_EQ(received.Get("state-bin"), kBinary);
}

TEST_P(MetadataCalls, GoesWithFailures) {
  service().on_call = [](TestCall call) {
    call.controller->AddResponseMetadata("retry-after", "5");
    call.controller->SetFailed(4711, "later");
    call.Reply();
  };
  RpcChannel* const channel = Serve();
  TestedCall call;
  EXPECT_EQ(call.Start(channel)->Await(), 4711);
  EXPECT_EQ(call.controller.ErrorText(), "later");
  EXPECT_EQ(call.controller.GetResponseMetadata().Get("retry-after"), "5");
}

TEST_P(MetadataCalls, IsAbsentWhereNobodyAddsAny) {
  bool empty = false;
  service().on_call = [&](TestCall call) {
    empty = call.controller->GetRequestMetadata().empty();
    FlexibleService::Echo(call);
  };
  RpcChannel* const channel = Serve();
  TestedCall call;
  ASSERT_EQ(call.Start(channel)->Await(), 0);
  EXPECT_TRUE(empty);
  EXPECT_TRUE(call.controller.GetResponseMetadata().empty());
}

// Neither lasts longer than its call, except the caller's entries: they last
// until Reset().
TEST_P(MetadataCalls, IsOfOneCall) {
  service().on_call = [&](TestCall call) {
    const Metadata& request = call.controller->GetRequestMetadata();
    if (const auto name = request.Get("name")) {
      call.controller->AddResponseMetadata("hello", *name);
    }
    FlexibleService::Echo(call);
  };
  RpcChannel* const channel = Serve();
  RpcClientController controller;
  TestRequest request = MakeRequest("ping");
  const auto answer = [&]() -> std::string {
    TestResponse response;
    OnFiber([&] {
      channel->CallMethod(MethodNamed("Call"), &controller, &request, &response,
                          nullptr);
    });
    EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
    return std::string(
        controller.GetResponseMetadata().Get("hello").value_or("nobody"));
  };
  EXPECT_EQ(answer(), "nobody");
  controller.AddMetadata("name", "a");
  EXPECT_EQ(answer(), "a");
  EXPECT_EQ(answer(), "a");
  ASSERT_TRUE(controller.MutableMetadata()->Set("name", "b").ok());
  EXPECT_EQ(answer(), "b");
  controller.Reset();
  EXPECT_EQ(answer(), "nobody");
}

TEST_P(MetadataCalls, LargeOnesFitTheLimits) {
  std::size_t seen = 0;
  service().on_call = [&](TestCall call) {
    seen = call.controller->GetRequestMetadata().byte_size();
    *call.controller->MutableResponseMetadata() =
        call.controller->GetRequestMetadata();
    FlexibleService::Echo(call);
  };
  RpcChannel* const channel = Serve();
  TestedCall call;
  // HTTP has a limit of its own, of 8 KiB for a head.
  const bool http = std::string_view(GetParam()).starts_with("http");
  const std::string value(http ? 6000 : Metadata::kMaxBytes - 5, 'x');
  call.controller.AddMetadata("large", value);
  ASSERT_EQ(call.Start(channel)->Await(), 0) << call.controller.ErrorText();
  EXPECT_EQ(seen, value.size() + 5);
  EXPECT_EQ(call.controller.GetResponseMetadata().Get("large"), value);
}

TEST_P(MetadataCalls, BadEntriesFailTheCall) {
  RpcChannel* const channel = Serve();
  TestedCall call;
  call.controller.AddMetadata("a\r\nb", "c");
  EXPECT_EQ(call.Start(channel)->Await(), STATUS_NOT_SUPPORTED);
  EXPECT_THAT(call.controller.ErrorText(), HasSubstr("a name consists of"));
  // A server leaves them out.
  service().on_call = [](TestCall call) {
    EXPECT_FALSE(call.controller->AddResponseMetadata("a", "b\r\nc: d"));
    call.controller->AddResponseMetadata("e", "f");
    FlexibleService::Echo(call);
  };
  TestedCall other;
  ASSERT_EQ(other.Start(channel)->Await(), 0);
  EXPECT_EQ(other.controller.GetResponseMetadata().Get("e"), "f");
  EXPECT_EQ(other.controller.GetResponseMetadata().size(), 1u);
}

// --- protocols that can't carry it -----------------------------------------

// flare without metadata.
class BareServer final : public ServerProtocol {
 public:
  BareServer(std::unique_ptr<ServerProtocol> inner, ReplySink* sink)
      : ServerProtocol(sink), inner_(std::move(inner)) {}

  std::string_view name() const override { return "bare"; }
  ProtocolTraits traits() const override {
    ProtocolTraits traits = inner_->traits();
    traits.metadata = false;
    return traits;
  }
  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    return inner_->Cut(in, request, need, error);
  }
  ParseResult Parse(InboundRequest* request) const override {
    return inner_->Parse(request);
  }
  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    EXPECT_EQ(response.metadata, nullptr);
    inner_->Write(ticket, std::move(response));
  }

 private:
  const std::unique_ptr<ServerProtocol> inner_;
};

class BareClient final : public ClientProtocol {
 public:
  explicit BareClient(std::unique_ptr<ClientProtocol> inner)
      : inner_(std::move(inner)) {}

  std::string_view name() const override { return "bare"; }
  ProtocolTraits traits() const override { return {}; }
  PayloadFormat format() const override { return inner_->format(); }
  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    return inner_->Write(std::move(request), out);
  }
  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    return inner_->Cut(in, response, need, error);
  }
  ParseResult Parse(InboundResponse* response) const override {
    return inner_->Parse(response);
  }

 private:
  const std::unique_ptr<ClientProtocol> inner_;
};

class BareMetadataCalls : public ServerTest {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  RpcChannel* Serve() {
    RegisterServerProtocol("bare", [](const Limits& limits, ReplySink* sink) {
      const auto set = ServerProtocolSet::FromNames({"flare"}, limits);
      return std::make_unique<BareServer>(set->New(0, sink), sink);
    });
    RegisterClientProtocol(
        "bare", [](const Limits& limits, std::string_view host) {
          return std::make_unique<BareClient>(
              std::move(NewClientProtocol("flare", limits, host)).value());
        });
    StartServer({"bare"});
    channel_ = std::make_unique<RpcChannel>("bare://" + endpoint().ToString());
    return channel_.get();
  }

 private:
  std::unique_ptr<RpcChannel> channel_;
};

TEST_F(BareMetadataCalls, RequestsFailWithAText) {
  RpcChannel* const channel = Serve();
  TestedCall call;
  call.controller.AddMetadata("a", "b");
  EXPECT_EQ(call.Start(channel)->Await(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call.controller.ErrorText(), "bare doesn't carry metadata");
}

// So one that adds entries for its own ends leaves them out.
TEST_F(BareMetadataCalls, InterceptorsOfChannelsKnow) {
  class Look : public ClientInterceptor {
   public:
    void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
      carries_metadata = call.carries_metadata();
      next.Run();
    }
    std::optional<bool> carries_metadata;
  };
  static_cast<void>(Serve());
  for (const char* const scheme : {"bare", "flare"}) {
    const auto look = std::make_shared<Look>();
    RpcChannel channel(std::string(scheme) + "://" + endpoint().ToString(),
                       {.interceptors = {look}});
    TestedCall call;
    EXPECT_EQ(call.Start(&channel)->Await(), 0) << call.controller.ErrorText();
    EXPECT_EQ(look->carries_metadata, std::string_view(scheme) == "flare");
  }
}

TEST_F(BareMetadataCalls, RepliesAreSentWithout) {
  service().on_call = [](TestCall call) {
    call.controller->AddResponseMetadata("a", "b");
    FlexibleService::Echo(call);
  };
  RpcChannel* const channel = Serve();
  const LoggedLines warnings(google::WARNING);
  TestedCall call;
  ASSERT_EQ(call.Start(channel)->Await(), 0);
  EXPECT_EQ(call.response.body(), "ping");
  EXPECT_TRUE(call.controller.GetResponseMetadata().empty());
  EXPECT_TRUE(
      warnings.Have("a response is sent without its metadata, 1 "
                    "value: bare doesn't carry any"))
      << warnings.All();
}

TEST_P(MetadataCalls, StatusDetailsGoWithAFailure) {
  service().on_call = [](TestCall call) {
    call.controller->AddResponseMetadata(kGrpcStatusDetails, kBinary);
    call.controller->SetFailed(4711, "more");
    call.Reply();
  };
  RpcChannel* const channel = Serve();
  TestedCall call;
  EXPECT_EQ(call.Start(channel)->Await(), 4711);
  EXPECT_EQ(call.controller.GetResponseMetadata().Get(kGrpcStatusDetails),
            kBinary);
}

TEST_P(MetadataCalls, TrailersFollowTheRest) {
  for (const bool fails : {false, true}) {
    service().on_call = [fails](TestCall call) {
      EXPECT_TRUE(call.controller->AddResponseTrailer("cost-bin", kBinary));
      EXPECT_TRUE(call.controller->AddResponseMetadata("from", "north"));
      EXPECT_FALSE(call.controller->AddResponseTrailer("host", "no"));
      if (fails) call.controller->SetFailed(4711, "later");
      FlexibleService::Echo(call);
    };
    RpcChannel* const channel = Serve();
    TestedCall call;
    EXPECT_EQ(call.Start(channel)->Await(), fails ? 4711 : 0);
    const Metadata& received = call.controller.GetResponseMetadata();
    EXPECT_EQ(received.Get("from"), "north");
    EXPECT_EQ(received.Get("cost-bin"), kBinary);
  }
}

INSTANTIATE_TEST_SUITE_P(AllProtocols, MetadataCalls,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string_view(info.param)) {
                             if (c != '+' && c != '-') name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace flare::rpc::testing
