#include "flare/rpc/http2/http2_session.h"

#include <time.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/rpc/wire/framing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

struct TestStream : Http2Stream {
  std::vector<std::string> fields;
  std::string data;
  std::size_t sent = 0;
  bool trailers = false;
  bool ended = false;
  bool closed = false;
  bool by_peer = false;
  Http2Error error = Http2Error::kNoError;
};

struct TestHandler final : Http2Handler {
  Http2Stream* OnStream() override {
    if (refuse) return nullptr;
    streams.push_back(std::make_unique<TestStream>());
    return streams.back().get();
  }
  bool KeepHead(Http2Stream*, std::size_t place) override {
    EXPECT_LT(place, Http2Session::kKnownHeads);
    return knows_heads;
  }
  void OnSameHead(Http2Stream*, std::size_t) override { ++same_heads; }
  bool OnField(Http2Stream* stream, std::string_view name,
               std::string_view value) override {
    Of(stream)->fields.push_back(std::string(name) + "=" + std::string(value));
    return true;
  }
  void OnHeaders(Http2Stream* stream, bool trailers, bool) override {
    Of(stream)->trailers = trailers;
  }
  void OnData(Http2Stream* stream, Buffer&& bytes) override {
    Of(stream)->data += FlattenSlow(bytes);
    if (pausing != nullptr) pausing->Pause();
  }
  void OnEnd(Http2Stream* stream) override { Of(stream)->ended = true; }
  void OnSent(Http2Stream* stream, std::size_t bytes) override {
    Of(stream)->sent += bytes;
  }
  void OnClosed(Http2Stream* stream, Http2Error error, bool by_peer) override {
    Of(stream)->closed = true;
    Of(stream)->error = error;
    Of(stream)->by_peer = by_peer;
  }
  void OnGoAway(std::int32_t last_id, Http2Error error,
                std::string_view text) override {
    goaway_last = last_id;
    goaway_error = error;
    goaway_text = text;
  }
  void OnPong() override { ++pongs; }

  static TestStream* Of(Http2Stream* stream) {
    return static_cast<TestStream*>(stream);
  }

  std::vector<std::unique_ptr<TestStream>> streams;
  bool refuse = false;
  bool knows_heads = false;
  int same_heads = 0;
  Http2Session* pausing = nullptr;
  int pongs = 0;
  std::int32_t goaway_last = -1;
  Http2Error goaway_error = Http2Error::kNoError;
  std::string goaway_text;
};

class Http2SessionTest : public ::testing::Test {
 protected:
  // Passes both sides' output over, until neither has any.
  void Exchange() {
    for (;;) {
      Buffer to_server = client.Flush();
      Buffer to_client = server.Flush();
      if (to_server.empty() && to_client.empty()) return;
      server_fine = server.Receive(std::move(to_server)) && server_fine;
      client_fine = client.Receive(std::move(to_client)) && client_fine;
    }
  }

  // From a client that breaks the rules, or goes to their limits.
  bool ServerTakes(std::string_view frames) {
    return server.Receive(CreateBufferSlow(frames));
  }

  void Open(TestStream* stream, bool end) {
    ASSERT_TRUE(client.Open(stream,
                            {{":method", "POST"},
                             {":scheme", "http"},
                             {":path", "/a.B/C"},
                             {":authority", "here"},
                             {"te", "trailers"}},
                            end));
    Exchange();
  }

  static Http2Session::Options Small() {
    return {.max_header_list = 1000,
            .max_control_frames_per_second = 200,
            .max_resets_per_second = 20};
  }

  TestHandler at_server;
  TestHandler at_client;
  Http2Session server{Http2Session::Role::kServer, Small(), &at_server};
  Http2Session client{Http2Session::Role::kClient, {}, &at_client};
  bool server_fine = true;
  bool client_fine = true;
};

TEST_F(Http2SessionTest, CarriesARequestAndItsResponse) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  ASSERT_EQ(at_server.streams.size(), 1u);
  TestStream* const peer = at_server.streams[0].get();
  EXPECT_EQ(peer->id(), stream.id());
  EXPECT_EQ(server.Find(peer->id()), peer);
  EXPECT_EQ(peer->fields[0], ":method=POST");
  EXPECT_FALSE(peer->ended);

  client.SendData(&stream, CreateBufferSlow("question"));
  client.SendEnd(&stream);
  Exchange();
  EXPECT_EQ(peer->data, "question");
  EXPECT_TRUE(peer->ended);
  EXPECT_EQ(stream.sent, 8u);

  server.SendHeaders(peer, {{":status", "200"}, {"x", "y"}}, /*end=*/false);
  server.SendData(peer, CreateBufferSlow("answer"));
  server.SendTrailers(peer, {{"grpc-status", "0"}});
  Exchange();
  EXPECT_EQ(stream.fields,
            (std::vector<std::string>{":status=200", "x=y", "grpc-status=0"}));
  EXPECT_EQ(stream.data, "answer");
  EXPECT_TRUE(stream.trailers);
  EXPECT_TRUE(stream.ended);
  EXPECT_TRUE(stream.closed);
  EXPECT_TRUE(peer->closed);
  EXPECT_EQ(peer->error, Http2Error::kNoError);
  EXPECT_EQ(server.Find(peer->id()), nullptr);
  EXPECT_TRUE(server_fine && client_fine);
}

TEST_F(Http2SessionTest, BytesMayComeOneByOne) {
  TestStream stream;
  ASSERT_TRUE(client.Open(&stream,
                          {{":method", "POST"},
                           {":scheme", "http"},
                           {":path", "/"},
                           {":authority", "here"}},
                          /*end=*/false));
  const std::string data(2000, 'd');
  client.SendData(&stream, CreateBufferSlow(data));
  client.SendEnd(&stream);
  const std::string bytes = FlattenSlow(client.Flush());
  EXPECT_TRUE(bytes.starts_with(Http2Session::kPreface));
  for (const char c : bytes) {
    ASSERT_TRUE(server.Receive(CreateBufferSlow(std::string(1, c))));
  }
  ASSERT_EQ(at_server.streams.size(), 1u);
  EXPECT_EQ(at_server.streams[0]->data, data);
  EXPECT_TRUE(at_server.streams[0]->ended);
}

