// Recorders from end to end: real servers and channels, over each protocol.
#include "flare/rpc/recording/call_recorder.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/recording/recorded_call.h"
#include "flare/rpc/recording/recording_counters.h"
#include "flare/rpc/recording/recording_reader.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A folder, and the recorder that writes there.
class Recording {
 public:
  Recording() {
    std::string folder =
        std::filesystem::temp_directory_path() / "recorder_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~Recording() { std::filesystem::remove_all(folder_); }

  const std::string& folder() const { return folder_; }
  CallRecorder* recorder() { return recorder_.get(); }

  void Install(CallRecorderOptions options = {}) {
    options.folder = folder_;
    auto recorder = CallRecorder::Install(std::move(options));
    ASSERT_TRUE(recorder) << recorder.error().ToString();
    recorder_ = *std::move(recorder);
  }

  // Ends the recording; all calls of it.
  std::vector<RecordedCall> Read() {
    recorder_.reset();
    std::vector<RecordedCall> calls;
    const auto paths = ListRecordings(folder_);
    EXPECT_TRUE(paths) << paths.error();
    for (const std::string& path : *paths) {
      auto reader = RecordingReader::Open(path);
      EXPECT_TRUE(reader) << reader.error();
      for (auto call = (*reader)->Next(); call && *call;
           call = (*reader)->Next()) {
        calls.push_back(**std::move(call));
      }
    }
    return calls;
  }

 private:
  std::string folder_;
  std::unique_ptr<CallRecorder> recorder_;
};

class CallRecorderTest : public ServerTest {
 protected:
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    recording_.Read();  // In the runtime.
    ServerTest::TearDown();
  }

  void Serve(CallRecorderOptions options = {},
             const std::string& scheme = "flare") {
    recording_.Install(std::move(options));
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc"});
    channel_ =
        std::make_unique<RpcChannel>(scheme + "://" + endpoint().ToString());
  }

  // Returns its status.
  int Call(const std::string& body = "ping",
           const std::function<void(RpcClientController*)>& prepare = {}) {
    TestedCall call;
    call.request.set_body(body);
    if (prepare) prepare(&call.controller);
    return call.Start(channel_.get())->Await();
  }

  static std::string BodyOf(const std::string& message) {
    TestRequest request;
    EXPECT_TRUE(request.ParseFromString(message));
    return request.body();
  }

  Recording recording_;
  std::unique_ptr<RpcChannel> channel_;
};

class CallRecorderProtocolsTest
    : public CallRecorderTest,
      public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Protocols, CallRecorderProtocolsTest,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"));

