// Writes that wait for the peer's window, in virtual time; input that is kept;
// calls that begin again.
#include "flare/rpc/stream/call_stream.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/deterministic.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::int64_t kStallNs = 10'000'000'000;
constexpr std::size_t kWindow = 1000;
constexpr int kSchedules = 100;

// Counts messages, ends and credit.
class CountingWire : public StreamWire {
 public:
  struct Sent {
    std::size_t messages = 0;
    int lasts = 0;
    int ends = 0;
    int resets = 0;
    std::size_t credit = 0;
  };
  explicit CountingWire(Sent* sent) : sent_(sent) {}

  bool Begin(RefPtr<StreamReceiver>) override { return true; }
  bool SendMessage(OutboundBody&&, bool last) override {
    ++sent_->messages;
    sent_->lasts += last ? 1 : 0;
    return true;
  }
  bool SendEnd(const flare::Status&) override { return ++sent_->ends, true; }
  void SendReset(const flare::Status&) override { ++sent_->resets; }
  void SendCredit(std::size_t bytes) override { sent_->credit += bytes; }
  bool has_credits() const override { return true; }
  std::size_t message_cost() const override { return 0; }
  void HoldInput() override {}
  void ReleaseInput() override {}

 private:
  Sent* const sent_;
};

// A server's, with room for one message.
class StalledStream {
 public:
  explicit StalledStream(std::int64_t deadline_ns = CallStream::kNever)
      : stream_(CallStream::Create({.is_server = true,
                                    .deadline_ns = deadline_ns,
                                    .send_window = kWindow,
                                    .max_stall_ns = kStallNs})) {
    EXPECT_TRUE(stream_->Start(std::make_unique<CountingWire>(&sent_), {}));
  }
  ~StalledStream() { stream_->Detach(); }

  bool Write(std::size_t size, std::int64_t deadline_ns = CallStream::kNever) {
    return stream_->Write(CreateBufferSlow(std::string(size, 'x')),
                          /*last=*/false, deadline_ns);
  }
  void Grant(std::size_t bytes) {
    granted_ns_ = NowNs();
    stream_->OnCredit(bytes);
  }
  void ExpectStalled() {
    EXPECT_GE(NowNs() - granted_ns_, kStallNs);
    EXPECT_EQ(stream_->status().code(), STATUS_IO_ERROR);
    EXPECT_THAT(stream_->status().message(),
                HasSubstr("Options::stalled_stream_timeout"));
    EXPECT_EQ(sent_.resets, 1);
    EXPECT_EQ(sent_.ends, 0);
  }
  CallStream* get() { return stream_.Get(); }
  const CountingWire::Sent& sent() const { return sent_; }

 private:
  CountingWire::Sent sent_;
  const RefPtr<CallStream> stream_;
  std::int64_t granted_ns_ = NowNs();
};

TEST(CallStream, AWriteWhoseWindowNeverOpensFailsTheCall) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    StalledStream stream;
    int told = 0;
    stream.get()->SetOnFailed([&told](const flare::Status&) { ++told; });
    EXPECT_TRUE(stream.Write(kWindow));
    EXPECT_FALSE(stream.Write(1));
    stream.ExpectStalled();
    EXPECT_EQ(told, 1);
    EXPECT_FALSE(stream.Write(1));
    stream.get()->Finish(flare::Status());
    EXPECT_EQ(stream.sent().messages, 1u);
    EXPECT_EQ(stream.sent().ends, 0);
  });
}

// A timeout would have it try again, for ever.
TEST(CallStream, AReaderBesideAWriteThatStallsIsAtItsEnd) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    StalledStream stream;
    EXPECT_TRUE(stream.Write(kWindow));
    Fiber reader([&stream] {
      StreamError error = StreamError::Timeout;
      while (error == StreamError::Timeout) {
        Buffer message;
        EXPECT_FALSE(
            stream.get()->Read(&message, NowNs() + kStallNs / 4, &error));
      }
      EXPECT_EQ(error, StreamError::IoError);
      stream.ExpectStalled();
    });
    EXPECT_FALSE(stream.Write(1));
    reader.join();
  });
}

