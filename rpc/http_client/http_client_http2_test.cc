// Requests over HTTP/2: servers that do as a test says, libnghttp2, and servers
// of this library.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/http2/http2_frame.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/http2/nghttp2_testing.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using ::testing::HasSubstr;
using testing::RawPeer;

std::string ReadFrame(RawPeer* raw) {
  std::string frame = raw->ReadExactly(Http2FrameHeader::kSize);
  if (frame.size() < Http2FrameHeader::kSize) return "";
  return frame + raw->ReadExactly(Http2FrameHeader::Parse(frame.data()).length);
}

std::string Frame(Http2FrameType type, std::int32_t stream,
                  std::string_view payload) {
  std::string frame(Http2FrameHeader::kSize, '\0');
  Http2FrameHeader{.length = static_cast<std::uint32_t>(payload.size()),
                   .type = type,
                   .stream = stream}
      .Store(frame.data());
  return frame.append(payload);
}

// One connection's server, in the thread of the test.
class Http2Server final : private Http2Handler {
 public:
  struct Stream final : Http2Stream {
    std::string head;
    std::string body;
    bool ended = false;
    bool closed = false;
    Http2Error error = Http2Error::kNoError;
    std::size_t sent = 0;
  };

  explicit Http2Server(std::unique_ptr<RawPeer> raw,
                       const Http2Session::Options& options = {})
      : raw_(std::move(raw)),
        session(Http2Session::Role::kServer, options, this) {
    Receive(raw_->ReadExactly(Http2Session::kPreface.size()));
  }

  // Reads until that is so.
  void Await(const std::function<bool()>& condition) {
    for (;;) {
      Flush();
      if (condition()) return;
      const std::string frame = ReadFrame(raw_.get());
      ASSERT_FALSE(frame.empty());
      Receive(frame);
    }
  }
  // The n-th request, counted from 0; whole, unless only its `head` matters.
  Stream* Request(std::size_t n, bool head = false) {
    Await([&] {
      return streams_.size() > n &&
             (streams_[n]->ended || (head && !streams_[n]->head.empty()));
    });
    return streams_[n].get();
  }

  void Answer(Stream* stream, std::string_view body,
              std::vector<Http2Field> more = {}) {
    Head(stream, std::move(more), /*end=*/body.empty());
    if (!body.empty()) session.SendData(stream, CreateBufferSlow(body), true);
    Flush();
  }
  void Head(Stream* stream, std::vector<Http2Field> more, bool end = false,
            std::string_view status = "200") {
    std::vector<Http2Field> fields{{":status", status}};
    fields.insert(fields.end(), more.begin(), more.end());
    session.SendHeaders(stream, fields, end);
  }
  void Reset(Stream* stream, Http2Error error) {
    session.SendReset(stream, error);
    Flush();
  }
  void Flush() { raw_->Send(FlattenSlow(session.Flush())); }
  std::size_t requests() const { return streams_.size(); }
  RawPeer* raw() { return raw_.get(); }

 private:
  void Receive(const std::string& bytes) {
    static_cast<void>(session.Receive(CreateBufferSlow(bytes)));
  }

  Http2Stream* OnStream() override {
    streams_.push_back(std::make_unique<Stream>());
    return streams_.back().get();
  }
  bool OnField(Http2Stream* base, std::string_view name,
               std::string_view value) override {
    auto* const stream = static_cast<Stream*>(base);
    stream->head.append(name).append("=").append(value).append(";");
    return true;
  }
  void OnHeaders(Http2Stream*, bool, bool) override {}
  void OnData(Http2Stream* base, Buffer&& bytes) override {
    static_cast<Stream*>(base)->body += FlattenSlow(bytes);
    session.Grant(base, bytes.size());
  }
  void OnEnd(Http2Stream* base) override {
    static_cast<Stream*>(base)->ended = true;
  }
  void OnSent(Http2Stream* base, std::size_t bytes) override {
    static_cast<Stream*>(base)->sent += bytes;
  }
  void OnClosed(Http2Stream* base, Http2Error error, bool) override {
    static_cast<Stream*>(base)->closed = true;
    static_cast<Stream*>(base)->error = error;
  }

  const std::unique_ptr<RawPeer> raw_;
  std::vector<std::unique_ptr<Stream>> streams_;

 public:
  Http2Session session;
};

constexpr HttpClientHttp2 kKnown = HttpClientHttp2::kPriorKnowledge;