TEST_F(Http2SessionTest, DataWaitForTheWindow) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  const std::string data(100'000, 'd');
  client.SendData(&stream, CreateBufferSlow(data));
  client.SendEnd(&stream);
  Exchange();
  EXPECT_EQ(peer->data.size(), 64u << 10);
  EXPECT_EQ(server.Window(*peer), 0u);
  EXPECT_EQ(stream.queued(), data.size() - (64 << 10));
  EXPECT_EQ(stream.sent, 64u << 10);
  EXPECT_FALSE(peer->ended);
  server.Grant(peer, 200'000);  // The window grows by the difference.
  Exchange();
  EXPECT_EQ(peer->data, data);
  EXPECT_TRUE(peer->ended);
  EXPECT_EQ(stream.sent, data.size());
}

TEST_F(Http2SessionTest, TheConnectionsWindowIsGrantedAsDataCome) {
  std::vector<std::unique_ptr<TestStream>> streams;
  for (int i = 0; i != 200; ++i) {  // 12 MiB of 4 in the window.
    streams.push_back(std::make_unique<TestStream>());
    Open(streams.back().get(), /*end=*/false);
    client.SendData(streams.back().get(),
                    CreateBufferSlow(std::string(64 << 10, 'd')));
    Exchange();
    ASSERT_EQ(at_server.streams.back()->data.size(), 64u << 10) << i;
  }
}

TEST_F(Http2SessionTest, PeersResetsAreTold) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  client.SendReset(&stream, Http2Error::kCancel);
  Exchange();
  EXPECT_TRUE(peer->closed);
  EXPECT_TRUE(peer->by_peer);
  EXPECT_EQ(peer->error, Http2Error::kCancel);
  EXPECT_TRUE(stream.closed);
  EXPECT_FALSE(stream.by_peer);
}

TEST_F(Http2SessionTest, AnEarlyResponseEndsTheRequest) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  server.SendHeaders(peer, {{":status", "200"}, {"grpc-status", "12"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(stream.ended);
  EXPECT_TRUE(stream.closed);
  EXPECT_TRUE(peer->closed);
  EXPECT_EQ(stream.error, Http2Error::kNoError);
}

TEST_F(Http2SessionTest, RefusesStreams) {
  at_server.refuse = true;
  TestStream stream;
  Open(&stream, /*end=*/false);
  EXPECT_TRUE(stream.closed);
  EXPECT_TRUE(stream.by_peer);
  EXPECT_EQ(stream.error, Http2Error::kRefusedStream);
}

TEST_F(Http2SessionTest, LargeHeadsResetTheStream) {
  TestStream stream;
  const std::string value(900, 'v');
  ASSERT_TRUE(client.Open(&stream,
                          {{":method", "POST"},
                           {":scheme", "http"},
                           {":path", "/"},
                           {":authority", "here"},
                           {"big", value},
                           {"bigger", value}},
                          /*end=*/false));
  client.SendData(&stream, CreateBufferSlow("data"), /*end=*/true);
  Exchange();
  EXPECT_TRUE(stream.closed);
  EXPECT_EQ(stream.error, Http2Error::kEnhanceYourCalm);
  TestStream next;
  Open(&next, /*end=*/true);
  EXPECT_TRUE(at_server.streams.back()->ended);
  EXPECT_TRUE(server_fine);
}

TEST_F(Http2SessionTest, PingsAreAnswered) {
  client.Ping();
  Exchange();
  EXPECT_EQ(at_client.pongs, 1);
}

TEST_F(Http2SessionTest, FloodsOfPingsEndTheSession) {
  for (int i = 0; i != 300; ++i) client.Ping();
  Exchange();
  EXPECT_FALSE(server_fine);
  EXPECT_EQ(at_client.goaway_error, Http2Error::kEnhanceYourCalm);
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

TEST_F(Http2SessionTest, MessagesMayBringPingsAlong) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  for (int i = 0; i != 1000; ++i) {
    client.SendData(&stream, CreateBufferSlow("d"));
    client.Ping();
    Exchange();
    ASSERT_TRUE(server_fine) << i;
  }
}

TEST_F(Http2SessionTest, FloodsOfResetsEndTheSession) {
  SetVirtualNow(NowNs());  // Within a second.
  std::vector<std::unique_ptr<TestStream>> streams;
  for (int i = 0; i != 40; ++i) {
    streams.push_back(std::make_unique<TestStream>());
    ASSERT_TRUE(client.Open(streams.back().get(),
                            {{":method", "POST"},
                             {":scheme", "http"},
                             {":path", "/"},
                             {":authority", "here"}},
                            /*end=*/false));
    Buffer opened = client.Flush();
    client.SendReset(streams.back().get(), Http2Error::kCancel);
    opened.Append(client.Flush());
    if (!server.Receive(std::move(opened))) server_fine = false;
  }
  EXPECT_FALSE(server_fine);
  EXPECT_NE(server.error().find("streams are reset"), std::string::npos);
  EXPECT_EQ(at_server.streams.size(), 21u);
  EndVirtualNow();
}

TEST_F(Http2SessionTest, GarbageFailsTheSession) {
  EXPECT_FALSE(server.Receive(CreateBufferSlow("GET / HTTP/1.1\r\n\r\n     ")));
  EXPECT_NE(server.error(), "");
}

TEST_F(Http2SessionTest, BadFramesAreAnsweredWithGoAway) {
  Exchange();
  // DATA on stream 0.
  static_cast<void>(
      server.Receive(CreateBufferSlow(std::string("\0\0\1\0\0\0\0\0\0x", 10))));
  Exchange();
  EXPECT_TRUE(server.over());
  EXPECT_EQ(at_client.goaway_error, Http2Error::kProtocolError);
}

// A frame that ends no stream, and a block of fields if it is HEADERS.
std::string Frame(Http2FrameType type, std::int32_t id,
                  std::string_view payload = {}, std::uint8_t flags = 0) {
  std::string frame(Http2FrameHeader::kSize, '\0');
  if (type == Http2FrameType::kHeaders) flags |= kHttp2EndHeaders;
  Http2FrameHeader{.length = static_cast<std::uint32_t>(payload.size()),
                   .type = type,
                   .flags = flags,
                   .stream = id}
      .Store(frame.data());
  return frame.append(payload);
}

constexpr std::string_view kNumber("\0\0\0\1", 4);
// In HPACK: GET http://x/.
constexpr std::string_view kHead = "\x82\x86\x84\x41\x01x";

// So many streams, from that number on, and then their resets.
std::string Heads(std::int32_t first, int count) {
  std::string frames;
  for (int i = 0; i != count; ++i) {
    frames +=
        Frame(Http2FrameType::kHeaders, first + 2 * i, kHead, kHttp2EndStream);
  }
  return frames;
}
std::string Resets(std::int32_t first, int count) {
  std::string frames;
  for (int i = 0; i != count; ++i) {
    frames += Frame(Http2FrameType::kRstStream, first + 2 * i, kNumber);
  }
  return frames;
}

class Http2ResetTest : public Http2SessionTest {
 protected:
  Http2ResetTest() {
    Pass(0);
    Exchange();
  }
  ~Http2ResetTest() override { EndVirtualNow(); }

  void Pass(int ms) { SetVirtualNow(now_ += ms * kNsPerMs); }

 private:
  std::int64_t now_ = NowNs();
};

// However long there was peace before.
TEST_F(Http2ResetTest, FloodsInBatchesEndTheSession) {
  for (const int wait_ms : {0, 9}) {
    TestHandler handler;
    Http2Session other(Http2Session::Role::kServer, Small(), &handler);
    bool fine =
        other.Receive(CreateBufferSlow(std::string(Http2Session::kPreface) +
                                       Frame(Http2FrameType::kSettings, 0)));
    for (int round = 0; round != 10 && fine; ++round) {
      Pass(20);
      fine = other.Receive(CreateBufferSlow(Heads(1 + 10 * round, 5)));
      Pass(wait_ms);
      fine = fine && other.Receive(CreateBufferSlow(Resets(1 + 10 * round, 5)));
    }
    EXPECT_FALSE(fine);
    EXPECT_EQ(handler.streams.size(), 25u);
    EXPECT_NE(other.error().find("streams are reset"), std::string::npos);
  }
}

// Their calls may all have timed out. Heads pay for no resets.
TEST_F(Http2ResetTest, ManyStreamsThatHaveWaitedMayBeReset) {
  bool fine = true;
  std::int32_t first = 1;
  for (; first < 8000 && fine; first += 80) {
    fine = ServerTakes(Heads(first, 40));
    Pass(10);
    fine = fine && ServerTakes(Resets(first, 40));
  }
  // The limit is 200, with SETTINGS.
  EXPECT_FALSE(fine);
  EXPECT_EQ(at_server.streams.size(), 200u);
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

// Their timeouts may be short.
TEST_F(Http2ResetTest, AnsweredStreamsPayForResets) {
  std::int32_t next = 1;
  for (int round = 0; round != 3; ++round) {
    ASSERT_TRUE(ServerTakes(Heads(next, 40)));
    for (std::size_t i = at_server.streams.size() - 40;
         i != at_server.streams.size(); ++i) {
      server.SendHeaders(at_server.streams[i].get(), {{":status", "200"}},
                         /*end=*/true);
    }
    static_cast<void>(server.Flush());
    next += 80;
    ASSERT_TRUE(ServerTakes(Heads(next, 40) + Resets(next, 40)));
    next += 80;
  }
  EXPECT_TRUE(ServerTakes(Heads(next, 20) + Resets(next, 20)));
  next += 40;
  EXPECT_FALSE(ServerTakes(Heads(next, 1) + Resets(next, 1)));
  EXPECT_NE(server.error().find("streams are reset"), std::string::npos);
}

TEST_F(Http2SessionTest, FramesOfEndedStreamsBreakTheSession) {
  TestStream first;
  Open(&first, /*end=*/true);
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(first.ended);
  // These may have crossed the end.
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kRstStream, 1, kNumber)));
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kWindowUpdate, 1, kNumber)));
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 3, kHead)));
  EXPECT_FALSE(ServerTakes(Frame(Http2FrameType::kData, 1)));
  EXPECT_TRUE(server.broken());
  EXPECT_EQ(server.error(), "HTTP/2: a frame of a stream that has ended");
  Exchange();
  EXPECT_EQ(at_client.goaway_error, Http2Error::kStreamClosed);
}

