#include "flare/rpc/stream_reader.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;

using Reader = StreamReader<Number>;
using AsyncReader = AsyncStreamReader<Number>;

static_assert(std::is_nothrow_move_constructible_v<Reader>);
static_assert(!std::is_copy_constructible_v<Reader>);
static_assert(std::is_nothrow_move_constructible_v<AsyncReader>);
static_assert(!std::is_copy_constructible_v<AsyncReader>);

// The client's reader, and the server's.
class StreamReaderTest : public StreamPairTest {
 protected:
  void Write(std::int64_t value) {
    EXPECT_TRUE(server_writer_.Write(MakeNumber(value)));
  }
};

TEST_F(StreamReaderTest, ReadsUpToTheEnd) {
  Write(1);
  Write(2);
  CloseAndEndCall();
  auto one = reader_.Read();
  ASSERT_TRUE(one);
  EXPECT_EQ(one->value(), 1);
  Number two;
  ASSERT_TRUE(reader_.Read(&two));
  EXPECT_EQ(two.value(), 2);
  EXPECT_TRUE(reader_.status().ok());
  for (int i = 0; i != 2; ++i) {
    auto end = reader_.Read();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error(), StreamError::EndOfStream);
    EXPECT_EQ(reader_.error(), StreamError::EndOfStream);
  }
  EXPECT_TRUE(reader_.status().ok());
  EXPECT_FALSE(controller_.Failed());
}

TEST_F(StreamReaderTest, WaitsForAMessage) {
  std::jthread writer([&] { Write(1); });
  auto late = reader_.Read();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->value(), 1);
}

TEST_F(StreamReaderTest, IsARange) {
  for (int i = 0; i != 100; ++i) Write(i);
  CloseAndEndCall();
  std::int64_t next = 0;
  for (const Number& number : reader_) EXPECT_EQ(number.value(), next++);
  EXPECT_EQ(next, 100);
  EXPECT_EQ(reader_.error(), StreamError::EndOfStream);
  for (const Number& number : reader_) ADD_FAILURE() << number.value();
}

// Without the contents of the message before.
TEST_F(StreamReaderTest, ReplacesTheMessageItReadsInto) {
  EXPECT_TRUE(server_writer_.Write(MakeNumber(1, 100)));
  Write(0);
  Number number;
  ASSERT_TRUE(reader_.Read(&number));
  EXPECT_EQ(number.padding().size(), 100u);
  ASSERT_TRUE(reader_.Read(&number));
  EXPECT_EQ(number.value(), 0);
  EXPECT_EQ(number.padding(), "");
}

TEST_F(StreamReaderTest, PeekLeavesTheMessage) {
  Write(1);
  CloseAndEndCall();
  for (int i = 0; i != 2; ++i) {
    auto* const peeked = reader_.Peek();
    ASSERT_TRUE(*peeked);
    EXPECT_EQ((*peeked)->value(), 1);
  }
  EXPECT_EQ(reader_.Read()->value(), 1);
  ASSERT_FALSE(*reader_.Peek());
  EXPECT_EQ(reader_.Peek()->error(), StreamError::EndOfStream);
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
}

// And the reader can be used on, with another expiration.
TEST_F(StreamReaderTest, GivesUpAtItsExpiration) {
  reader_.SetExpiration(1ms);
  EXPECT_EQ(reader_.Read().error(), StreamError::Timeout);
  reader_.SetExpiration(std::chrono::system_clock::now() - 1s);
  EXPECT_EQ(reader_.Read().error(), StreamError::Timeout);
  EXPECT_EQ(reader_.error(), StreamError::Timeout);
  EXPECT_TRUE(reader_.status().ok());
  Write(1);
  reader_.SetExpiration(1h);
  EXPECT_EQ(reader_.Read()->value(), 1);
}

TEST_F(StreamReaderTest, FailsWithItsCall) {
  Write(1);
  EndCall(1001, "no more");
  EXPECT_EQ(reader_.Read()->value(), 1);
  for (int i = 0; i != 2; ++i) {
    EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  }
  EXPECT_EQ(reader_.status().code(), 1001);
  EXPECT_EQ(reader_.status().message(), "no more");
  EXPECT_EQ(controller_.ErrorCode(), 1001);
}