class HttpClientHttp2Test : public testing::ClientTest {
 protected:
  std::string url() const {
    return "http://" + raw_.endpoint().ToString() + "/page?a=b";
  }
  Future<HttpClient::Result> Get(HttpRequestOptions options = {}) {
    options.timeout = 20s;
    return client_.AsyncGet(url(), options);
  }
  Future<HttpClient::Result> Post(std::string body,
                                  HttpRequestOptions options = {}) {
    options.timeout = 20s;
    return client_.AsyncPost(url(), std::move(body), options);
  }
  Future<HttpClient::Result> Send(HttpMethod method) {
    HttpRequest request;
    request.set_method(method);
    request.set_uri("/");
    return client_.AsyncRequest("http", raw_.endpoint().ToString(), request,
                                {.timeout = 20s});
  }
  Http2Server Accept(Http2Session::Options options = {}) {
    return Http2Server(raw_.Accept(), options);
  }
  static std::string BodyOf(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? *result->body() : result.error().ToString();
  }
  // The status, or the error.
  static int CodeOf(Future<HttpClient::Result> future) {
    const auto result = fiber::BlockingGet(std::move(future));
    return result ? static_cast<int>(result->status()) : result.error().code();
  }
  // Further requests are answered over that connection.
  void ExpectGoesOn(Http2Server* server) {
    const std::size_t n = server->requests();
    auto future = Get();
    server->Answer(server->Request(n), "fine");
    EXPECT_EQ(BodyOf(std::move(future)), "fine");
    EXPECT_FALSE(raw_.HasVisitor());
  }

  testing::RawServer raw_;
  HttpClient client_{{.connect_timeout = 20s, .http2 = kKnown}};
};

// --- requests and responses --------------------------------------------------

TEST_F(HttpClientHttp2Test, HasTheFieldsOfHttp2) {
  auto future = Get({.headers = {"X-Upper: 1", "Cookie: secret"}});
  auto server = Accept();
  auto* const request = server.Request(0);
  EXPECT_THAT(request->head, HasSubstr(":method=GET;:scheme=http;:authority=" +
                                       raw_.endpoint().ToString() +
                                       ";:path=/page?a=b;user-agent=flare/"));
  EXPECT_THAT(request->head,
              HasSubstr(";accept=*/*;x-upper=1;cookie=secret;accept-encoding="
                        "gzip;"));
  EXPECT_EQ(request->head.find("host="), std::string::npos);
  server.Answer(request, "hello", {{"x-a", "1"}, {"x-a", ""}});
  const auto response = fiber::BlockingGet(std::move(future));
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->status(), HttpStatus::OK);
  EXPECT_EQ(response->version(), HttpVersion::kHttp2);
  EXPECT_EQ(response->headers()->ToString(), "x-a: 1\r\nx-a: \r\n");
  EXPECT_EQ(*response->body(), "hello");
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, RequestsShareAConnection) {
  std::vector<Future<HttpClient::Result>> futures;
  for (int i = 0; i != 5; ++i) futures.push_back(Get());
  auto server = Accept();
  server.Request(4);
  for (std::size_t i = 5; i-- != 0;) {
    server.Answer(server.Request(i), std::to_string(i));
  }
  std::string bodies;
  for (auto& future : futures) bodies += BodyOf(std::move(future));
  std::sort(bodies.begin(), bodies.end());  // They race to be sent.
  EXPECT_EQ(bodies, "01234");
  EXPECT_FALSE(raw_.HasVisitor());
}

TEST_F(HttpClientHttp2Test, ServersLimitRequestsAtATime) {
  client_ = HttpClient({.http2 = kKnown, .max_connections_per_host = 2});
  auto first = Get();
  auto server = Accept({.max_concurrent_streams = 1});
  server.Answer(server.Request(0), "first");
  EXPECT_EQ(BodyOf(std::move(first)), "first");  // The limit is known now.
  auto second = Get();
  auto* const held = server.Request(1);
  auto third = Get();  // Opens another connection.
  auto other = Accept({.max_concurrent_streams = 1});
  other.Answer(other.Request(0), "third");
  EXPECT_EQ(BodyOf(std::move(third)), "third");
  auto fourth = Get();
  auto* const others = other.Request(1);
  auto fifth = Get();  // Waits for the second.
  server.Answer(held, "second");
  EXPECT_EQ(BodyOf(std::move(second)), "second");
  server.Answer(server.Request(2), "fifth");
  EXPECT_EQ(BodyOf(std::move(fifth)), "fifth");
  other.Answer(others, "fourth");
  EXPECT_EQ(BodyOf(std::move(fourth)), "fourth");
  EXPECT_FALSE(raw_.HasVisitor());
}

