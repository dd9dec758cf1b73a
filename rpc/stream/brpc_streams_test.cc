// Streams of `baidu-std` with peers as brpc has them, which know nothing of
// this library's additions: their bytes are made and read here.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"
#include "rpc/wire/baidu_std_meta.pb.h"

namespace flare::rpc::testing {
namespace {

using Meta = baidu_std::Meta;
using FrameMeta = baidu_std::StreamFrameMeta;

enum FrameType : std::uint8_t { kRst = 1, kClose, kData, kFeedback };

std::string Frame(std::string_view magic, std::string_view meta,
                  std::string_view rest = "") {
  return std::string(magic) + BigEndian(meta.size() + rest.size(), 4) +
         BigEndian(meta.size(), 4) + std::string(meta) + std::string(rest);
}

std::string StreamFrame(std::int64_t id, FrameType type,
                        std::int64_t source = 0, std::string_view payload = "",
                        bool continues = false) {
  FrameMeta meta;
  meta.set_stream_id(id);
  if (source != 0) meta.set_source_stream_id(source);
  meta.set_frame_type(type);
  if (type == kData) meta.set_has_continuation(continues);
  return Frame("STRM", meta.SerializeAsString(), payload);
}

std::string FeedbackFrame(std::int64_t id, std::int64_t consumed) {
  FrameMeta meta;
  meta.set_stream_id(id);
  meta.set_frame_type(kFeedback);
  meta.mutable_feedback()->set_consumed_size(consumed);
  return Frame("STRM", meta.SerializeAsString());
}

// The settings of brpc's peer.
struct Settings {
  std::int64_t id = 7;
  bool needs_feedback = true;
  bool writable = true;
};

void Put(const Settings& settings, Meta* meta) {
  auto* const fields = meta->mutable_stream_settings();
  fields->set_stream_id(settings.id);
  fields->set_need_feedback(settings.needs_feedback);
  fields->set_writable(settings.writable);
}

// A frame taken apart, of either kind.
struct Received {
  bool is_stream = false;
  Meta call;
  FrameMeta stream;
  std::string rest;

  template <class Peer>
  static Received From(Peer* peer) {
    return Parse(peer->ReadExactly(12), peer);
  }
  static Received FromBytes(std::string bytes) {
    struct Text {
      std::string ReadExactly(std::size_t n) {
        return std::exchange(rest, rest.substr(std::min(n, rest.size())))
            .substr(0, n);
      }
      std::string rest;
    } text{std::move(bytes)};
    return From(&text);
  }

 private:
  static std::size_t NumberAt(std::string_view bytes, std::size_t at) {
    std::size_t number = 0;
    for (char c : bytes.substr(at, 4)) {
      number = number << 8 | static_cast<std::uint8_t>(c);
    }
    return number;
  }
  template <class Peer>
  static Received Parse(const std::string& header, Peer* peer) {
    Received frame;
    if (header.size() != 12) return frame;
    frame.is_stream = header.starts_with("STRM");
    EXPECT_TRUE(frame.is_stream || header.starts_with("PRPC")) << header;
    const std::size_t meta_size = NumberAt(header, 8);
    const std::string meta = peer->ReadExactly(meta_size);
    EXPECT_TRUE(frame.is_stream ? frame.stream.ParseFromString(meta)
                                : frame.call.ParseFromString(meta));
    frame.rest = peer->ReadExactly(NumberAt(header, 4) - meta_size);
    return frame;
  }
};

Number NumberIn(const std::string& bytes) {
  Number number;
  EXPECT_TRUE(number.ParseFromString(bytes));
  return number;
}

// --- our server ------------------------------------------------------------

class BrpcClientTest : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    client_.emplace(server_->endpoint(), "baidu-std");
  }
  void TearDown() override {
    client_.reset();
    StreamerTest::TearDown();
  }

