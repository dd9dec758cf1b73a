#include "flare/rpc/http2/http2_session.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
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
  int pongs = 0;
  std::int32_t goaway_last = -1;
  Http2Error goaway_error = Http2Error::kNoError;
  std::string goaway_text;
};

class Http2SessionTest : public ::testing::Test {
 protected:
  // What both have to say goes over, until neither says anything.
  void Exchange() {
    for (;;) {
      Buffer to_server = client.Flush();
      Buffer to_client = server.Flush();
      if (to_server.empty() && to_client.empty()) return;
      server_fine = server.Receive(std::move(to_server)) && server_fine;
      client_fine = client.Receive(std::move(to_client)) && client_fine;
    }
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
  server.Grant(peer, 200'000);  // The window grows by what is more.
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
                          /*end=*/true));
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
  EXPECT_LE(at_server.streams.size(), 22u);
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

// DATA or HEADERS, without content.
std::string HeaderOf(int type, std::int32_t id) {
  return std::string("\0\0\0", 3) + static_cast<char>(type) + '\4' +
         std::string("\0\0\0", 3) + static_cast<char>(id);
}

TEST_F(Http2SessionTest, FramesOfEndedStreamsBreakTheSession) {
  TestStream first;
  Open(&first, /*end=*/true);
  server.CheckFrame(HeaderOf(0, 1));  // It is open: libnghttp2 will see.
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(first.ended);
  server.CheckFrame(HeaderOf(3, 1));  // A reset may have crossed the end.
  server.CheckFrame(HeaderOf(1, 3));  // A new one.
  EXPECT_FALSE(server.broken());
  server.CheckFrame(HeaderOf(0, 1));
  EXPECT_TRUE(server.broken());
  EXPECT_EQ(server.error(), "HTTP/2: a frame of a stream that has ended");
  Exchange();
  EXPECT_EQ(at_client.goaway_error, Http2Error::kStreamClosed);
}

TEST_F(Http2SessionTest, FramesOfStreamsThatWeEndedAreIgnored) {
  TestStream stream;
  Open(&stream, /*end=*/false);
  server.SendHeaders(at_server.streams[0].get(), {{":status", "200"}},
                     /*end=*/true);
  Exchange();
  EXPECT_TRUE(stream.closed);
  server.CheckFrame(HeaderOf(0, 1));  // It was on its way.
  server.CheckFrame(HeaderOf(1, 1));
  EXPECT_FALSE(server.broken());
}

TEST_F(Http2SessionTest, AStreamThatWasPassedOverCantBeOpened) {
  TestStream first;
  Open(&first, /*end=*/false);
  Exchange();
  // HEADERS of stream 7, with the fields of GET http://x/.
  const std::string head = "\x82\x86\x84\x41\x01x";
  std::string frame = HeaderOf(1, 7) + head;
  frame[2] = static_cast<char>(head.size());
  EXPECT_TRUE(server.Receive(CreateBufferSlow(frame)));
  EXPECT_EQ(at_server.streams.size(), 2u);
  server.CheckFrame(HeaderOf(1, 1));  // Trailers.
  EXPECT_FALSE(server.broken());
  server.CheckFrame(HeaderOf(1, 5));
  EXPECT_TRUE(server.broken());
  Exchange();
  EXPECT_EQ(at_client.goaway_error, Http2Error::kProtocolError);
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
                           /*end=*/true) &&
               (Exchange(), !next.closed));
}

}  // namespace
}  // namespace flare::rpc
