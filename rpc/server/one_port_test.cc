// Several protocols on one port: real servers and channels.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/compression.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;

class OnePort : public ServerTest,
                public ::testing::WithParamInterface<const char*> {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Serve() {
    StartServer({"flare", "http+pb", "http", "baidu-std", "bolt", "trpc"});
  }

  RpcChannel* channel() {
    if (channel_ == nullptr) {
      channel_ = std::make_unique<RpcChannel>(std::string(GetParam()) + "://" +
                                              endpoint().ToString());
      EXPECT_TRUE(channel_->status().ok()) << channel_->status().message();
    }
    return channel_.get();
  }

  fiber::Event go_;

 private:
  std::unique_ptr<RpcChannel> channel_;
};

TEST_P(OnePort, ManyCallsAtOnce) {
  Serve();
  std::vector<std::unique_ptr<TestedCall>> calls;
  for (int i = 0; i != 200; ++i) {
    calls.push_back(std::make_unique<TestedCall>());
    calls.back()->request.set_body(std::string(i * 97 % 5000, 'b'));
    calls.back()->request.set_number(i);
    calls.back()->Start(channel());
  }
  for (const auto& call : calls) {
    EXPECT_EQ(call->Await(), STATUS_SUCCESS) << call->controller.ErrorText();
    EXPECT_EQ(call->response.body(), call->request.body());
    EXPECT_EQ(call->response.number(), call->request.number());
  }
}

TEST_P(OnePort, FailuresOfServices) {
  service().on_call = [](TestCall call) {
    call.response->set_body("beside it");
    call.controller->SetFailed(call.request->number(), "out of stock");
    call.Reply();
  };
  Serve();
  for (int code : {4711, 99, 100}) {
    TestedCall call;
    call.request.set_number(code);
    EXPECT_EQ(call.Start(channel())->Await(), code);
    EXPECT_EQ(call.controller.ErrorText(), "out of stock");
    // The others have no place for it.
    EXPECT_EQ(call.response.body(),
              GetParam() == std::string("flare") ? "beside it" : "");
  }
}

// Codes that mean the same wherever they come from are retried; those of brpc's
// servers only where brpc's meaning holds.
TEST_P(OnePort, RefusalsAreRetried) {
  std::atomic<int> attempts{0};
  service().on_call = [&](TestCall call) {
    ++attempts;
    call.controller->SetFailed(call.request->number(), "refused");
    call.Reply();
  };
  Serve();
  const auto attempts_after = [&](int code) {
    attempts = 0;
    TestedCall call;
    call.request.set_number(code);
    call.controller.SetMaxRetries(3);
    EXPECT_EQ(call.Start(channel())->Await(), code);
    return attempts.load();
  };
  const bool brpc = GetParam() == std::string("baidu-std");
  EXPECT_EQ(attempts_after(STATUS_OVERLOADED), 3);
  for (int code : {1001, 1002, 1011, 2003, 2004}) {
    EXPECT_EQ(attempts_after(code), brpc ? 3 : 1) << code;
  }
  for (int code : {1003, 2001, 4711}) {
    EXPECT_EQ(attempts_after(code), 1) << code;
  }
}

