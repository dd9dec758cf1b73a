#include "flare/rpc/mock/mock_calls.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/callback.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/status.h"
#include "flare/fiber/coroutine.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/deterministic.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/mock/mock_answer.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/foreign_controller.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/testing/streamer.flare.pb.h"

namespace flare::rpc::testing {
namespace {

using flare::testing::MockAllChannels;
using flare::testing::MockAnswer;
using flare::testing::MockRpcChannel;
using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::StrictMock;

constexpr char kDouble[] = "flare.rpc.testing.Streamer.Double";
constexpr char kSum[] = "flare.rpc.testing.Streamer.Sum";
constexpr char kCount[] = "flare.rpc.testing.Streamer.Count";
constexpr char kEcho[] = "flare.rpc.testing.Streamer.Echo";
constexpr int kSchedules = 100;

// A function that blocks until the test lets it go on.
class Gate {
 public:
  MockAnswer answer() {
    return [this](const Number&, Number* response,
                  RpcServerController* controller) {
      controller_ = controller;
      entered_.Set();
      opened_.Wait();
      response->set_value(1);
    };
  }
  void AwaitCall() { entered_.Wait(); }
  RpcServerController* controller() { return controller_; }
  void Open() { opened_.Set(); }

 private:
  fiber::Event entered_;
  fiber::Event opened_;
  RpcServerController* controller_ = nullptr;
};

class MockStreamer : public SyncStreamer {
 public:
  MOCK_METHOD(void, Double,
              (const Number& request, Number* response,
               RpcServerController* controller),
              (override));
};

class LateStreamer : public AsyncStreamer {
 public:
  Future<> Double(const Number& request, Number* response,
                  RpcServerController*) override {
    response->set_value(2 * request.value());
    return promise.GetFuture();
  }
  Promise<> promise;
};

class MockCallsTest : public RpcTest {
 protected:
  Expected<Number, flare::Status> Double(std::int64_t value) {
    return stub_.Double(MakeNumber(value), &controller_);
  }