TEST_F(HttpClientHttp2Test, RoomIsUsedWhileAnotherConnectionIsMade) {
  testing::RawServer full(0, /*backlog=*/0);
  const std::string url = "http://" + full.endpoint().ToString() + "/";
  const auto get = [&] { return client_.AsyncGet(url, {.timeout = 40s}); };
  auto first = get();
  Http2Server server(full.Accept(), {.max_concurrent_streams = 1});
  server.Answer(server.Request(0), "first");
  EXPECT_EQ(BodyOf(std::move(first)), "first");
  auto held = get();
  auto* const request = server.Request(1);
  const testing::ConnectionInQueue in_queue(full);
  std::vector<Future<HttpClient::Result>> others;
  others.push_back(get());  // One of them connects, where nobody answers,
  others.push_back(get());  // and the other one waits.
  server.Answer(request, "held");
  EXPECT_EQ(BodyOf(std::move(held)), "held");
  server.Answer(server.Request(2), "other");
  full.Close();  // Refuses the connection.
  server.Answer(server.Request(3), "other");
  for (auto& other : others) EXPECT_EQ(BodyOf(std::move(other)), "other");
}

TEST_F(HttpClientHttp2Test, NothingIsSentWhenTheTimeIsOver) {
  testing::RawServer full(0, /*backlog=*/0);
  const std::string url = "http://" + full.endpoint().ToString() + "/";
  auto first = client_.AsyncGet(url, {.timeout = 20s});
  Http2Server server(full.Accept(), {.max_concurrent_streams = 1});
  server.Answer(server.Request(0), "first");
  EXPECT_EQ(BodyOf(std::move(first)), "first");
  auto held = client_.AsyncGet(url, {.timeout = 20s});
  auto* const request = server.Request(1);
  const testing::ConnectionInQueue in_queue(full);
  EXPECT_EQ(CodeOf(client_.AsyncPost(url, "x", {.timeout = 50ms})),
            ERROR_TIMEOUT);
  server.Answer(request, "held");
  EXPECT_EQ(BodyOf(std::move(held)), "held");
  auto last = client_.AsyncGet(url, {.timeout = 20s});
  auto* const next = server.Request(2);
  EXPECT_THAT(next->head, HasSubstr(":method=GET;"));
  server.Answer(next, "last");
  EXPECT_EQ(BodyOf(std::move(last)), "last");
}

// A source isn't asked before.
TEST_F(HttpClientHttp2Test, SourcesThatWaitForRoomMayGoElsewhere) {
  client_ = HttpClient({.http2 = kKnown, .max_connections_per_host = 1});
  auto first = Get();
  auto server = Accept({.max_concurrent_streams = 1});
  server.Answer(server.Request(0), "first");
  EXPECT_EQ(BodyOf(std::move(first)), "first");
  auto held = Get();
  auto* const request = server.Request(1);
  std::atomic<int> calls{0};
  HttpRequestOptions options;
  options.body_source.next = [&] {
    return calls++ == 0 ? CreateBufferSlow("body") : Buffer();
  };
  auto upload = Post("", options);
  this_fiber::SleepFor(20ms);  // It waits, most likely.
  EXPECT_EQ(calls, 0);
  server.raw()->Send(Frame(Http2FrameType::kGoAway, 0, "\0\0\0\3\0\0\0\0"sv));
  server.Answer(request, "held");
  EXPECT_EQ(BodyOf(std::move(held)), "held");
  server.raw()->ReadAll();
  auto other = Accept();
  auto* const again = other.Request(0);
  EXPECT_EQ(again->body, "body");
  other.Answer(again, "fine");
  EXPECT_EQ(BodyOf(std::move(upload)), "fine");
}

TEST_F(HttpClientHttp2Test, IdleConnectionsMakeRoomForWebSockets) {
  client_ = HttpClient({.http2 = kKnown, .max_connections_per_host = 1});
  auto first = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "first");
  EXPECT_EQ(BodyOf(std::move(first)), "first");
  auto opening = fiber::Async([&] {
    return client_.OpenWebSocket("ws://" + raw_.endpoint().ToString() + "/")
        .has_value();
  });
  server.raw()->ReadAll();  // The client closes it.
  EXPECT_THAT(raw_.Accept()->ReadExactly(10), HasSubstr("GET / HTTP"));
  EXPECT_FALSE(fiber::BlockingGet(std::move(opening)));
}

TEST_F(HttpClientHttp2Test, ReadsHeadsOfAllKinds) {
  auto head = Send(HttpMethod::Head);
  auto server = Accept();
  server.Answer(server.Request(0), "", {{"content-length", "10"}});
  EXPECT_EQ(CodeOf(std::move(head)), 200);
  std::size_t n = 1;
  for (const char* const status : {"204", "304"}) {
    auto empty = Get();
    server.Head(server.Request(n++), {{"content-length", "10"}}, true, status);
    server.Flush();
    EXPECT_EQ(CodeOf(std::move(empty)), std::atoi(status));
  }
  auto interim = Get();
  auto* const request = server.Request(n);
  server.Head(request, {{"link", "</a>"}}, false, "103");
  server.Head(request, {{"x-a", "1"}});
  server.session.SendData(request, CreateBufferSlow("hello"));
  server.session.SendTrailers(request, {{"last", "1"}});
  server.Flush();
  const auto response = fiber::BlockingGet(std::move(interim));
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->headers()->ToString(), "x-a: 1\r\n");
  EXPECT_EQ(*response->body(), "hello");
}

