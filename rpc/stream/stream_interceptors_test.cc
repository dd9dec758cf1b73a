// Interceptors of streaming calls, of both sides.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// Sums of an observer's events.
struct Observed {
  std::atomic<int> sent{0};
  std::atomic<int> received{0};
  std::atomic<std::size_t> bytes{0};

  MessageObserver Observer() {
    return [this](const ObservedMessage& message) {
      ++(message.direction == ObservedMessage::Direction::kSent ? sent
                                                                : received);
      bytes += message.bytes;
    };
  }
};

std::size_t SizeOf(int first, int last) {
  std::size_t bytes = 0;
  for (int i = first; i <= last; ++i) bytes += MakeNumber(i).ByteSizeLong();
  return bytes;
}

class FunctionServerInterceptor : public ServerInterceptor {
 public:
  void Intercept(InterceptedCall& call, ServerNext& next) override {
    if (code) return code(call, next);
    next.Run();
  }
  std::function<void(InterceptedCall&, ServerNext&)> code;
};

class StreamInterceptorTest : public StreamerTest {
 protected:
  void AddInterceptors(Server* server) override {
    server->AddInterceptor(interceptor_);
  }
  void TearDown() override {
    ended_.Wait();
    StreamerTest::TearDown();
  }

  // The interceptor of the test's call. `code` runs once.
  void Intercept(std::function<void(InterceptedCall&, ServerNext&)> code) {
    ended_.Reset();
    interceptor_->code = [this, code](InterceptedCall& call, ServerNext& next) {
      code(call, next);
      ended_.Set();
    };
  }

  std::shared_ptr<FunctionServerInterceptor> interceptor_ =
      std::make_shared<FunctionServerInterceptor>();
  fiber::Event ended_;
};

TEST_F(StreamInterceptorTest, SeesACallOfBothDirections) {
  Observed observed;
  Intercept([&](InterceptedCall& call, ServerNext& next) {
    EXPECT_EQ(call.method(), "flare.rpc.testing.Streamer.Echo");
    EXPECT_EQ(call.request(), nullptr);
    EXPECT_EQ(call.response(), nullptr);
    EXPECT_EQ(call.controller().GetRequestMetadata().Get("who"), "me");
    call.ObserveMessages(observed.Observer());
    next.Run();
    EXPECT_FALSE(call.failed());
    EXPECT_EQ(observed.received, 3);
    EXPECT_EQ(observed.sent, 3);
    EXPECT_EQ(observed.bytes, 2 * SizeOf(1, 3));
    EXPECT_TRUE(call.controller().AddResponseMetadata("seen-by", "it"));
  });
  controller_.AddMetadata("who", "me");
  auto [reader, writer] = stub_.Echo(&controller_);
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(writer.Write(MakeNumber(i)));
  writer.Close();
  int read = 0;
  while (reader.Read()) ++read;
  EXPECT_EQ(read, 3);
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
  EXPECT_EQ(controller_.GetResponseMetadata().Get("seen-by"), "it");
}

TEST_F(StreamInterceptorTest, SeesTheSingleRequest) {
  Observed observed;
  Intercept([&](InterceptedCall& call, ServerNext& next) {
    const auto* const request = dynamic_cast<const Number*>(call.request());
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->value(), 4);
    call.ObserveMessages(observed.Observer());
    next.Run();
    EXPECT_EQ(observed.received, 0);
    EXPECT_EQ(observed.sent, 4);
  });
  auto reader = stub_.Count(MakeNumber(4));
  while (reader.Read()) continue;
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
}

TEST_F(StreamInterceptorTest, MayRefuseACall) {
  std::atomic<bool> called{false};
  service_.on_echo = [&](StreamReader<Number>, StreamWriter<Number>,
                         RpcServerController*) { called = true; };
  Intercept([](InterceptedCall& call, ServerNext&) {
    call.SetFailed(1401, "who is it?");
  });
  auto [reader, writer] = stub_.Echo(&controller_);
  static_cast<void>(writer.Write(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(controller_.ErrorCode(), 1401);
  EXPECT_EQ(controller_.ErrorText(), "who is it?");
  EXPECT_FALSE(called);
}

TEST_F(StreamInterceptorTest, SeesThatACallHasFailed) {
  Intercept([](InterceptedCall& call, ServerNext& next) {
    next.Run();
    EXPECT_TRUE(call.failed());
    EXPECT_EQ(call.status(), 1001);
    call.SetFailed(1002, "in other words");
  });
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController* controller) {
    controller->SetFailed(1001, "no");
  };
  auto reader = stub_.Count(MakeNumber(4));
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), 1002);
}

// --- the calling side -------------------------------------------------------

class FunctionClientInterceptor : public ClientInterceptor {
 public:
  explicit FunctionClientInterceptor(
      std::function<void(ClientInterceptedCall&, ClientNext&)> code)
      : code_(std::move(code)) {}
  void Intercept(ClientInterceptedCall& call, ClientNext& next) override {
    code_(call, next);
  }

 private:
  const std::function<void(ClientInterceptedCall&, ClientNext&)> code_;
};

class ClientStreamInterceptorTest : public StreamerTest {
 protected:
  // Runs `code` around the calls of stub_, and sets ended_ behind it.
  void Intercept(std::function<void(ClientInterceptedCall&, ClientNext&)> code,
                 const std::string& protocol = "flare") {
    auto interceptor = std::make_shared<FunctionClientInterceptor>(
        [this, code](ClientInterceptedCall& call, ClientNext& next) {
          const struct AtEnd {
            fiber::Event* ended;
            ~AtEnd() { ended->Set(); }
          } at_end{&ended_};
          code(call, next);
        });
    ASSERT_TRUE(channel_.Open(protocol + "://" + server_->endpoint().ToString(),
                              {.interceptors = {std::move(interceptor)}}));
  }

