// Services and stubs that the plugin generates for streaming methods, over a
// connection. The tests of readers and writers are beside them.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/service.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

namespace pb = google::protobuf;
using fiber::BlockingGet;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(std::is_same_v<BasicStreamer, Streamer>);
static_assert(std::is_same_v<Streamer_BasicStub, Streamer_Stub>);

// A test of another service than FlexibleStreamer.
template <class Service>
class ServiceTest : public StreamerTest {
 protected:
  pb::Service& service() override { return other_; }
  Service other_;
};

// ---------------------------------------------------------------------------
// SyncX and X_SyncStub
// ---------------------------------------------------------------------------

class SyncStreams : public StreamerTest {};

TEST_F(SyncStreams, ClientStreams) {
  auto [reader, writer] = stub_.Sum(&controller_);
  for (int i = 1; i != 11; ++i) EXPECT_TRUE(writer.Write(MakeNumber(i)));
  writer.Close();
  auto sum = reader.Read();
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), 55);
}

TEST_F(SyncStreams, ServerStreams) {
  auto reader = stub_.Count(MakeNumber(20), &controller_);
  int next = 0;
  for (const Number& number : reader) EXPECT_EQ(number.value(), next++);
  EXPECT_EQ(next, 20);
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader.status().ok());
}

TEST_F(SyncStreams, BothStream) {
  auto [reader, writer] = stub_.Echo(&controller_);
  for (int i = 0; i != 20; ++i) {
    EXPECT_TRUE(writer.Write(MakeNumber(i)));
    auto echo = reader.Read();
    ASSERT_TRUE(echo);
    EXPECT_EQ(echo->value(), i);
  }
  EXPECT_TRUE(writer.WriteLast(MakeNumber(20)));
  EXPECT_EQ(reader.Read()->value(), 20);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

TEST_F(SyncStreams, NeedNoController) {
  auto counting = stub_.Count(MakeNumber(1));
  EXPECT_EQ(counting.Read()->value(), 0);
  EXPECT_FALSE(counting.Read());
  auto [sum, numbers] = stub_.Sum();
  EXPECT_TRUE(numbers.WriteLast(MakeNumber(7)));
  EXPECT_EQ(sum.Read()->value(), 7);
  auto [reader, writer] = stub_.Echo();
  writer.Close();
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

TEST_F(SyncStreams, UnaryMethodsAreAsEver) {
  auto doubled = stub_.Double(MakeNumber(21));
  ASSERT_TRUE(doubled) << doubled.error().ToString();
  EXPECT_EQ(doubled->value(), 42);
}

TEST_F(SyncStreams, MethodMayFailMidway) {
  service_.on_sum = [](StreamReader<Number> reader, Number*,
                       RpcServerController* controller) {
    while (auto number = reader.Read()) {
      if (number->value() < 0) return controller->SetFailed(1001, "negative");
    }
  };
  auto [reader, writer] = stub_.Sum(&controller_);
  EXPECT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_TRUE(writer.Write(MakeNumber(-1)));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), 1001);
  EXPECT_EQ(reader.status().message(), "negative");
  EXPECT_EQ(controller_.ErrorCode(), 1001);
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
}

TEST_F(SyncStreams, MethodMayThrow) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController*) {
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    throw std::runtime_error("no more numbers");
  };
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_EQ(reader.Read()->value(), 1);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), STATUS_FAILED);
  EXPECT_THAT(reader.status().message(),
              HasSubstr("Streamer.Count has thrown std::runtime_error"));
}

class SyncStreamsOfNothing : public ServiceTest<SyncStreamer> {};

TEST_F(SyncStreamsOfNothing, Fail) {
  auto counting = stub_.Count(MakeNumber(3), &controller_);
  EXPECT_EQ(counting.Read().error(), StreamError::IoError);
  EXPECT_EQ(counting.status().code(), STATUS_FAILED);
  EXPECT_THAT(counting.status().message(),
              AllOf(HasSubstr("flare.rpc.testing.Streamer.Count"),
                    HasSubstr("not implemented")));
  EXPECT_EQ(controller_.ErrorCode(), STATUS_FAILED);
  auto [sum, numbers] = stub_.Sum();
  EXPECT_TRUE(numbers.WriteLast(MakeNumber(1)));
  EXPECT_EQ(sum.Read().error(), StreamError::IoError);
  EXPECT_EQ(sum.status().code(), STATUS_FAILED);
  auto [reader, writer] = stub_.Echo();
  EXPECT_TRUE(writer.WriteLast(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), STATUS_FAILED);
}

// A class of another library.
class UnknownChannel : public pb::RpcChannel {
  void CallMethod(const pb::MethodDescriptor*, pb::RpcController*,
                  const pb::Message*, pb::Message*, pb::Closure*) override {
    ADD_FAILURE();
  }
};

