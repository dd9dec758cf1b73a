// Http2Session and libnghttp2, either as the server of the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/http2/nghttp2_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Message = testing::Nghttp2Peer::Message;
using Peer = testing::Nghttp2Peer;

constexpr int kStreams = 30;

struct OwnStream final : Http2Stream {
  Message message;
  bool closed = false;
};

// The other, by ours.
class Own final : public Http2Handler {
 public:
  explicit Own(Http2Session::Role role)
      : role_(role), session(role, {}, this) {}

  OwnStream* Make() {
    streams.push_back(std::make_unique<OwnStream>());
    return streams.back().get();
  }

  Http2Stream* OnStream() override { return Make(); }
  bool OnField(Http2Stream* stream, std::string_view name,
               std::string_view value) override {
    Of(stream)->message.fields.append(name).append("=").append(value).append(
        ";");
    return true;
  }
  void OnHeaders(Http2Stream*, bool, bool) override {}
  void OnData(Http2Stream* stream, Buffer&& bytes) override {
    session.Grant(stream, bytes.size());
    Of(stream)->message.data += FlattenSlow(bytes);
  }
  void OnEnd(Http2Stream* stream) override {
    const Message& message = Of(stream)->message;
    Of(stream)->message.ended = true;
    if (role_ == Http2Session::Role::kClient) return;
    session.SendHeaders(stream, {{":status", "200"}, {"had", message.fields}},
                        false);
    session.SendData(stream, CreateBufferSlow(message.data));
    session.SendTrailers(stream, {{"last", "1"}});
  }
  void OnSent(Http2Stream*, std::size_t) override {}
  void OnClosed(Http2Stream* stream, Http2Error error, bool) override {
    EXPECT_EQ(error, Http2Error::kNoError);
    Of(stream)->closed = true;
  }

  static OwnStream* Of(Http2Stream* stream) {
    return static_cast<OwnStream*>(stream);
  }

 private:
  const Http2Session::Role role_;

 public:
  std::vector<std::unique_ptr<OwnStream>> streams;
  Http2Session session;
};

void Exchange(Own* own, Peer* peer) {
  for (;;) {
    std::string to_own = peer->Flush();
    const Buffer to_peer = own->session.Flush();
    if (to_own.empty() && to_peer.empty()) return;
    ASSERT_TRUE(peer->Receive(to_peer));
    ASSERT_TRUE(own->session.Receive(CreateBufferSlow(to_own)))
        << own->session.error();
  }
}

// Small ones, and some that are larger than the windows.
std::string BodyOf(int i) {
  return std::string(
      static_cast<std::size_t>(i) * static_cast<std::size_t>(i) * 1000,
      static_cast<char>('a' + i % 26));
}
std::string PathOf(int i) { return "/page" + std::to_string(i % 7); }
std::string HadOf(int i) {
  return ":method=POST;:scheme=http;:path=" + PathOf(i) + ";:authority=here;";
}

TEST(Http2PeerTest, ServesLibnghttp2) {
  Own own(Http2Session::Role::kServer);
  Peer peer(/*server=*/false);
  for (int round = 0; round != 3; ++round) {
    std::map<std::int32_t, int> asked;
    for (int i = 0; i != kStreams; ++i) {
      asked[peer.Ask(PathOf(i), BodyOf(i))] = i;
    }
    Exchange(&own, &peer);
    for (const auto& [id, i] : asked) {
      const Message& message = peer.messages[id];
      EXPECT_EQ(message.fields, ":status=200;had=" + HadOf(i) + ";last=1;");
      EXPECT_TRUE(message.data == BodyOf(i)) << i;
      EXPECT_TRUE(message.ended);
    }
  }
  for (const auto& stream : own.streams) EXPECT_TRUE(stream->closed);
  EXPECT_EQ(peer.goaways, 0);
}

TEST(Http2PeerTest, AsksLibnghttp2) {
  Own own(Http2Session::Role::kClient);
  Peer peer(/*server=*/true);
  for (int round = 0; round != 3; ++round) {
    own.streams.clear();
    for (int i = 0; i != kStreams; ++i) {
      const std::string path = PathOf(i);
      OwnStream* const stream = own.Make();
      ASSERT_TRUE(own.session.Open(stream,
                                   {{":method", "POST"},
                                    {":scheme", "http"},
                                    {":path", path},
                                    {":authority", "here"}},
                                   /*end=*/false));
      own.session.SendData(stream, CreateBufferSlow(BodyOf(i)), /*end=*/true);
    }
    Exchange(&own, &peer);
    for (int i = 0; i != kStreams; ++i) {
      const OwnStream& stream = *own.streams[static_cast<std::size_t>(i)];
      EXPECT_EQ(stream.message.fields,
                ":status=200;had=" + HadOf(i) + ";last=1;");
      EXPECT_TRUE(stream.message.data == BodyOf(i)) << i;
      EXPECT_TRUE(stream.closed);
    }
  }
  EXPECT_EQ(peer.goaways, 0);
}

}  // namespace
}  // namespace flare::rpc
