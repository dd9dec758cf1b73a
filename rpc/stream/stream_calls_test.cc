// Streaming calls from end to end, by both of our sides.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/stream_service.pb.h"

namespace flare::rpc::testing {
namespace {

constexpr std::int64_t kNever = CallStream::kNever;

StreamMessage Numbered(int number, std::string body = "") {
  StreamMessage message;
  message.set_number(number);
  message.set_body(std::move(body));
  return message;
}

// Does what its methods' comments say, unless the test says otherwise.
class TestedService : public StreamService {
 public:
  struct Call {
    RpcServerController* controller;
    RefPtr<CallStream> stream;
    const StreamMessage* request;
    StreamMessage* response;
  };
  using Handler = std::function<void(Call)>;

  static void Sum(Call call) {
    StreamMessage message;
    StreamError error;
    int sum = 0;
    while (call.stream->ReadMessage(&message, kNever, &error)) {
      sum += message.number();
    }
    if (error != StreamError::EndOfStream) {
      return call.controller->SetFailed("the requests broke off");
    }
    call.response->set_number(sum);
  }
  static void Count(Call call) {
    for (int i = 1; i <= call.request->number(); ++i) {
      if (!call.stream->WriteMessage(Numbered(i, call.request->body()), false,
                                     kNever)) {
        return;
      }
    }
  }
  static void Echo(Call call) {
    StreamMessage message;
    StreamError error;
    while (call.stream->ReadMessage(&message, kNever, &error)) {
      if (!call.stream->WriteMessage(message, false, kNever)) return;
    }
  }

  void Upload(google::protobuf::RpcController* controller,
              const StreamMessage* request, StreamMessage* response,
              google::protobuf::Closure* done) override {
    Run(on_upload, controller, request, response, done);
  }
  void Download(google::protobuf::RpcController* controller,
                const StreamMessage* request, StreamMessage* response,
                google::protobuf::Closure* done) override {
    Run(on_download, controller, request, response, done);
  }
  void Chat(google::protobuf::RpcController* controller,
            const StreamMessage* request, StreamMessage* response,
            google::protobuf::Closure* done) override {
    Run(on_chat, controller, request, response, done);
  }
  void Unary(google::protobuf::RpcController*, const StreamMessage* request,
             StreamMessage* response,
             google::protobuf::Closure* done) override {
    *response = *request;
    done->Run();
  }

  Handler on_upload = Sum;
  Handler on_download = Count;
  Handler on_chat = Echo;

 private:
  void Run(const Handler& handler, google::protobuf::RpcController* controller,
           const StreamMessage* request, StreamMessage* response,
           google::protobuf::Closure* done) {
    auto* const ours = static_cast<RpcServerController*>(controller);
    handler({ours, ours->stream(), request, response});
    done->Run();
  }
};

// Over each protocol that has streams of all kinds.
class StreamCallsTest : public RpcTest,
                        public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(Server::Options{.service_name = "test"});
    server_->AddService(&service_);
    server_->AddProtocols(
        {"flare", "grpc", "trpc", "baidu-std", "http+pb", "http"});
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start()) << server_->error().ToString();
    ASSERT_TRUE(channel_.Open(std::string(GetParam()) + "://" +
                              server_->endpoint().ToString()));
  }
  void TearDown() override {
    ShutdownClientSide();
    server_.reset();
    RpcTest::TearDown();
  }

  static const google::protobuf::MethodDescriptor* Method(const char* name) {
    return StreamService::descriptor()->FindMethodByName(name);
  }
  RefPtr<CallStream> Open(const char* method,
                          RpcClientController* controller = nullptr,
                          const StreamMessage* request = nullptr) {
    return OpenStream(&channel_, Method(method), controller, request);
  }

  // The rest of the input: numbers of messages, then the end.
  static std::vector<int> ReadAll(CallStream* stream, StreamError* error) {
    std::vector<int> numbers;
    StreamMessage message;
    while (stream->ReadMessage(&message, kNever, error)) {
      numbers.push_back(message.number());
    }
    return numbers;
  }

  TestedService service_;
  std::optional<Server> server_;
  RpcChannel channel_;
};

std::vector<int> UpTo(int n) {
  std::vector<int> numbers;
  for (int i = 1; i <= n; ++i) numbers.push_back(i);
  return numbers;
}

TEST_P(StreamCallsTest, ServerStreams) {
  OnFiber([&] {
    for (int n : {0, 1, 2, 1000}) {
      RpcClientController controller;
      const StreamMessage request = Numbered(n);
      auto stream = Open("Download", &controller, &request);
      StreamError error;
      EXPECT_EQ(ReadAll(stream.Get(), &error), UpTo(n));
      EXPECT_EQ(error, StreamError::EndOfStream);
      EXPECT_TRUE(stream->over());
      EXPECT_FALSE(controller.Failed());
    }
  });
}