TEST_F(StreamReaderTest, CloseDropsWhatStillComes) {
  Fill(&server_writer_);
  std::jthread writer([&] {
    for (int i = 0; i != 100; ++i) {
      EXPECT_TRUE(server_writer_.Write(MakeNumber(i, 10'000)));
    }
  });
  reader_.Close();
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
  reader_.Close();
  writer.join();
  // The other direction goes on.
  EXPECT_TRUE(writer_.Write(MakeNumber(1)));
  EXPECT_EQ(server_reader_.Read()->value(), 1);
}

TEST_F(StreamReaderTest, CancelsItsCallWhenDropped) {
  Write(1);
  { const Reader dropped = std::move(reader_); }
  EXPECT_FALSE(writer_.Write(MakeNumber(1)));
  EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
  // Messages that are written before the client refuses them seem to be sent.
  while (server_writer_.Write(MakeNumber(1))) continue;
}

TEST_F(StreamReaderTest, CancelsItsCallWhenAnotherIsAssigned) {
  reader_ = Reader();
  EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
}

TEST_F(StreamReaderTest, OfAServiceMayBeDropped) {
  server_reader_ = Reader();
  EXPECT_TRUE(writer_.Write(MakeNumber(1)));
  Write(2);
  CloseAndEndCall();
  EXPECT_EQ(reader_.Read()->value(), 2);
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader_.status().ok());
}

TEST_F(StreamReaderTest, OfAServiceComesToItsEnd) {
  EXPECT_TRUE(writer_.WriteLast(MakeNumber(1)));
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
  Write(2);
  EXPECT_EQ(reader_.Read()->value(), 2);
}

TEST_F(StreamReaderTest, MayBeMoved) {
  Write(1);
  ASSERT_TRUE(*reader_.Peek());
  Reader moved = std::move(reader_);
  EXPECT_TRUE(moved);
  EXPECT_FALSE(reader_);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved.Read()->value(), 1);
  CloseAndEndCall();
  EXPECT_EQ(moved.Read().error(), StreamError::EndOfStream);
  reader_ = std::move(moved);
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
}

TEST(StreamReaderWithoutStream, FailsEachRead) {
  Reader reader;
  EXPECT_FALSE(reader);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.Peek()->error(), StreamError::IoError);
  reader.Close();
  EXPECT_EQ(reader.status().code(), STATUS_INVALID_CHANNEL);
}

// A client's reader of a method that gives one message.
class OnlyOneTest : public StreamerTest {};

TEST_F(OnlyOneTest, MessageComesWithTheSuccess) {
  auto [reader, writer] = stub_.Sum(&controller_);
  for (int i = 1; i != 11; ++i) EXPECT_TRUE(writer.Write(MakeNumber(i)));
  writer.Close();
  auto sum = reader.Read();
  ASSERT_TRUE(sum) << reader.status().ToString();
  EXPECT_EQ(sum->value(), 55);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader.status().ok());
}

TEST_F(OnlyOneTest, MessageOfAFailedCallIsDropped) {
  service_.on_sum = [](Reader, Number* response, RpcServerController* call) {
    response->set_value(1);
    call->SetFailed(1001, "no");
  };
  auto [reader, writer] = stub_.Sum(&controller_);
  EXPECT_TRUE(writer.WriteLast(MakeNumber(1)));
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader.status().code(), 1001);
  EXPECT_EQ(reader.status().message(), "no");
}

// A service whose idea of the method is another one.
TEST_F(OnlyOneTest, MoreThanOneIsAFailure) {
  const Reader::Result more = [&] {
    auto stream =
        OpenStream(&channel_, Streamer::descriptor()->FindMethodByName("Echo"),
                   &controller_, nullptr);
    StreamWriter<Number> writer(stream);
    Reader reader(stream, /*only_one=*/true);
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    EXPECT_TRUE(writer.Write(MakeNumber(2)));
    return reader.Read();
  }();
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error(), StreamError::IoError);
}