// Grants that don't suffice for the next message are signs of life.
TEST(CallStream, AWriteWaitsOnWhileThePeerGrantsLittle) {
  constexpr int kGrants = 15;
  int went_on = 0;
  fiber::testing::ExploreSchedules(kSchedules, [&went_on] {
    StalledStream stream;
    Fiber granter([&stream] {
      for (int i = 0; i != kGrants; ++i) {
        this_fiber::SleepFor(3s);
        stream.Grant(kWindow);
      }
    });
    EXPECT_TRUE(stream.Write(kGrants * kWindow));
    const std::int64_t begin = NowNs();
    if (stream.Write(1)) {
      EXPECT_GT(NowNs() - begin, kStallNs);
      ++went_on;
    } else {  // The granter wasn't run for long.
      stream.ExpectStalled();
    }
    granter.join();
  });
  EXPECT_GT(went_on, 0);
}

TEST(CallStream, ADeadlineGivesUpAWriteThatWaits) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    const std::int64_t deadline_ns = NowNs() + kStallNs / 2;
    StalledStream stream(deadline_ns);
    EXPECT_TRUE(stream.Write(kWindow));
    EXPECT_FALSE(stream.Write(1));
    EXPECT_GE(NowNs(), deadline_ns);
    EXPECT_EQ(stream.get()->status().code(), STATUS_TIMEOUT);
    stream.get()->Finish(flare::Status());
    EXPECT_EQ(stream.sent().resets, 1);
    EXPECT_EQ(stream.sent().ends, 0);
  });
}

TEST(CallStream, AWritesOwnExpirationLeavesTheCallAlone) {
  fiber::testing::ExploreSchedules(kSchedules, [] {
    StalledStream stream;
    EXPECT_TRUE(stream.Write(kWindow));
    EXPECT_FALSE(stream.Write(1, NowNs() + kStallNs / 2));
    EXPECT_TRUE(stream.get()->status().ok());
    stream.Grant(1);
    EXPECT_TRUE(stream.Write(1));
    EXPECT_EQ(stream.sent().resets, 0);
  });
}

// --------------------------------------------------------------------------

// A server's stream whose client sends.
class IncomingStream {
 public:
  explicit IncomingStream(StreamOutput* counter = nullptr)
      : stream_(CallStream::Create({.is_server = true,
                                    .receive_window = kWindow,
                                    .counter = counter})) {
    EXPECT_TRUE(stream_->Start(std::make_unique<CountingWire>(&sent_), {}));
  }
  ~IncomingStream() { stream_->Detach(); }

  void Come(std::size_t size, int times) {
    for (int i = 0; i != times; ++i) {
      stream_->OnMessage(CreateBufferSlow(std::string(size, 'x')),
                         /*last=*/false);
    }
  }
  void Read() {
    Buffer message;
    StreamError error;
    EXPECT_TRUE(stream_->Read(&message, CallStream::kNever, &error));
  }
  CallStream* get() { return stream_.Get(); }
  const CountingWire::Sent& sent() const { return sent_; }

 private:
  CountingWire::Sent sent_;
  const RefPtr<CallStream> stream_;
};

// A client whose window is full may write on when nobody reads any more: also
// for messages that the reader has fetched with the one that it took.
TEST(CallStream, AReaderThatClosesGrantsAllThatItHasNotRead) {
  IncomingStream stream;
  stream.Come(kWindow / 10, 10);
  stream.Read();
  EXPECT_EQ(stream.sent().credit, 0u);
  stream.get()->CloseReading();
  EXPECT_GE(stream.sent().credit, kWindow);
  const std::size_t before = stream.sent().credit;
  stream.Come(kWindow, 5);
  EXPECT_GE(stream.sent().credit - before, 5 * kWindow);
}