  // Before the mock, which waits for their users.
  Gate gate_;
  StrictMock<MockStreamer> gmocked_;
  LateStreamer late_;
  MockRpcChannel mock_;
  Streamer_SyncStub stub_{&mock_};
  RpcClientController controller_;
};

// --- Unary calls -----------------------------------------------------------

TEST_F(MockCallsTest, AnswersCallsOfAllForms) {
  mock_.Answer(kDouble, MakeNumber(4));
  const auto call = [&] {
    auto reply = stub_.Double(MakeNumber(2));
    ASSERT_TRUE(reply) << reply.error().ToString();
    EXPECT_EQ(reply->value(), 4);
  };
  call();  // On a plain thread.
  Fiber(call).join();

  auto later = fiber::BlockingGet(
      Streamer_AsyncStub(&mock_).Double(MakeNumber(2), &controller_));
  ASSERT_TRUE(later) << later.error().ToString();
  EXPECT_EQ(later->value(), 4);

  fiber::Event done;
  controller_.Reset();
  const Number request = MakeNumber(2);
  Number response;
  Streamer_Stub(&mock_).Double(
      &controller_, &request, &response,
      google::protobuf::NewCallback(&done, &fiber::Event::Set));
  done.Wait();
  EXPECT_FALSE(controller_.Failed());
  EXPECT_GT(controller_.GetElapsedTime().count(), 0);
  EXPECT_EQ(response.value(), 4);
  EXPECT_EQ(mock_.CountCalls(kDouble), 4u);
}

TEST_F(MockCallsTest, FailsCalls) {
  mock_.Answer(kDouble, flare::Status(1001, "too large"));
  EXPECT_FALSE(Double(2));
  EXPECT_EQ(controller_.ErrorCode(), 1001);
  EXPECT_EQ(controller_.ErrorText(), "too large");

  ForeignController foreign;
  const Number request;
  Number response;
  Streamer_Stub(&mock_).Double(&foreign, &request, &response, nullptr);
  EXPECT_EQ(foreign.ErrorText(), "too large");
}

TEST_F(MockCallsTest, UsesAnswersInTheirOrder) {
  mock_.Answer(kDouble, MakeNumber(9));
  mock_.AnswerOnce(kDouble, MakeNumber(1));
  mock_.AnswerOnce(kDouble, flare::Status(STATUS_OVERLOADED, "busy"));
  EXPECT_EQ(Double(10)->value(), 1);
  EXPECT_EQ(Double(11).error().code(), STATUS_OVERLOADED);
  EXPECT_EQ(Double(12)->value(), 9);
  EXPECT_EQ(Double(13)->value(), 9);
  const std::vector<Number> requests = mock_.Requests<Number>(kDouble);
  EXPECT_THAT(
      requests,
      ElementsAre(Property(&Number::value, 10), Property(&Number::value, 11),
                  Property(&Number::value, 12), Property(&Number::value, 13)));
}

TEST_F(MockCallsTest, FailsCallsThatNothingAnswers) {
  const auto reply = Double(1);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(reply.error().message(),
            "no answer was set for flare.rpc.testing.Streamer.Double");
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_METHOD_NOT_FOUND);
  EXPECT_EQ(mock_.CountCalls(kCount), 1u);
}

TEST_F(MockCallsTest, FunctionsHaveAllOfACall) {
  std::optional<std::chrono::steady_clock::time_point> deadline;
  mock_.Answer(kDouble, [&](const Number& request, Number* response,
                            RpcServerController* controller) {
    EXPECT_EQ(FlattenSlow(controller->GetRequestAttachment()), "picture");
    EXPECT_EQ(controller->GetRequestMetadata().Get("user"), "me");
    deadline = controller->GetTimeout();
    response->set_value(2 * request.value());
    controller->SetResponseAttachment(CreateBufferSlow("thumbnail"));
    controller->AddResponseMetadata("cache", "hit");
    controller->AddResponseTrailer("cost", "1");
  });
  const auto until = std::chrono::steady_clock::now() + 1h;
  controller_.SetTimeout(until);
  controller_.SetRequestAttachment(CreateBufferSlow("picture"));
  controller_.AddMetadata("user", "me");
  EXPECT_EQ(Double(4)->value(), 8);
  EXPECT_EQ(deadline, until);
  EXPECT_EQ(FlattenSlow(controller_.GetResponseAttachment()), "thumbnail");
  EXPECT_EQ(controller_.GetResponseMetadata().Get("cache"), "hit");
  EXPECT_EQ(controller_.GetResponseMetadata().Get("cost"), "1");
}

TEST_F(MockCallsTest, AnExceptionFailsTheCall) {
  mock_.Answer(kDouble, [](const Number&, Number*, RpcServerController*) {
    throw std::runtime_error("no luck");
  });
  const auto reply = Double(1);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code(), STATUS_FAILED);
  EXPECT_THAT(reply.error().message(), HasSubstr("no luck"));
}

TEST_F(MockCallsTest, TakesAndGivesRawBytes) {
  mock_.Answer(kDouble, [](const Number& request, Number*,
                           RpcServerController* controller) {
    controller->SetResponseRawBytes(
        CreateBufferSlow(MakeNumber(2 * request.value()).SerializeAsString()));
  });
  EXPECT_EQ(Double(4)->value(), 8);
  controller_.SetRequestRawBytes(
      CreateBufferSlow(MakeNumber(5).SerializeAsString()));
  controller_.SetAcceptResponseRawBytes(true);
  const Number ignored = MakeNumber(6);
  for (const Number* request :
       {&ignored, static_cast<const Number*>(nullptr)}) {
    Streamer_Stub(&mock_).Double(&controller_, request, nullptr, nullptr);
    EXPECT_EQ(controller_.ErrorText(), "");
    Number response;
    EXPECT_TRUE(response.ParseFromString(
        FlattenSlow(controller_.GetResponseRawBytes())));
    EXPECT_EQ(response.value(), 10);
  }
}