TEST_P(CallRecorderProtocolsTest, KeepsWhatReplaysNeed) {
  Serve({}, GetParam());
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  ASSERT_EQ(Call("hello",
                 [](RpcClientController* controller) {
                   controller->AddMetadata("x-user", "7");
                   controller->SetTimeout(std::chrono::seconds(19));
                 }),
            0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  const RecordedCall& call = calls.front();
  EXPECT_EQ(call.method, kCall);
  EXPECT_EQ(call.request, "\n\5hello");
  EXPECT_EQ(call.status, 0);
  EXPECT_EQ(call.error, "");
  EXPECT_EQ(call.fraction, 1);
  EXPECT_FALSE(call.reply);
  EXPECT_THAT(call.peer, StartsWith("127.0.0.1:"));
  EXPECT_GT(call.latency_ns, 0);
  std::string user;
  for (const auto& [name, value] : call.metadata) {
    if (name == "x-user") user += value;
  }
  EXPECT_EQ(user, "7");
  // Clocks of other sources may differ by a moment.
  EXPECT_GE(call.received_unix_ns,
            std::chrono::nanoseconds(before - std::chrono::seconds(1)).count());
  // Baidu-std has milliseconds, and some protocols none.
  EXPECT_LE(call.timeout_ns, 19'000'000'000);
  if (std::string_view(GetParam()) == "flare") {
    EXPECT_GT(call.timeout_ns, 1'000'000'000);
  }
}

TEST_F(CallRecorderTest, KeepsAttachmentsAndReplies) {
  Serve({.replies = true});
  service().on_call = [](TestCall call) {
    call.controller->SetResponseAttachment(CreateBufferSlow("of the reply"));
    call.Reply("pong");
  };
  ASSERT_EQ(Call("ping",
                 [](RpcClientController* controller) {
                   controller->SetRequestAttachment(CreateBufferSlow("bytes"));
                 }),
            0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].attachment, "bytes");
  ASSERT_TRUE(calls[0].reply);
  EXPECT_EQ(BodyOf(calls[0].reply->message), "pong");
  EXPECT_EQ(calls[0].reply->attachment, "of the reply");
}

TEST_F(CallRecorderTest, KeepsRawBytesOfReplies) {
  Serve({.replies = true});
  service().on_call = [](TestCall call) {
    TestResponse raw;
    raw.set_body("raw");
    call.controller->SetResponseRawBytes(
        CreateBufferSlow(raw.SerializeAsString()));
    call.Reply("not sent");
  };
  ASSERT_EQ(Call(), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(BodyOf(calls[0].reply->message), "raw");
}

TEST_F(CallRecorderTest, KeepsEmptyRawBytesOfReplies) {
  Serve({.replies = true});
  service().on_call = [](TestCall call) {
    call.controller->SetResponseRawBytes(Buffer());
    call.Reply("not sent");
  };
  ASSERT_EQ(Call(), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  ASSERT_TRUE(calls[0].reply);
  EXPECT_EQ(calls[0].reply->message, "");
}

TEST_F(CallRecorderTest, KeepsRepliesThatAreSentEarly) {
  // The reply may come before the call has ended, so files tell of that.
  Serve({.replies = true, .write_interval = std::chrono::milliseconds(1)});
  service().on_call = [](TestCall call) {
    TestResponse raw;
    raw.set_body("raw");
    call.controller->SetResponseRawBytes(
        CreateBufferSlow(raw.SerializeAsString()));
    call.controller->SetResponseAttachment(CreateBufferSlow("attached"));
    call.controller->WriteResponseImmediately();
    call.done->Run();
  };
  TestedCall call;
  EXPECT_EQ(call.Start(channel_.get())->Await(), 0);
  EXPECT_EQ(call.response.body(), "raw");
  EXPECT_EQ(FlattenSlow(call.controller.GetResponseAttachment()), "attached");
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return recording_.recorder()->statistics().recorded == 1; }));
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  ASSERT_TRUE(calls[0].reply);
  EXPECT_EQ(BodyOf(calls[0].reply->message), "raw");
  EXPECT_EQ(calls[0].reply->attachment, "attached");
}

TEST_F(CallRecorderTest, KeepsFailures) {
  Serve({.replies = true});
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1234, "no such thing");
    call.Reply();
  };
  EXPECT_EQ(Call(), 1234);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].status, 1234);
  EXPECT_EQ(calls[0].error, "no such thing");
  EXPECT_FALSE(calls[0].reply);
}

