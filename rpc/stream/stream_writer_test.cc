#include "flare/rpc/stream_writer.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;

using Writer = StreamWriter<Number>;
using AsyncWriter = AsyncStreamWriter<Number>;

static_assert(std::is_nothrow_move_constructible_v<Writer>);
static_assert(!std::is_copy_constructible_v<Writer>);
static_assert(std::is_nothrow_move_constructible_v<AsyncWriter>);
static_assert(!std::is_copy_constructible_v<AsyncWriter>);

// Reads messages up to the one of that value; false if there is none.
bool ReadUpTo(std::int64_t value, StreamReader<Number>* reader) {
  while (auto number = reader->Read()) {
    if (number->value() == value) return true;
  }
  return false;
}

class StreamWriterTest : public StreamPairTest {};

TEST_F(StreamWriterTest, WritesAndCloses) {
  EXPECT_TRUE(writer_.Write(MakeNumber(1)));
  EXPECT_TRUE(writer_.Write(MakeNumber(2)));
  writer_.Close();
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  EXPECT_EQ(server_reader_.Read()->value(), 2);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
  EXPECT_FALSE(writer_.Write(MakeNumber(3)));
  EXPECT_FALSE(writer_.WriteLast(MakeNumber(3)));
  writer_.Close();
}

TEST_F(StreamWriterTest, LastMessageCloses) {
  EXPECT_TRUE(writer_.WriteLast(MakeNumber(1)));
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
  EXPECT_FALSE(writer_.Write(MakeNumber(2)));
}

TEST_F(StreamWriterTest, OfAServiceWritesAndCloses) {
  EXPECT_TRUE(server_writer_.Write(MakeNumber(1)));
  EXPECT_TRUE(server_writer_.WriteLast(MakeNumber(2)));
  EXPECT_FALSE(server_writer_.Write(MakeNumber(3)));
  EndCall();
  EXPECT_EQ(reader_.Read()->value(), 1);
  EXPECT_EQ(reader_.Read()->value(), 2);
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
}

TEST_F(StreamWriterTest, WaitsForASlowReader) {
  Fill(&writer_);
  std::jthread reader([&] { EXPECT_TRUE(ReadUpTo(10, &server_reader_)); });
  for (int i = 1; i != 11; ++i) {
    EXPECT_TRUE(writer_.Write(MakeNumber(i, 10'000)));
  }
}

TEST_F(StreamWriterTest, GivesUpAtItsExpiration) {
  Fill(&writer_);
  writer_.SetExpiration(std::chrono::system_clock::now() - 1s);
  EXPECT_FALSE(writer_.WriteLast(MakeNumber(1)));
  // And can be used on.
  std::jthread reader([&] { EXPECT_TRUE(ReadUpTo(2, &server_reader_)); });
  writer_.SetExpiration(1h);
  EXPECT_TRUE(writer_.WriteLast(MakeNumber(2)));
}

TEST_F(StreamWriterTest, FailsWithItsCall) {
  Fill(&writer_);
  std::jthread server([&] { EndCall(1001, "enough"); });
  while (writer_.Write(MakeNumber(0))) continue;
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader_.status().code(), 1001);
  EXPECT_FALSE(writer_.Write(MakeNumber(0)));
}

TEST_F(StreamWriterTest, CancelsItsCallWhenDropped) {
  { const Writer dropped = std::move(writer_); }
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader_.status().code(), STATUS_FAILED);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
}

TEST_F(StreamWriterTest, CancelsItsCallWhenAnotherIsAssigned) {
  writer_ = Writer();
  EXPECT_EQ(server_reader_.Read().error(), StreamError::IoError);
}

// At the end of the method, and not sooner.
TEST_F(StreamWriterTest, OfAServiceFailsTheCallWhenDropped) {
  EXPECT_TRUE(server_writer_.Write(MakeNumber(1)));
  server_writer_ = Writer();
  EXPECT_EQ(reader_.Read()->value(), 1);
  reader_.SetExpiration(1ms);
  EXPECT_EQ(reader_.Read().error(), StreamError::Timeout);
  reader_.SetExpiration(1h);
  EndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader_.status().code(), STATUS_FAILED);
  EXPECT_EQ(reader_.status().message(),
            "the method has dropped its writer without closing it");
}

TEST_F(StreamWriterTest, OfAServiceThatIsDroppedLeavesTheMethodsFailure) {
  server_writer_ = Writer();
  EndCall(1001, "better known");
  EXPECT_EQ(reader_.Read().error(), StreamError::IoError);
  EXPECT_EQ(reader_.status().code(), 1001);
  EXPECT_EQ(reader_.status().message(), "better known");
}