// A proxy, for example, reads its types at run time.
TEST_F(MockCallsTest, TakesMessagesOfAnotherPool) {
  mock_.Answer(kDouble, MakeNumber(4));
  google::protobuf::DescriptorPool pool;
  google::protobuf::FileDescriptorProto file;
  Number::descriptor()->file()->CopyTo(&file);
  ASSERT_NE(pool.BuildFile(file), nullptr);
  google::protobuf::DynamicMessageFactory factory(&pool);
  const google::protobuf::MethodDescriptor* const method =
      pool.FindMethodByName(kDouble);
  const google::protobuf::Message* const prototype =
      factory.GetPrototype(method->input_type());
  const std::unique_ptr<google::protobuf::Message> request(prototype->New());
  const std::unique_ptr<google::protobuf::Message> response(prototype->New());
  request->ParseFromString(MakeNumber(2).SerializeAsString());
  mock_.CallMethod(method, &controller_, request.get(), response.get(),
                   nullptr);
  EXPECT_EQ(controller_.ErrorText(), "");
  EXPECT_EQ(mock_.Requests<Number>(kDouble)[0].value(), 2);
  EXPECT_EQ(response->SerializeAsString(), MakeNumber(4).SerializeAsString());
}

TEST_F(MockCallsTest, RefusesMetadataThatCannotBeSent) {
  mock_.Answer(kDouble, MakeNumber(4));
  controller_.AddMetadata("two words", "x");
  EXPECT_EQ(Double(1).error().code(), STATUS_NOT_SUPPORTED);
}

// A response that is sent early is the caller's, whatever follows.
TEST_F(MockCallsTest, AResponseMayBeSentEarly) {
  fiber::Event got_reply;
  MockRpcChannel mock;
  mock.Answer(kDouble, [&](const Number&, Number* response,
                           RpcServerController* controller) {
    response->set_value(1);
    controller->WriteResponseImmediately();
    got_reply.Wait();
    response->set_value(2);
  });
  EXPECT_EQ(Streamer_SyncStub(&mock).Double(MakeNumber(1))->value(), 1);
  got_reply.Set();
}

// Mocks don't ask which protocol it would be.
TEST_F(MockCallsTest, OneWayCallsEndWithoutTheirFunction) {
  mock_.Answer(kDouble, gate_.answer());
  controller_.SetOneWay(true);
  EXPECT_EQ(Double(1)->value(), 0);
  gate_.AwaitCall();
  gate_.Open();
  mock_.Answer(kCount, MakeNumber(1));
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_NOT_SUPPORTED);
}

TEST_F(MockCallsTest, CancelledCallsEndAtOnce) {
  mock_.Answer(kDouble, gate_.answer());
  auto reply = Streamer_AsyncStub(&mock_).Double(MakeNumber(1), &controller_);
  gate_.AwaitCall();
  fiber::Event told;
  gate_.controller()->NotifyOnCancel(
      google::protobuf::NewCallback(&told, &fiber::Event::Set));
  controller_.StartCancel();
  EXPECT_FALSE(fiber::BlockingGet(std::move(reply)));
  EXPECT_TRUE(controller_.IsCanceled());
  told.Wait();
  gate_.Open();
  controller_.Reset();
  mock_.Answer(kDouble, MakeNumber(3));
  controller_.StartCancel();  // Before the call, which no function sees.
  EXPECT_FALSE(Double(1));
  EXPECT_TRUE(controller_.IsCanceled());
}

TEST_F(MockCallsTest, ACallEndsWithTheContextInWhichItIsMade) {
  mock_.Answer(kDouble, gate_.answer());
  const auto context = fiber::ExecutionContext::Create();
  Fiber stopper([&] {
    gate_.AwaitCall();
    context->RequestStop(fiber::StopCause::kCallerGone);
  });
  const auto reply = context->Execute([&] { return Double(1); });
  ASSERT_FALSE(reply);
  EXPECT_THAT(reply.error().message(), HasSubstr("the caller is gone"));
  EXPECT_TRUE(gate_.controller()->IsCanceled());
  gate_.Open();
  stopper.join();
}

TEST_F(MockCallsTest, ChannelsMayIgnoreTheContext) {
  MockRpcChannel apart({.inherits_context = false});
  const auto context = fiber::ExecutionContext::Create();
  context->RequestStop(fiber::StopCause::kCallerGone);
  for (MockRpcChannel* mock : {&mock_, &apart}) {
    mock->Answer(kDouble, MakeNumber(4));
    const Streamer_SyncStub stub(mock);
    const auto reply =
        context->Execute([&] { return stub.Double(MakeNumber(2)); });
    EXPECT_EQ(reply.has_value(), mock == &apart);
  }
}