  void Call(const char* method, std::string_view body,
            const Settings& settings = {}) {
    Meta meta;
    meta.mutable_request()->set_service_name("flare.rpc.testing.Streamer");
    meta.mutable_request()->set_method_name(method);
    meta.set_correlation_id(5);
    Put(settings, &meta);
    client_->Send(Frame("PRPC", meta.SerializeAsString(), body));
  }
  // The call is accepted; the number of the server's end.
  std::int64_t TakeReply() {
    const Received first = Read();
    EXPECT_TRUE(first.is_stream);
    EXPECT_EQ(first.stream.frame_type(), kData);
    EXPECT_EQ(first.stream.stream_id(), 7);
    const Received reply = Received::FromBytes(first.rest);
    EXPECT_FALSE(reply.is_stream);
    EXPECT_EQ(reply.call.correlation_id(), 5);
    EXPECT_EQ(reply.call.response().error_code(), 0);
    EXPECT_TRUE(reply.call.stream_settings().need_feedback());
    EXPECT_TRUE(reply.call.stream_settings().writable());
    EXPECT_EQ(reply.rest, "");
    const std::int64_t id = reply.call.stream_settings().stream_id();
    EXPECT_EQ(first.stream.source_stream_id(), id);
    return id;
  }
  Received Read() { return Received::From(&*client_); }
  // The next frame that isn't FEEDBACK, of which the last is remembered.
  Received ReadNoFeedback() {
    for (;;) {
      Received frame = Read();
      if (!frame.is_stream || frame.stream.frame_type() != kFeedback) {
        return frame;
      }
      consumed_ = frame.stream.feedback().consumed_size();
    }
  }
  void SendNumber(std::int64_t id, std::int64_t value) {
    client_->Send(
        StreamFrame(id, kData, 7, MakeNumber(value).SerializeAsString()));
  }
  // Nothing has come but the reply to this.
  void ExpectSilence() {
    client_->Send(kUnaryCall);
    const Received reply = Read();
    EXPECT_FALSE(reply.is_stream);
    EXPECT_EQ(reply.call.correlation_id(), 9);
  }

  static inline const std::string kUnaryCall = [] {
    Meta meta;
    meta.mutable_request()->set_service_name("flare.rpc.testing.Streamer");
    meta.mutable_request()->set_method_name("Double");
    meta.set_correlation_id(9);
    return Frame("PRPC", meta.SerializeAsString(),
                 MakeNumber(2).SerializeAsString());
  }();

  std::optional<RawClient> client_;
  std::int64_t consumed_ = 0;
};

TEST_F(BrpcClientTest, WritesAndReadsMessages) {
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  std::int64_t sent = 0;
  for (int i = 1; i <= 3; ++i) {
    SendNumber(id, i);
    sent += MakeNumber(i).ByteSizeLong();
    const Received answer = ReadNoFeedback();
    EXPECT_EQ(answer.stream.frame_type(), kData);
    EXPECT_EQ(answer.stream.stream_id(), 7);
    EXPECT_EQ(NumberIn(answer.rest).value(), i);
  }
  // Each message is acknowledged before the next one is waited for.
  while (consumed_ != sent) {
    const Received feedback = Read();
    ASSERT_EQ(feedback.stream.frame_type(), kFeedback);
    consumed_ = feedback.stream.feedback().consumed_size();
  }
}

TEST_F(BrpcClientTest, GetsAStreamOfReplies) {
  Call("Count", MakeNumber(3).SerializeAsString());
  TakeReply();
  for (int i = 0; i != 3; ++i) {
    const Received message = Read();
    EXPECT_EQ(message.stream.frame_type(), kData);
    EXPECT_EQ(NumberIn(message.rest).value(), i);
  }
  const Received end = Read();
  EXPECT_EQ(end.stream.frame_type(), kClose);
  EXPECT_EQ(end.rest, "");
}

