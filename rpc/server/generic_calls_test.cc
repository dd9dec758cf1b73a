// GenericStub and GenericService, from end to end: over each protocol, and as a
// gateway between two of them.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/rpc/generic_service.h"
#include "flare/rpc/generic_stub.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/testing/streamer.flare.pb.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;

constexpr char kUnknown[] = "some.other.Shop.Find";

// A generic call, as a GenericService gets it.
struct GenericCall {
  std::string_view method;
  Buffer request;
  Buffer* response;
  RpcServerController* controller;
};

class FlexibleGeneric : public GenericService {
 public:
  explicit FlexibleGeneric(std::function<void(GenericCall)> on_call)
      : on_call_(std::move(on_call)) {}

  void Call(std::string_view method, Buffer request, Buffer* response,
            RpcServerController* controller) override {
    on_call_({method, std::move(request), response, controller});
  }

 private:
  const std::function<void(GenericCall)> on_call_;
};

Buffer BytesOf(const google::protobuf::Message& message) {
  return CreateBufferSlow(message.SerializeAsString());
}

std::string BodyOf(const Buffer& bytes) {
  TestResponse response;
  EXPECT_TRUE(response.ParseFromString(FlattenSlow(bytes)));
  return response.body();
}

class GenericCalls : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve(std::function<void(GenericCall)> on_call) {
    server().SetGenericService(
        std::make_unique<FlexibleGeneric>(std::move(on_call)));
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc"});
  }

  std::string UriOver(const std::string& protocol) {
    return protocol + "://" + endpoint().ToString();
  }
};

class GenericCallsOver : public GenericCalls,
                         public ::testing::WithParamInterface<const char*> {
 protected:
  std::string Uri() { return UriOver(GetParam()); }
};

TEST_P(GenericCallsOver, StubsReachMethodsThatTheServerHas) {
  Serve([](GenericCall) { FAIL() << "the server has the method"; });
  const GenericStub stub(Uri());
  const auto reply = stub.Call(kCall, BytesOf(MakeRequest("hello", 5)));
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(BodyOf(*reply), "hello");
}

TEST_P(GenericCallsOver, ServicesGetAllOtherMethods) {
  std::string method;
  Serve([&](GenericCall call) {
    method = call.method;
    *call.response = BytesOf(MakeRequest("<" + BodyOf(call.request) + ">"));
  });
  const GenericStub stub(Uri());
  RpcClientController controller;
  for (const std::string size : {"", "hello"}) {
    const auto reply =
        stub.Call(kUnknown, BytesOf(MakeRequest(size)), &controller);
    ASSERT_TRUE(reply) << reply.error().ToString();
    EXPECT_EQ(BodyOf(*reply), "<" + size + ">");
    EXPECT_EQ(method, kUnknown);
    controller.Reset();
  }
  const std::string large(3 << 20, 'x');
  const auto reply = stub.Call(kUnknown, BytesOf(MakeRequest(large)));
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(BodyOf(*reply).size(), large.size() + 2);
}

TEST_P(GenericCallsOver, FailuresComeBack) {
  Serve([](GenericCall call) { call.controller->SetFailed(4711, "sold out"); });
  const GenericStub stub(Uri());
  RpcClientController controller;
  const auto reply = stub.Call(kUnknown, Buffer(), &controller);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), 4711);
  EXPECT_EQ(reply.error().message(), "sold out");
  EXPECT_EQ(controller.ErrorCode(), 4711);
}

TEST_P(GenericCallsOver, MetadataAndDeadlinesTravel) {
  std::string tag;
  bool has_deadline = false;
  Serve([&](GenericCall call) {
    tag = call.controller->GetRequestMetadata().Get("tag").value_or("");
    has_deadline = call.controller->GetTimeout().has_value();
    call.controller->AddResponseMetadata("from", "there");
  });
  const GenericStub stub(Uri());
  RpcClientController controller;
  controller.AddMetadata("tag", "blue");
  controller.SetTimeout(30s);
  const auto reply = stub.Call(kUnknown, Buffer(), &controller);
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(tag, "blue");
  EXPECT_TRUE(has_deadline || GetParam() == "baidu-std"sv ||
              GetParam() == "http+pb"sv);
  EXPECT_EQ(controller.GetResponseMetadata().Get("from"), "there");
}