  fiber::Event ended_;
};

TEST_F(ClientStreamInterceptorTest, SeesACallFromItsBeginToItsEnd) {
  Observed observed;
  service_.on_echo = [](StreamReader<Number> reader,
                        StreamWriter<Number> writer,
                        RpcServerController* controller) {
    EXPECT_EQ(controller->GetRequestMetadata().Get("token"), "secret");
    EXPECT_EQ(controller->GetRequestMetadata().Get("who"), "me");
    EXPECT_TRUE(controller->GetTimeout());
    for (const Number& number : reader) EXPECT_TRUE(writer.Write(number));
    EXPECT_TRUE(controller->AddResponseMetadata("late", "1"));
    writer.Close();
  };
  Intercept([&](ClientInterceptedCall& call, ClientNext& next) {
    EXPECT_EQ(call.method().full_name(), "flare.rpc.testing.Streamer.Echo");
    EXPECT_EQ(call.request(), nullptr);
    call.controller().AddMetadata("token", "secret");
    call.ObserveMessages(observed.Observer());
    next.Run();
    EXPECT_FALSE(call.controller().Failed());
    EXPECT_EQ(call.controller().GetResponseMetadata().Get("late"), "1");
    EXPECT_EQ(call.controller().GetRemotePeer(), server_->endpoint());
    EXPECT_EQ(observed.sent, 3);
    next.Run();  // That isn't possible.
    EXPECT_EQ(call.controller().ErrorCode(), STATUS_NOT_SUPPORTED);
  });
  controller_.SetTimeout(std::chrono::minutes(1));
  controller_.AddMetadata("who", "me");
  auto [reader, writer] = stub_.Echo(&controller_);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(writer.Write(MakeNumber(i)));
    EXPECT_TRUE(reader.Read());
  }
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_EQ(controller_.GetResponseMetadata().Get("late"), "1");
  EXPECT_FALSE(controller_.Failed());
  ended_.Wait();
  EXPECT_EQ(observed.received, 3);
  EXPECT_EQ(observed.bytes, 2 * SizeOf(1, 3));
}

TEST_F(ClientStreamInterceptorTest, SeesTheRequestAndTheFailure) {
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController* controller) {
    controller->SetFailed(1001, "no");
  };
  Intercept([&](ClientInterceptedCall& call, ClientNext& next) {
    next.Run();
    const auto* const request = dynamic_cast<const Number*>(call.request());
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(request->value(), 4);
    EXPECT_EQ(call.controller().ErrorCode(), 1001);
    EXPECT_EQ(call.controller().ErrorText(), "no");
  });
  auto reader = stub_.Count(MakeNumber(4), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), 1001);
  ended_.Wait();
}

// The caller's wishes hold for the call that is made.
TEST_F(ClientStreamInterceptorTest, LeavesTheCallersCompressionAndKey) {
  bool compressed = false;
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer, RpcServerController*) {
    for (const Number& number : reader) {
      compressed = reader.compressed();
      EXPECT_TRUE(writer.Write(number));
    }
    writer.Close();
  };
  bool has_key = false;
  Intercept(
      [&](ClientInterceptedCall& call, ClientNext& next) {
        has_key = call.controller().balancing_key() != nullptr;
        next.Run();
      },
      "grpc");
  controller_.SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
  controller_.SetBalancingKey("a user");
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_TRUE(writer.WriteLast(MakeNumber(1, 10'000)));
  while (reader.Read()) continue;
  EXPECT_TRUE(compressed);
  EXPECT_TRUE(has_key);
  ended_.Wait();
}

TEST_F(ClientStreamInterceptorTest, MayRefuseACall) {
  Intercept([&](ClientInterceptedCall& call, ClientNext&) {
    call.controller().SetFailed(1500, "not today");
  });
  auto reader = stub_.Count(MakeNumber(4), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), 1500);
  EXPECT_EQ(controller_.ErrorText(), "not today");
  ended_.Wait();
}

TEST_F(ClientStreamInterceptorTest, ThatLeavesACallOutFailsIt) {
  Intercept([](ClientInterceptedCall&, ClientNext&) {});
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_NOT_SUPPORTED);
  ended_.Wait();
}

TEST_F(ClientStreamInterceptorTest, ThatThrowsFailsTheCall) {
  Intercept([](ClientInterceptedCall&, ClientNext&) {
    throw std::runtime_error("that was it");
  });
  auto reader = stub_.Count(MakeNumber(4), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_FAILED);
  EXPECT_NE(controller_.ErrorText().find("that was it"), std::string::npos);
  ended_.Wait();
}

// A call that has failed before it began may be repeated.
TEST_F(ClientStreamInterceptorTest, MayRepeatACallThatHasNotBegun) {
  Intercept([](ClientInterceptedCall& call, ClientNext& next) {
    call.controller().SetTimeout(std::chrono::milliseconds(-1));
    next.Run();
    EXPECT_EQ(call.controller().ErrorCode(), STATUS_TIMEOUT);
    call.controller().SetTimeout(std::chrono::minutes(1));
    next.Run();
    EXPECT_FALSE(call.controller().Failed());
  });
  auto reader = stub_.Count(MakeNumber(2), &controller_);
  EXPECT_TRUE(reader.Read());
  EXPECT_TRUE(reader.Read());
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_FALSE(controller_.Failed());
  ended_.Wait();
}

}  // namespace
}  // namespace flare::rpc::testing