TEST_F(BrpcClientTest, TheRequestIsTheFirstMessageUnlessItIsEmpty) {
  Call("Echo", MakeNumber(17).SerializeAsString());
  const std::int64_t id = TakeReply();
  EXPECT_EQ(NumberIn(ReadNoFeedback().rest).value(), 17);
  SendNumber(id, 18);
  EXPECT_EQ(NumberIn(ReadNoFeedback().rest).value(), 18);
}

// The server's method has as many requests as came; its answer finds nobody.
TEST_F(BrpcClientTest, ClosingEndsTheRequests) {
  fiber::Event ended;
  std::int64_t sum = 0;
  bool wrote = true;
  service_.on_echo = [&](StreamReader<Number> reader,
                         StreamWriter<Number> writer, RpcServerController*) {
    for (const Number& number : reader) sum += number.value();
    EXPECT_EQ(reader.error(), StreamError::EndOfStream);
    wrote = writer.Write(MakeNumber(1));
    ended.Set();
  };
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  for (int i = 1; i <= 4; ++i) SendNumber(id, i);
  client_->Send(StreamFrame(id, kClose, 7));
  ended.Wait();
  EXPECT_EQ(sum, 10);
  EXPECT_FALSE(wrote);
}

TEST_F(BrpcClientTest, ClosingWakesAWriter) {
  fiber::Event ended;
  service_.on_echo = [&](StreamReader<Number>, StreamWriter<Number> writer,
                         RpcServerController*) {
    while (writer.Write(MakeNumber(0, 10'000))) continue;
    ended.Set();
  };
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  // It stops when so much is unread.
  std::size_t bytes = 0;
  while (bytes < (1 << 20)) bytes += Read().rest.size();
  EXPECT_LT(bytes, (1u << 20) + 20'000);
  ExpectSilence();
  client_->Send(StreamFrame(id, kClose, 7));
  ended.Wait();
}

TEST_F(BrpcClientTest, FeedbackLetsTheServerGoOn) {
  Call("Count", MakeNumber(300, 10'000).SerializeAsString());
  const std::int64_t id = TakeReply();
  std::int64_t bytes = 0;
  for (int i = 0; i != 300; ++i) {
    const Received message = Read();
    ASSERT_EQ(message.stream.frame_type(), kData);
    bytes += static_cast<std::int64_t>(message.rest.size());
    if (i % 50 == 49) client_->Send(FeedbackFrame(id, bytes));
  }
  EXPECT_EQ(Read().stream.frame_type(), kClose);
}

TEST_F(BrpcClientTest, ACallerThatClosesEndsACallOfOneRequest) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    fiber::Event stopped;
    std::stop_callback on_stop(controller->GetStopToken(),
                               [&] { stopped.Set(); });
    stopped.Wait();
    EXPECT_FALSE(writer.Write(MakeNumber(1)));
    ended.Set();
  };
  for (const FrameType type : {kClose, kRst}) {
    ended.Reset();
    Call("Count", "");
    client_->Send(StreamFrame(TakeReply(), type, 7));
    ended.Wait();
  }
}

TEST_F(BrpcClientTest, MessagesMayComeInParts) {
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  const std::string bytes = MakeNumber(3, 100).SerializeAsString();
  client_->Send(StreamFrame(id, kData, 7, bytes.substr(0, 40), true) +
                StreamFrame(id, kData, 7, bytes.substr(40, 20), true) +
                StreamFrame(id, kData, 7, bytes.substr(60)));
  EXPECT_EQ(ReadNoFeedback().rest, bytes);
}

TEST_F(BrpcClientTest, IsNotToldWhatItDidNotAskFor) {
  Call("Echo", "", {.needs_feedback = false});
  const std::int64_t id = TakeReply();
  for (int i = 0; i != 100; ++i) {
    SendNumber(id, i);
    const Received answer = Read();
    EXPECT_EQ(answer.stream.frame_type(), kData);
  }
}

TEST_F(BrpcClientTest, ThatReadsNothingIsSentNothing) {
  Call("Count", MakeNumber(3).SerializeAsString(), {.writable = false});
  TakeReply();
  EXPECT_EQ(Read().stream.frame_type(), kClose);
  ExpectSilence();
}

TEST_F(BrpcClientTest, RefusedCallsAreAnsweredAsOthersAre) {
  for (const auto& [method, code] :
       {std::pair("Nothing", 1002), {"Double", int{STATUS_MALFORMED_DATA}}}) {
    Call(method, "");
    const Received reply = Read();
    EXPECT_FALSE(reply.is_stream);
    EXPECT_EQ(reply.call.correlation_id(), 5);
    EXPECT_EQ(reply.call.response().error_code(), code);
    EXPECT_FALSE(reply.call.has_stream_settings());
  }
  ExpectSilence();
}

TEST_F(BrpcClientTest, StreamsThatAreNotThereAreReset) {
  client_->Send(StreamFrame(99, kData, 7, "x"));
  const Received reset = Read();
  EXPECT_EQ(reset.stream.frame_type(), kRst);
  EXPECT_EQ(reset.stream.stream_id(), 7);
  // By a reply to these messages would be lost that are on their way.
  client_->Send(FeedbackFrame(99, 5) + StreamFrame(99, kClose, 7) +
                StreamFrame(99, kRst) + StreamFrame(99, kData));
  ExpectSilence();
}

TEST_F(BrpcClientTest, FramesOfUnknownTypesResetTheStream) {
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  client_->Send(StreamFrame(id, static_cast<FrameType>(77), 7));
  EXPECT_EQ(Read().stream.frame_type(), kRst);
  ExpectSilence();
}

TEST_F(BrpcClientTest, MessagesThatAreTooLargeResetTheStream) {
  const std::string half(3 << 20, 'x');
  for (const bool in_parts : {false, true}) {
    Call("Echo", "");
    const std::int64_t id = TakeReply();
    client_->Send(in_parts ? StreamFrame(id, kData, 7, half, true) +
                                 StreamFrame(id, kData, 7, half)
                           : StreamFrame(id, kData, 7, half + half));
    const Received reset = Read();
    EXPECT_EQ(reset.stream.frame_type(), kRst);
    ExpectSilence();
  }
}

TEST_F(BrpcClientTest, AnEndWithinAMessageResetsTheStream) {
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  client_->Send(StreamFrame(id, kData, 7, "x", true) +
                StreamFrame(id, kClose, 7));
  EXPECT_EQ(Read().stream.frame_type(), kRst);
  ExpectSilence();
}

// The number of bytes read can't shrink, and can't exceed the sent ones.
TEST_F(BrpcClientTest, FeedbackThatCantBeHarmsNobody) {
  Call("Count", MakeNumber(300, 10'000).SerializeAsString());
  const std::int64_t id = TakeReply();
  for (const std::int64_t consumed :
       {std::int64_t{5000}, std::int64_t{10}, std::int64_t{0},
        std::numeric_limits<std::int64_t>::max(), std::int64_t{-1}}) {
    client_->Send(FeedbackFrame(id, consumed));
  }
  for (int i = 0; i != 300; ++i) {
    ASSERT_EQ(Read().stream.frame_type(), kData);
  }
  EXPECT_EQ(Read().stream.frame_type(), kClose);
}

// While the server waits for FEEDBACK it reads input, but not all.
TEST_F(BrpcClientTest, MessagesThatAreEmptyHaveALimit) {
  service_.on_echo = [&](StreamReader<Number>, StreamWriter<Number> writer,
                         RpcServerController*) {
    while (writer.Write(MakeNumber(0, 10'000))) continue;
  };
  Call("Echo", "");
  const std::int64_t id = TakeReply();
  for (std::size_t bytes = 0; bytes < (1 << 20);) bytes += Read().rest.size();
  std::string frames;
  for (int i = 0; i != 1000; ++i) frames += StreamFrame(id, kData, 7);
  for (int i = 0; i != 550; ++i) client_->Send(frames);
  client_->Send(kUnaryCall);
  // Else this would be the reply of the other call.
  EXPECT_EQ(ReadNoFeedback().stream.frame_type(), kClose);
}

TEST_F(BrpcClientTest, AMalformedFrameEndsTheConnection) {
  client_->Send(Frame("STRM", "\x08"));
  EXPECT_TRUE(client_->AtEnd());
}

TEST_F(BrpcClientTest, FramesOfStreamsThatAreOverHaveAnEnd) {
  std::string frames;
  for (int i = 0; i != 1000; ++i) frames += StreamFrame(99, kClose);
  while (client_->TrySend(frames)) continue;
  EXPECT_TRUE(client_->AtEnd());
}

// Whatever comes, the server answers others, and each call ends with its
// connection.
TEST_F(BrpcClientTest, MutatedDialoguesLeaveNothingBehind) {
  std::mt19937_64 rng(20261129);
  Meta meta;
  meta.mutable_request()->set_service_name("flare.rpc.testing.Streamer");
  meta.mutable_request()->set_method_name("Echo");
  meta.set_correlation_id(5);
  Put(Settings(), &meta);
  const std::string number = MakeNumber(1, 20).SerializeAsString();
  const std::string dialogue =
      Frame("PRPC", meta.SerializeAsString(), number) +
      StreamFrame(1, kData, 7, number) +
      StreamFrame(1, kData, 7, number.substr(0, 9), true) +
      StreamFrame(1, kData, 7, number.substr(9)) + FeedbackFrame(1, 30) +
      Frame("PRPC", meta.SerializeAsString()) + StreamFrame(2, kClose, 7) +
      StreamFrame(1, kRst);
  for (int i = 0; i != 1000; ++i) {
    std::string bytes = dialogue;
    for (std::uint64_t n = 1 + rng() % 4; n != 0; --n) {
      const std::size_t at = rng() % bytes.size();
      switch (rng() % 3) {
        case 0:
          bytes[at] = static_cast<char>(rng());
          break;
        case 1:
          bytes.erase(at, 1 + rng() % 8);
          break;
        default:
          bytes.insert(at, 1 + rng() % 3, static_cast<char>(rng() % 4));
      }
    }
    RawClient client(server_->endpoint(), "baidu-std");
    static_cast<void>(client.TrySend(bytes));
  }
  ExpectSilence();
  client_.reset();
  server_->Stop();
  EXPECT_EQ(server_->Join(), 0u);
}

// Its own limit, of which it doesn't tell, is 2 MiB. More than the server keeps
// isn't read, and nothing is lost.
TEST_F(BrpcClientTest, WhatNobodyReadsIsHeldBack) {
  fiber::Event go;
  std::int64_t sum = 0;
  fiber::Event ended;
  service_.on_echo = [&](StreamReader<Number> reader, StreamWriter<Number>,
                         RpcServerController*) {
    go.Wait();
    for (const Number& number : reader) sum += number.value();
    ended.Set();
  };
  Call("Echo", "", {.needs_feedback = false});
  const std::int64_t id = TakeReply();
  constexpr int kMessages = 2000;
  const std::string frame =
      StreamFrame(id, kData, 7, MakeNumber(1, 16'000).SerializeAsString());
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (; sent != kMessages; ++sent) client_->Send(frame);
    client_->Send(StreamFrame(id, kClose, 7));
  });
  // Until it gets no further.
  for (int before = -1; before != sent && sent != kMessages;) {
    before = sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // 4 MB, and the kernel's buffers.
  EXPECT_LT(sent, 1500);
  go.Set();
  ended.Wait();
  sender.join();
  EXPECT_EQ(sum, kMessages);
}

// Streams' memory counts for all connections together.
class BrpcBudgetTest : public BrpcClientTest {
 protected:
  Server::Options server_options() override {
    Server::Options options = BrpcClientTest::server_options();
    options.max_buffered_bytes = 16'000'000;
    return options;
  }
};

TEST_F(BrpcBudgetTest, UnreadMessagesAndPartsEndTheConnection) {
  fiber::Event go;
  service_.on_echo = [&](StreamReader<Number> reader, StreamWriter<Number>,
                         RpcServerController*) {
    go.Wait();
    while (reader.Read()) continue;
  };
  const std::string much(3'900'000, 'x');
  std::uint64_t closed = 0;
  for (const bool in_parts : {false, true}) {
    client_.emplace(server_->endpoint(), "baidu-std");
    std::vector<std::int64_t> ids;
    while (ids.size() != 8) {
      Call("Echo", "");
      ids.push_back(TakeReply());
    }
    // It may be closed before it has taken all.
    for (const std::int64_t id : ids) {
      static_cast<void>(
          client_->TrySend(StreamFrame(id, kData, 7, much, in_parts)));
    }
    EXPECT_TRUE(client_->AtEnd());
    EXPECT_EQ(server_->statistics().connections_greedy, ++closed);
  }
  go.Set();
  client_.reset();
  server_->Stop();
  EXPECT_EQ(server_->Join(), 0u);
  EXPECT_EQ(server_->statistics().buffered_bytes, 0u);
}

// --- our client ------------------------------------------------------------

class BrpcServerTest : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    ASSERT_TRUE(
        channel_.Open("baidu-std://" + raw_server_.endpoint().ToString()));
  }

  // The next call, and its stream.
  Received TakeCall() {
    if (peer_ == nullptr) peer_ = raw_server_.Accept();
    Received call = Read();
    EXPECT_FALSE(call.is_stream);
    EXPECT_TRUE(call.call.has_stream_settings());
    client_id_ = call.call.stream_settings().stream_id();
    return call;
  }
  std::string ReplyTo(const Received& call, const Settings* settings,
                      std::string_view body = "", int error = 0) {
    Meta meta;
    meta.mutable_response()->set_error_code(error);
    if (error != 0) meta.mutable_response()->set_error_text("why");
    meta.set_correlation_id(call.call.correlation_id());
    if (settings != nullptr) Put(*settings, &meta);
    return Frame("PRPC", meta.SerializeAsString(), body);
  }
  void Accept(const Received& call, std::string_view body = "",
              const Settings& settings = {}) {
    Send(kData, ReplyTo(call, &settings, body));
  }
  void Send(FrameType type, std::string_view payload = "") {
    peer_->Send(StreamFrame(client_id_, type, 7, payload));
  }
  void SendNumber(std::int64_t value) {
    Send(kData, MakeNumber(value).SerializeAsString());
  }
  Received Read() { return Received::From(peer_.get()); }
  void ExpectReset() {
    const Received reset = Read();
    EXPECT_EQ(reset.stream.frame_type(), kRst);
    EXPECT_EQ(reset.stream.stream_id(), 7);
  }

  // More than a client takes at once.
  static inline const std::string kTooMuch = std::string(5 << 20, 'x');

  RawServer raw_server_;
  std::unique_ptr<RawPeer> peer_;
  std::int64_t client_id_ = 0;
};

TEST_F(BrpcServerTest, ExchangesMessages) {
  auto [reader, writer] = stub_.Echo(&controller_);
  const Received call = TakeCall();
  EXPECT_EQ(call.call.request().service_name(), "flare.rpc.testing.Streamer");
  EXPECT_EQ(call.call.request().method_name(), "Echo");
  EXPECT_TRUE(call.call.stream_settings().need_feedback());
  EXPECT_TRUE(call.call.stream_settings().writable());
  EXPECT_EQ(call.rest, "");
  Accept(call);
  EXPECT_TRUE(writer.Write(MakeNumber(1)));
  const Received message = Read();
  EXPECT_EQ(message.stream.stream_id(), 7);
  EXPECT_EQ(message.stream.source_stream_id(), client_id_);
  EXPECT_EQ(message.stream.frame_type(), kData);
  EXPECT_EQ(NumberIn(message.rest).value(), 1);
  SendNumber(2);
  EXPECT_EQ(reader.Read()->value(), 2);
  // brpc's stream has one end for both directions.
  writer.Close();
  Received close = Read();
  if (close.stream.frame_type() == kFeedback) close = Read();
  EXPECT_EQ(close.stream.frame_type(), kClose);
  EXPECT_FALSE(close.stream.has_half());
  SendNumber(3);
  Send(kClose);
  EXPECT_EQ(reader.Read()->value(), 3);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
  EXPECT_FALSE(controller_.Failed());
}

TEST_F(BrpcServerTest, AReplyMayBeTheFirstMessage) {
  auto reader = stub_.Count(MakeNumber(3), &controller_);
  const Received call = TakeCall();
  EXPECT_EQ(NumberIn(call.rest).value(), 3);
  Accept(call, MakeNumber(10).SerializeAsString());
  SendNumber(11);
  EXPECT_EQ(reader.Read()->value(), 10);
  EXPECT_EQ(reader.Read()->value(), 11);
  Send(kClose);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

TEST_F(BrpcServerTest, FeedbackSaysWhatWasRead) {
  auto reader = stub_.Count(MakeNumber(3), &controller_);
  Accept(TakeCall());
  const std::string bytes = MakeNumber(1, 1000).SerializeAsString();
  for (std::size_t i = 1; i <= 3; ++i) {
    Send(kData, bytes);
    EXPECT_TRUE(reader.Read());
    reader.SetExpiration(std::chrono::milliseconds(1));
    EXPECT_FALSE(reader.Read());
    const Received feedback = Read();
    EXPECT_EQ(feedback.stream.frame_type(), kFeedback);
    EXPECT_EQ(feedback.stream.feedback().consumed_size(), i * bytes.size());
    reader.SetExpiration(std::chrono::hours(1));
  }
}

TEST_F(BrpcServerTest, ThatDoesNotAcceptFailsTheCall) {
  auto reader = stub_.Count(MakeNumber(3), &controller_);
  peer_ = raw_server_.Accept();
  const Received call = TakeCall();
  peer_->Send(ReplyTo(call, nullptr));
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_NOT_SUPPORTED);
}

TEST_F(BrpcServerTest, ThatFailsTheCallIsBelieved) {
  for (const bool accepted : {false, true}) {
    controller_.Reset();
    auto [reader, writer] = stub_.Echo(&controller_);
    const Received call = TakeCall();
    const Settings settings;
    const std::string reply =
        ReplyTo(call, accepted ? &settings : nullptr, "", 2001);
    peer_->Send(accepted ? StreamFrame(client_id_, kData, 7, reply) : reply);
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(controller_.ErrorCode(), 2001);
    EXPECT_EQ(controller_.ErrorText(), "why");
    EXPECT_FALSE(writer.Write(MakeNumber(1)));
    if (accepted) {
      EXPECT_EQ(Read().stream.frame_type(), kRst);
    }
  }
}

TEST_F(BrpcServerTest, ThatResetsTheStreamFailsTheCall) {
  auto [reader, writer] = stub_.Echo(&controller_);
  Accept(TakeCall());
  peer_->Send(StreamFrame(client_id_, kRst));
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_IO_ERROR);
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
}

TEST_F(BrpcServerTest, ThatSendsBeforeItsReplyBreaksTheCall) {
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  TakeCall();
  SendNumber(1);
  EXPECT_FALSE(reader.Read());
  EXPECT_EQ(controller_.ErrorCode(), STATUS_MALFORMED_DATA);
  EXPECT_EQ(Read().stream.frame_type(), kRst);
}

// The number of the server's end is in the frame that is refused.
TEST_F(BrpcServerTest, ThatBeginsWithAFrameThatCantBeIsTold) {
  for (const bool too_large : {false, true}) {
    controller_.Reset();
    auto reader = stub_.Count(MakeNumber(1), &controller_);
    TakeCall();
    if (too_large) {
      Send(kData, kTooMuch);
    } else {
      Send(static_cast<FrameType>(77));
    }
    ExpectReset();
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(controller_.ErrorCode(), STATUS_MALFORMED_DATA);
  }
}

TEST_F(BrpcServerTest, ThatEndsWithinAMessageFailsTheCall) {
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  Accept(TakeCall());
  peer_->Send(StreamFrame(client_id_, kData, 7, "x", true));
  Send(kClose);
  ExpectReset();
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(controller_.ErrorCode(), STATUS_MALFORMED_DATA);
}

// Its status can't be read.
TEST_F(BrpcServerTest, WhoseEndIsTooLargeFailsTheCall) {
  auto reader = stub_.Count(MakeNumber(1), &controller_);
  Accept(TakeCall());
  Send(kClose, kTooMuch);
  EXPECT_EQ(reader.Read().error(), StreamError::IoError);
  EXPECT_EQ(controller_.ErrorCode(), STATUS_MALFORMED_DATA);
}

TEST_F(BrpcServerTest, ACancelledCallResetsTheStream) {
  auto [reader, writer] = stub_.Echo(&controller_);
  Accept(TakeCall());
  ASSERT_TRUE(writer.Write(MakeNumber(1)));
  Read();
  controller_.StartCancel();
  ExpectReset();
}

TEST_F(BrpcServerTest, ACallThatWasCancelledBeforeItsReplyResetsTheStream) {
  {
    auto [reader, writer] = stub_.Echo(&controller_);
    TakeCall();
  }
  Received call;
  call.call.set_correlation_id(client_id_);
  Accept(call);
  ExpectReset();
}

TEST_F(BrpcServerTest, MutatedRepliesEndTheirCalls) {
  std::mt19937_64 rng(20261129);
  const std::string number = MakeNumber(1, 20).SerializeAsString();
  for (int i = 0; i != 300; ++i) {
    // Its connection is a new one.
    RawServer server;
    RpcChannel channel("baidu-std://" + server.endpoint().ToString());
    auto [reader, writer] = Streamer_SyncStub(&channel).Echo();
    reader.SetExpiration(std::chrono::seconds(15));
    peer_ = server.Accept();
    const Received call = TakeCall();
    const Settings settings;
    std::string bytes =
        StreamFrame(client_id_, kData, 7, ReplyTo(call, &settings, number)) +
        StreamFrame(client_id_, kData, 7, number) +
        FeedbackFrame(client_id_, 20) + StreamFrame(client_id_, kClose, 7);
    for (std::uint64_t n = rng() % 4; n != 0; --n) {
      const std::size_t at = rng() % bytes.size();
      if (rng() % 2 == 0) {
        bytes[at] = static_cast<char>(rng());
      } else {
        bytes.erase(at, 1 + rng() % 8);
      }
    }
    peer_->Send(bytes);
    peer_->Close();
    while (reader.Read()) continue;
    EXPECT_NE(reader.error(), StreamError::Timeout);
  }
}

TEST_F(BrpcServerTest, WritersWaitForTheReply) {
  auto [reader, writer] = stub_.Echo(&controller_);
  const Received call = TakeCall();
  writer.SetExpiration(std::chrono::milliseconds(10));
  EXPECT_FALSE(writer.Write(MakeNumber(1)));
  EXPECT_FALSE(peer_->HasInput());
  writer.SetExpiration(std::chrono::hours(1));
  writer.Close();  // It is told later, too.
  EXPECT_FALSE(peer_->HasInput());
  Accept(call);
  EXPECT_EQ(Read().stream.frame_type(), kClose);
  Send(kClose);
  EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
}

}  // namespace
}  // namespace flare::rpc::testing
