// How streaming calls end, as the users of generated code see it: each end by
// each party, over a connection.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;

// Echo() with both ends in the test.
class StreamEndsTest : public StreamPairTest {
 protected:
  // Reads fail, and so do writes, once the peer has refused one: the only
  // stream of a connection is cancelled by the end of that.
  void ExpectServerSideBroken() {
    for (int i = 0; i != 2; ++i) {
      EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
      while (server_writer_.Write(MakeNumber(1))) continue;
    }
  }
  void ExpectClientSideBroken(int code) {
    for (int i = 0; i != 2; ++i) {
      EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
      EXPECT_FALSE(writer_.Write(MakeNumber(1)));
    }
    EXPECT_EQ(reader_.status().code(), code) << reader_.status().ToString();
    EXPECT_EQ(controller_.ErrorCode(), code) << controller_.ErrorText();
  }
};

// Waiting calls wake on either side.
class BlockedReaders {
 public:
  explicit BlockedReaders(std::vector<StreamReader<Number>*> readers) {
    for (auto* reader : readers) {
      threads_.emplace_back([reader] {
        EXPECT_EQ(reader->Read().error(), StreamError::IoError);
      });
    }
  }

 private:
  std::vector<std::jthread> threads_;  // Joined at the end.
};

TEST_F(StreamEndsTest, ClientDropsItsReader) {
  BlockedReaders blocked({&server_reader_});
  reader_ = {};
  EXPECT_FALSE(writer_.Write(MakeNumber(1)));
}

TEST_F(StreamEndsTest, ClientDropsItsWriter) {
  {
    BlockedReaders blocked({&server_reader_});
    writer_ = {};
  }
  ExpectServerSideBroken();
  ExpectClientSideBroken(STATUS_FAILED);
}

TEST_F(StreamEndsTest, ClientClosesBoth) {
  writer_.Close();
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
  reader_.Close();
  // Nobody wants the replies: the server's writes fail sooner or later.
  while (server_writer_.Write(MakeNumber(1, 1000))) continue;
}

TEST_F(StreamEndsTest, ServiceEndsTheCallInTheMiddle) {
  {
    BlockedReaders blocked({&reader_});
    EndCall(1001, "the service has enough");
  }
  ExpectClientSideBroken(1001);
}

TEST_F(StreamEndsTest, ServiceEndsTheCallWellWhileTheClientWrites) {
  server_writer_.Close();
  EndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
  EXPECT_FALSE(writer_.Write(MakeNumber(1)));
  EXPECT_TRUE(reader_.status().ok());
  EXPECT_FALSE(controller_.Failed());
}

TEST_F(StreamEndsTest, ServiceLeavesAWriterThatIsBlocked) {
  Fill(&writer_);
  std::jthread end([&] { EndCall(1001, "no more"); });
  while (writer_.Write(MakeNumber(1))) continue;
  ExpectClientSideBroken(1001);
}

TEST_F(StreamEndsTest, ServerStops) {
  {
    BlockedReaders blocked({&server_reader_});
    server_->Stop();
  }
  EndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_FALSE(reader_.status().ok());
}

// Streams at the stop of a server that isn't in a hurry.
class StreamAtTheStopTest : public StreamPairTest {
 protected:
  Server::Options server_options() override {
    Server::Options options = StreamPairTest::server_options();
    options.stop_linger = 15s;
    options.drain_timeout = 30s;
    return options;
  }
};

// It goes on, although its connection takes no further calls.
TEST_F(StreamAtTheStopTest, IsServedToItsEnd) {
  const auto begin = std::chrono::steady_clock::now();
  server_->Stop();
  for (bool open = true; open;) {
    RpcClientController controller;
    auto reader = stub_.Count(MakeNumber(1), &controller);
    while (reader.Read()) continue;
    open = reader.status().ok();
  }
  for (int i = 0; i != 3; ++i) {
    ASSERT_TRUE(writer_.Write(MakeNumber(i)));
    ASSERT_TRUE(server_reader_.Read());
    ASSERT_TRUE(server_writer_.Write(MakeNumber(i)));
    ASSERT_TRUE(reader_.Read());
  }
  server_writer_.Close();
  EndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader_.status().ok());
  EXPECT_EQ(server_->Join(), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 14s);
}

TEST_F(StreamEndsTest, ConnectionIsLost) {
  {
    BlockedReaders blocked({&reader_, &server_reader_});
    ShutdownClientSide();
  }
  ExpectServerSideBroken();
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_FALSE(writer_.Write(MakeNumber(1)));
  EXPECT_FALSE(reader_.status().ok());
}