TEST_P(OnePort, UnknownMethods) {
  Serve();
  RpcClientController controller;
  TestRequest request;
  TestResponse response;
  OtherService_Stub(channel()).Call(&controller, &request, &response, nullptr);
  // Peers of trpc tell these apart.
  EXPECT_EQ(controller.ErrorCode(), GetParam() == std::string("trpc")
                                        ? STATUS_SERVICE_NOT_FOUND
                                        : STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(controller.ErrorText(),
            "Method [flare.rpc.testing.OtherService.Call] is not implemented.");
}

TEST_P(OnePort, UnreadableBodies) {
  Serve();
  RpcClientController controller;
  Strict request;  // lacks its required field
  Strict response;
  controller.SetRequestRawBytes(CreateBufferSlow("\x0a\x7f"));
  TestService_Stub(channel()).CallStrict(&controller, &request, &response,
                                         nullptr);
  EXPECT_TRUE(controller.ErrorCode() == STATUS_PARSE_REQUEST ||
              controller.ErrorCode() == STATUS_MALFORMED_DATA)
      << controller.ErrorCode() << " " << controller.ErrorText();
}

TEST_P(OnePort, TimesOut) {
  service().on_call = [this](TestCall call) {
    go_.Wait();
    call.Reply();
  };
  Serve();
  TestedCall call;
  call.controller.SetTimeout(std::chrono::milliseconds(20));
  EXPECT_EQ(call.Start(channel())->Await(), STATUS_TIMEOUT);
  go_.Set();
}

TEST_P(OnePort, Compresses) {
  service().on_call = [](TestCall call) {
    call.controller->SetCompressionAlgorithm(
        static_cast<CompressionAlgorithm>(call.request->number()));
    FlexibleService::Echo(call);
  };
  Serve();
  // Those that a protocol doesn't have are left out.
  for (auto algorithm :
       {CompressionAlgorithm::kGzip, CompressionAlgorithm::kLz4Frame,
        CompressionAlgorithm::kSnappy, CompressionAlgorithm::kZstd}) {
    TestedCall call;
    call.controller.SetCompressionAlgorithm(algorithm);
    call.request.set_number(static_cast<int>(algorithm));
    call.request.set_body(std::string(100'000, 'b'));
    EXPECT_EQ(call.Start(channel())->Await(), STATUS_SUCCESS)
        << call.controller.ErrorText();
    EXPECT_EQ(call.response.body(), call.request.body());
  }
}

TEST_P(OnePort, AttachmentsNextToCompressedBodies) {
  // Only these have a place for them.
  const std::string protocol = GetParam();
  const int expected =
      protocol == "flare" || protocol == "baidu-std" || protocol == "trpc"
          ? STATUS_SUCCESS
          : STATUS_NOT_SUPPORTED;
  service().on_call = [](TestCall call) {
    call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    call.controller->SetResponseAttachment(
        call.controller->GetRequestAttachment());
    FlexibleService::Echo(call);
  };
  Serve();
  for (std::size_t size : {1, 1000, 1'000'000}) {
    TestedCall call;
    call.controller.SetCompressionAlgorithm(CompressionAlgorithm::kSnappy);
    call.request.set_body(std::string(size, 'b'));
    call.controller.SetRequestAttachment(
        CreateBufferSlow(std::string(size, 'a')));
    EXPECT_EQ(call.Start(channel())->Await(), expected)
        << call.controller.ErrorText();
    if (expected != STATUS_SUCCESS) continue;
    EXPECT_EQ(call.response.body(), call.request.body());
    EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()),
              std::string(size, 'a'));
  }
}

TEST_P(OnePort, OversizedRequestsAreAnswered) {
  server_options().maximum_packet_size = 10'000;
  Serve();
  TestedCall large;
  large.request.set_body(std::string(20'000, 'b'));
  EXPECT_NE(large.Start(channel())->Await(), STATUS_SUCCESS);
  EXPECT_NE(large.controller.ErrorCode(), STATUS_TIMEOUT);
  TestedCall small;
  EXPECT_EQ(small.Start(channel())->Await(), STATUS_SUCCESS)
      << small.controller.ErrorText();
}

// An HTTP request that closes ends the reading, but earlier requests are
// answered.
TEST_P(OnePort, RepliesOutliveAnHttpRequestThatCloses) {
  service().on_call = FlexibleService::EchoAfter(&go_);
  Serve();
  RawClient client(endpoint(), GetParam());
  client.Call(1, kCall, MakeRequest("call"));
  client.Send("GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const auto expect_page = [&] {
    EXPECT_THAT(client.ReadUntil("\r\n\r\n"),
                HasSubstr("\r\nConnection: close\r\n"));
    EXPECT_THAT(client.ReadUntil("\n"), HasSubstr("/none"));
  };
  // Within one protocol nothing may follow a reply that closes.
  const bool same = GetParam() == std::string("http+pb");
  if (!same) expect_page();
  go_.Set();
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "call");
  if (same) expect_page();
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_broken, 0u);
}

// The lines are HTTP's, which takes them, but not the bytes behind them.
TEST_P(OnePort, CallsStandBehindEmptyLinesOfHttp) {
  Serve();
  RawClient client(endpoint(), GetParam());
  client.Send("GET /none HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("HTTP/1.1 404"));
  EXPECT_THAT(client.ReadUntil("\n"), HasSubstr("/none"));
  client.Send("\r\n\r\n" + client.Encode(1, kCall, MakeRequest("call")));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "call");
}

INSTANTIATE_TEST_SUITE_P(Protocols, OnePort,
                         ::testing::Values("flare", "http+pb", "baidu-std",
                                           "bolt", "trpc"),
                         [](const auto& info) {
                           std::string name;
                           for (char c : std::string(info.param)) {
                             if (c != '+' && c != '-') name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace flare::rpc::testing