TEST_F(HttpClientHttp2Test, UnpacksResponses) {
  const std::string text(5000, 'x');
  const auto packed =
      Compress(CompressionAlgorithm::kGzip, CreateBufferSlow(text));
  ASSERT_TRUE(packed);
  auto future = Get();
  auto server = Accept();
  server.Answer(server.Request(0), FlattenSlow(*packed),
                {{"content-encoding", "gzip"}});
  EXPECT_EQ(BodyOf(std::move(future)), text);
}

TEST_F(HttpClientHttp2Test, RefusesMalformedResponses) {
  const std::string large(70'000, 'x');
  std::vector<Http2Field> many(257, Http2Field{"a", "b"});
  struct Bad {
    std::vector<Http2Field> fields;
    const char* why;
  };
  auto future = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(future)), "fine");
  for (const Bad& bad : std::vector<Bad>{
           {{{"large", large}}, "64 KiB"},
           {many, "256 fields"},
           {{{"content-length", "4"}}, "another size"},
           {{{"content-length", "6"}}, "another size"},
           {{{"connection", "close"}}, "breaks the rules"},
       }) {
    future = Get();
    auto* const request = server.Request(server.requests());
    server.Answer(request, "hello", bad.fields);
    const auto failed = fiber::BlockingGet(std::move(future));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ERROR_PARSE_RESPONSE);
    EXPECT_THAT(failed.error().message(), HasSubstr(bad.why));
    ExpectGoesOn(&server);
  }
}

TEST_F(HttpClientHttp2Test, InterimResponsesEnd) {
  auto future = Get();
  auto server = Accept();
  auto* const request = server.Request(0);
  for (int i = 0; i != 101; ++i) {
    server.Head(request, {}, /*end=*/false, "103");
  }
  server.Flush();
  const auto failed = fiber::BlockingGet(std::move(future));
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("interim responses"));
  server.Await([&] { return request->closed; });
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, BoundsBodies) {
  auto future = Get({.max_body_size = 5});
  auto server = Accept();
  server.Answer(server.Request(0), "hello");
  EXPECT_EQ(BodyOf(std::move(future)), "hello");
  for (const bool announced : {false, true}) {
    future = Get({.max_body_size = 4});
    std::vector<Http2Field> fields;
    if (announced) fields.push_back({"content-length", "5"});
    server.Answer(server.Request(server.requests()), "hello", fields);
    EXPECT_EQ(CodeOf(std::move(future)), ERROR_RESPONSE_TOO_LARGE);
  }
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, NeedsAServerThatSpeaksIt) {
  auto future = Get();
  auto peer = raw_.Accept();
  peer->ReadExactly(Http2Session::kPreface.size());
  peer->Send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_PARSE_RESPONSE);
  peer->ReadAll();  // To its end.
}

// --- flow control ------------------------------------------------------------