TEST_F(CallRecorderTest, KeepsTheRequestThatTheMethodTakes) {
  Serve();
  service().on_call = [](TestCall call) {
    const_cast<TestRequest*>(call.request)->clear_body();
    call.Reply("pong");
  };
  ASSERT_EQ(Call("hello"), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(BodyOf(calls[0].request), "hello");
}

TEST_F(CallRecorderTest, LeavesSecretsOut) {
  Serve({.secret_metadata = {"authorization", "X-Secret"}});
  ASSERT_EQ(Call("ping",
                 [](RpcClientController* controller) {
                   controller->AddMetadata("Authorization", "Bearer secret");
                   controller->AddMetadata("x-user", "7");
                   controller->AddMetadata("x-secret", "8");
                 }),
            0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_THAT(calls[0].left_out, ElementsAre("authorization", "x-secret"));
  ASSERT_EQ(calls[0].metadata.size(), 1u);
  EXPECT_EQ(calls[0].metadata[0].name, "x-user");
}

TEST_F(CallRecorderTest, RecordsTheMethodsAskedFor) {
  Serve({.methods = {"flare.rpc.testing.TestService."},
         .excluded = {"flare.rpc.testing.TestService.Other"}});
  ASSERT_EQ(Call(), 0);
  RpcClientController controller;
  TestRequest request;
  TestResponse response;
  TestService_Stub(channel_.get())
      .Other(&controller, &request, &response, nullptr);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, RecordsNoOtherMethods) {
  Serve({.methods = {"shop."}});
  ASSERT_EQ(Call(), 0);
  EXPECT_TRUE(recording_.Read().empty());
  EXPECT_TRUE(std::filesystem::is_empty(recording_.folder()));
}

TEST_F(CallRecorderTest, FractionsCanBeChanged) {
  Serve({.fraction = 0});
  ASSERT_EQ(Call("a"), 0);
  ASSERT_TRUE(recording_.recorder()->SetFraction(1));
  ASSERT_EQ(Call("b"), 0);
  EXPECT_FALSE(recording_.recorder()->SetFraction(1.1));
  EXPECT_FALSE(recording_.recorder()->SetFraction(
      std::numeric_limits<double>::quiet_NaN()));
  ASSERT_EQ(Call("c"), 0);
  ASSERT_TRUE(recording_.recorder()->SetFraction(0));
  ASSERT_EQ(Call("d"), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(BodyOf(calls[0].request), "b");
  EXPECT_EQ(BodyOf(calls[1].request), "c");
}

TEST_F(CallRecorderTest, DrawsAboutTheShareAskedFor) {
  Serve({.fraction = 0.5, .max_calls_per_second = 0});
  for (int i = 0; i != 400; ++i) ASSERT_EQ(Call(), 0);
  const auto calls = recording_.Read();
  // Ten standard deviations.
  EXPECT_GT(calls.size(), 100u);
  EXPECT_LT(calls.size(), 300u);
  EXPECT_EQ(calls.front().fraction, 0.5);
}

TEST_F(CallRecorderTest, LimitsCallsInASecond) {
  Serve({.max_calls_per_second = 0.001});
  for (int i = 0; i != 3; ++i) ASSERT_EQ(Call(), 0);
  EXPECT_EQ(recording_.recorder()->statistics().over_limit, 2u);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, LimitsBytesInASecond) {
  Serve({.max_bytes_per_second = 0.01});
  for (int i = 0; i != 3; ++i) ASSERT_EQ(Call(), 0);
  EXPECT_EQ(recording_.recorder()->statistics().over_limit, 2u);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, LimitsBytesOfHugeCalls) {
  // A bucket of nanoseconds doesn't hold what these would take.
  Serve({.replies = true, .max_bytes_per_second = 0.001});
  service().on_call = [](TestCall call) {
    call.Reply(std::string(10 << 20, 'x'));
  };
  // They may be too long for the client.
  for (int i = 0; i != 2; ++i) static_cast<void>(Call());
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, LimitsMemory) {
  Serve({.max_queue_bytes = 2000});
  // Neither the request nor the reply of such a size finds a place.
  ASSERT_EQ(Call(std::string(3000, 'x')), 0);
  EXPECT_EQ(recording_.recorder()->statistics().queue_full, 1u);
  ASSERT_EQ(Call("small"), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(BodyOf(calls[0].request), "small");
}

TEST_F(CallRecorderTest, LimitsMemoryOfReplies) {
  Serve({.replies = true, .max_queue_bytes = 2000});
  service().on_call = [](TestCall call) { call.Reply(std::string(3000, 'x')); };
  ASSERT_EQ(Call(), 0);
  EXPECT_EQ(recording_.recorder()->statistics().queue_full, 1u);
  EXPECT_TRUE(recording_.Read().empty());
}

TEST_F(CallRecorderTest, CallsThatAreServedHoldMemory) {
  Serve({.max_queue_bytes = 1500});
  fiber::Event go;
  fiber::Event started;
  service().on_call = FlexibleService::EchoAfter(&go, &started);
  TestedCall first;
  first.request.set_body(std::string(500, 'x'));
  first.Start(channel_.get());
  started.Wait();
  service().on_other = FlexibleService::Echo;
  RpcClientController controller;
  TestRequest request = MakeRequest(std::string(900, 'x'));
  TestResponse response;
  TestService_Stub(channel_.get())
      .Other(&controller, &request, &response, nullptr);
  EXPECT_EQ(recording_.recorder()->statistics().queue_full, 1u);
  go.Set();
  EXPECT_EQ(first.Await(), 0);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, WritesBeforeMemoryIsUsedUp) {
  Serve({.max_queue_bytes = 4000, .write_interval = std::chrono::hours(1)});
  ASSERT_EQ(Call(std::string(2500, 'x')), 0);
  EXPECT_TRUE(fiber::testing::Eventually(
      [&] { return recording_.recorder()->statistics().recorded == 1; }));
}

class CallRecorderEndTest : public CallRecorderTest {
 protected:
  // `end` ends the recording while a call is served.
  void EndWithinACall(const std::function<void()>& end) {
    Serve();
    fiber::Event go;
    fiber::Event started;
    service().on_call = FlexibleService::EchoAfter(&go, &started);
    TestedCall call;
    call.request.set_body("ping");
    call.Start(channel_.get());
    started.Wait();
    const auto& not_written = *RecordingCounters::Get()->not_written;
    const std::uint64_t before = not_written.Value();
    end();
    EXPECT_EQ(not_written.Value(), before);
    go.Set();
    EXPECT_EQ(call.Await(), 0);
    EXPECT_EQ(not_written.Value(), before + 1);
    EXPECT_EQ(Call(), 0);  // It isn't drawn.
    EXPECT_EQ(not_written.Value(), before + 1);
  }
};

TEST_F(CallRecorderEndTest, CountsCallsThatAreServed) {
  EndWithinACall([&] {
    recording_.recorder()->Close();
    EXPECT_TRUE(recording_.recorder()->SetFraction(1));
  });
  EXPECT_EQ(recording_.recorder()->statistics().not_written, 1u);
  EXPECT_TRUE(recording_.Read().empty());
}

TEST_F(CallRecorderEndTest, CallsMayOutliveTheRecorder) {
  EndWithinACall([&] { EXPECT_TRUE(recording_.Read().empty()); });
}

TEST_F(CallRecorderTest, StatisticsHaveTheLastWrite) {
  Serve({.write_interval = std::chrono::hours(1)});
  ASSERT_EQ(Call(), 0);
  recording_.recorder()->Close();
  EXPECT_EQ(recording_.recorder()->statistics().recorded, 1u);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, WritesManyFilesWithoutLoss) {
  Serve({.bytes_per_file = 1000, .max_files = 1000, .max_calls_per_second = 0});
  constexpr std::size_t kCalls = 100;
  for (std::size_t i = 0; i != kCalls; ++i) ASSERT_EQ(Call(), 0);
  const std::string folder = recording_.folder();
  EXPECT_EQ(recording_.Read().size(), kCalls);
  EXPECT_GT(ListRecordings(folder)->size(), 5u);
}

TEST_F(CallRecorderTest, CountsCallsThatCannotBeWritten) {
  // Written at once, since a second is too long for a test.
  Serve({.write_interval = std::chrono::milliseconds(1)});
  std::filesystem::remove_all(recording_.folder());
  ASSERT_EQ(Call(), 0);
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return recording_.recorder()->statistics().not_written == 1; }));
  std::filesystem::create_directory(recording_.folder());
  ASSERT_EQ(Call("later"), 0);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(BodyOf(calls[0].request), "later");
}

TEST_F(CallRecorderTest, ServersGoOnWithoutIt) {
  Serve();
  ASSERT_EQ(Call("a"), 0);
  EXPECT_EQ(recording_.Read().size(), 1u);
  ASSERT_EQ(Call("b"), 0);
  EXPECT_EQ(recording_.Read().size(), 1u);
}

TEST_F(CallRecorderTest, CountsOnMetrics) {
  Serve();
  ASSERT_EQ(Call(), 0);
  const auto folder = recording_.folder();
  RawClient client(endpoint());
  client.Send(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(),
              HasSubstr("call_recorder_calls_total{outcome=\"recorded\"}"));
}

TEST_F(CallRecorderTest, RefusesOptionsThatMakeNoSense) {
  const auto refusal = [](CallRecorderOptions options) {
    const auto recorder = CallRecorder::Install(std::move(options));
    EXPECT_FALSE(recorder);
    return recorder ? "" : recorder.error().message();
  };
  const std::string folder = recording_.folder();
  EXPECT_THAT(refusal({}), HasSubstr("folder must be given"));
  EXPECT_THAT(refusal({.folder = folder, .fraction = -0.1}),
              HasSubstr("fraction must be from 0 to 1"));
  EXPECT_THAT(refusal({.folder = folder, .fraction = std::nan("")}),
              HasSubstr("fraction"));
  EXPECT_THAT(refusal({.folder = folder, .bytes_per_file = 0}),
              HasSubstr("bytes_per_file must be positive"));
  EXPECT_THAT(refusal({.folder = folder, .max_files = 0}),
              HasSubstr("max_files"));
  EXPECT_THAT(refusal({.folder = folder, .max_calls_per_second = -1}),
              HasSubstr("max_calls_per_second"));
  EXPECT_THAT(refusal({.folder = folder, .max_bytes_per_second = 1e-9}),
              HasSubstr("max_bytes_per_second"));
  EXPECT_THAT(refusal({.folder = folder, .max_queue_bytes = 0}),
              HasSubstr("max_queue_bytes"));
  EXPECT_THAT(refusal({.folder = folder + "/a/b"}), HasSubstr("/a/b"));
  recording_.Install();  // Refused ones leave no traces.
  const auto second = CallRecorder::Install({.folder = folder});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), EBUSY);
}

TEST(CallRecorderWithoutRuntimeTest, IsRefused) {
  const auto recorder = CallRecorder::Install({.folder = "/tmp"});
  ASSERT_FALSE(recorder);
  EXPECT_THAT(recorder.error().message(), HasSubstr("flare::Start()"));
}

class CallRecorderStreamsTest : public StreamerTest {
 protected:
  void AddInterceptors(Server*) override { recording_.Install(); }
  void TearDown() override {
    recording_.Read();
    StreamerTest::TearDown();
  }

  Recording recording_;
};

TEST_F(CallRecorderStreamsTest, StreamsAreCountedOnly) {
  auto reader = stub_.Count(MakeNumber(2), &controller_);
  while (reader.Read()) continue;
  EXPECT_TRUE(stub_.Double(MakeNumber(1)));
  EXPECT_EQ(recording_.recorder()->statistics().streaming, 1u);
  const auto calls = recording_.Read();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_THAT(calls[0].method, ::testing::EndsWith("Streamer.Double"));
}

}  // namespace
}  // namespace flare::rpc::testing