TEST_F(Http2SessionTest, FramesBehindTheEndBreakTheSession) {
  for (const auto type : {Http2FrameType::kData, Http2FrameType::kHeaders}) {
    TestHandler handler;
    Http2Session other(Http2Session::Role::kServer, Small(), &handler);
    EXPECT_TRUE(other.Receive(CreateBufferSlow(
        std::string(Http2Session::kPreface) +
        Frame(Http2FrameType::kSettings, 0) +
        Frame(Http2FrameType::kHeaders, 1, kHead, kHttp2EndStream))));
    EXPECT_FALSE(other.Receive(CreateBufferSlow(Frame(type, 1))));
    EXPECT_TRUE(handler.streams[0]->ended);
  }
}

// As by gRPC's C core, whether the request has ended or not, at once or later.
TEST_F(Http2SessionTest, AServerMayEndAStreamTwice) {
  for (const bool request_ends : {false, true}) {
    TestStream stream;
    Open(&stream, request_ends);
    // In HPACK: status 200.
    const std::string end =
        Frame(Http2FrameType::kHeaders, stream.id(), "\x88", kHttp2EndStream) +
        Frame(Http2FrameType::kRstStream, stream.id(),
              std::string_view("\0\0\0\0", 4));
    EXPECT_TRUE(client.Receive(CreateBufferSlow(end + end)));
    Exchange();
    EXPECT_TRUE(stream.ended && stream.closed);
    EXPECT_EQ(stream.fields, std::vector<std::string>{":status=200"});
    EXPECT_TRUE(client.Receive(CreateBufferSlow(end)));
  }
  EXPECT_TRUE(client_fine);
}

TEST_F(Http2SessionTest, FramesOfStreamsThatWeEndedAreIgnored) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(stream.closed);
  // They were on their way.
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kData, 1)));
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 1)));
}

// However many frames, before and behind Flush(). More are a flood.
TEST_F(Http2SessionTest, AWindowOfDataMayBeOnItsWayWhenAStreamEnds) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  const std::string frame =
      Frame(Http2FrameType::kData, 1, std::string(64, 'd'));
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  for (int i = 0; i != 1024; ++i) {
    if (i == 500) static_cast<void>(server.Flush());
    ASSERT_TRUE(ServerTakes(frame)) << i;
  }
  bool fine = true;
  for (int i = 0; i != 300 && fine; ++i) fine = ServerTakes(frame);
  EXPECT_FALSE(fine);
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