TEST_F(HttpClientHttp2Test, LongBodiesWaitForTheServer) {
  const std::string body(1 << 20, 'x');
  for (const bool by_source : {false, true}) {
    HttpRequestOptions options;
    if (by_source) {
      options.body_source.next = [left = body]() mutable -> Expected<Buffer> {
        Buffer piece = CreateBufferSlow(left.substr(0, 100'000));
        left.erase(0, 100'000);
        return piece;
      };
    }
    client_ = HttpClient({.http2 = kKnown});
    auto future = Post(by_source ? "" : body, options);
    auto server = Accept({.stream_window = 10'000});
    auto* const request = server.Request(0);
    EXPECT_EQ(request->head.find("content-length") == std::string::npos,
              by_source);
    EXPECT_TRUE(request->body == body);
    server.Answer(request, "thanks");
    EXPECT_EQ(BodyOf(std::move(future)), "thanks");
  }
}

TEST_F(HttpClientHttp2Test, AWindowOfNothingEndsWithTheTime) {
  auto first = Get();
  auto server = Accept({.stream_window = 0});
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(first)), "fine");  // The window is known now.
  const auto failed =
      client_.Post(url(), std::string(1 << 20, 'x'), {.timeout = 50ms});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_TIMEOUT);
  EXPECT_THAT(failed.error().message(), HasSubstr("sending the body"));
  auto* const request = server.Request(1, /*head=*/true);
  server.Await([&] { return request->closed; });
  EXPECT_EQ(request->error, Http2Error::kCancel);
  EXPECT_EQ(request->body, "");
}

TEST_F(HttpClientHttp2Test, SlowReadersHoldTheServer) {
  fiber::Event go;
  std::size_t got = 0;
  HttpRequestOptions options;
  options.on_body = [&](const HttpResponse& response, const Buffer& piece) {
    EXPECT_EQ(response.status(), HttpStatus::OK);
    go.Wait();
    got += piece.size();
    return true;
  };
  auto future = Get(options);
  auto server = Accept();
  auto* const request = server.Request(0);
  // Its windows are known: they came before the request.
  server.Answer(request, std::string(3 << 20, 'x'));
  EXPECT_EQ(request->sent, std::size_t{1} << 20);
  go.Set();
  server.Await([&] { return request->sent == std::size_t{3} << 20; });
  EXPECT_EQ(CodeOf(std::move(future)), 200);
  EXPECT_EQ(got, std::size_t{3} << 20);
}

// Over HTTP/1.1 it would be an error.
TEST_F(HttpClientHttp2Test, BodiesGoBothWaysAtATime) {
  std::size_t got = 0;
  HttpRequestOptions options;
  options.on_body = [&](const HttpResponse&, const Buffer& piece) {
    got += piece.size();
    return true;
  };
  options.body_source.next = [&]() -> Expected<Buffer> {
    if (got >= 2 << 20) return Buffer();
    return CreateBufferSlow(std::string(10'000, 'x'));
  };
  auto future = Post("", options);
  auto server = Accept();
  auto* const request = server.Request(0, /*head=*/true);
  server.Answer(request, std::string(2 << 20, 'x'));
  server.Await([&] { return request->sent == std::size_t{2} << 20; });
  // The response ends the request.
  EXPECT_EQ(CodeOf(std::move(future)), 200);
  EXPECT_EQ(got, std::size_t{2} << 20);
}

TEST_F(HttpClientHttp2Test, MayBeAnsweredEarly) {
  HttpRequestOptions options;
  options.body_source.next = []() -> Expected<Buffer> {
    return CreateBufferSlow(std::string(10'000, 'x'));
  };
  auto future = Post("", options);
  auto server = Accept();
  auto* const request = server.Request(0, /*head=*/true);
  server.Head(request, {}, /*end=*/true, "413");
  server.Flush();
  EXPECT_EQ(CodeOf(std::move(future)), 413);
  ExpectGoesOn(&server);
}

// The kernel is full of the body: the upload waits for room, and not for that
// alone.
TEST_F(HttpClientHttp2Test, MayBeAnsweredByAServerThatReadsNoMore) {
  auto first = Get();
  constexpr std::uint32_t kVast = 1 << 30;
  auto server = Accept({.stream_window = kVast, .connection_window = kVast});
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(first)), "fine");  // The windows are known now.
  std::atomic<int> pieces{0};
  HttpRequestOptions options;
  options.body_source.next = [&]() -> Expected<Buffer> {
    ++pieces;
    return CreateBufferSlow(std::string(60'000, 'x'));
  };
  auto future = Post("", options);
  auto* const request = server.Request(1, /*head=*/true);
  for (int before = -1; before != pieces; std::this_thread::sleep_for(50ms)) {
    before = pieces;
  }
  server.Head(request, {}, /*end=*/true, "413");
  server.Flush();
  EXPECT_EQ(CodeOf(std::move(future)), 413);
}

// --- ends --------------------------------------------------------------------

TEST_F(HttpClientHttp2Test, SourcesMayFailOrThrow) {
  auto first = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(first)), "fine");
  HttpRequestOptions options{.timeout = 20s};
  options.body_source.next = []() -> Expected<Buffer> {
    throw std::runtime_error("no");
  };
  EXPECT_THROW(static_cast<void>(client_.Post(url(), "", options)),
               std::runtime_error);
  options.body_source = {.next = [] { return CreateBufferSlow("hello"); },
                         .size = 4};
  EXPECT_EQ(CodeOf(Post("", options)), ERROR_INVALID_REQUEST);
  for (const std::size_t n : {1, 2}) {
    auto* const request = server.Request(n, /*head=*/true);
    server.Await([&] { return request->closed; });
    EXPECT_EQ(request->error, Http2Error::kCancel);
    EXPECT_EQ(request->body, "");
  }
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, OnBodyMayEndARequest) {
  auto future =
      Get({.on_body = [](const HttpResponse&, Buffer) { return false; }});
  auto server = Accept();
  auto* const request = server.Request(0);
  server.Head(request, {});
  server.session.SendData(request, CreateBufferSlow("hello"));
  server.Flush();
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_CANCELLED);
  server.Await([&] { return request->closed; });
  EXPECT_EQ(request->error, Http2Error::kCancel);
  ExpectGoesOn(&server);
}

// Nothing came behind the request: the connection may be dead.
TEST_F(HttpClientHttp2Test, SilentConnectionsGetNoFurtherRequests) {
  auto held = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(held)), "fine");
  ExpectGoesOn(&server);
  const auto fail = [&](std::chrono::milliseconds timeout) {
    const auto failed = client_.Get(url(), {.timeout = timeout});
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ERROR_TIMEOUT);
  };
  fail(20ms);  // That may be the time that the way takes.
  server.Request(server.requests());
  ExpectGoesOn(&server);
  fail(1100ms);
  auto future = Get();
  auto other = Accept();
  other.Answer(other.Request(0), "other");
  EXPECT_EQ(BodyOf(std::move(future)), "other");
}