TEST_F(SyncStreams, ChannelsThatCannotStreamFailThem) {
  UnknownChannel channel;
  auto [reader, writer] = Streamer_SyncStub(&channel).Echo(&controller_);
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(controller_.ErrorCode(), STATUS_NOT_SUPPORTED);
}

// ---------------------------------------------------------------------------
// AsyncX and X_AsyncStub
// ---------------------------------------------------------------------------

// The state of an asynchronous method until its future is ready.
struct Summing {
  AsyncStreamReader<Number> reader;
  Number* response;

  static Future<> Run(std::shared_ptr<Summing> self) {
    return self->reader.Read().Then(
        [self](Expected<Number, StreamError> number) {
          if (!number) return MakeReadyFuture<>();
          self->response->set_value(self->response->value() + number->value());
          return Run(self);
        });
  }
};

class FullAsyncStreamer : public AsyncStreamer {
 public:
  Future<> Double(const Number& request, Number* response,
                  RpcServerController*) override {
    if (request.value() < 0) throw std::runtime_error("negative");
    // A future whose promise has gone.
    if (request.value() == 0) return Promise<>().GetFuture();
    return fiber::Async(
        [&request, response] { response->set_value(2 * request.value()); });
  }

  Future<> Sum(AsyncStreamReader<Number> reader, Number* response,
               RpcServerController*) override {
    return Summing::Run(
        std::make_shared<Summing>(Summing{std::move(reader), response}));
  }

  Future<> Count(const Number& request, AsyncStreamWriter<Number> writer,
                 RpcServerController*) override {
    return fiber::Async([&request, writer = std::move(writer)]() mutable {
      for (int i = 0; i != request.value(); ++i) {
        if (!BlockingGet(writer.Write(MakeNumber(i)))) return;
      }
      BlockingGet(writer.Close());
    });
  }

  Future<> Echo(AsyncStreamReader<Number> reader,
                AsyncStreamWriter<Number> writer,
                RpcServerController*) override {
    return fiber::Async(
        [reader = std::move(reader), writer = std::move(writer)]() mutable {
          while (auto number = BlockingGet(reader.Read())) {
            if (!BlockingGet(writer.Write(*number))) return;
          }
          BlockingGet(writer.Close());
        });
  }
};

class AsyncStreams : public ServiceTest<FullAsyncStreamer> {
 protected:
  Streamer_AsyncStub async_{&channel_};
};

TEST_F(AsyncStreams, ClientStreams) {
  auto [reader, writer] = async_.Sum(&controller_);
  for (int i = 1; i != 11; ++i) {
    EXPECT_TRUE(BlockingGet(writer.Write(MakeNumber(i))));
  }
  BlockingGet(writer.Close());
  auto sum = BlockingGet(reader.Read());
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), 55);
}

TEST_F(AsyncStreams, ServerStreams) {
  auto reader = async_.Count(MakeNumber(20), &controller_);
  for (int i = 0; i != 20; ++i) {
    auto number = BlockingGet(reader.Read());
    ASSERT_TRUE(number);
    EXPECT_EQ(number->value(), i);
  }
  EXPECT_EQ(BlockingGet(reader.Read()).error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader.status().ok());
}

TEST_F(AsyncStreams, BothStream) {
  auto [reader, writer] = async_.Echo();
  for (int i = 0; i != 20; ++i) {
    auto echo = reader.Read();
    EXPECT_TRUE(BlockingGet(writer.Write(MakeNumber(i))));
    EXPECT_EQ(BlockingGet(std::move(echo))->value(), i);
  }
  EXPECT_TRUE(BlockingGet(writer.WriteLast(MakeNumber(20))));
  EXPECT_EQ(BlockingGet(reader.Read())->value(), 20);
  EXPECT_EQ(BlockingGet(reader.Read()).error(), StreamError::EndOfStream);
}

TEST_F(AsyncStreams, UnaryMethodEndsWithItsFuture) {
  auto doubled = stub_.Double(MakeNumber(21));
  ASSERT_TRUE(doubled) << doubled.error().ToString();
  EXPECT_EQ(doubled->value(), 42);
}

TEST_F(AsyncStreams, MethodThatDropsItsPromiseFails) {
  auto dropped = stub_.Double(MakeNumber(0));
  ASSERT_FALSE(dropped);
  EXPECT_EQ(dropped.error().code(), STATUS_FAILED);
  EXPECT_EQ(dropped.error().message(),
            "Method flare.rpc.testing.Streamer.Double has dropped the promise "
            "of its future.");
}

TEST_F(AsyncStreams, MethodThatThrowsFails) {
  auto thrown = stub_.Double(MakeNumber(-1));
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code(), STATUS_FAILED);
  EXPECT_THAT(thrown.error().message(),
              HasSubstr("has thrown std::runtime_error: negative"));
}