// A client that is slow to read has thousands of small frames to acknowledge at
// once, each by an update of both windows.
TEST_F(Http2SessionTest, FramesOfDataMayBeAcknowledgedTogether) {
  constexpr int kFrames = 3000;
  TestStream stream;
  Open(&stream, /*end=*/true);
  Http2Stream* const reply = at_server.streams[0].get();
  server.SendHeaders(reply, {{":status", "200"}}, /*end=*/false);
  const std::string one("\0\0\0\1", 4);
  const std::string both = Frame(Http2FrameType::kWindowUpdate, 1, one) +
                           Frame(Http2FrameType::kWindowUpdate, 0, one);
  std::string updates;
  for (int i = 0; i != kFrames; ++i) {
    server.SendData(reply, CreateBufferSlow("d"));
    static_cast<void>(server.Flush());
    updates += both;
  }
  EXPECT_TRUE(ServerTakes(updates)) << server.error();
  // More of the kind are a flood.
  bool fine = true;
  for (int i = 0; i != 3 && fine; ++i) fine = ServerTakes(updates);
  EXPECT_FALSE(fine);
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

TEST_F(Http2SessionTest, FramesThatBringNothingAreCounted) {
  for (const std::string& frame :
       {Frame(Http2FrameType::kData, 1, std::string(1, '\0'), kHttp2Padded),
        Frame(Http2FrameType::kHeaders, 3)}) {
    TestHandler handler;
    Http2Session other(Http2Session::Role::kServer, Small(), &handler);
    EXPECT_TRUE(other.Receive(
        CreateBufferSlow(std::string(Http2Session::kPreface) +
                         Frame(Http2FrameType::kSettings, 0) +
                         Frame(Http2FrameType::kHeaders, 1, kHead) +
                         Frame(Http2FrameType::kHeaders, 3, kHead))));
    other.SendReset(handler.streams[1].get(), Http2Error::kCancel);
    bool fine = true;
    for (int i = 0; i != 300 && fine; ++i) {
      fine = other.Receive(CreateBufferSlow(frame));
      if (i == 100) static_cast<void>(other.Flush());
    }
    EXPECT_FALSE(fine);
    EXPECT_NE(other.error().find("too many frames"), std::string::npos);
  }
}

TEST_F(Http2SessionTest, FloodsOfStreamsThatAreRefusedEndTheSession) {
  Exchange();
  at_server.refuse = true;
  bool fine = true;
  for (std::int32_t i = 0; i != 300 && fine; ++i) {
    fine = ServerTakes(Frame(Http2FrameType::kHeaders, 2 * i + 1, kHead));
  }
  EXPECT_FALSE(fine);
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

// Each concerns all streams.
TEST_F(Http2SessionTest, FloodsOfChangesOfTheWindowEndTheSession) {
  Exchange();
  const std::string changes =
      Frame(Http2FrameType::kSettings, 0, std::string("\0\4\0\0\0\0", 6)) +
      Frame(Http2FrameType::kSettings, 0, std::string("\0\4\0\0\0\1", 6));
  bool fine = true;
  for (int i = 0; i != 80 && fine; ++i) fine = ServerTakes(changes);
  EXPECT_FALSE(fine);
  EXPECT_EQ(server.error(), "HTTP/2: too many changes of the initial window");
}

TEST_F(Http2SessionTest, AStreamThatWasPassedOverCantBeOpened) {
  TestStream first;
  Open(&first, /*end=*/false);
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 7, kHead)));
  EXPECT_EQ(at_server.streams.size(), 2u);
  // Trailers.
  EXPECT_TRUE(
      ServerTakes(Frame(Http2FrameType::kHeaders, 1, {}, kHttp2EndStream)));
  EXPECT_FALSE(ServerTakes(Frame(Http2FrameType::kHeaders, 5, kHead)));
  Exchange();
  EXPECT_EQ(at_client.goaway_error, Http2Error::kProtocolError);
}

TEST_F(Http2SessionTest, MalformedHeadsResetTheirStream) {
  using Fields = std::vector<Http2Field>;
  const Fields good = {{":method", "POST"},
                       {":scheme", "http"},
                       {":path", "/"},
                       {":authority", "here"}};
  const auto outcome = [&](const Fields& fields) {
    TestStream stream;
    EXPECT_TRUE(client.Open(&stream, fields, /*end=*/false));
    client.SendData(&stream, CreateBufferSlow("data"), /*end=*/true);
    Exchange();
    EXPECT_TRUE(server_fine);
    EXPECT_TRUE(stream.closed);
    return stream.error;
  };
  for (const Http2Field& wrong : {Http2Field{"Upper", "case"},
                                  {"connection", "close"},
                                  {"te", "gzip"},
                                  {":method", "GET"},
                                  {":late", "pseudo"},
                                  {"a", "line\nbreak"},
                                  {"content-length", "5"},
                                  {"content-length", "x"}}) {
    Fields fields = good;
    fields.push_back(wrong);
    EXPECT_EQ(outcome(fields), Http2Error::kProtocolError) << wrong.name;
  }
  for (std::size_t i = 0; i != good.size(); ++i) {
    Fields fields = good;
    fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(outcome(fields), Http2Error::kProtocolError) << good[i].name;
  }
}

TEST_F(Http2SessionTest, AMalformedResponseResetsItsStream) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  server.SendHeaders(peer, {{":status", "200"}, {"Upper", "case"}}, false);
  server.SendData(peer, CreateBufferSlow("data"));
  Exchange();
  EXPECT_TRUE(client_fine);
  EXPECT_EQ(stream.error, Http2Error::kProtocolError);
  EXPECT_TRUE(peer->by_peer);
}

TEST_F(Http2SessionTest, ContentIsAsLongAsItsHeadSays) {
  const auto outcome = [&](std::string_view announced, bool end) {
    TestStream stream;
    EXPECT_TRUE(client.Open(&stream,
                            {{":method", "POST"},
                             {":scheme", "http"},
                             {":path", "/"},
                             {":authority", "here"},
                             {"content-length", announced}},
                            /*end=*/false));
    client.SendData(&stream, CreateBufferSlow("four"), end);
    Exchange();
    if (!stream.closed) client.SendReset(&stream, Http2Error::kCancel);
    Exchange();
    EXPECT_TRUE(server_fine);
    return stream.error;
  };
  const auto expect_outcomes = [&](int times) {
    for (int i = 0; i != times; ++i) {
      EXPECT_EQ(outcome("4", true), Http2Error::kCancel);
    }
    for (int i = 0; i != times; ++i) {
      EXPECT_EQ(outcome("5", false), Http2Error::kCancel);
      EXPECT_EQ(outcome("5", true), Http2Error::kProtocolError);
    }
    for (int i = 0; i != times; ++i) {
      EXPECT_EQ(outcome("3", false), Http2Error::kProtocolError);
    }
  };
  expect_outcomes(1);
  EXPECT_EQ(at_server.same_heads, 0);
  at_server.knows_heads = true;
  expect_outcomes(3);  // The first of each length is kept.
  EXPECT_EQ(at_server.same_heads, 2 + 5 + 2);
}