TEST_F(MockCallsTest, MayBeChangedWhileCallsAreMade) {
  constexpr int kFibers = 8;
  constexpr int kCalls = 50;
  mock_.Answer(kDouble, MakeNumber(0));
  std::atomic<int> failures = 0;
  std::vector<Fiber> callers;
  for (int i = 0; i != kFibers; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call != kCalls; ++call) {
        failures += stub_.Double(MakeNumber(call)) ? 0 : 1;
        mock_.AnswerOnce(kDouble, flare::Status(1001, "once"));
      }
    });
  }
  for (Fiber& caller : callers) caller.join();
  // Each fiber leaves one at most.
  EXPECT_GE(failures, kFibers * (kCalls - 1));
  EXPECT_EQ(mock_.CountCalls(kDouble), kFibers * kCalls);
  EXPECT_EQ(mock_.Requests<Number>(kDouble).size(), kFibers * kCalls);
}

// --- Time, which is virtual ------------------------------------------------

TEST(MockTimeTest, ACallThatIsAnsweredTooLateTimesOut) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockRpcChannel mock;
    mock.Answer(kDouble, MockAnswer(MakeNumber(4)).After(1h));
    const Streamer_SyncStub stub(&mock);
    RpcClientController controller;
    controller.SetTimeout(std::chrono::minutes(59));
    const std::int64_t begin = NowNs();
    const auto reply = stub.Double(MakeNumber(2), &controller);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), STATUS_TIMEOUT);
    EXPECT_THAT(reply.error().message(), HasSubstr("has not answered in time"));
    EXPECT_GE(NowNs() - begin, ToNs(std::chrono::minutes(59)));
  });
}

TEST(MockTimeTest, ACallWaitsForItsAnswer) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockRpcChannel mock;
    mock.Answer(kDouble, MockAnswer(MakeNumber(4)).After(1h));
    const Streamer_SyncStub stub(&mock);
    RpcClientController controller;
    controller.SetTimeout(std::chrono::hours(24 * 365));
    const std::int64_t begin = NowNs();
    const auto reply = stub.Double(MakeNumber(2), &controller);
    ASSERT_TRUE(reply) << reply.error().ToString();
    EXPECT_GE(NowNs() - begin, ToNs(1h));
  });
}

// A reply, a deadline and a cancellation at about the same time.
TEST(MockTimeTest, OneEndOfACallCounts) {
  int ends[3] = {};
  fiber::testing::ExploreSchedules(kSchedules, [&ends] {
    MockRpcChannel mock;
    mock.Answer(kDouble, MockAnswer(MakeNumber(4)).After(1s));
    const Streamer_SyncStub stub(&mock);
    RpcClientController controller;
    controller.SetTimeout(1s);
    Fiber canceller([&controller] {
      this_fiber::SleepFor(1s);
      controller.StartCancel();
    });
    const auto reply = stub.Double(MakeNumber(2), &controller);
    EXPECT_EQ(controller.Failed(), !reply);
    ++ends[reply ? 0 : controller.IsCanceled() ? 1 : 2];
    canceller.join();
  });
  EXPECT_GT(ends[0], 0);
  EXPECT_GT(ends[1], 0);
  EXPECT_GT(ends[2], 0);
}

TEST(MockTimeTest, TheEndWaitsForFunctions) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    bool begun = false;
    bool ended = false;
    auto captured = std::make_shared<int>();
    const std::weak_ptr<int> in_captures = captured;
    {
      MockRpcChannel mock;
      mock.Answer(kDouble,
                  [&, captured = std::move(captured)](
                      const Number&, Number*, RpcServerController* controller) {
                    begun = true;
                    this_fiber::SleepFor(2h);
                    EXPECT_TRUE(controller->IsCanceled());
                    ended = true;
                  });
      RpcClientController controller;
      controller.SetTimeout(1h);
      EXPECT_FALSE(Streamer_SyncStub(&mock).Double(MakeNumber(1), &controller));
    }
    EXPECT_EQ(ended, begun);
    EXPECT_TRUE(in_captures.expired());
  });
}

class CountingInterceptor : public ClientInterceptor {
 public:
  void Intercept(ClientInterceptedCall&, ClientNext& next) override {
    ++calls;
    next.Run();
  }
  int calls = 0;
};