TEST_F(HttpClientHttp2Test, GoAwayLetsEarlierRequestsEnd) {
  auto first = Post("first");
  auto server = Accept();
  auto* const request = server.Request(0);
  auto second = Post("second");
  server.Request(1);
  // The last one that it looks at is the first, with number 1.
  server.raw()->Send(Frame(Http2FrameType::kGoAway, 0, "\0\0\0\1\0\0\0\0"sv));
  auto other = Accept();
  auto* const again = other.Request(0);
  EXPECT_EQ(again->body, "second");
  other.Answer(again, "two");
  EXPECT_EQ(BodyOf(std::move(second)), "two");
  server.Answer(request, "one");
  EXPECT_EQ(BodyOf(std::move(first)), "one");
  server.raw()->ReadAll();  // The client closes it.
  ExpectGoesOn(&other);
}

TEST_F(HttpClientHttp2Test, AServerThatGoesAwayLeavesItsPlace) {
  client_ = HttpClient(
      {.connect_timeout = 20s, .http2 = kKnown, .max_connections_per_host = 1});
  auto first = Post("first");
  auto server = Accept();
  auto* const request = server.Request(0);
  server.raw()->Send(Frame(Http2FrameType::kGoAway, 0, "\0\0\0\1\0\0\0\0"sv));
  // Until the client has read that, requests may go there, where they end.
  auto second = Post("second");
  auto other = Accept();
  auto* const again = other.Request(0);
  EXPECT_EQ(again->body, "second");
  other.Answer(again, "two");
  EXPECT_EQ(BodyOf(std::move(second)), "two");
  ExpectGoesOn(&other);
  server.Answer(request, "one");
  EXPECT_EQ(BodyOf(std::move(first)), "one");
}

TEST_F(HttpClientHttp2Test, SaysWhyTheServerGoesAway) {
  auto future = Get();
  for (int i = 0; i != 5; ++i) {
    auto server = Accept();
    server.Request(0);
    server.raw()->Send(
        Frame(Http2FrameType::kGoAway, 0, "\0\0\0\0\0\0\0\xD\nuse 1.1"sv));
    server.raw()->ReadAll();  // The client closes it.
  }
  const auto failed = fiber::BlockingGet(std::move(future));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_CONNECTION);
  EXPECT_THAT(failed.error().message(), HasSubstr(": HTTP/2 error 13, "));
  EXPECT_THAT(failed.error().message(), HasSubstr("use 1.1"));
  EXPECT_FALSE(raw_.HasVisitor());
}

TEST_F(HttpClientHttp2Test, RefusedRequestsAreSentAgain) {
  auto future = Post("body");
  auto server = Accept();
  server.Reset(server.Request(0), Http2Error::kRefusedStream);
  auto* const again = server.Request(1);
  EXPECT_EQ(again->body, "body");
  server.Answer(again, "fine");
  EXPECT_EQ(BodyOf(std::move(future)), "fine");
  // ... in bounds.
  future = Get();
  for (std::size_t n = 2; n != 7; ++n) {
    server.Reset(server.Request(n), Http2Error::kRefusedStream);
  }
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_CONNECTION);
  // A body that is gone can't be sent again.
  HttpRequestOptions options;
  options.body_source.next = [] { return Buffer(); };
  future = Post("", options);
  server.Reset(server.Request(7), Http2Error::kRefusedStream);
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_CONNECTION);
  EXPECT_EQ(server.requests(), 8);
}

TEST_F(HttpClientHttp2Test, ServersMayTakeARequestOverHttp11Only) {
  auto future = Post("hello");
  auto server = Accept();
  server.Reset(server.Request(0), Http2Error::kHttp11Required);
  auto plain = raw_.Accept();
  EXPECT_THAT(plain->ReadUntil("hello"), ::testing::StartsWith("POST /page"));
  plain->Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine");
  EXPECT_EQ(BodyOf(std::move(future)), "fine");
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, ResetRequestsFail) {
  auto first = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(first)), "fine");
  auto future = Get();
  server.Reset(server.Request(1), Http2Error::kInternalError);
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_CONNECTION);
  // It has answered, whatever it says behind that.
  future = Get();
  server.Head(server.Request(2), {});
  server.Reset(server.Request(2), Http2Error::kRefusedStream);
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_CONNECTION);
  EXPECT_EQ(server.requests(), 3);
  ExpectGoesOn(&server);
}