TEST_F(StreamWriterTest, MayBeDroppedAfterItsEnd) {
  writer_.Close();
  writer_ = Writer();
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
  CloseAndEndCall();
  EXPECT_EQ(reader_.Read().error(), StreamError::EndOfStream);
}

TEST_F(StreamWriterTest, MayBeMoved) {
  Writer moved = std::move(writer_);
  EXPECT_TRUE(moved);
  EXPECT_FALSE(writer_);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved.Write(MakeNumber(1)));
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  writer_ = std::move(moved);
  writer_.Close();
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
}

TEST(StreamWriterWithoutStream, FailsEachWrite) {
  Writer writer;
  EXPECT_FALSE(writer);
  EXPECT_FALSE(writer.Write(Number()));
  EXPECT_FALSE(writer.WriteLast(Number()));
  writer.Close();
}

class AsyncStreamWriterTest : public AsyncStreamPairTest {
 protected:
  void FillAsync() {
    writer_.SetExpiration(20ms);
    while (fiber::BlockingGet(writer_.Write(MakeNumber(0, 10'000)))) continue;
    writer_.SetExpiration(1h);
  }
};

TEST_F(AsyncStreamWriterTest, IsReadyAtOnceIfThereIsRoom) {
  auto one = writer_.Write(MakeNumber(1));
  ASSERT_TRUE(one.IsReady());
  EXPECT_TRUE(one.Take());
  auto two = writer_.WriteLast(MakeNumber(2));
  ASSERT_TRUE(two.IsReady());
  EXPECT_TRUE(two.Take());
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  EXPECT_EQ(server_reader_.Read()->value(), 2);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
}

TEST_F(AsyncStreamWriterTest, IsReadyOnceThereIsRoom) {
  FillAsync();
  auto next = writer_.Write(MakeNumber(1));
  EXPECT_FALSE(next.IsReady());
  EXPECT_TRUE(ReadUpTo(1, &server_reader_));
  EXPECT_TRUE(fiber::BlockingGet(std::move(next)));
  fiber::BlockingGet(writer_.Close());
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
}

// Each continuation writes the next message, for which there is room.
TEST_F(AsyncStreamWriterTest, LoopOfContinuationsTakesABoundedStack) {
  struct Loop {
    AsyncWriter* writer;
    int left = 5000;
    fiber::Event ended{};
    void Next() {
      static_cast<void>(writer->Write(MakeNumber(left)).Then([this](bool ok) {
        EXPECT_TRUE(ok);
        if (--left == 0) return ended.Set();
        Next();
      }));
    }
  } loop{&writer_};
  fiber::BlockingGet(fiber::Async([&] { loop.Next(); }));
  int expected = 5000;
  while (expected != 0) {
    auto number = server_reader_.Read();
    ASSERT_TRUE(number);
    EXPECT_EQ(number->value(), expected--);
  }
  loop.ended.Wait();
}

TEST_F(AsyncStreamWriterTest, GivesUpAtItsExpiration) {
  FillAsync();
  writer_.SetExpiration(1ms);
  EXPECT_FALSE(fiber::BlockingGet(writer_.Write(MakeNumber(1))));
}

// The write that is under way ends, too.
TEST_F(AsyncStreamWriterTest, CancelsItsCallWhenDropped) {
  FillAsync();
  auto future = writer_.Write(MakeNumber(1));
  writer_ = AsyncWriter();
  EXPECT_FALSE(fiber::BlockingGet(std::move(future)));
  while (server_reader_.Read()) continue;
  EXPECT_EQ(server_reader_.error(), StreamError::IoError);
}

TEST_F(AsyncStreamWriterTest, MayBeDroppedAfterItsEnd) {
  EXPECT_TRUE(fiber::BlockingGet(writer_.WriteLast(MakeNumber(1))));
  writer_ = AsyncWriter();
  EXPECT_EQ(server_reader_.Read()->value(), 1);
  EXPECT_EQ(server_reader_.Read().error(), StreamError::EndOfStream);
}

TEST_F(AsyncStreamWriterTest, WithoutStreamFailsEachWrite) {
  AsyncWriter writer;
  EXPECT_FALSE(writer);
  EXPECT_FALSE(writer.Write(Number()).Take());
  EXPECT_FALSE(writer.WriteLast(Number()).Take());
  EXPECT_TRUE(writer.Close().IsReady());
}

}  // namespace
}  // namespace flare::rpc::testing