TEST_F(StreamEndsTest, ClientCancelsByItsController) {
  {
    BlockedReaders blocked({&reader_, &server_reader_});
    std::jthread([&] { controller_.StartCancel(); }).join();
  }
  // A reader that hadn't begun to wait may see the end first.
  const std::stop_token stop = server_controller_->GetStopToken();
  EXPECT_TRUE(
      fiber::testing::Eventually([&] { return stop.stop_requested(); }));
  ExpectServerSideBroken();
  ExpectClientSideBroken(STATUS_FAILED);
  EXPECT_TRUE(controller_.IsCanceled());
}

class CancelledStreamTest : public StreamerTest {};

TEST_F(CancelledStreamTest, BeforeItBegins) {
  controller_.StartCancel();
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_TRUE(controller_.IsCanceled());
  controller_.Reset();
  auto again = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_TRUE(again.Read());
  EXPECT_FALSE(controller_.IsCanceled());
}

// The wish is the controller's, and no call's that has ended.
TEST_F(CancelledStreamTest, AfterItsEnd) {
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  while (reader.Read()) continue;
  controller_.StartCancel();
  EXPECT_TRUE(reader.status().ok());
  EXPECT_FALSE(controller_.IsCanceled());
}

TEST_F(CancelledStreamTest, WhileItEnds) {
  for (int i = 0; i != 100; ++i) {
    controller_.Reset();
    auto reader = stub_.Count(MakeNumber(i % 3), &controller_);
    std::jthread canceller([&] { controller_.StartCancel(); });
    while (reader.Read()) continue;
    EXPECT_EQ(reader.error() == StreamError::IoError, controller_.IsCanceled());
  }
}

// Deadlines of both sides, also where both only write.
class StreamDeadlineTest : public StreamerTest {
 protected:
  // Long enough for the method to begin on a busy machine.
  static constexpr auto kTimeout = 2s;

  fiber::Event go_;  // Outlives the methods that wait for it.
};