TEST_F(Http2SessionTest, HeadsThatComeAgainAreKnown) {
  at_server.knows_heads = true;
  const auto open = [&](std::string_view path, std::string_view varying) {
    TestStream stream;
    EXPECT_TRUE(client.Open(&stream,
                            {{":method", "POST"},
                             {":scheme", "http"},
                             {":path", path},
                             {":authority", "here"},
                             {"varying", varying, HpackIndexing::kOmit}},
                            /*end=*/true));
    Exchange();
    TestStream* const peer = at_server.streams.back().get();
    server.SendHeaders(peer, {{":status", "200"}}, /*end=*/true);
    Exchange();
    EXPECT_TRUE(stream.closed);
    return peer->fields.empty();
  };
  EXPECT_FALSE(open("/a", "1"));  // Its fields are new to the table.
  EXPECT_FALSE(open("/a", "1"));
  EXPECT_TRUE(open("/a", "1"));
  EXPECT_TRUE(open("/a", "1"));
  EXPECT_EQ(at_server.same_heads, 2);
  EXPECT_FALSE(open("/a", "2"));
  EXPECT_TRUE(open("/a", "2"));
  EXPECT_FALSE(open("/b", "2"));  // It changes the table.
  EXPECT_FALSE(open("/a", "2"));
  EXPECT_TRUE(open("/a", "2"));
  // As many as there are places.
  for (const char* varying : {"3", "4", "5", "6", "7"}) {
    EXPECT_FALSE(open("/a", varying));
    EXPECT_TRUE(open("/a", varying));
  }
  for (const char* varying : {"4", "5", "6", "7"}) {
    EXPECT_TRUE(open("/a", varying));
  }
  EXPECT_FALSE(open("/a", "3"));
  at_server.knows_heads = false;
  EXPECT_FALSE(open("/a", "8"));
  EXPECT_FALSE(open("/a", "8"));
  EXPECT_TRUE(server_fine);
}

// Bytes equal to the earlier ones mean other fields meanwhile.
TEST_F(Http2SessionTest, ATableThatHasChangedMakesOtherHeads) {
  Exchange();
  at_server.knows_heads = true;
  const std::string head("\x82\x86\x84\xbe");  // 62: the latest field.
  const std::string adds("\x82\x86\x84\x41\1x");
  ASSERT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 1, adds) +
                          Frame(Http2FrameType::kHeaders, 3, head) +
                          Frame(Http2FrameType::kHeaders, 5, head)));
  EXPECT_EQ(at_server.same_heads, 1);
  EXPECT_EQ(at_server.streams[1]->fields[3], ":authority=x");
  ASSERT_TRUE(
      ServerTakes(Frame(Http2FrameType::kHeaders, 7, "\x82\x86\x84\x41\1y") +
                  Frame(Http2FrameType::kHeaders, 9, head)));
  EXPECT_EQ(at_server.streams[4]->fields[3], ":authority=y");
  // A table of another size may have dropped its entry.
  ASSERT_TRUE(
      ServerTakes(Frame(Http2FrameType::kHeaders, 11, "\x3f\xe1\x1e" + head) +
                  Frame(Http2FrameType::kHeaders, 13, head)));
  EXPECT_EQ(at_server.same_heads, 1);
  // No bytes are not those of a head that is known no more.
  ASSERT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 15, head) +
                          Frame(Http2FrameType::kHeaders, 17, adds) +
                          Frame(Http2FrameType::kHeaders, 19, "")));
  EXPECT_EQ(at_server.same_heads, 2);
  static_cast<void>(server.Flush());
  EXPECT_EQ(at_server.streams.back()->error, Http2Error::kProtocolError);
}

TEST_F(Http2SessionTest, TrailersChangeTheTableToo) {
  Exchange();
  at_server.knows_heads = true;
  const std::string adds("\x82\x86\x84\x41\1x");
  const std::string head("\x82\x86\x84\xbe");
  ASSERT_TRUE(ServerTakes(Frame(Http2FrameType::kHeaders, 1, adds) +
                          Frame(Http2FrameType::kHeaders, 3, head) +
                          Frame(Http2FrameType::kHeaders, 1,
                                std::string("\x40\1t\1u"), kHttp2EndStream) +
                          Frame(Http2FrameType::kHeaders, 5, head)));
  EXPECT_EQ(at_server.same_heads, 0);
  EXPECT_EQ(at_server.streams[2]->fields.back(), "t=u");
}

TEST_F(Http2SessionTest, ResponsesInOnePieceAreAsThoseInSeveral) {
  const Http2Field head_fields[] = {{":status", "200"}, {"kind", "fixed"}};
  const Http2Field trailer_fields[] = {{"grpc-status", "0"}};
  Http2FixedFields head(head_fields);
  Http2FixedFields trailers(trailer_fields);
  const std::vector<std::string> fields = {":status=200", "kind=fixed",
                                           "grpc-status=0"};
  const auto respond = [&](TestStream* stream) {
    TestStream* const peer = at_server.streams.back().get();
    server.SendResponse(
        peer, &head, 6, [](BufferBuilder* out) { out->Append("answer"); },
        &trailers);
    EXPECT_EQ(peer->sent, 6u);
    Exchange();
    EXPECT_EQ(stream->fields, fields);
    EXPECT_TRUE(stream->trailers);
    EXPECT_EQ(stream->data, "answer");
    EXPECT_TRUE(stream->closed);
    EXPECT_EQ(stream->error, Http2Error::kNoError);
  };
  for (int i = 0; i != 200; ++i) {
    TestStream stream;
    Open(&stream, /*end=*/i % 3 != 0);  // Or it is reset.
    respond(&stream);
    if (i % 7 != 0) continue;
    // Others come into the table, and push ours out of it.
    TestStream other;
    Open(&other, /*end=*/true);
    const std::string value(100, static_cast<char>('a' + i % 26));
    server.SendHeaders(at_server.streams.back().get(),
                       {{":status", "200"}, {"other", value}}, /*end=*/true);
    Exchange();
    EXPECT_EQ(other.fields.back(), "other=" + value);
    if (i % 14 != 0) continue;
    ASSERT_TRUE(ServerTakes(Frame(
        Http2FrameType::kSettings, 0,
        std::string(i % 28 == 0 ? "\0\1\0\0\0\0" : "\0\1\0\0\x10\0", 6))));
  }
  EXPECT_TRUE(client_fine);
  // With a window that is too small, and opens later.
  const auto set_window = [&](std::string_view size) {
    EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kSettings, 0,
                                  std::string("\0\4", 2).append(size))));
  };
  set_window({"\0\0\0\3", 4});
  TestStream stream;
  Open(&stream, /*end=*/true);
  server.SendResponse(
      at_server.streams.back().get(), &head, 6,
      [](BufferBuilder* out) { out->Append("answer"); }, &trailers);
  Exchange();
  EXPECT_EQ(stream.data, "ans");
  EXPECT_FALSE(stream.ended);
  set_window({"\0\0\xff\xff", 4});
  Exchange();
  EXPECT_EQ(stream.data, "answer");
  EXPECT_EQ(stream.fields, fields);
  EXPECT_TRUE(stream.closed);
  EXPECT_TRUE(client_fine && server_fine);
}