INSTANTIATE_TEST_SUITE_P(Protocols, GenericCallsOver,
                         ::testing::Values("flare", "http+pb", "baidu-std",
                                           "bolt", "trpc", "grpc"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string_view(info.param)) {
                             if (c != '+' && c != '-') name += c;
                           }
                           return name;
                         });

TEST_F(GenericCalls, AGatewayPassesCallsOn) {
  StartServer({"flare"});
  const GenericStub upstream(UriOver("flare"));
  Server gateway;
  gateway.SetGenericService(
      std::make_unique<FlexibleGeneric>([&](GenericCall call) {
        auto reply = upstream.Call(call.method, std::move(call.request));
        if (!reply) {
          return call.controller->SetFailed(reply.error().code(),
                                            reply.error().message());
        }
        *call.response = *std::move(reply);
      }));
  gateway.AddProtocol("grpc");
  gateway.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(gateway.Start());
  RpcChannel channel("grpc://" + gateway.endpoint().ToString());
  TestedCall call;
  ASSERT_EQ(call.Start(&channel)->Await(), 0) << call.controller.ErrorText();
  EXPECT_EQ(call.response.body(), "ping");
  const auto none = GenericStub(&channel).Call(kUnknown, Buffer());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), STATUS_METHOD_NOT_FOUND);
}

TEST_F(GenericCalls, CompressedRequestsComeDecompressed) {
  Serve([](GenericCall call) {
    EXPECT_TRUE(call.controller->IsRequestCompressed());
    call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    *call.response = std::move(call.request);
  });
  const GenericStub stub(UriOver("flare"));
  RpcClientController controller;
  controller.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
  controller.SetRequestAttachment(CreateBufferSlow("beside"));
  const std::string body(10'000, 'y');
  const auto reply =
      stub.Call(kUnknown, BytesOf(MakeRequest(body)), &controller);
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(BodyOf(*reply), body);
}

TEST_F(GenericCalls, StreamsAreRefused) {
  Serve([](GenericCall) {});
  for (const std::string protocol : {"flare", "grpc"}) {
    SCOPED_TRACE(protocol);
    const Streamer_SyncStub stub(UriOver(protocol));
    RpcClientController controller;
    auto [reader, writer] = stub.Echo(&controller);
    Number number;
    for (int i = 0; i != 3; ++i) {
      if (!writer.Write(number)) break;
    }
    writer.Close();
    while (reader.Read()) {
    }
    EXPECT_FALSE(reader.status().ok());
  }
}

TEST_F(GenericCalls, OtherFormatsAreRefused) {
  Serve([](GenericCall) { FAIL() << "not for it"; });
  const GenericStub json(UriOver("http+proto3-json"));
  const auto reply = json.Call(kUnknown, CreateBufferSlow("{}"));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), STATUS_METHOD_NOT_FOUND);
  EXPECT_THAT(reply.error().message(), HasSubstr(kUnknown));
  EXPECT_THAT(reply.error().message(), HasSubstr("binary format"));
}

TEST_F(GenericCalls, ExceptionsFailTheCall) {
  Serve([](GenericCall) { throw std::runtime_error("broken"); });
  const GenericStub stub(UriOver("flare"));
  const auto reply = stub.Call(kUnknown, Buffer());
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message(), HasSubstr("broken"));
}

// Notes methods' names, and the requests' sizes.
class NotingServer : public ServerInterceptor {
 public:
  void Intercept(InterceptedCall& call, ServerNext& next) override {
    method = call.method();
    bytes = call.controller().GetRequestRawBytes().ByteSize();
    next.Run();
    reply_bytes = call.controller().GetResponseRawBytes().ByteSize();
  }
  std::string method;
  std::size_t bytes = 0;
  std::size_t reply_bytes = 0;
};
class NotingClient : public ClientInterceptor {
 public:
  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    method = call.method_name();
    next.Run();
  }
  std::string method;
};