TEST(MockTimeTest, HeedsOptionsOfAChannel) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    const auto counting = std::make_shared<CountingInterceptor>();
    MockRpcChannel mock({.timeout = 1h, .interceptors = {counting}});
    mock.Answer(kDouble, MockAnswer(MakeNumber(1)).After(2h));
    const Streamer_SyncStub stub(&mock);
    EXPECT_EQ(stub.Double(MakeNumber(1)).error().code(), STATUS_TIMEOUT);
    EXPECT_EQ(counting->calls, 1);
  });
}

// --- Streams ---------------------------------------------------------------

std::vector<std::int64_t> ReadAll(StreamReader<Number>* reader) {
  std::vector<std::int64_t> values;
  for (const Number& number : *reader) values.push_back(number.value());
  return values;
}

// Large messages, so that windows are full.
constexpr std::size_t kPadding = 30 << 10;

void CallAllMethods(const Streamer_SyncStub& stub) {
  RpcClientController controller;
  auto counted = stub.Count(MakeNumber(5, kPadding), &controller);
  EXPECT_THAT(ReadAll(&counted), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(counted.error(), StreamError::EndOfStream);

  auto [sum, numbers] = stub.Sum();
  for (int i = 1; i != 6; ++i) {
    EXPECT_TRUE(numbers.Write(MakeNumber(i, kPadding)));
  }
  numbers.Close();
  EXPECT_EQ(sum.Read()->value(), 15);

  auto [reader, writer] = stub.Echo();
  Fiber sender([&writer = writer] {
    for (int i = 0; i != 5; ++i) {
      EXPECT_TRUE(writer.Write(MakeNumber(i, kPadding)));
    }
    writer.Close();
  });
  EXPECT_THAT(ReadAll(&reader), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
  sender.join();
}

TEST(MockStreamTest, FunctionsStream) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockRpcChannel mock;
    mock.Answer(kCount, [](const Number& request, StreamWriter<Number> writer,
                           RpcServerController*) {
      for (std::int64_t i = 0; i != request.value(); ++i) {
        EXPECT_TRUE(writer.Write(MakeNumber(i, kPadding)));
      }
      writer.Close();
    });
    mock.Answer(kSum, [](StreamReader<Number> reader, Number* response,
                         RpcServerController*) {
      for (const Number& number : reader) {
        response->set_value(response->value() + number.value());
      }
    });
    mock.Answer(kEcho, [](StreamReader<Number> reader,
                          StreamWriter<Number> writer, RpcServerController*) {
      for (const Number& number : reader) EXPECT_TRUE(writer.Write(number));
      writer.Close();
    });
    CallAllMethods(Streamer_SyncStub(&mock));
    EXPECT_EQ(mock.CountCalls(kSum), 1u);
    EXPECT_EQ(mock.Requests<Number>(kCount)[0].value(), 5);
  });
}

TEST(MockStreamTest, ServicesStream) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    FlexibleStreamer streamer;
    MockRpcChannel mock;
    mock.Serve(&streamer);
    CallAllMethods(Streamer_SyncStub(&mock));
  });
}

TEST(MockStreamTest, MessagesAndFailuresAnswerStreams) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockRpcChannel mock;
    for (const char* method : {kSum, kCount, kEcho}) {
      mock.AnswerOnce(method, MakeNumber(7));
      mock.Answer(method, flare::Status(1001, "no"));
    }
    const Streamer_SyncStub stub(&mock);
    for (const bool succeeds : {true, false}) {
      auto counted = stub.Count(MakeNumber(1));
      EXPECT_EQ(ReadAll(&counted).size(), succeeds ? 1u : 0u);
      EXPECT_EQ(counted.status().code(), succeeds ? 0 : 1001);
      auto [sum, numbers] = stub.Sum();
      if (succeeds) {
        EXPECT_TRUE(numbers.Write(MakeNumber(1)));
      }
      numbers.Close();
      EXPECT_EQ(sum.Read().has_value(), succeeds);
      EXPECT_EQ(sum.status().code(), succeeds ? 0 : 1001);
      auto [reader, writer] = stub.Echo();
      writer.Close();
      EXPECT_EQ(ReadAll(&reader).size(), succeeds ? 1u : 0u);
      EXPECT_EQ(reader.status().code(), succeeds ? 0 : 1001);
    }
  });
}