// The reader may wait for more, of which no wire would tell it.
TEST(CallStream, ALastMessageIsTheOutcomeOnceTheRequestsAreOver) {
  for (const bool requests_are_over : {false, true}) {
    IncomingStream stream;
    if (requests_are_over) stream.get()->OnEnd(flare::Status());
    EXPECT_TRUE(stream.get()->Write(CreateBufferSlow("m"), /*last=*/true,
                                    CallStream::kNever));
    EXPECT_EQ(stream.sent().lasts, requests_are_over ? 1 : 0);
    EXPECT_FALSE(stream.get()->Write(CreateBufferSlow("m"), /*last=*/false,
                                     CallStream::kNever));
    EXPECT_EQ(stream.sent().ends, 0);
    stream.get()->Finish(flare::Status());
    EXPECT_EQ(stream.sent().ends, requests_are_over ? 0 : 1);
    EXPECT_EQ(stream.sent().messages, 1u);
  }
}

class Counter final : public StreamOutput {
 public:
  bool WriteSoon(Buffer&&) override { return true; }
  void Abort(const flare::Status&) override {}
  void HoldInput() override {}
  void ReleaseInput() override {}
  void CountHeld(std::size_t before, std::size_t after) override {
    held += after - before;
  }

  std::size_t held = 0;
};

TEST(CallStream, SmallPartsArePutTogether) {
  constexpr std::size_t kParts = 100'000;
  Counter counter;
  IncomingStream stream(&counter);
  std::size_t kept = 0;
  for (std::size_t i = 0; i != kParts; ++i) {
    static constexpr char kByte = 'x';
    ++kept;
    stream.get()->OnPart(MakeReferencingBuffer(&kByte, 1, [&kept] { --kept; }));
    ASSERT_LT(kept, 4000u);
    ASSERT_LT(counter.held, 512u << 10);
  }
  stream.Come(1, 1);
  Buffer message;
  StreamError error;
  ASSERT_TRUE(stream.get()->Read(&message, CallStream::kNever, &error));
  EXPECT_EQ(message.size(), kParts + 1);
}

// Else each would keep a block of input.
TEST(CallStream, SmallMessagesThatWaitAreCopied) {
  static constexpr char kBytes[100] = {};
  IncomingStream stream;
  std::size_t kept = 0;
  for (int i = 0; i != 1000; ++i) {
    ++kept;
    stream.get()->OnMessage(
        MakeReferencingBuffer(kBytes, 1, [&kept] { --kept; }), /*last=*/false);
  }
  EXPECT_LT(kept, 20u);
  for (int i = 0; i != 1000; ++i) stream.Read();
}

// A client's.
class ClientWire final : public CountingWire {
 public:
  enum class Memory { kEnough, kNoneToBegin, kNoneToSend };

  explicit ClientWire(Sent* sent, Memory memory = Memory::kEnough)
      : CountingWire(sent), memory_(memory) {}

  bool Begin(RefPtr<StreamReceiver> receiver) override {
    if (memory_ == Memory::kNoneToBegin) throw std::bad_alloc();
    return CountingWire::Begin(std::move(receiver));
  }
  bool SendMessage(OutboundBody&& body, bool last) override {
    if (memory_ == Memory::kNoneToSend) throw std::bad_alloc();
    return CountingWire::SendMessage(std::move(body), last);
  }
  bool may_be_unprocessed() const override { return true; }

 private:
  const Memory memory_;
};

// One that has written a message, which its server didn't look at.
class UnseenStream {
 public:
  // How often a connection was given back.
  struct Connection {
    CountingWire::Sent sent;
    int detached = 0;
    CallStream::EndedBy ended_by = CallStream::EndedBy::kServer;

    Function<void(const CallStream::Ending&)> OnDetached() {
      return [this](const CallStream::Ending& ending) {
        ++detached;
        ended_by = ending.by;
      };
    }
  };

  UnseenStream()
      : stream_(CallStream::Create(
            {.on_detached = first.OnDetached(),
             .on_unprocessed = [this](RefPtr<CallStream>) { ++asked_; }})) {
    EXPECT_TRUE(stream_->Start(std::make_unique<ClientWire>(&first.sent), {}));
    EXPECT_TRUE(Write());
    EXPECT_TRUE(stream_->OnUnprocessed());
    EXPECT_EQ(asked_, 1);
    EXPECT_EQ(first.detached, 1);
  }
  ~UnseenStream() {
    stream_->Cancel();
    EXPECT_EQ(first.detached, 1);
    EXPECT_EQ(first.sent.resets, 0);
  }