TEST_P(StreamCallsTest, ClientStreams) {
  OnFiber([&] {
    for (int n : {0, 1, 2, 1000}) {
      auto stream = Open("Upload");
      for (int i = 1; i <= n; ++i) {
        ASSERT_TRUE(stream->WriteMessage(Numbered(i), false, kNever));
      }
      stream->CloseWriting();
      StreamError error;
      EXPECT_EQ(ReadAll(stream.Get(), &error),
                std::vector<int>{n * (n + 1) / 2});
      EXPECT_EQ(error, StreamError::EndOfStream);
    }
  });
}

TEST_P(StreamCallsTest, TheLastMessageMaySayThatItIs) {
  OnFiber([&] {
    auto stream = Open("Upload");
    EXPECT_TRUE(stream->WriteMessage(Numbered(17), /*last=*/true, kNever));
    EXPECT_FALSE(stream->WriteMessage(Numbered(1), false, kNever));
    StreamError error;
    EXPECT_EQ(ReadAll(stream.Get(), &error), std::vector<int>{17});
  });
}

TEST_P(StreamCallsTest, BothStream) {
  OnFiber([&] {
    auto stream = Open("Chat");
    StreamMessage message;
    StreamError error;
    for (int i = 0; i != 1000; ++i) {
      ASSERT_TRUE(stream->WriteMessage(Numbered(i, "hello"), false, kNever));
      ASSERT_TRUE(stream->ReadMessage(&message, kNever, &error));
      ASSERT_EQ(message.number(), i);
      ASSERT_EQ(message.body(), "hello");
    }
    stream->CloseWriting();
    EXPECT_FALSE(stream->ReadMessage(&message, kNever, &error));
    EXPECT_EQ(error, StreamError::EndOfStream);
  });
}

// The method goes on, and learns of all that its client does.
TEST_P(StreamCallsTest, AMethodMayReadOnBehindItsLastMessage) {
  fiber::Event ended;
  StreamError error_of_method{};
  std::vector<int> read;
  service_.on_chat = [&](TestedService::Call call) {
    StreamMessage message;
    StreamError error;
    EXPECT_TRUE(call.stream->ReadMessage(&message, kNever, &error));
    EXPECT_TRUE(call.stream->WriteMessage(message, /*last=*/true, kNever));
    const std::int64_t deadline_ns = NowNs() + 10 * kNsPerSecond;
    while (call.stream->ReadMessage(&message, deadline_ns, &error)) {
      read.push_back(message.number());
    }
    error_of_method = error;
    ended.Set();
  };
  OnFiber([&] {
    auto stream = Open("Chat");
    StreamMessage message;
    StreamError error;
    EXPECT_TRUE(stream->WriteMessage(Numbered(1), false, kNever));
    EXPECT_TRUE(stream->ReadMessage(&message, kNever, &error));
    EXPECT_TRUE(stream->WriteMessage(Numbered(2), true, kNever));
    EXPECT_EQ(ReadAll(stream.Get(), &error), std::vector<int>{});
    EXPECT_EQ(error, StreamError::EndOfStream);
    ended.Wait();
  });
  EXPECT_EQ(read, std::vector<int>{2});
  EXPECT_EQ(error_of_method, StreamError::EndOfStream);
}

