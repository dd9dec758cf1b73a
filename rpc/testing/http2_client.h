// A client that speaks HTTP/2 to a server, for tests.
//
//   Http2Client client(endpoint());
//   Http2ClientStream* const stream = client.Ask("GET", "/page");
//   EXPECT_EQ(client.Reply(stream), ":status=200;...;\nbody");
//
// For one thread; blocks it.
#ifndef FLARE_RPC_TESTING_HTTP2_CLIENT_H_
#define FLARE_RPC_TESTING_HTTP2_CLIENT_H_

#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/testing/raw_client.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

struct Http2ClientStream final : Http2Stream {
  std::string head;
  std::string data;
  bool takes = true;  // Bytes that have come are granted anew.
  bool ended = false;
  bool closed = false;
  Http2Error error = Http2Error::kNoError;
};

class Http2Client final : private Http2Handler {
 public:
  // Each stream's, in bytes.
  static constexpr std::size_t kWindow = 64 << 10;
  static constexpr int kMaxWaitMs = 60'000;

  explicit Http2Client(const Endpoint& server)
      : raw_(server), session_(Http2Session::Role::kClient, {}, this) {}

  Http2ClientStream* Ask(std::string_view method, std::string_view path,
                         std::string_view body = {},
                         const std::vector<Http2Field>& more = {}) {
    Http2ClientStream* const stream =
        Begin(method, path, body, more, /*end=*/body.empty());
    if (!body.empty()) session_.SendEnd(stream);
    return stream;
  }
  // More of the body may follow, unless it is at its `end`.
  Http2ClientStream* Begin(std::string_view method, std::string_view path,
                           std::string_view body,
                           const std::vector<Http2Field>& more,
                           bool end = false) {
    streams_.push_back(std::make_unique<Http2ClientStream>());
    Http2ClientStream* const stream = streams_.back().get();
    std::vector<Http2Field> fields = {{":method", method},
                                      {":scheme", "http"},
                                      {":authority", "localhost"},
                                      {":path", path}};
    fields.insert(fields.end(), more.begin(), more.end());
    EXPECT_TRUE(session_.Open(stream, fields, end));
    if (!body.empty()) session_.SendData(stream, CreateBufferSlow(body));
    return stream;
  }

  // The last of the body.
  void End(Http2ClientStream* stream, std::string_view body) {
    session_.SendData(stream, CreateBufferSlow(body), /*end=*/true);
  }

  // The server takes no further streams.
  bool has_goaway() const { return has_goaway_; }

  // Reads until that is so.
  void Await(const std::function<bool()>& condition) {
    ASSERT_TRUE(TryAwait(condition)) << "the connection has ended";
  }
  // False: the connection has ended, or nothing comes.
  bool TryAwait(const std::function<bool()>& condition) {
    for (;;) {
      if (!raw_.TrySend(FlattenSlow(session_.Flush()))) return false;
      if (condition()) return true;
      pollfd readable = {.fd = raw_.fd(), .events = POLLIN};
      if (poll(&readable, 1, kMaxWaitMs) != 1) return false;
      char bytes[16 << 10];
      const ssize_t n = read(raw_.fd(), bytes, sizeof(bytes));
      if (n <= 0) return false;
      const std::string_view got(bytes, static_cast<std::size_t>(n));
      if (!session_.Receive(CreateBufferSlow(got))) return condition();
    }
  }
  void AwaitEnd(Http2ClientStream* stream) {
    Await([stream] { return stream->ended || stream->closed; });
  }
  // Its head, and its body.
  std::string Reply(Http2ClientStream* stream) {
    AwaitEnd(stream);
    return stream->head + "\n" + stream->data;
  }

  void Take(Http2ClientStream* stream) {
    stream->takes = true;
    session_.Grant(stream, stream->data.size());
  }
  void Reset(Http2ClientStream* stream,
             Http2Error error = Http2Error::kCancel) {
    session_.SendReset(stream, error);
    raw_.Send(FlattenSlow(session_.Flush()));
  }
  void Close() { raw_.Close(); }
  Endpoint address() const { return io::GetLocalEndpoint(raw_.fd()); }

 private:
  Http2Stream* OnStream() override { return nullptr; }
  bool OnField(Http2Stream* base, std::string_view name,
               std::string_view value) override {
    static_cast<Http2ClientStream*>(base)
        ->head.append(name)
        .append("=")
        .append(value)
        .append(";");
    return true;
  }
  void OnHeaders(Http2Stream*, bool, bool) override {}
  void OnData(Http2Stream* base, Buffer&& bytes) override {
    auto* const stream = static_cast<Http2ClientStream*>(base);
    stream->data += FlattenSlow(bytes);
    if (stream->takes) session_.Grant(stream, bytes.size());
  }
  void OnEnd(Http2Stream* base) override {
    static_cast<Http2ClientStream*>(base)->ended = true;
  }
  void OnSent(Http2Stream*, std::size_t) override {}
  void OnClosed(Http2Stream* base, Http2Error error, bool) override {
    static_cast<Http2ClientStream*>(base)->closed = true;
    static_cast<Http2ClientStream*>(base)->error = error;
  }
  void OnGoAway(std::int32_t, Http2Error, std::string_view) override {
    has_goaway_ = true;
  }

  RawClient raw_;
  bool has_goaway_ = false;
  std::vector<std::unique_ptr<Http2ClientStream>> streams_;
  Http2Session session_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_HTTP2_CLIENT_H_