TEST(MockStreamTest, FunctionsKnowTheDeadline) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    std::int64_t deadline = 0;
    MockRpcChannel mock({.stream_timeout = 1h});
    mock.Answer(kSum, [&](StreamReader<Number>, Number*,
                          RpcServerController* controller) {
      deadline = ToSteadyNs(controller->GetTimeout().value());
    });
    const std::int64_t begin = NowNs();
    const Streamer_SyncStub stub(&mock);
    EXPECT_TRUE(std::get<0>(stub.Sum()).Read());
    EXPECT_GE(deadline - begin, ToNs(1h));
    EXPECT_LT(deadline - begin, ToNs(2h));

    RpcClientController late;
    late.SetTimeout(0s);
    auto [sum, numbers] = stub.Sum(&late);
    EXPECT_FALSE(sum.Read());
    EXPECT_EQ(sum.status().code(), STATUS_TIMEOUT);
  });
}

class LateInterceptor : public ClientInterceptor {
 public:
  void Intercept(ClientInterceptedCall&, ClientNext& next) override {
    this_fiber::SleepFor(1s);
    next.Run();
  }
};

// The function has ended before the client's end begins.
TEST(MockStreamTest, AnAnswerWaitsForItsCaller) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockAllChannels mock;
    mock.Answer(kEcho, [](StreamReader<Number>, StreamWriter<Number> writer,
                          RpcServerController*) {
      EXPECT_TRUE(writer.WriteLast(MakeNumber(7)));
    });
    RpcChannel channel("flare://127.0.0.1:1",
                       {.interceptors = {std::make_shared<LateInterceptor>()}});
    auto [reader, writer] = Streamer_SyncStub(&channel).Echo();
    EXPECT_THAT(ReadAll(&reader), ElementsAre(7));
    EXPECT_EQ(reader.error(), StreamError::EndOfStream)
        << reader.status().ToString();
  });
}

TEST(MockStreamTest, AStreamThatTakesTooLongTimesOut) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    MockRpcChannel mock;
    bool told = false;
    mock.Answer(kEcho,
                [&told](StreamReader<Number> reader, StreamWriter<Number>,
                        RpcServerController* controller) {
                  EXPECT_FALSE(reader.Read());
                  told = controller->IsCanceled();
                });
    {
      RpcClientController controller;
      controller.SetTimeout(1h);
      auto [reader, writer] = Streamer_SyncStub(&mock).Echo(&controller);
      EXPECT_FALSE(reader.Read());
      EXPECT_EQ(reader.status().code(), STATUS_TIMEOUT);
      EXPECT_EQ(controller.ErrorCode(), STATUS_TIMEOUT);
    }
    while (!told) this_fiber::SleepFor(1s);
  });
}

TEST(MockStreamTest, ACallerMayLeave) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    fiber::Event left;
    MockRpcChannel mock;
    mock.Answer(kCount, [&left](const Number&, StreamWriter<Number> writer,
                                RpcServerController* controller) {
      while (writer.Write(MakeNumber(1, kPadding))) {
      }
      EXPECT_TRUE(controller->IsCanceled());
      left.Set();
    });
    {
      auto reader = Streamer_SyncStub(&mock).Count(MakeNumber(1));
      EXPECT_TRUE(reader.Read());
    }
    left.Wait();
  });
}

TEST_F(MockCallsTest, StreamsCarryMetadata) {
  mock_.Answer(kCount, [](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    EXPECT_EQ(controller->GetRequestMetadata().Get("user"), "me");
    controller->AddResponseMetadata("cache", "hit");
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    controller->AddResponseTrailer("cost", "1");
    writer.Close();
  });
  controller_.AddMetadata("user", "me");
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_THAT(ReadAll(&reader), ElementsAre(1));
  EXPECT_EQ(controller_.GetResponseMetadata().Get("cache"), "hit");
  EXPECT_EQ(controller_.GetResponseMetadata().Get("cost"), "1");
}

// A coroutine, whose writer is its parameter.
class PartialStreamer : public AsyncStreamer {
 public:
  Future<> Count(const Number&, AsyncStreamWriter<Number> writer,
                 RpcServerController*) override {
    EXPECT_TRUE(co_await writer.Write(MakeNumber(1)));
  }
};