TEST_F(HttpClientHttp2Test, StaleConnectionsAreReplaced) {
  std::unique_ptr<Http2Server> other;
  for (const bool post : {false, true}) {
    auto first = Get();
    if (other == nullptr) {
      other = std::make_unique<Http2Server>(raw_.Accept());
    }
    auto server = std::move(other);
    server->Answer(server->Request(server->requests()), "fine");
    EXPECT_EQ(BodyOf(std::move(first)), "fine");
    auto future = post ? Post("body") : Get();
    server->Request(server->requests());
    server->raw()->Close();
    if (post) {
      EXPECT_EQ(CodeOf(std::move(future)), ERROR_CONNECTION);
      continue;
    }
    other = std::make_unique<Http2Server>(raw_.Accept());
    other->Answer(other->Request(0), "again");
    EXPECT_EQ(BodyOf(std::move(future)), "again");
  }
  EXPECT_FALSE(raw_.HasVisitor());
}

TEST_F(HttpClientHttp2Test, BrokenConnectionsFailTheirRequests) {
  std::vector<Future<HttpClient::Result>> futures;
  for (int i = 0; i != 3; ++i) futures.push_back(Post("body"));
  auto server = Accept();
  server.Request(2);
  // A frame that breaks the rules.
  server.raw()->Send(Frame(Http2FrameType::kData, 0, "x"));
  for (auto& future : futures) {
    EXPECT_EQ(CodeOf(std::move(future)), ERROR_PARSE_RESPONSE);
  }
  server.raw()->ReadAll();
  auto other = Get();
  auto next = Accept();
  next.Answer(next.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(other)), "fine");
}

TEST_F(HttpClientHttp2Test, IdleConnectionsClose) {
  client_ = HttpClient({.http2 = kKnown, .max_idle = 20ms});
  for (int i = 0; i != 2; ++i) {
    auto future = Get();
    auto server = Accept();
    server.Answer(server.Request(0), "fine");
    EXPECT_EQ(BodyOf(std::move(future)), "fine");
    server.raw()->ReadAll();
  }
  client_ = HttpClient({.http2 = kKnown, .max_idle_connections = 0});
  auto future = Get();
  auto server = Accept();
  server.Answer(server.Request(0), "fine");
  EXPECT_EQ(BodyOf(std::move(future)), "fine");
  server.raw()->ReadAll();
}

TEST_F(HttpClientHttp2Test, EndsWithTheClientSide) {
  auto future = Get();
  auto server = Accept();
  server.Request(0);
  ShutdownClientSide();
  EXPECT_EQ(CodeOf(std::move(future)), ERROR_SHUTDOWN);
}

TEST_F(HttpClientHttp2Test, ServersThatDontAcceptFailAll) {
  const testing::DeadAddress dead;
  std::vector<Future<HttpClient::Result>> futures;
  for (int i = 0; i != 4; ++i) {
    futures.push_back(client_.AsyncGet(
        "http://" + dead.endpoint().ToString() + "/", {.timeout = 20s}));
  }
  for (auto& future : futures) {
    EXPECT_EQ(CodeOf(std::move(future)), ERROR_FAIL_TO_CONNECT_SERVER);
  }
}

TEST_F(HttpClientHttp2Test, AsksLibnghttp2) {
  std::vector<Future<HttpClient::Result>> futures;
  for (std::size_t i = 0; i != 20; ++i) {
    futures.push_back(Post(std::string(i * i * 300, 'x')));
  }
  auto raw = raw_.Accept();
  testing::Nghttp2Peer server(/*server=*/true);
  ASSERT_TRUE(server.Receive(
      CreateBufferSlow(raw->ReadExactly(Http2Session::kPreface.size()))));
  const auto unanswered = [&] {
    return std::any_of(futures.begin(), futures.end(),
                       [](auto& future) { return !future.IsReady(); });
  };
  while (unanswered()) {
    raw->Send(server.Flush());
    if (!raw->HasInput()) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_TRUE(server.Receive(CreateBufferSlow(ReadFrame(raw.get()))));
  }
  for (std::size_t i = 0; i != 20; ++i) {
    const auto response = fiber::BlockingGet(std::move(futures[i]));
    ASSERT_TRUE(response) << response.error().ToString();
    EXPECT_EQ(*response->body(), std::string(i * i * 300, 'x'));
    EXPECT_THAT(response->headers()->TryGet("had").value_or(""),
                HasSubstr(":path=/page?a=b;"));
    EXPECT_FALSE(response->headers()->contains("last"));
  }
  EXPECT_EQ(server.goaways, 0);
}

// --- servers of this library -------------------------------------------------