TEST_F(Http2SessionTest, LongHeadsComeInPieces) {
  const std::string value(40'000, 'v');
  TestStream stream;
  Open(&stream, /*end=*/true);
  server.SendHeaders(at_server.streams[0].get(),
                     {{":status", "200"}, {"long", value}}, /*end=*/true);
  Exchange();
  EXPECT_EQ(stream.fields.back(), "long=" + value);
  EXPECT_TRUE(stream.ended);
}

TEST_F(Http2SessionTest, HeadsWithoutEndBreakTheSession) {
  Exchange();
  const std::string piece(10'000, '\0');
  std::string frame = Frame(Http2FrameType::kHeaders, 1, piece);
  frame[4] = 0;
  EXPECT_TRUE(ServerTakes(frame));
  bool fine = true;
  for (int i = 0; i != 5 && fine; ++i) {
    fine = ServerTakes(Frame(Http2FrameType::kContinuation, 1, piece));
  }
  EXPECT_FALSE(fine);
  EXPECT_EQ(server.error(), "HTTP/2: a block of fields that is too large");
}

TEST_F(Http2SessionTest, SmallPiecesOfHeadsAreCounted) {
  Exchange();
  std::string frames = Frame(Http2FrameType::kHeaders, 1);
  frames[4] = 0;
  for (int i = 0; i != 300; ++i) {
    frames += Frame(Http2FrameType::kContinuation, 1);
  }
  EXPECT_FALSE(ServerTakes(frames));
  EXPECT_NE(server.error().find("too many frames"), std::string::npos);
}

TEST_F(Http2SessionTest, NothingMayComeBetweenPiecesOfAHead) {
  Exchange();
  std::string frame = Frame(Http2FrameType::kHeaders, 1, kHead);
  frame[4] = 0;
  EXPECT_FALSE(
      ServerTakes(frame + Frame(static_cast<Http2FrameType>(0x77), 0)));
}

TEST_F(Http2SessionTest, UnknownFramesArePassedOver) {
  Exchange();
  EXPECT_TRUE(
      ServerTakes(Frame(static_cast<Http2FrameType>(0x77), 0, "x") +
                  Frame(Http2FrameType::kPriority, 9, std::string(5, '\0'))));
}

// Faults of the peer, and the codes of the answers.
TEST_F(Http2SessionTest, WrongFramesBreakTheSession) {
  using Type = Http2FrameType;
  struct Wrong {
    Type type;
    std::int32_t id;
    std::string payload;
    Http2Error error;
    std::uint8_t flags = 0;
  };
  const std::string most = "\x7f\xff\xff\xff";
  for (const Wrong& wrong : std::vector<Wrong>{
           {Type::kData, 0, "x", Http2Error::kProtocolError},
           {Type::kData, 3, "x", Http2Error::kProtocolError},
           {Type::kData, 1, "\7x", Http2Error::kProtocolError, kHttp2Padded},
           {Type::kData, 1, "", Http2Error::kProtocolError, kHttp2Padded},
           {Type::kData, 1, std::string(16'385, 'x'),
            Http2Error::kFrameSizeError},
           {Type::kHeaders, 0, std::string(kHead), Http2Error::kProtocolError},
           {Type::kHeaders, 2, std::string(kHead), Http2Error::kProtocolError},
           {Type::kHeaders, 3, "\x7fx", Http2Error::kProtocolError,
            kHttp2Padded},
           {Type::kHeaders, 3, "\xff\xff\x7f", Http2Error::kCompressionError},
           {Type::kPriority, 0, std::string(5, '\0'),
            Http2Error::kProtocolError},
           {Type::kPriority, 3, "x", Http2Error::kFrameSizeError},
           {Type::kPriority, 3, std::string("\0\0\0\3x", 5),
            Http2Error::kProtocolError},
           {Type::kRstStream, 0, most, Http2Error::kProtocolError},
           {Type::kRstStream, 3, most, Http2Error::kProtocolError},
           {Type::kRstStream, 1, "x", Http2Error::kFrameSizeError},
           {Type::kSettings, 1, "", Http2Error::kProtocolError},
           {Type::kSettings, 0, "x", Http2Error::kFrameSizeError},
           {Type::kSettings, 0, "sixsix", Http2Error::kFrameSizeError,
            kHttp2Ack},
           {Type::kSettings, 0, std::string("\0\2\0\0\0\2", 6),
            Http2Error::kProtocolError},
           {Type::kSettings, 0, std::string("\0\4\xff\0\0\0", 6),
            Http2Error::kFlowControlError},
           {Type::kSettings, 0, std::string("\0\5\0\0\0\1", 6),
            Http2Error::kProtocolError},
           {Type::kPushPromise, 1, most, Http2Error::kProtocolError},
           {Type::kPing, 1, "eight123", Http2Error::kProtocolError},
           {Type::kPing, 0, "x", Http2Error::kFrameSizeError},
           {Type::kGoAway, 1, "eight123", Http2Error::kProtocolError},
           {Type::kGoAway, 0, "x", Http2Error::kFrameSizeError},
           {Type::kWindowUpdate, 0, std::string(4, '\0'),
            Http2Error::kProtocolError},
           {Type::kWindowUpdate, 0, most, Http2Error::kFlowControlError},
           {Type::kWindowUpdate, 3, most, Http2Error::kProtocolError},
           {Type::kWindowUpdate, 1, "x", Http2Error::kFrameSizeError},
           {Type::kContinuation, 1, "x", Http2Error::kProtocolError}}) {
    TestHandler handler;
    Http2Session other(Http2Session::Role::kServer, Small(), &handler);
    EXPECT_TRUE(other.Receive(CreateBufferSlow(
        std::string(Http2Session::kPreface) + Frame(Type::kSettings, 0) +
        Frame(Type::kHeaders, 1, kHead))));
    static_cast<void>(other.Flush());
    EXPECT_FALSE(other.Receive(CreateBufferSlow(
        Frame(wrong.type, wrong.id, wrong.payload, wrong.flags))));
    const std::string said = FlattenSlow(other.Flush());
    ASSERT_GE(said.size(), 17u) << other.error();
    EXPECT_EQ(static_cast<Http2FrameType>(said[3]), Type::kGoAway);
    EXPECT_EQ(ReadBigEndian32(said.data() + 13),
              static_cast<std::uint32_t>(wrong.error))
        << other.error();
  }
}

TEST_F(Http2SessionTest, WindowsOfStreamsMustNotOverflow) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  EXPECT_TRUE(
      ServerTakes(Frame(Http2FrameType::kWindowUpdate, 1, "\x7f\xff\xff\xff")));
  Exchange();
  EXPECT_EQ(stream.error, Http2Error::kFlowControlError);
}

TEST_F(Http2SessionTest, MoreThanTheWindowResetsTheStream) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  const std::string data(16'384, 'd');
  for (int i = 0; i != 4; ++i) {
    EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kData, 1, data)));
  }
  EXPECT_EQ(server.Window(*at_server.streams[0]), 0u);
  EXPECT_TRUE(ServerTakes(Frame(Http2FrameType::kData, 1, "d")));
  Exchange();
  EXPECT_EQ(stream.error, Http2Error::kFlowControlError);
}