TEST_F(GenericCalls, InterceptorsSeeTheNames) {
  const auto on_server = std::make_shared<NotingServer>();
  const auto on_client = std::make_shared<NotingClient>();
  server().AddInterceptor(on_server);
  Serve([](GenericCall call) { *call.response = CreateBufferSlow("four"); });
  RpcChannel channel(UriOver("flare"), {.interceptors = {on_client}});
  const GenericStub stub(&channel);
  ASSERT_TRUE(stub.Call(kUnknown, CreateBufferSlow("three")));
  EXPECT_EQ(on_server->method, kUnknown);
  EXPECT_EQ(on_server->bytes, 5u);
  EXPECT_EQ(on_server->reply_bytes, 4u);
  EXPECT_EQ(on_client->method, kUnknown);
}

TEST_F(GenericCalls, CountAsOneMethod) {
  Serve([](GenericCall) {});
  const GenericStub stub(UriOver("flare"));
  for (const char* name : {"a.B.C", "a.B.D", "x.Y.Z"}) {
    ASSERT_TRUE(stub.Call(name, Buffer()));
  }
  bool found = false;
  for (const ServerMethodStatistics& method : server().method_statistics()) {
    if (method.name != "flare.rpc.Generic.Call") continue;
    found = true;
    EXPECT_EQ(method.calls, 3u);
  }
  EXPECT_TRUE(found);
}

// Its own name is one like others.
TEST_F(GenericCalls, TheirCounterIsNoMethod) {
  std::string method;
  Serve([&](GenericCall call) { method = call.method; });
  const GenericStub stub(UriOver("flare"));
  ASSERT_TRUE(stub.Call("flare.rpc.Generic.Call", Buffer()));
  EXPECT_EQ(method, "flare.rpc.Generic.Call");
}

TEST_F(GenericCalls, NamesThatArentMethodsAreRefused) {
  Serve([](GenericCall) { FAIL() << "not sent"; });
  const GenericStub stub(UriOver("http+pb"));
  for (const std::string_view name :
       {""sv, "Method"sv, ".a.B"sv, "a.B."sv, "a..B"sv, "a/B"sv, "a.B C"sv,
        "a.B\r\nX: y"sv, "a.B\0"sv}) {
    const auto reply = stub.Call(name, Buffer());
    ASSERT_FALSE(reply) << name;
    EXPECT_EQ(reply.error().code(), STATUS_INVALID_METHOD_NAME);
  }
  const std::string longest(1100, 'x');
  EXPECT_FALSE(stub.Call("a." + longest, Buffer()));
}

TEST_F(GenericCalls, AServerHasOneService) {
  const auto make = [] {
    return std::make_unique<FlexibleGeneric>([](GenericCall) {});
  };
  Server other;
  EXPECT_TRUE(other.SetGenericService(make()));
  EXPECT_FALSE(other.SetGenericService(make()));
  EXPECT_THAT(other.error().message(), HasSubstr("can be one"));
}

// A GenericStub leaves no settings in its controller.
TEST_F(GenericCalls, ControllersServeTypedCallsAfterThem) {
  StartServer({"flare"});
  RpcChannel channel(UriOver("flare"));
  RpcClientController controller;
  ASSERT_TRUE(GenericStub(&channel).Call(kOther, BytesOf(MakeRequest("one")),
                                         &controller));
  const TestRequest request = MakeRequest("two");
  TestResponse response;
  TestService::Stub(&channel).Call(&controller, &request, &response, nullptr);
  EXPECT_FALSE(controller.Failed()) << controller.ErrorText();
  EXPECT_EQ(response.body(), "two");
}

}  // namespace
}  // namespace flare::rpc::testing