TEST(MockStreamTest, ACoroutineThatDoesNotCloseItsWriterFails) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    PartialStreamer streamer;
    MockRpcChannel mock;
    mock.Serve(&streamer);
    auto reader = Streamer_SyncStub(&mock).Count(MakeNumber(1));
    EXPECT_THAT(ReadAll(&reader), ElementsAre(1));
    EXPECT_EQ(reader.status().code(), STATUS_FAILED);
    EXPECT_THAT(reader.status().message(), HasSubstr("without closing it"));
  });
}

// A caller whose metadata can't be sent gets the reason, and the function ends.
TEST_F(MockCallsTest, AStreamThatCannotBeginFails) {
  mock_.Answer(kEcho,
               [](StreamReader<Number> reader, StreamWriter<Number>,
                  RpcServerController*) { EXPECT_FALSE(reader.Read()); });
  controller_.AddMetadata("two words", "x");
  auto [reader, writer] = stub_.Echo(&controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_NOT_SUPPORTED);
}

// --- Services --------------------------------------------------------------

TEST_F(MockCallsTest, AServiceOfGmockAnswers) {
  mock_.Serve(&gmocked_);
  EXPECT_CALL(gmocked_, Double(Property(&Number::value, 2), _, _))
      .WillOnce([](const Number&, Number* response, RpcServerController*) {
        response->set_value(4);
      });
  EXPECT_CALL(gmocked_, Double(Property(&Number::value, 3), _, _))
      .WillOnce([](const Number&, Number*, RpcServerController* controller) {
        controller->SetFailed(1001, "odd");
      });
  EXPECT_EQ(Double(2)->value(), 4);
  EXPECT_EQ(Double(3).error().message(), "odd");
}

TEST_F(MockCallsTest, AServiceMayAnswerLater) {
  mock_.Serve(&late_);
  auto reply = Streamer_AsyncStub(&mock_).Double(MakeNumber(2), &controller_);
  late_.promise.SetValue();
  EXPECT_EQ(fiber::BlockingGet(std::move(reply))->value(), 4);
  // An answer of its own goes before.
  mock_.AnswerOnce(kDouble, MakeNumber(1));
  EXPECT_EQ(Double(2)->value(), 1);
}

// --- Channels that others open ---------------------------------------------

TEST_F(MockCallsTest, AllChannelsCanBeMocked) {
  std::optional<RpcChannel> channel;
  {
    MockAllChannels mock;
    mock.Answer(kDouble, MakeNumber(1));
    mock.Answer(kCount, MakeNumber(2));
    mock_.Answer(kDouble, MakeNumber(3));
    for (const char* uri :
         {"flare://double.example.com:80", "tls+http+pb://10.1.2.3:443",
          "trpc://[::1]:5,unix:/run/double"}) {
      channel.emplace(uri);
      EXPECT_TRUE(channel->status().ok()) << channel->status().ToString();
      const Streamer_SyncStub stub(&*channel);
      EXPECT_EQ(stub.Double(MakeNumber(1))->value(), 1) << uri;
      auto reader = stub.Count(MakeNumber(1));
      EXPECT_THAT(ReadAll(&reader), ElementsAre(2)) << uri;
    }
    EXPECT_EQ(mock.CountCalls(kDouble), 3u);
    EXPECT_EQ(Double(1)->value(), 3);
    EXPECT_EQ(MockRpcChannel().CountCalls(kDouble), 0u);
  }
  // It is gone.
  EXPECT_EQ(Streamer_SyncStub(&*channel).Double(MakeNumber(1)).error().code(),
            STATUS_METHOD_NOT_FOUND);
}

// --- Mistakes --------------------------------------------------------------

class MockCallsDeathTest : public ::testing::Test {
 protected:
  MockCallsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  MockRpcChannel mock_;
};

TEST_F(MockCallsDeathTest, AnswersAreForMethods) {
  EXPECT_DEATH(mock_.Answer("Streamer.Double", Number()),
               "no method \"Streamer.Double\"");
  EXPECT_DEATH(
      mock_.Answer(kDouble, google::protobuf::DescriptorProto()),
      "its response is a flare.rpc.testing.Number, not a google.protobuf.");
  EXPECT_DEATH(
      mock_.Answer(kCount, [](const Number&, Number*, RpcServerController*) {}),
      "the server streams; in the function's parameters neither");
  EXPECT_DEATH(mock_.Answer(kDouble, flare::Status()),
               "a status other than success");
}

}  // namespace
}  // namespace flare::rpc::testing
