// Calls that a gRPC server proves not to have looked at go to another one,
// once.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/name_resolution.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;

class ClientUnprocessedTest : public StreamerTest {
 protected:
  // Frames of HTTP/2.
  static constexpr std::string_view kSettings{"\0\0\0\4\0\0\0\0\0", 9};
  // Frames of the first stream: the begin of a head, behind its size, as the
  // client sends it; ":status: 200"; RST_STREAM with REFUSED_STREAM.
  static constexpr std::string_view kHeadOfFirst{"\1\4\0\0\0\1", 6};
  static constexpr std::string_view kAnswerOfFirst{"\0\0\1\1\4\0\0\0\1\x88",
                                                   10};
  static constexpr std::string_view kFirstIsRefused{
      "\0\0\4\3\0\0\0\0\1\0\0\0\7", 13};
  // GOAWAY: no stream was looked at.
  static constexpr std::string_view kNoneWasSeen{
      "\0\0\x8\7\0\0\0\0\0\0\0\0\0\0\0\0\0", 17};

  // A text that the raw server finds in a message.
  static constexpr std::size_t kPadding = 40;
  static constexpr std::string_view kPaddingText =
      "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

  // Calls go to the raw server and to the one of the fixture in turn.
  void Open(const Endpoint& other) {
    ASSERT_TRUE(channel_to_both_.Open(
        "grpc://" + other.ToString() + "," + server_->endpoint().ToString(),
        {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
  }
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(Open(raw_.endpoint()));
  }

  // The raw server gets the call that has written a message, or none, and says
  // so.
  std::unique_ptr<RawPeer> Await(std::string_view end) {
    auto peer = raw_.Accept();
    peer->Send(kSettings);
    peer->ReadUntil(end);
    return peer;
  }

  struct OpenEcho {
    RpcClientController controller;
    StreamReader<Number> reader;
    StreamWriter<Number> writer;

    void Open(Streamer_SyncStub* stub) {
      std::tie(reader, writer) = stub->Echo(&controller);
    }
    // Reads so many messages, and ends the call.
    void Finish(std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i != first + count; ++i) {
        const auto number = reader.Read();
        ASSERT_TRUE(number) << controller.ErrorText();
        EXPECT_EQ(number->value(), i);
      }
      EXPECT_TRUE(writer.WriteLast(MakeNumber(-1)));
      EXPECT_EQ(reader.Read()->value(), -1);
      EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
      EXPECT_TRUE(reader.status().ok()) << reader.status().ToString();
    }
  };

  RawServer raw_;
  RpcChannel channel_to_both_;
  Streamer_SyncStub both_{&channel_to_both_};
};

TEST_F(ClientUnprocessedTest, UnaryCallsOfCallersThatWait) {
  for (const std::string_view end : {kNoneWasSeen, kFirstIsRefused}) {
    RpcChannel channel;
    ASSERT_TRUE(channel.Open(
        "grpc://" + raw_.endpoint().ToString() + "," +
            server_->endpoint().ToString(),
        {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
    Streamer_SyncStub both(&channel);
    fiber::Event other_ended;
    const auto call = [&](std::int64_t value) {
      const auto doubled = both.Double(MakeNumber(value, kPadding));
      other_ended.Set();
      ASSERT_TRUE(doubled) << doubled.error().ToString();
      EXPECT_EQ(doubled->value(), 2 * value);
    };
    Fiber first([&] { call(21); });
    Fiber second([&] { call(22); });
    const auto peer = Await(kPaddingText);
    // A server to which a connection is only being made isn't preferred.
    other_ended.Wait();
    peer->Send(end);
    first.join();
    second.join();
  }
}

// Nothing is kept of a call that waits for a reply on an established connection
// while its caller goes on.
TEST_F(ClientUnprocessedTest, OthersNeedAttempts) {
  RpcChannel raw;
  ASSERT_TRUE(raw.Open(
      "grpc://" + raw_.endpoint().ToString(),
      {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
  OpenEcho echo;
  Streamer_SyncStub stub(&raw);
  echo.Open(&stub);
  ASSERT_TRUE(echo.writer.Write(MakeNumber(1, kPadding)));
  const auto peer = Await(kPaddingText);
  RpcClientController controller;
  auto future =
      Streamer_AsyncStub(&raw).Double(MakeNumber(1, kPadding), &controller);
  peer->ReadUntil(kPaddingText);
  peer->Send(kNoneWasSeen);
  const auto failed = fiber::BlockingGet(std::move(future));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), STATUS_OUT_OF_SERVICE);
}

TEST_F(ClientUnprocessedTest, OnlyOnce) {
  RpcChannel raw("grpc://" + raw_.endpoint().ToString());
  Fiber caller([&] {
    const auto failed = Streamer_SyncStub(&raw).Double(MakeNumber(1, kPadding));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), STATUS_OUT_OF_SERVICE);
  });
  Await(kPaddingText)->Send(kNoneWasSeen);
  Await(kPaddingText)->Send(kNoneWasSeen);
  caller.join();
  OpenEcho echo;
  Streamer_SyncStub stub(&raw);
  echo.Open(&stub);
  EXPECT_TRUE(echo.writer.Write(MakeNumber(1, kPadding)));
  Await(kPaddingText)->Send(kNoneWasSeen);
  Await(kPaddingText)->Send(kNoneWasSeen);
  EXPECT_EQ(echo.reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(echo.controller.ErrorCode(), STATUS_OUT_OF_SERVICE);
}

TEST_F(ClientUnprocessedTest, StreamsAreWrittenAgain) {
  OpenEcho echoes[2];
  for (OpenEcho& echo : echoes) {
    echo.Open(&both_);
    for (int i = 0; i != 3; ++i) {
      ASSERT_TRUE(echo.writer.Write(MakeNumber(i, kPadding)));
    }
  }
  Await(kPaddingText)->Send(kNoneWasSeen);
  for (OpenEcho& echo : echoes) echo.Finish(0, 3);
}

TEST_F(ClientUnprocessedTest, StreamsThatHaveWrittenNothing) {
  OpenEcho echoes[2];
  for (OpenEcho& echo : echoes) echo.Open(&both_);
  Await(kHeadOfFirst)->Send(kFirstIsRefused);
  for (OpenEcho& echo : echoes) echo.Finish(0, 0);
}

TEST_F(ClientUnprocessedTest, StreamsThatHaveWrittenAll) {
  RpcClientController controllers[2];
  StreamReader<Number> readers[2];
  for (int i = 0; i != 2; ++i) {
    readers[i] = both_.Count(MakeNumber(2, kPadding), &controllers[i]);
  }
  Await(kPaddingText)->Send(kNoneWasSeen);
  for (int i = 0; i != 2; ++i) {
    for (const int value : {0, 1}) {
      const auto number = readers[i].Read();
      ASSERT_TRUE(number) << controllers[i].ErrorText();
      EXPECT_EQ(number->value(), value);
    }
    EXPECT_EQ(readers[i].Read().error(), StreamError::EndOfStream);
  }
}

TEST_F(ClientUnprocessedTest, WritersGoOnMeanwhile) {
  constexpr int kMessages = 1000;
  OpenEcho echoes[2];
  fiber::Event written[2];
  for (int i = 0; i != 2; ++i) {
    echoes[i].Open(&both_);
    fiber::Spawn([&, i] {
      for (int n = 0; n != kMessages; ++n) {
        if (!echoes[i].writer.Write(MakeNumber(n))) break;
      }
      echoes[i].writer.Close();
      written[i].Set();
    });
  }
  Await(kHeadOfFirst)->Send(kNoneWasSeen);
  for (int i = 0; i != 2; ++i) {
    int next = 0;
    for (const Number& number : echoes[i].reader) {
      EXPECT_EQ(number.value(), next++);
    }
    EXPECT_EQ(next, kMessages) << echoes[i].reader.status().ToString();
    written[i].Wait();
  }
}

// Writers, readers and cancellers, each at its own pace, while the call moves.
TEST_F(ClientUnprocessedTest, EndsMayComeAtAnyMoment) {
  for (int round = 0; round != 30; ++round) {
    RpcChannel channel;
    ASSERT_TRUE(channel.Open(
        "grpc://" + raw_.endpoint().ToString() + "," +
            server_->endpoint().ToString(),
        {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
    Streamer_SyncStub stub(&channel);
    OpenEcho echoes[2];
    for (OpenEcho& echo : echoes) echo.Open(&stub);
    const auto peer = Await(kHeadOfFirst);
    fiber::Event ended[2];
    for (int i = 0; i != 2; ++i) {
      fiber::Spawn([&, i] {
        for (int n = 0; n != 100; ++n) {
          if (!echoes[i].writer.Write(MakeNumber(n))) break;
        }
        echoes[i].writer.Close();
        ended[i].Set();
      });
    }
    peer->Send(kNoneWasSeen);
    fiber::Event cancelled;
    if (round % 3 != 0) {
      fiber::Spawn([&, round] {
        this_fiber::SleepFor(std::chrono::microseconds(20 * round));
        for (OpenEcho& echo : echoes) echo.controller.StartCancel();
        cancelled.Set();
      });
    } else {
      cancelled.Set();
    }
    for (OpenEcho& echo : echoes) {
      int next = 0;
      for (const Number& number : echo.reader) {
        EXPECT_EQ(number.value(), next++);
      }
      if (round % 3 == 0) {
        EXPECT_EQ(next, 100) << echo.reader.status().ToString();
      }
    }
    cancelled.Wait();
    for (fiber::Event& event : ended) event.Wait();
  }
}

// The writer's messages can't be kept without bound.
TEST_F(ClientUnprocessedTest, StreamsThatHaveWrittenMuchFail) {
  RpcChannel raw("grpc://" + raw_.endpoint().ToString());
  Streamer_SyncStub stub(&raw);
  OpenEcho echo;
  echo.Open(&stub);
  ASSERT_TRUE(echo.writer.Write(MakeNumber(1, 100'000)));
  Await(kPaddingText)->Send(kNoneWasSeen);
  EXPECT_EQ(echo.reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(echo.controller.ErrorCode(), STATUS_OUT_OF_SERVICE);
  EXPECT_FALSE(echo.writer.Write(MakeNumber(2)));
}

// Whatever the server says: it has looked at the call.
TEST_F(ClientUnprocessedTest, AnsweredCallsFail) {
  RpcChannel raw("grpc://" + raw_.endpoint().ToString());
  Streamer_SyncStub stub(&raw);
  OpenEcho echo;
  echo.Open(&stub);
  ASSERT_TRUE(echo.writer.Write(MakeNumber(1, kPadding)));
  Await(kPaddingText)
      ->Send(std::string(kAnswerOfFirst) + std::string(kFirstIsRefused));
  EXPECT_EQ(echo.reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(echo.controller.ErrorCode(), STATUS_OUT_OF_SERVICE);
}

TEST_F(ClientUnprocessedTest, StreamsWhoseConnectionIsRefused) {
  const DeadAddress dead;
  RpcChannel channel;
  ASSERT_TRUE(channel.Open(
      "grpc://" + dead.endpoint().ToString() + "," +
          server_->endpoint().ToString(),
      {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
  Streamer_SyncStub stub(&channel);
  OpenEcho echoes[2];
  for (OpenEcho& echo : echoes) {
    echo.Open(&stub);
    ASSERT_TRUE(echo.writer.Write(MakeNumber(0)));
  }
  for (OpenEcho& echo : echoes) echo.Finish(0, 1);
  // There may be no other server.
  RpcChannel alone("grpc://" + dead.endpoint().ToString());
  Streamer_SyncStub dead_stub(&alone);
  OpenEcho failed;
  failed.Open(&dead_stub);
  EXPECT_FALSE(failed.reader.Read());
  EXPECT_THAT(failed.controller.ErrorText(), HasSubstr("refused"));
}

// One server, in whose place another one comes; and the context in which it was
// asked for.
class ReplacedServer final : public NameResolution {
 public:
  explicit ReplacedServer(const Endpoint& first) : server_(first) {}

  std::uint64_t Version() override {
    context = fiber::ExecutionContext::Current();
    return version_;
  }
  std::vector<Peer> Peers() override {
    ScopedLock guard(lock_);
    return {{.endpoint = server_, .host = server_.ToString()}};
  }
  void Replace(const Endpoint& server) {
    ScopedLock guard(lock_);
    server_ = server;
    ++version_;
  }

  std::atomic<fiber::ExecutionContext*> context{nullptr};

 private:
  Spinlock lock_;
  Endpoint server_ FLARE_GUARDED_BY(lock_);
  std::atomic<std::uint64_t> version_{1};
};

TEST_F(ClientUnprocessedTest, StreamsKeepTheirContextAndRenewTheirCredential) {
  std::atomic<int> fetched{0};
  const auto credentials = *ChannelCredentials::Create(
      [&fetched]() -> Expected<Credential> {
        const auto now = std::chrono::steady_clock::now();
        const int n = ++fetched;
        return n == 1 ? Credential{.value = "first",
                                   .expires = now + std::chrono::seconds(2)}
                      : Credential{.value = "renewed"};
      },
      {.allow_plaintext = true});
  std::string shown;
  service_.on_echo = [&shown](StreamReader<Number> reader,
                              StreamWriter<Number> writer,
                              RpcServerController* controller) {
    shown = controller->GetRequestMetadata().Get("authorization").value_or("");
    for (const Number& number : reader) {
      if (!writer.Write(number)) return;
    }
    writer.Close();
  };
  static std::shared_ptr<ReplacedServer> names;
  names = std::make_shared<ReplacedServer>(raw_.endpoint());
  RegisterNameResolver(
      "test-replaced",
      [](std::string_view)
          -> Expected<std::shared_ptr<NameResolution>, flare::Status> {
        return names;
      });
  RpcChannel channel;
  ASSERT_TRUE(channel.Open("grpc://any", {.override_nslb = "test-replaced+rr",
                                          .credentials = credentials,
                                          .pool = ConnectionPool::Create()}));
  Streamer_SyncStub stub(&channel);
  OpenEcho echo;
  const auto context = fiber::ExecutionContext::Create();
  context->Execute([&] { echo.Open(&stub); });
  ASSERT_TRUE(echo.writer.Write(MakeNumber(0, kPadding)));
  const auto peer = Await(kPaddingText);
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    Metadata now;
    return credentials->AddTo(&now).ok() &&
           now.Get("authorization") == "renewed";
  }));
  names->Replace(server_->endpoint());
  names->context = nullptr;
  peer->Send(kNoneWasSeen);
  echo.Finish(0, 1);
  EXPECT_EQ(names->context, context.Get());
  EXPECT_EQ(shown, "renewed");
}

// The second connection's server says nothing.
TEST_F(ClientUnprocessedTest, CallsMayEndBehindTheSecondBegin) {
  for (const bool cancelled : {true, false}) {
    RpcChannel raw;
    ASSERT_TRUE(raw.Open("grpc://" + raw_.endpoint().ToString(),
                         {.pool = ConnectionPool::Create()}));
    Streamer_SyncStub stub(&raw);
    OpenEcho echo;
    if (!cancelled) echo.controller.SetTimeout(std::chrono::seconds(3));
    echo.Open(&stub);
    ASSERT_TRUE(echo.writer.Write(MakeNumber(1, kPadding)));
    const auto peer = Await(kPaddingText);
    peer->Send(kNoneWasSeen);
    const auto second = raw_.Accept();
    if (cancelled) echo.controller.StartCancel();
    EXPECT_FALSE(echo.reader.Read());
    EXPECT_EQ(echo.controller.ErrorCode(),
              cancelled ? STATUS_FAILED : STATUS_TIMEOUT);
    EXPECT_FALSE(echo.writer.Write(MakeNumber(2)));
  }
}

}  // namespace
}  // namespace flare::rpc::testing