// As tests of services make them.
TEST_F(AsyncStreams, CallsWithoutClosureWait) {
  const auto* const method = Streamer::descriptor()->FindMethodByName("Double");
  for (const int value : {-1, 0, 21}) {
    const Number request = MakeNumber(value);
    Number response;
    RpcServerController controller;
    other_.CallMethod(method, &controller, &request, &response, nullptr);
    EXPECT_EQ(controller.Failed(), value != 21);
    EXPECT_EQ(response.value(), value == 21 ? 42 : 0);
  }
}

class AsyncStreamsOfNothing : public ServiceTest<AsyncStreamer> {};

TEST_F(AsyncStreamsOfNothing, Fail) {
  auto doubled = stub_.Double(MakeNumber(1));
  ASSERT_FALSE(doubled);
  EXPECT_EQ(doubled.error().code(), STATUS_FAILED);
  auto counting = Streamer_AsyncStub(&channel_).Count(MakeNumber(3));
  EXPECT_EQ(BlockingGet(counting.Read()).error(), StreamError::IoError);
  EXPECT_THAT(counting.status().message(), HasSubstr("not implemented"));
}

// ---------------------------------------------------------------------------
// BasicX and X_BasicStub
// ---------------------------------------------------------------------------

class FullBasicStreamer : public BasicStreamer {
 public:
  void Sum(pb::RpcController* controller, const Number*, Number* response,
           pb::Closure* done) override {
    auto* const server = static_cast<RpcServerController*>(controller);
    auto reader = server->GetStreamReader<Number>();
    for (const Number& number : reader) {
      response->set_value(response->value() + number.value());
    }
    done->Run();
  }

  void Count(pb::RpcController* controller, const Number* request, Number*,
             pb::Closure* done) override {
    auto* const server = static_cast<RpcServerController*>(controller);
    auto writer = server->GetAsyncStreamWriter<Number>();
    for (int i = 0; i != request->value(); ++i) {
      EXPECT_TRUE(BlockingGet(writer.Write(MakeNumber(i))));
    }
    BlockingGet(writer.Close());
    done->Run();
  }
};

class BasicStreams : public ServiceTest<FullBasicStreamer> {
 protected:
  Streamer_BasicStub basic_{&channel_};
};

TEST_F(BasicStreams, ClientStreams) {
  fiber::Event done;
  basic_.Sum(&controller_, nullptr, nullptr,
             pb::NewCallback(&done, &fiber::Event::Set));
  done.Wait();
  auto writer = controller_.GetStreamWriter<Number>();
  auto reader = controller_.GetStreamReader<Number>();
  EXPECT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_TRUE(writer.WriteLast(MakeNumber(2)));
  auto sum = reader.Read();
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), 3);
}

TEST_F(BasicStreams, ServerStreams) {
  const Number request = MakeNumber(3);
  basic_.Count(&controller_, &request, nullptr, nullptr);
  auto reader = controller_.GetAsyncStreamReader<Number>();
  std::vector<std::int64_t> values;
  while (auto number = BlockingGet(reader.Read())) {
    values.push_back(number->value());
  }
  EXPECT_THAT(values, ElementsAre(0, 1, 2));
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
}

TEST_F(BasicStreams, MethodsThatAreNotOverriddenFail) {
  basic_.Echo(&controller_, nullptr, nullptr, nullptr);
  auto reader = controller_.GetStreamReader<Number>();
  auto writer = controller_.GetAsyncStreamWriter<Number>();
  EXPECT_TRUE(BlockingGet(writer.WriteLast(MakeNumber(1))));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_THAT(reader.status().message(), HasSubstr("not implemented"));
}

TEST_F(BasicStreams, AreCancelledIfNobodyTakesThem) {
  basic_.Sum(&controller_, nullptr, nullptr, nullptr);
  const auto stream = controller_.stream();
  controller_.Reset();
  EXPECT_EQ(controller_.stream(), nullptr);
  EXPECT_TRUE(stream->over());
  EXPECT_EQ(stream->status().code(), STATUS_FAILED);
}

TEST_F(BasicStreams, NeedAClientsController) {
  RpcServerController other;
  basic_.Sum(&other, nullptr, nullptr, nullptr);
  EXPECT_THAT(other.ErrorText(),
              AllOf(HasSubstr("flare.rpc.testing.Streamer.Sum"),
                    HasSubstr("RpcClientController")));
}

TEST(UnaryControllers, HaveNoStream) {
  RpcServerController server;
  EXPECT_EQ(server.stream(), nullptr);
  EXPECT_FALSE(server.GetStreamReader<Number>());
  EXPECT_FALSE(server.GetAsyncStreamReader<Number>());
  RpcClientController client;
  EXPECT_EQ(client.stream(), nullptr);
  EXPECT_FALSE(client.GetStreamWriter<Number>());
  EXPECT_FALSE(client.GetAsyncStreamWriter<Number>());
}

}  // namespace
}  // namespace flare::rpc::testing