TEST_F(Http2SessionTest, PaddingIsGrantedAnew) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  const std::string padded =
      "\xff"
      "d" +
      std::string(255, '\0');
  for (int i = 0; i != 1000; ++i) {  // 250 KiB.
    ASSERT_TRUE(
        ServerTakes(Frame(Http2FrameType::kData, 1, padded, kHttp2Padded)));
  }
  EXPECT_EQ(peer->data, std::string(1000, 'd'));
  EXPECT_GE(server.Window(*peer), (48u << 10) - 1000);
}

TEST_F(Http2SessionTest, ASmallerWindowIsKeptTo) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  TestStream* const peer = at_server.streams[0].get();
  server.SendHeaders(peer, {{":status", "200"}}, /*end=*/false);
  server.SendData(peer, CreateBufferSlow(std::string(10'000, 'd')));
  // 5,000 less than the sent bytes is open.
  EXPECT_TRUE(ServerTakes(
      Frame(Http2FrameType::kSettings, 0, std::string("\0\4\0\0\x13\x88", 6))));
  server.SendData(peer, CreateBufferSlow("more"));
  EXPECT_EQ(peer->queued(), 4u);
  EXPECT_TRUE(ServerTakes(
      Frame(Http2FrameType::kWindowUpdate, 1, std::string("\0\0\x13\x88", 4))));
  static_cast<void>(server.Flush());
  EXPECT_EQ(peer->queued(), 4u);
  EXPECT_TRUE(ServerTakes(
      Frame(Http2FrameType::kWindowUpdate, 1, std::string("\0\0\0\4", 4))));
  static_cast<void>(server.Flush());
  EXPECT_EQ(peer->queued(), 0u);
}

// A session's output, by streams: the bytes of their data, and whether their
// last frame was trailers.
struct Sent {
  std::size_t data = 0;
  bool trailers = false;
};
std::map<std::int32_t, Sent> SentBy(Http2Session* session) {
  std::map<std::int32_t, Sent> sent;
  const std::string bytes = FlattenSlow(session->Flush());
  for (std::size_t at = 0; at != bytes.size();) {
    const auto header = Http2FrameHeader::Parse(bytes.data() + at);
    at += Http2FrameHeader::kSize + header.length;
    Sent& stream = sent[header.stream];
    if (header.type == Http2FrameType::kData) stream.data += header.length;
    stream.trailers =
        header.type == Http2FrameType::kHeaders && header.Has(kHttp2EndStream);
  }
  return sent;
}

// By turns, a frame each. Trailers wait, too.
TEST_F(Http2SessionTest, StreamsShareTheConnectionsWindow) {
  const auto number = [](std::uint32_t n) {
    std::string bytes(4, '\0');
    PutBigEndian32(n, bytes.data());
    return bytes;
  };
  std::string opening(Http2Session::kPreface);
  opening += Frame(Http2FrameType::kSettings, 0,
                   std::string("\0\4", 2) + number(100'000));
  for (const std::int32_t id : {1, 3, 5}) {
    opening += Frame(Http2FrameType::kHeaders, id, kHead, kHttp2EndStream);
  }
  EXPECT_TRUE(ServerTakes(opening));
  const auto respond = [&](std::size_t i, std::size_t size) {
    TestStream* const stream = at_server.streams[i].get();
    server.SendHeaders(stream, {{":status", "200"}}, /*end=*/false);
    server.SendData(stream, CreateBufferSlow(std::string(size, 'd')));
    server.SendTrailers(stream, {{"last", "1"}});
  };
  respond(0, 65'535);  // All of the connection's window.
  respond(1, 60'000);
  respond(2, 60'000);
  auto sent = SentBy(&server);
  EXPECT_EQ(sent[1].data, 65'535u);
  EXPECT_TRUE(sent[1].trailers);
  EXPECT_EQ(sent[3].data + sent[5].data, 0u);
  EXPECT_TRUE(
      ServerTakes(Frame(Http2FrameType::kWindowUpdate, 0, number(40'000))));
  sent = SentBy(&server);
  EXPECT_EQ(sent[3].data, 40'000u - 16'384);
  EXPECT_EQ(sent[5].data, 16'384u);
  EXPECT_FALSE(sent[3].trailers || sent[5].trailers);
  EXPECT_TRUE(
      ServerTakes(Frame(Http2FrameType::kWindowUpdate, 0, number(80'000))));
  sent = SentBy(&server);
  EXPECT_EQ(sent[3].data, 60'000u - (40'000 - 16'384));
  EXPECT_EQ(sent[5].data, 60'000u - 16'384);
  EXPECT_TRUE(sent[3].trailers && sent[5].trailers);
}

TEST_F(Http2SessionTest, StreamsWaitForTheirTurn) {
  Exchange();
  Http2Session::Options few;
  few.max_concurrent_streams = 2;
  TestHandler handler;
  Http2Session narrow(Http2Session::Role::kServer, few, &handler);
  const auto exchange = [&] {
    for (;;) {
      Buffer to_server = client.Flush();
      Buffer to_client = narrow.Flush();
      if (to_server.empty() && to_client.empty()) return;
      EXPECT_TRUE(narrow.Receive(std::move(to_server)));
      EXPECT_TRUE(client.Receive(std::move(to_client)));
    }
  };
  EXPECT_TRUE(narrow.Receive(CreateBufferSlow(Http2Session::kPreface)));
  EXPECT_TRUE(
      narrow.Receive(CreateBufferSlow(Frame(Http2FrameType::kSettings, 0))));
  exchange();
  TestStream streams[5];
  for (TestStream& stream : streams) {
    ASSERT_TRUE(client.Open(&stream,
                            {{":method", "POST"},
                             {":scheme", "http"},
                             {":path", "/"},
                             {":authority", "here"}},
                            /*end=*/false));
    client.SendData(&stream, CreateBufferSlow("data"));
    client.SendTrailers(&stream, {{"last", "1"}});
  }
  client.SendReset(&streams[3], Http2Error::kCancel);
  exchange();
  EXPECT_EQ(handler.streams.size(), 2u);
  EXPECT_TRUE(streams[3].closed);
  for (std::size_t i = 0; i != handler.streams.size(); ++i) {
    EXPECT_EQ(handler.streams[i]->data, "data");
    EXPECT_EQ(handler.streams[i]->fields.back(), "last=1");
    narrow.SendHeaders(handler.streams[i].get(), {{":status", "200"}},
                       /*end=*/true);
    exchange();
  }
  EXPECT_EQ(handler.streams.size(), 4u);
  for (const TestStream& stream : streams) EXPECT_TRUE(stream.closed);
}

// Though the peer would take streams of higher numbers.
TEST_F(Http2SessionTest, StreamsThatWaitArentOpenedBehindGoAway) {
  static_cast<void>(client.Flush());
  TestStream streams[2];
  // One stream at a time.
  EXPECT_TRUE(client.Receive(CreateBufferSlow(
      Frame(Http2FrameType::kSettings, 0, std::string("\0\3\0\0\0\1", 6)))));
  for (TestStream& stream : streams) {
    ASSERT_TRUE(client.Open(&stream,
                            {{":method", "GET"},
                             {":scheme", "http"},
                             {":path", "/"},
                             {":authority", "here"}},
                            /*end=*/true));
  }
  EXPECT_FALSE(streams[0].waits_to_open());
  EXPECT_TRUE(streams[1].waits_to_open());
  EXPECT_TRUE(client.Receive(
      CreateBufferSlow(Frame(Http2FrameType::kGoAway, 0,
                             std::string("\x7f\xff\xff\xff\0\0\0\0", 8)))));
  EXPECT_TRUE(streams[1].closed);
  EXPECT_EQ(streams[1].error, Http2Error::kRefusedStream);
  EXPECT_FALSE(streams[0].closed);
}

TEST_F(Http2SessionTest, MoreStreamsThanTheLimitAreRefused) {
  Http2Session::Options few;
  few.max_concurrent_streams = 1;
  TestHandler handler;
  Http2Session narrow(Http2Session::Role::kServer, few, &handler);
  EXPECT_TRUE(narrow.Receive(
      CreateBufferSlow(std::string(Http2Session::kPreface) +
                       Frame(Http2FrameType::kSettings, 0) +
                       Frame(Http2FrameType::kHeaders, 1, kHead) +
                       Frame(Http2FrameType::kHeaders, 3, kHead))));
  EXPECT_EQ(handler.streams.size(), 1u);
  EXPECT_TRUE(FlattenSlow(narrow.Flush())
                  .ends_with(std::string("\0\0\4\3\0\0\0\0\3\0\0\0\7", 13)));
}

TEST_F(Http2SessionTest, TheHandlerMayPause) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  at_server.pausing = &server;
  Buffer in =
      CreateBufferSlow(Frame(Http2FrameType::kData, 1, "a") +
                       Frame(Http2FrameType::kData, 1, "b") +
                       Frame(Http2FrameType::kData, 1, "c").substr(0, 9));
  TestStream* const peer = at_server.streams[0].get();
  EXPECT_TRUE(server.Receive(&in));
  EXPECT_EQ(peer->data, "a");
  EXPECT_TRUE(server.Receive(&in));
  EXPECT_EQ(peer->data, "ab");
  EXPECT_TRUE(server.Receive(&in));
  EXPECT_EQ(in.size(), 9u);
  EXPECT_EQ(server.need(), 10u);
}

TEST_F(Http2SessionTest, GoAwayLetsOpenStreamsEnd) {
  TestStream stream;
  Open(&stream, /*end=*/true);
  server.SendShutdownNotice();
  Exchange();
  EXPECT_EQ(at_client.goaway_last, 0x7fffffff);
  server.SendGoAway(Http2Error::kNoError, "stopping");
  Exchange();
  EXPECT_EQ(at_client.goaway_last, stream.id());
  EXPECT_EQ(at_client.goaway_text, "stopping");
  EXPECT_FALSE(server.over());
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(stream.ended);
  TestStream next;
  EXPECT_FALSE(client.Open(&next,
                           {{":method", "POST"},
                            {":scheme", "http"},
                            {":path", "/"},
                            {":authority", "here"}},
                           /*end=*/true));
}

// A server may let few streams begin, or no data go, while callers give up
// thousands of calls that wait.
TEST_F(Http2SessionTest, StreamsThatWaitAreClosedInConstantTime) {
  constexpr int kStreams = 200'000;
  for (const bool for_data : {false, true}) {
    TestHandler handler;
    Http2Session session(Http2Session::Role::kClient, {}, &handler);
    // SETTINGS: one stream at a time, or any number.
    const std::string settings("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\1", 15);
    ASSERT_TRUE(session.Receive(CreateBufferSlow(
        for_data ? std::string("\0\0\0\4\0\0\0\0\0", 9) : settings)));
    std::vector<std::unique_ptr<TestStream>> streams;
    const auto open = [&](std::size_t bytes) {
      streams.push_back(std::make_unique<TestStream>());
      ASSERT_TRUE(session.Open(streams.back().get(),
                               {{":method", "POST"}, {":path", "/"}},
                               /*end=*/false));
      session.SendData(streams.back().get(),
                       CreateBufferSlow(std::string(bytes, 'x')));
    };
    open(65535);  // As much as the connection's window.
    for (int i = 1; i != kStreams; ++i) open(1);
    static_cast<void>(session.Flush());
    EXPECT_EQ(streams.back()->waits_to_open(), !for_data);
    EXPECT_EQ(streams.back()->queued(), 1u);
    timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    const time_t began = cpu.tv_sec;
    // The last ones first, but one.
    for (int i = kStreams - 1; i != 1; --i) {
      session.SendReset(streams[i].get(), Http2Error::kCancel);
      static_cast<void>(session.Flush());
      ASSERT_TRUE(streams[i]->closed);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    EXPECT_LE(cpu.tv_sec - began, 8) << "with " << for_data;
    // The one that is left has its turn.
    if (!for_data) {
      session.SendReset(streams[0].get(), Http2Error::kCancel);
    } else {
      // WINDOW_UPDATE by 1
      ASSERT_TRUE(session.Receive(
          CreateBufferSlow(std::string("\0\0\4\10\0\0\0\0\0\0\0\0\1", 13))));
    }
    static_cast<void>(session.Flush());
    EXPECT_FALSE(streams[1]->waits_to_open());
    EXPECT_EQ(streams[1]->queued(), for_data ? 0u : 1u);
  }
}

}  // namespace
}  // namespace flare::rpc