TEST_P(StreamCallsTest, MoreThanAWindowIsHeldBack) {
  fiber::Event go;
  service_.on_chat = [&](TestedService::Call call) {
    go.Wait();
    TestedService::Echo(call);
  };
  OnFiber([&] {
    for (int round = 0; round != 3; ++round) {
      go.Reset();
      auto stream = Open("Chat");
      const std::string body(10'000, 'x');
      int written = 0;
      while (stream->WriteMessage(Numbered(written, body), false,
                                  NowNs() + 200 * kNsPerMs)) {
        ++written;
        ASSERT_LT(written, 10'000);
      }
      go.Set();
      stream->CloseWriting();
      StreamError error;
      EXPECT_EQ(ReadAll(stream.Get(), &error).size(),
                static_cast<std::size_t>(written));
      EXPECT_EQ(error, StreamError::EndOfStream);
    }
  });
}

TEST_P(StreamCallsTest, AFailureComesBehindTheMessages) {
  service_.on_download = [](TestedService::Call call) {
    TestedService::Count(call);
    call.controller->SetFailed(1234, "that was all");
  };
  OnFiber([&] {
    RpcClientController controller;
    const StreamMessage request = Numbered(3);
    auto stream = Open("Download", &controller, &request);
    StreamError error;
    EXPECT_EQ(ReadAll(stream.Get(), &error), UpTo(3));
    EXPECT_EQ(error, StreamError::IoError);
    EXPECT_EQ(controller.ErrorCode(), 1234);
    EXPECT_EQ(controller.ErrorText(), "that was all");
  });
}

TEST_P(StreamCallsTest, ACancelledCallEndsOnTheServer) {
  OnFiber([&] {
    for (int round = 0; round != 3; ++round) {
      fiber::Event began;
      fiber::Event ended;
      StreamError error{};
      service_.on_chat = [&](TestedService::Call call) {
        StreamMessage message;
        EXPECT_TRUE(call.stream->ReadMessage(&message, kNever, &error));
        const std::stop_token stop = call.controller->GetStopToken();
        EXPECT_FALSE(stop.stop_requested());
        began.Set();
        EXPECT_FALSE(call.stream->ReadMessage(&message, kNever, &error));
        // A reader that hadn't begun to wait may see the end first.
        while (!stop.stop_requested()) this_fiber::Yield();
        ended.Set();
      };
      auto stream = Open("Chat");
      ASSERT_TRUE(stream->WriteMessage(Numbered(1), false, kNever));
      began.Wait();
      stream->Cancel();
      ended.Wait();
      EXPECT_EQ(error, StreamError::IoError);
      EXPECT_EQ(stream->status().code(), STATUS_FAILED);
      // So the peer is known to share connections, from the second round on.
      const StreamMessage request = Numbered(1);
      auto other = Open("Download", nullptr, &request);
      EXPECT_EQ(ReadAll(other.Get(), &error), UpTo(1));
    }
  });
}

TEST_P(StreamCallsTest, TheDeadlineEndsBothSides) {
  fiber::Event ended;
  StreamError at_server{};
  service_.on_chat = [&](TestedService::Call call) {
    StreamMessage message;
    while (call.stream->ReadMessage(&message, kNever, &at_server)) continue;
    ended.Set();
  };
  OnFiber([&] {
    RpcClientController controller;
    // Long enough for the method to begin on a busy machine.
    controller.SetTimeout(std::chrono::seconds(2));
    auto stream = Open("Chat", &controller);
    // Else nothing is known of it.
    static_cast<void>(stream->WriteMessage(Numbered(1), false, kNever));
    StreamMessage message;
    StreamError error;
    EXPECT_FALSE(stream->ReadMessage(&message, kNever, &error));
    EXPECT_EQ(error, StreamError::Timeout);
    EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
    ended.Wait();
    EXPECT_NE(at_server, StreamError::EndOfStream);
  });
}

TEST_P(StreamCallsTest, AReadMayTimeOutAndGoOn) {
  fiber::Event go;
  service_.on_download = [&](TestedService::Call call) {
    go.Wait();
    TestedService::Count(call);
  };
  OnFiber([&] {
    const StreamMessage request = Numbered(2);
    auto stream = Open("Download", nullptr, &request);
    StreamMessage message;
    StreamError error;
    EXPECT_FALSE(
        stream->ReadMessage(&message, NowNs() + 10 * kNsPerMs, &error));
    EXPECT_EQ(error, StreamError::Timeout);
    go.Set();
    EXPECT_EQ(ReadAll(stream.Get(), &error), UpTo(2));
    EXPECT_EQ(error, StreamError::EndOfStream);
  });
}

TEST_P(StreamCallsTest, TheWrongKindOfCallFails) {
  if (GetParam() == std::string("grpc")) {
    GTEST_SKIP() << "its calls don't say of which kind they are";
  }
  OnFiber([&] {
    // A stream where one message is expected.
    RpcClientController controller;
    auto stream = Open("Unary", &controller);
    static_cast<void>(stream->WriteMessage(Numbered(1), false, kNever));
    StreamMessage message;
    StreamError error;
    EXPECT_FALSE(stream->ReadMessage(&message, kNever, &error));
    EXPECT_EQ(controller.ErrorCode(), STATUS_MALFORMED_DATA);
    // And the other way round.
    controller.Reset();
    const StreamMessage request = Numbered(1);
    channel_.CallMethod(Method("Upload"), &controller, &request, &message,
                        nullptr);
    EXPECT_EQ(controller.ErrorCode(), STATUS_MALFORMED_DATA);
  });
}

TEST_P(StreamCallsTest, AProtocolWithoutStreamsSaysSo) {
  RpcChannel without("bolt://" + server_->endpoint().ToString());
  OnFiber([&] {
    RpcClientController controller;
    auto stream = OpenStream(&without, Method("Chat"), &controller, nullptr);
    StreamMessage message;
    StreamError error;
    EXPECT_FALSE(stream->ReadMessage(&message, kNever, &error));
    EXPECT_EQ(controller.ErrorCode(), STATUS_NOT_SUPPORTED);
  });
}

TEST_P(StreamCallsTest, TheEndOfTheServerEndsStreams) {
  fiber::Event began;
  StreamError at_server{};
  service_.on_chat = [&](TestedService::Call call) {
    StreamMessage message;
    EXPECT_TRUE(call.stream->ReadMessage(&message, kNever, &at_server));
    began.Set();
    EXPECT_FALSE(call.stream->ReadMessage(&message, kNever, &at_server));
  };
  OnFiber([&] {
    RpcClientController controller;
    auto stream = Open("Chat", &controller);
    ASSERT_TRUE(stream->WriteMessage(Numbered(1), false, kNever));
    began.Wait();
    server_->Stop();
    server_->Join();
    EXPECT_EQ(at_server, StreamError::IoError);
    StreamMessage message;
    StreamError error;
    EXPECT_FALSE(stream->ReadMessage(&message, kNever, &error));
  });
}

TEST_P(StreamCallsTest, ManyAtOnceOnOneConnection) {
  constexpr int kStreams = 200;
  OnFiber([&] {
    // After one of them the peer is known to share connections.
    const StreamMessage one = Numbered(1);
    StreamError error;
    ReadAll(Open("Download", nullptr, &one).Get(), &error);
    std::vector<RefPtr<CallStream>> streams;
    for (int i = 0; i != kStreams; ++i) {
      streams.push_back(Open("Chat"));
      ASSERT_TRUE(streams.back()->WriteMessage(Numbered(i), false, kNever));
    }
    for (int i = 0; i != kStreams; ++i) {
      StreamMessage message;
      ASSERT_TRUE(streams[i]->ReadMessage(&message, kNever, &error));
      EXPECT_EQ(message.number(), i);
      streams[i]->CloseWriting();
      EXPECT_FALSE(streams[i]->ReadMessage(&message, kNever, &error));
      EXPECT_EQ(error, StreamError::EndOfStream);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, StreamCallsTest,
                         ::testing::Values("flare", "grpc", "trpc",
                                           "baidu-std"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// --------------------------------------------------------------------------

// Its connection has no number for another one.
class NoWire final : public StreamWire {
 public:
  bool Begin(RefPtr<StreamReceiver>) override { return false; }
  bool SendMessage(OutboundBody&&, bool) override { return false; }
  bool SendEnd(const flare::Status&) override { return false; }
  void SendReset(const flare::Status&) override {}
  void SendCredit(std::size_t) override {}
  bool has_credits() const override { return true; }
  void HoldInput() override {}
  void ReleaseInput() override {}
};

// Takes one stream on each connection.
class OneStreamClient final : public ClientProtocol {
 public:
  explicit OneStreamClient(std::unique_ptr<ClientProtocol> inner)
      : inner_(std::move(inner)) {}

  std::string_view name() const override { return "one-stream"; }
  ProtocolTraits traits() const override { return inner_->traits(); }
  PayloadFormat format() const override { return inner_->format(); }
  void SetOutput(StreamOutput* output) override { inner_->SetOutput(output); }
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
  bool has_streams() const override { return true; }
  bool streams_can_share() const override { return true; }
  bool HasOpenStreams() const override { return inner_->HasOpenStreams(); }
  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput* output) override {
    if (had_one_.exchange(true)) return std::make_unique<NoWire>();
    return inner_->OpenStream(opening, output);
  }
  void OnClosed(const flare::Status& why) override { inner_->OnClosed(why); }

 private:
  const std::unique_ptr<ClientProtocol> inner_;
  std::atomic<bool> had_one_{false};
};

using FullConnectionTest = StreamCallsTest;

TEST_P(FullConnectionTest, StreamsGoToAnotherOne) {
  RegisterClientProtocol(
      "one-stream", [](const Limits& limits, std::string_view host) {
        return std::make_unique<OneStreamClient>(
            std::move(NewClientProtocol(GetParam(), limits, host)).value());
      });
  ASSERT_TRUE(channel_.Open("one-stream://" + server_->endpoint().ToString(),
                            {.max_connections_per_server = 1}));
  OnFiber([&] {
    for (int i = 0; i != 5; ++i) {
      const StreamMessage request = Numbered(3);
      auto stream = Open("Download", nullptr, &request);
      StreamError error;
      EXPECT_EQ(ReadAll(stream.Get(), &error), UpTo(3));
      EXPECT_EQ(error, StreamError::EndOfStream) << stream->status().ToString();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Grpc, FullConnectionTest, ::testing::Values("grpc"));

}  // namespace
}  // namespace flare::rpc::testing