// It has come, its call hasn't ended.
TEST_F(OnlyOneTest, AnExpirationBeforeTheStatusLosesNothing) {
  auto stream =
      OpenStream(&channel_, Streamer::descriptor()->FindMethodByName("Echo"),
                 &controller_, nullptr);
  StreamWriter<Number> writer(stream);
  Reader reader(stream, /*only_one=*/true);
  EXPECT_TRUE(writer.Write(MakeNumber(7)));
  for (int i = 0; i != 2; ++i) {
    reader.SetExpiration(100ms);
    EXPECT_EQ(reader.Read().error(), StreamError::Timeout);
  }
  writer.Close();
  reader.SetExpiration(60s);
  const auto only = reader.Read();
  ASSERT_TRUE(only) << reader.status().ToString();
  EXPECT_EQ(only->value(), 7);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

class AsyncStreamReaderTest : public AsyncStreamPairTest {
 protected:
  void Write(std::int64_t value) {
    EXPECT_TRUE(server_writer_.Write(MakeNumber(value)));
  }
};

TEST_F(AsyncStreamReaderTest, IsReadyAtOnceIfThereIsAMessage) {
  Write(1);
  Write(2);
  EXPECT_EQ(fiber::BlockingGet(reader_.Read())->value(), 1);
  // One look, which waits: a second one beside it is an error.
  ASSERT_NE(fiber::BlockingGet(reader_.Peek()), nullptr);
  auto future = reader_.Read();
  ASSERT_TRUE(future.IsReady());
  EXPECT_EQ(future.Take()->value(), 2);
}

TEST_F(AsyncStreamReaderTest, IsReadyOnceThereIsAMessage) {
  auto future = reader_.Read();
  EXPECT_FALSE(future.IsReady());
  Write(1);
  EXPECT_EQ(fiber::BlockingGet(std::move(future))->value(), 1);
}

TEST_F(AsyncStreamReaderTest, PeeksAndCloses) {
  Write(1);
  auto* const peeked = fiber::BlockingGet(reader_.Peek());
  ASSERT_NE(peeked, nullptr);
  EXPECT_EQ((*peeked)->value(), 1);
  EXPECT_EQ(fiber::BlockingGet(reader_.Read())->value(), 1);
  fiber::BlockingGet(reader_.Close());
  EXPECT_EQ(fiber::BlockingGet(reader_.Read()).error(),
            StreamError::EndOfStream);
}

TEST_F(AsyncStreamReaderTest, ComesToTheEnd) {
  Write(1);
  CloseAndEndCall();
  EXPECT_EQ(fiber::BlockingGet(reader_.Read())->value(), 1);
  EXPECT_EQ(fiber::BlockingGet(reader_.Read()).error(),
            StreamError::EndOfStream);
  EXPECT_EQ(reader_.error(), StreamError::EndOfStream);
  EXPECT_TRUE(reader_.status().ok());
}

// Each continuation reads the next message, which is mostly there already.
TEST_F(AsyncStreamReaderTest, LoopOfContinuationsTakesABoundedStack) {
  constexpr int kMessages = 1500;
  for (int i = 0; i != kMessages; ++i) Write(i);
  CloseAndEndCall();
  struct Loop {
    AsyncReader* reader;
    int messages = 0;
    fiber::Event ended{};
    void Next() {
      static_cast<void>(reader->Read().Then([this](auto message) {
        if (!message) return ended.Set();
        EXPECT_EQ(message->value(), messages++);
        Next();
      }));
    }
  } loop{&reader_};
  fiber::BlockingGet(fiber::Async([&] { loop.Next(); }));
  loop.ended.Wait();
  EXPECT_EQ(loop.messages, kMessages);
}

TEST_F(AsyncStreamReaderTest, GivesUpAtItsExpiration) {
  reader_.SetExpiration(1ms);
  EXPECT_EQ(fiber::BlockingGet(reader_.Read()).error(), StreamError::Timeout);
  EXPECT_EQ(reader_.error(), StreamError::Timeout);
  reader_.SetExpiration(1h);
  Write(1);
  EXPECT_EQ(fiber::BlockingGet(reader_.Read())->value(), 1);
}

// The read that is under way ends, too.
TEST_F(AsyncStreamReaderTest, CancelsItsCallWhenDropped) {
  auto future = reader_.Read();
  reader_ = AsyncReader();
  EXPECT_EQ(fiber::BlockingGet(std::move(future)).error(),
            StreamError::IoError);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
}

TEST_F(AsyncStreamReaderTest, WithoutStreamFailsEachRead) {
  AsyncReader reader;
  EXPECT_FALSE(reader);
  EXPECT_EQ(reader.Read().Take().error(), StreamError::IoError);
  EXPECT_EQ(reader.Peek().Take(), nullptr);
  EXPECT_TRUE(reader.Close().IsReady());
  EXPECT_EQ(reader.status().code(), STATUS_INVALID_CHANNEL);
}

}  // namespace
}  // namespace flare::rpc::testing