  bool Write() {
    return stream_->Write(CreateBufferSlow("x"), /*last=*/false,
                          CallStream::kNever);
  }
  CallStream::Another Another(
      ClientWire::Memory memory = ClientWire::Memory::kEnough) {
    return {.wire = std::make_unique<ClientWire>(&second.sent, memory),
            .on_detached = second.OnDetached()};
  }
  CallStream* get() { return stream_.Get(); }

  Connection first, second;

 private:
  int asked_ = 0;
  const RefPtr<CallStream> stream_;
};

TEST(CallStream, ACallBeginsAgain) {
  UnseenStream stream;
  auto another = stream.Another();
  EXPECT_TRUE(stream.get()->Restart(&another));
  EXPECT_EQ(stream.second.sent.messages, 1u);
  EXPECT_TRUE(stream.Write());
  EXPECT_EQ(stream.second.sent.messages, 2u);
  // Once.
  EXPECT_FALSE(stream.get()->OnUnprocessed());
  EXPECT_EQ(stream.second.detached, 0);
  stream.get()->Cancel();
  EXPECT_EQ(stream.second.sent.resets, 1);
  EXPECT_EQ(stream.second.detached, 1);
}

TEST(CallStream, ACallThatHasEndedDoesNotBeginAgain) {
  for (const int code : {STATUS_FAILED, STATUS_TIMEOUT}) {
    UnseenStream stream;
    stream.get()->Fail(flare::Status(code));
    EXPECT_TRUE(stream.get()->over());
    EXPECT_FALSE(stream.Write());
    auto another = stream.Another();
    EXPECT_FALSE(stream.get()->Restart(&another));
    EXPECT_EQ(stream.second.detached, 1);
    EXPECT_EQ(stream.second.ended_by, CallStream::EndedBy::kUs);
    EXPECT_FALSE(another.wire);
    EXPECT_EQ(stream.second.sent.messages, 0u);
    EXPECT_EQ(stream.get()->status().code(), code);
  }
}

TEST(CallStream, ACallMayEndWhileItBeginsAgain) {
  int begun = 0;
  fiber::testing::ExploreSchedules(kSchedules, [&begun] {
    UnseenStream stream;
    bool began = false;
    Fiber opener([&] {
      auto another = stream.Another();
      began = stream.get()->Restart(&another);
    });
    Fiber canceller([&stream] { stream.get()->Cancel(); });
    Fiber writer([&stream] { static_cast<void>(stream.Write()); });
    opener.join();
    canceller.join();
    writer.join();
    EXPECT_EQ(stream.second.detached, 1);
    EXPECT_EQ(stream.second.sent.resets, began ? 1 : 0);
    EXPECT_TRUE(stream.get()->over());
    begun += began ? 1 : 0;
  });
  EXPECT_GT(begun, 0);
  EXPECT_LT(begun, kSchedules);
}

// The connection is given back once: by the stream if that has taken it.
TEST(CallStream, MemoryMayLackForTheSecondBegin) {
  for (const auto memory :
       {ClientWire::Memory::kNoneToBegin, ClientWire::Memory::kNoneToSend}) {
    UnseenStream stream;
    auto another = stream.Another(memory);
    EXPECT_THROW(static_cast<void>(stream.get()->Restart(&another)),
                 std::bad_alloc);
    EXPECT_EQ(stream.second.detached, 0);
    const bool taken = !another.on_detached;
    EXPECT_EQ(taken, memory == ClientWire::Memory::kNoneToSend);
    stream.get()->Fail(flare::Status(STATUS_FAILED));
    EXPECT_TRUE(stream.get()->over());
    EXPECT_EQ(stream.second.detached, taken ? 1 : 0);
  }
}

}  // namespace
}  // namespace flare::rpc