class HttpClientHttp2Server : public testing::ServerTest {
 protected:
  void Start(std::vector<std::string> protocols,
             std::vector<std::string> alpn = {}) {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    if (!alpn.empty()) {
      io::testing::MakeTlsCertificate(folder_);
      server_options().tls = TlsServerOptions{
          .certificates = {{folder_ + "/certificate", folder_ + "/key"}},
          .alpn = std::move(alpn)};
    }
    server().AddHttpHandler(
        "/echo",
        NewHttpHandler(
            {HttpMethod::Get, HttpMethod::Post},
            [](const HttpRequest& request, HttpResponse* response, auto*) {
              response->set_body(*request.noncontiguous_body());
            }));
    server().AddWebSocketHandler(
        "/socket", [](WebSocket& socket, const HttpRequest&) {
          while (auto message = socket.Read()) {
            static_cast<void>(socket.Write(*std::move(message)));
          }
        });
    StartServer(protocols);
  }
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
    for (const char* file : {"/certificate", "/key"}) {
      ::unlink((folder_ + file).c_str());
    }
    ::rmdir(folder_.c_str());
  }
  static HttpClient With(HttpClientHttp2 http2) {
    return HttpClient({.tls = {.insecure_skip_verify = true}, .http2 = http2});
  }
  // By which version.
  HttpVersion Echo(const HttpClient& client, const std::string& scheme) {
    const auto response =
        client.Post(scheme + "://" + endpoint().ToString() + "/echo", "hello",
                    {.timeout = 20s}, &info_);
    EXPECT_TRUE(response) << response.error().ToString();
    if (!response) return HttpVersion::kUnspecified;
    EXPECT_EQ(*response->body(), "hello");
    return response->version();
  }
  void EchoBySocket(const HttpClient& client, const std::string& scheme) {
    auto socket = client.OpenWebSocket(scheme + "://" + endpoint().ToString() +
                                       "/socket");
    ASSERT_TRUE(socket) << socket.error().ToString();
    ASSERT_TRUE(socket->WriteText("hello").ok());
    const auto message = socket->Read();
    ASSERT_TRUE(message);
    EXPECT_EQ(FlattenSlow(message->data), "hello");
  }

  std::string folder_ = "/tmp/flare_http2_client_XXXXXX";
  HttpResponseInfo info_;
};

TEST_F(HttpClientHttp2Server, IsKnown) {
  ASSERT_NO_FATAL_FAILURE(Start({"grpc", "http"}));
  const HttpClient client = With(kKnown);
  EXPECT_EQ(Echo(client, "http"), HttpVersion::kHttp2);
  EXPECT_FALSE(info_.connection_reused);
  EXPECT_EQ(Echo(client, "http"), HttpVersion::kHttp2);
  EXPECT_TRUE(info_.connection_reused);
  ASSERT_NO_FATAL_FAILURE(EchoBySocket(client, "ws"));
  EXPECT_EQ(Echo(client, "http"), HttpVersion::kHttp2);
  EXPECT_TRUE(info_.connection_reused);
  // Without TLS there is nothing to choose by.
  EXPECT_EQ(Echo(With(HttpClientHttp2::kAlpn), "http"), HttpVersion::kHttp11);
}

TEST_F(HttpClientHttp2Server, IsChosenByTheHandshake) {
  ASSERT_NO_FATAL_FAILURE(Start({"grpc", "http"}, {"h2", "http/1.1"}));
  for (const HttpClientHttp2 http2 : {HttpClientHttp2::kAlpn, kKnown}) {
    const HttpClient client = With(http2);
    EXPECT_EQ(Echo(client, "https"), HttpVersion::kHttp2);
    ASSERT_NO_FATAL_FAILURE(EchoBySocket(client, "wss"));
    EXPECT_EQ(Echo(client, "https"), HttpVersion::kHttp2);
    EXPECT_TRUE(info_.connection_reused);
  }
  EXPECT_EQ(Echo(With(HttpClientHttp2::kOff), "https"), HttpVersion::kHttp11);
}

TEST_F(HttpClientHttp2Server, IsNotChosenByTheHandshake) {
  ASSERT_NO_FATAL_FAILURE(Start({"http"}, {"http/1.1"}));
  const HttpClient client = With(HttpClientHttp2::kAlpn);
  EXPECT_EQ(Echo(client, "https"), HttpVersion::kHttp11);
  ASSERT_NO_FATAL_FAILURE(EchoBySocket(client, "wss"));
  EXPECT_EQ(Echo(client, "https"), HttpVersion::kHttp11);
  EXPECT_TRUE(info_.connection_reused);  // The WebSocket has left it alone.
  const auto failed =
      With(kKnown).Get("https://" + endpoint().ToString() + "/echo");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ERROR_SSL);
}

}  // namespace
}  // namespace flare::rpc