TEST_F(StreamDeadlineTest, EndsReads) {
  StreamError at_server{};
  fiber::Event ended;
  service_.on_echo = [&](StreamReader<Number> reader, StreamWriter<Number>,
                         RpcServerController*) {
    while (reader.Read()) continue;
    at_server = reader.error();
    ended.Set();
  };
  controller_.SetTimeout(kTimeout);
  auto [reader, writer] = stub_.Echo(&controller_);
  static_cast<void>(writer.Write(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::Timeout);
  EXPECT_EQ(reader.status().code(), STATUS_TIMEOUT);
  EXPECT_EQ(controller_.ErrorCode(), STATUS_TIMEOUT);
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
  ended.Wait();
  EXPECT_NE(at_server, StreamError::EndOfStream);
}

// The method's context says so.
TEST_F(StreamDeadlineTest, IsTheCauseForWhatTheMethodDoes) {
  {  // From then on streams share connections.
    auto first = stub_.Count(MakeNumber(1));
    while (first.Read()) continue;
  }
  fiber::StopCause cause{};
  fiber::Event ended;
  service_.on_echo = [&](StreamReader<Number> reader, StreamWriter<Number>,
                         RpcServerController*) {
    while (reader.Read()) continue;
    cause = fiber::ExecutionContext::Current()->stop_cause();
    ended.Set();
  };
  controller_.SetTimeout(kTimeout);
  auto [reader, writer] = stub_.Echo(&controller_);
  ASSERT_TRUE(writer.Write(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::Timeout);
  ended.Wait();
  EXPECT_EQ(cause, fiber::StopCause::kDeadline);
}

TEST_F(StreamDeadlineTest, EndsWrites) {
  service_.on_echo = [&](StreamReader<Number>, StreamWriter<Number>,
                         RpcServerController*) { go_.Wait(); };
  controller_.SetTimeout(100ms);
  auto [reader, writer] = stub_.Echo(&controller_);
  while (writer.Write(MakeNumber(1, 10'000))) continue;
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_TIMEOUT);
  go_.Set();
}

TEST_F(StreamDeadlineTest, MayBeOverBeforeTheCallBegins) {
  controller_.SetTimeout(-1ms);
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(reader.status().code(), STATUS_TIMEOUT);
}

class SlowReaderTest : public StreamerTest {
 protected:
  // Outlive the methods that use them.
  fiber::Event go_;
  fiber::Event done_;
};

// The writer stops soon, and the other calls of the connection don't.
TEST_F(SlowReaderTest, HoldsABoundedPartOfTheMessages) {
  constexpr std::size_t kPadding = 10'000;
  fiber::Event done;
  std::int64_t written = 0;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    writer.SetExpiration(200ms);
    while (writer.Write(MakeNumber(written, kPadding))) ++written;
    done.Set();
    writer.SetExpiration(1h);
    writer.Close();
  };
  // After a first stream the client knows that the server can share a
  // connection among them, and grants credits.
  auto [echoes, numbers] = stub_.Echo();
  EXPECT_TRUE(numbers.WriteLast(MakeNumber(1)));
  while (echoes.Read()) continue;
  auto slow = stub_.Count(MakeNumber(1), &controller_);
  ASSERT_TRUE(slow.Read());
  done.Wait();
  EXPECT_LT(written * kPadding, 64u << 20);
  auto doubled = stub_.Double(MakeNumber(21));
  ASSERT_TRUE(doubled) << doubled.error().ToString();
  EXPECT_EQ(doubled->value(), 42);
  std::int64_t next = 1;
  for (const Number& number : slow) EXPECT_EQ(number.value(), next++);
  EXPECT_EQ(next, written);
  EXPECT_EQ(slow.error(), StreamError::EndOfStream);
}

// Without a stream before, the server isn't known to have credits.
TEST_F(SlowReaderTest, IsHeldBackFromTheFirstStreamOn) {
  constexpr std::size_t kPadding = 10'000;
  std::size_t written = 0;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    writer.SetExpiration(200ms);
    while (writer.Write(MakeNumber(1, kPadding))) ++written;
    done_.Set();
  };
  auto slow = stub_.Count(MakeNumber(1), &controller_);
  done_.Wait();
  EXPECT_LT(written * kPadding, 1u << 20);
}

// The client may have sent more than the window before it knows that there is
// one: that holds up no credit of its own.
TEST_F(SlowReaderTest, ABurstOnANewConnectionComesBack) {
  constexpr int kMessages = 500;
  auto [reader, writer] = stub_.Echo(&controller_);
  std::jthread writing([&writer = writer] {
    for (int i = 0; i != kMessages; ++i) {
      ASSERT_TRUE(writer.Write(MakeNumber(i, 10'000)));
    }
    writer.Close();
  });
  int next = 0;
  for (const Number& number : reader) EXPECT_EQ(number.value(), next++);
  EXPECT_EQ(next, kMessages);
  EXPECT_EQ(reader.error(), StreamError::EndOfStream);
}

// The connection's own output is bounded, too, where the peer says nothing.
TEST_F(SlowReaderTest, OfAServerHoldsTheFirstStreamBack) {
  constexpr std::size_t kPadding = 10'000;
  service_.on_sum = [&](StreamReader<Number>, Number*, RpcServerController*) {
    go_.Wait();
  };
  auto [reader, writer] = stub_.Sum(&controller_);
  writer.SetExpiration(200ms);
  std::size_t written = 0;
  while (writer.Write(MakeNumber(1, kPadding))) ++written;
  EXPECT_LT(written * kPadding, 16u << 20);
  go_.Set();
}

// Each ends in its own way while the others go on.
TEST_F(SlowReaderTest, StreamsOfAConnectionEndByThemselves) {
  constexpr int kStreams = 60;
  std::vector<std::pair<StreamReader<Number>, StreamWriter<Number>>> calls;
  for (int i = 0; i != kStreams; ++i) {
    calls.push_back(stub_.Echo());
    ASSERT_TRUE(calls.back().second.Write(MakeNumber(i)));
  }
  for (int i = 0; i != kStreams; ++i) {
    auto& [reader, writer] = calls[i];
    if (i % 3 == 0) {
      reader = {};
    } else if (i % 3 == 1) {
      writer = {};
    }
  }
  for (int i = 2; i < kStreams; i += 3) {
    auto& [reader, writer] = calls[i];
    EXPECT_TRUE(writer.WriteLast(MakeNumber(-i)));
    EXPECT_EQ(reader.Read()->value(), i);
    EXPECT_EQ(reader.Read()->value(), -i);
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  }
}

class FewPlacesTest : public StreamerTest {
 protected:
  Server::Options server_options() override {
    return {.service_name = "test", .max_concurrent_requests = kPlaces};
  }

  static constexpr std::size_t kPlaces = 10;
};

// They last as long as their peers like: others are served beside them.
TEST_F(FewPlacesTest, StreamsLeavePlacesToOtherCalls) {
  struct OpenEcho {
    RpcClientController controller;
    StreamReader<Number> reader;
    StreamWriter<Number> writer;
  };
  for (const char* scheme : {"flare", "trpc", "baidu-std", "grpc"}) {
    SCOPED_TRACE(scheme);
    RpcChannel channel;
    ASSERT_TRUE(channel.Open(std::string(scheme) + "://" +
                             server_->endpoint().ToString()));
    Streamer_SyncStub stub(&channel);
    OpenEcho open[kPlaces - 1];
    for (OpenEcho& echo : open) {
      std::tie(echo.reader, echo.writer) = stub.Echo(&echo.controller);
      ASSERT_TRUE(echo.writer.Write(MakeNumber(1)));
      ASSERT_TRUE(echo.reader.Read());
    }
    for (int i = 0; i != 3; ++i) {
      RpcClientController refused;
      auto reader = stub.Count(MakeNumber(1), &refused);
      EXPECT_FALSE(reader.Read());
      EXPECT_EQ(refused.ErrorCode(), STATUS_OVERLOADED) << refused.ErrorText();
      auto doubled = stub.Double(MakeNumber(21));
      ASSERT_TRUE(doubled) << doubled.error().ToString();
      EXPECT_EQ(doubled->value(), 42);
    }
    for (OpenEcho& echo : open) {
      echo.writer.Close();
      EXPECT_EQ(echo.reader.Read().error(), StreamError::EndOfStream);
      // Its place is free.
      RpcClientController controller;
      auto reader = stub.Count(MakeNumber(1), &controller);
      EXPECT_TRUE(reader.Read()) << controller.ErrorText();
      EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    }
  }
}

class FewStreamsOfAConnectionTest : public StreamerTest {
 protected:
  Server::Options server_options() override {
    return {.service_name = "test", .max_concurrent_streams_per_connection = 2};
  }

  // A channel with a connection of its own.
  void Open(const char* scheme, RpcChannel* channel) {
    ASSERT_TRUE(channel->Open(
        std::string(scheme) + "://" + server_->endpoint().ToString(),
        {.max_connections_per_server = 1, .pool = ConnectionPool::Create()}));
  }
};

TEST_F(FewStreamsOfAConnectionTest, FurtherOnesAreRefused) {
  for (const char* scheme : {"trpc", "grpc"}) {
    SCOPED_TRACE(scheme);
    RpcChannel channel;
    RpcChannel other;
    ASSERT_NO_FATAL_FAILURE(Open(scheme, &channel));
    ASSERT_NO_FATAL_FAILURE(Open(scheme, &other));
    Streamer_SyncStub stub(&channel);
    auto [reader, writer] = stub.Echo();
    ASSERT_TRUE(writer.Write(MakeNumber(1)));
    ASSERT_TRUE(reader.Read());
    auto [second_reader, second_writer] = stub.Echo();
    ASSERT_TRUE(second_writer.Write(MakeNumber(2)));
    ASSERT_TRUE(second_reader.Read());
    RpcClientController refused;
    auto third = stub.Count(MakeNumber(1), &refused);
    EXPECT_FALSE(third.Read());
    EXPECT_EQ(refused.ErrorCode(), STATUS_OVERLOADED);
    EXPECT_NE(refused.ErrorText().find("this connection has all"),
              std::string::npos)
        << refused.ErrorText();
    // Neither other calls of the connection nor other connections suffer.
    EXPECT_EQ(stub.Double(MakeNumber(21))->value(), 42);
    auto elsewhere = Streamer_SyncStub(&other).Count(MakeNumber(1));
    EXPECT_TRUE(elsewhere.Read());
    second_writer.Close();
    EXPECT_EQ(second_reader.Read().error(), StreamError::EndOfStream);
    auto again = stub.Count(MakeNumber(1));
    EXPECT_TRUE(again.Read());
    writer.Close();
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  }
}

// Holds up each call between its reply's message and its end.
class SlowEndTest : public FewStreamsOfAConnectionTest {
 protected:
  Server::Options server_options() override {
    return {.service_name = "test", .max_concurrent_streams_per_connection = 1};
  }
  void AddInterceptors(Server* server) override {
    class Interceptor : public ServerInterceptor {
     public:
      void Intercept(InterceptedCall& call, ServerNext& next) override {
        call.ObserveMessages([](const ObservedMessage& message) {
          if (message.direction == ObservedMessage::Direction::kSent) {
            this_fiber::SleepFor(100ms);
          }
        });
        next.Run();
      }
    };
    server->AddInterceptor(std::make_shared<Interceptor>());
  }
};

TEST_F(SlowEndTest, TheNextStreamMayBeginAtOnce) {
  for (const char* scheme : {"flare", "trpc", "baidu-std", "grpc"}) {
    SCOPED_TRACE(scheme);
    RpcChannel channel;
    ASSERT_NO_FATAL_FAILURE(Open(scheme, &channel));
    Streamer_SyncStub stub(&channel);
    for (int i = 0; i != 3; ++i) {
      RpcClientController controller;
      auto [reader, writer] = stub.Sum(&controller);
      EXPECT_TRUE(writer.WriteLast(MakeNumber(i)));
      const auto sum = reader.Read();
      ASSERT_TRUE(sum) << controller.ErrorText();
      EXPECT_EQ(sum->value(), i);
      EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    }
  }
}

}  // namespace
}  // namespace flare::rpc::testing
