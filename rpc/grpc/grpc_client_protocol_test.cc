// The client's protocol against an HTTP/2 session in a server's role, without
// connections.
#include "flare/rpc/grpc/grpc_client_protocol.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

struct ServerStream : Http2Stream {
  std::vector<std::pair<std::string, std::string>> fields;
  std::string data;
  bool ended = false;
  bool closed = false;
  Http2Error error = Http2Error::kNoError;

  std::string Field(std::string_view name) const {
    for (const auto& [field, value] : fields) {
      if (field == name) return value;
    }
    return "(none)";
  }
};

class FakeServer : public Http2Handler {
 public:
  explicit FakeServer(Http2Session::Options options = {})
      : session(Http2Session::Role::kServer, options, this) {}

  Http2Stream* OnStream() override {
    streams.push_back(std::make_unique<ServerStream>());
    return streams.back().get();
  }
  bool OnField(Http2Stream* stream, std::string_view name,
               std::string_view value) override {
    static_cast<ServerStream*>(stream)->fields.emplace_back(name, value);
    return true;
  }
  void OnHeaders(Http2Stream*, bool, bool) override {}
  void OnData(Http2Stream* stream, Buffer&& bytes) override {
    static_cast<ServerStream*>(stream)->data += FlattenSlow(bytes);
  }
  void OnEnd(Http2Stream* stream) override {
    static_cast<ServerStream*>(stream)->ended = true;
  }
  void OnSent(Http2Stream*, std::size_t) override {}
  void OnClosed(Http2Stream* stream, Http2Error error, bool) override {
    auto* const mine = static_cast<ServerStream*>(stream);
    mine->closed = true;
    mine->error = error;
  }

  // The parts of a response.
  void Head(ServerStream* stream, std::vector<Http2Field> more = {}) {
    std::vector<Http2Field> fields{{":status", "200"},
                                   {"content-type", "application/grpc"}};
    fields.insert(fields.end(), more.begin(), more.end());
    session.SendHeaders(stream, fields, /*end=*/false);
  }
  void Message(ServerStream* stream, std::string_view text,
               bool compressed = false) {
    BufferBuilder builder;
    ASSERT_TRUE(
        AppendGrpcMessage(CreateBufferSlow(text), compressed, &builder));
    session.SendData(stream, builder.DestructiveGet());
  }

  std::vector<std::unique_ptr<ServerStream>> streams;
  Http2Session session;
};

class FakeReceiver : public StreamReceiver {
 public:
  void OnMessage(Buffer&& message, bool) override {
    messages.push_back(FlattenSlow(message));
  }
  void OnCompressed(Buffer&& message, CompressionAlgorithm algorithm,
                    std::size_t max_size) override {
    messages.push_back(std::string(ToString(algorithm)) + " up to " +
                       std::to_string(max_size) + ": " + FlattenSlow(message));
  }
  void OnEnd(const flare::Status& why) override {
    ended = true;
    status = why;
  }
  void OnCredit(std::size_t bytes) override { credit += bytes; }
  void OnReset(const flare::Status& why) override {
    reset = true;
    status = why;
  }
  void Drop() override {}
  void OnInputLost(const flare::Status&) override {}
  void OnMetadata(std::unique_ptr<Metadata> more) override {
    metadata.push_back(std::move(more));
  }

  std::vector<std::string> messages;
  std::vector<std::unique_ptr<Metadata>> metadata;
  bool ended = false;
  bool reset = false;
  flare::Status status;
  std::size_t credit = 0;
};

struct Got {
  std::uint64_t id;
  int status;
  std::string text;
  std::string body;
  CompressionAlgorithm compression;
  std::unique_ptr<Metadata> metadata;
  bool notice;
  bool last;
  bool unreadable;
};

class GrpcClientProtocolTest : public testing::Test, public StreamOutput {
 protected:
  GrpcClientProtocolTest() { Start({}); }

  void Start(Http2Session::Options options, Limits limits = {}) {
    server = std::make_unique<FakeServer>(options);
    sent.Clear();
    protocol = NewGrpcClientProtocol(limits, "127.0.0.1:80");
    protocol->SetOutput(this);
  }

  // StreamOutput.
  bool WriteSoon(Buffer&& bytes) override {
    sent.Append(std::move(bytes));
    return true;
  }
  void Abort(const flare::Status&) override { ADD_FAILURE(); }
  void SendLater() override { ++asked_to_send_later; }
  void HoldInput() override {}
  void ReleaseInput() override {}

  flare::Status Send(std::uint64_t id, std::string_view body,
                     const std::function<void(OutboundRequest*)>& change = {}) {
    OutboundRequest request;
    request.correlation_id = id;
    request.method = "pkg.Service.Method";
    request.body = CreateBufferSlow(body);
    if (change) change(&request);
    BufferBuilder out;
    const flare::Status status = protocol->Write(std::move(request), &out);
    EXPECT_EQ(out.ByteSize(), 0u);
    return status;
  }

  // Bytes go both ways until there are none.
  void Exchange() {
    for (;;) {
      bool quiet = sent.empty();
      if (!sent.empty()) {
        server_ok = server->session.Receive(std::move(sent));
        sent = Buffer();
      }
      Buffer reply = server->session.Flush();
      quiet = quiet && reply.empty();
      Take(std::move(reply));
      if (quiet || broken) return;
    }
  }

  void Take(Buffer reply) {
    for (;;) {
      InboundResponse response;
      std::size_t need = 0;
      const CutResult result = protocol->Cut(reply, &response, &need, &error);
      if (result == CutResult::kHandled) continue;
      if (result != CutResult::kMessage) {
        broken = result == CutResult::kError;
        return;
      }
      EXPECT_EQ(protocol->Parse(&response), ParseResult::kOk);
      got.push_back({response.correlation_id, response.status,
                     std::string(response.description),
                     FlattenSlow(response.body), response.compression,
                     std::move(response.metadata), response.is_notice,
                     response.last_on_connection, response.unreadable});
    }
  }

  // A frame that its session wouldn't send.
  void ServerSends(Http2FrameType type, std::uint8_t flags, std::int32_t id,
                   std::string_view payload) {
    std::string frame(Http2FrameHeader::kSize, '\0');
    Http2FrameHeader{.length = static_cast<std::uint32_t>(payload.size()),
                     .type = type,
                     .flags = flags,
                     .stream = id}
        .Store(frame.data());
    Take(CreateBufferSlow(frame.append(payload)));
  }

  ServerStream* stream(std::size_t i = 0) { return server->streams[i].get(); }

  std::unique_ptr<StreamWire> OpenStream(RefPtr<FakeReceiver> receiver) {
    auto wire = protocol->OpenStream(
        {.method = "pkg.Service.Stream", .shared = true}, this);
    EXPECT_TRUE(wire->Begin(std::move(receiver)));
    return wire;
  }

  bool server_ok = true;
  bool broken = false;
  int asked_to_send_later = 0;
  std::string error;
  Buffer sent;
  std::vector<Got> got;
  std::unique_ptr<FakeServer> server;
  std::unique_ptr<ClientProtocol> protocol;
};

std::string Prefixed(std::string_view text) {
  BufferBuilder builder;
  EXPECT_TRUE(AppendGrpcMessage(CreateBufferSlow(text), false, &builder));
  return FlattenSlow(builder.DestructiveGet());
}

TEST_F(GrpcClientProtocolTest, UnaryCallGoesAndComes) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("x-user", "a").ok());
  ASSERT_TRUE(metadata.Add("trace-bin", std::string("\0\xff", 2)).ok());
  ASSERT_TRUE(Send(7, "hello", [&](OutboundRequest* request) {
                request->timeout_ms = 250;
                request->metadata = &metadata;
              }).ok());
  Exchange();
  ASSERT_EQ(server->streams.size(), 1u);
  EXPECT_EQ(stream()->Field(":method"), "POST");
  EXPECT_EQ(stream()->Field(":scheme"), "http");
  EXPECT_EQ(stream()->Field(":authority"), "127.0.0.1:80");
  EXPECT_EQ(stream()->Field(":path"), "/pkg.Service/Method");
  EXPECT_EQ(stream()->Field("te"), "trailers");
  EXPECT_EQ(stream()->Field("content-type"), "application/grpc");
  EXPECT_EQ(stream()->Field("grpc-timeout"), "250m");
  EXPECT_EQ(stream()->Field("grpc-encoding"), "(none)");
  EXPECT_EQ(stream()->Field("x-user"), "a");
  EXPECT_EQ(stream()->Field("trace-bin"), "AP8");
  EXPECT_EQ(stream()->data, Prefixed("hello"));
  EXPECT_TRUE(stream()->ended);

  server->Head(stream(), {{"x-first", "1"}});
  server->Message(stream(), "world");
  server->session.SendTrailers(stream(),
                               {{"grpc-status", "0"}, {"last-bin", "AP8="}});
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].id, 7u);
  EXPECT_EQ(got[0].status, STATUS_SUCCESS);
  EXPECT_EQ(got[0].body, "world");
  ASSERT_NE(got[0].metadata, nullptr);
  EXPECT_EQ(got[0].metadata->size(), 2u);
  EXPECT_EQ(got[0].metadata->Get("x-first"), "1");
  EXPECT_EQ(got[0].metadata->Get("last-bin"), std::string("\0\xff", 2));
  EXPECT_FALSE(broken);
}

// The head of the call before is used again in part.
TEST_F(GrpcClientProtocolTest, EachCallHasAHeadOfItsOwn) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("x-user", "a").ok());
  struct Head {
    std::string_view method;
    std::string_view path;
    std::uint32_t timeout_ms = 0;
    std::string_view timeout = "(none)";
    bool zipped = false;
    bool has_metadata = false;
  };
  const Head heads[] = {
      {"pkg.Service.A", "/pkg.Service/A"},
      {"pkg.Service.B", "/pkg.Service/B"},
      {"pkg.Service.B", "/pkg.Service/B", 250, "250m"},
      {"pkg.Service.B", "/pkg.Service/B", 0, "(none)", true},
      {"pkg.Service.B", "/pkg.Service/B", 250, "250m", true},
      {"pkg.Service.B", "/pkg.Service/B", 250, "250m", false, true},
      {"pkg.Service.A", "/pkg.Service/A", 250, "250m", false, true},
      {"pkg.Service.A", "/pkg.Service/A", 250, "250m"},
  };
  std::uint64_t id = 0;
  const auto expect_refused = [&](std::string_view method) {
    EXPECT_EQ(Send(id, "a",
                   [&](OutboundRequest* request) { request->method = method; })
                  .code(),
              STATUS_INVALID_METHOD_NAME)
        << method;
  };
  expect_refused("");
  for (int round = 0; round != 3; ++round) {
    for (const Head& head : heads) {
      for (int repeat = 0; repeat != 2; ++repeat) {
        SCOPED_TRACE(++id);
        ASSERT_TRUE(Send(id, "a", [&](OutboundRequest* request) {
                      request->method = head.method;
                      request->timeout_ms = head.timeout_ms;
                      if (head.zipped) {
                        request->compression = CompressionAlgorithm::kGzip;
                      }
                      if (head.has_metadata) request->metadata = &metadata;
                    }).ok());
        Exchange();
        ServerStream* const call = server->streams.back().get();
        EXPECT_EQ(call->Field(":path"), head.path);
        EXPECT_EQ(call->Field("grpc-timeout"), head.timeout);
        EXPECT_EQ(call->Field("grpc-encoding"),
                  head.zipped ? "gzip" : "(none)");
        EXPECT_EQ(call->Field("x-user"), head.has_metadata ? "a" : "(none)");
      }
      expect_refused("no");
      expect_refused("");
    }
  }
}

// As literals that are never indexed, each time.
TEST_F(GrpcClientProtocolTest, SecretsGoToNoTable) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("authorization", "Bearer abc").ok());
  ASSERT_TRUE(metadata.Add("x-user", "a").ok());
  for (std::uint64_t i = 0; i != 2; ++i) {
    ASSERT_TRUE(Send(i + 1, "hello", [&](OutboundRequest* request) {
                  request->metadata = &metadata;
                }).ok());
    EXPECT_NE(FlattenSlow(sent).find("\x1f\x08"), std::string::npos) << i;
    Exchange();
    ASSERT_EQ(server->streams.size(), i + 1);
    EXPECT_EQ(stream(i)->Field("authorization"), "Bearer abc");
  }
}

TEST_F(GrpcClientProtocolTest, RepliesComeInAnyOrder) {
  ASSERT_TRUE(Send(1, "a").ok());
  ASSERT_TRUE(Send(2, "b").ok());
  Exchange();
  ASSERT_EQ(server->streams.size(), 2u);
  for (const std::size_t i : {1, 0}) {
    server->Head(stream(i));
    server->Message(stream(i), "to " + stream(i)->data.substr(5));
    server->session.SendTrailers(stream(i), {{"grpc-status", "0"}});
  }
  Exchange();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].id, 2u);
  EXPECT_EQ(got[0].body, "to b");
  EXPECT_EQ(got[1].id, 1u);
  EXPECT_EQ(got[1].body, "to a");
}

TEST_F(GrpcClientProtocolTest, TrailersOnlyIsAFailure) {
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  server->session.SendHeaders(stream(),
                              {{":status", "200"},
                               {"content-type", "application/grpc"},
                               {"grpc-status", "5"},
                               {"grpc-message", "no %E2%98%BA"},
                               {"x-why", "b"}},
                              /*end=*/true);
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, StatusFromGrpc(GrpcCode::kNotFound));
  EXPECT_EQ(got[0].text, "no \xe2\x98\xba");
  ASSERT_NE(got[0].metadata, nullptr);
  EXPECT_EQ(got[0].metadata->Get("x-why"), "b");
}

TEST_F(GrpcClientProtocolTest, OurServersSayExactStatuses) {
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  server->session.SendHeaders(stream(),
                              {{":status", "200"},
                               {"content-type", "application/grpc"},
                               {"grpc-status", "2"},
                               {"rpc-error-code", "4711"}},
                              /*end=*/true);
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, 4711);
  EXPECT_FALSE(got[0].unreadable);
}

TEST_F(GrpcClientProtocolTest, ResponsesOfOtherServersAreFailures) {
  const struct {
    std::vector<Http2Field> head;
    bool ends;
    GrpcCode code;
  } kCases[] = {
      {{{":status", "503"}, {"content-type", "text/html"}},
       true,
       GrpcCode::kUnavailable},
      {{{":status", "404"}}, true, GrpcCode::kUnimplemented},
      {{{":status", "200"}, {"content-type", "text/html"}},
       true,
       GrpcCode::kUnknown},
      {{{":status", "200"}, {"content-type", "application/grpc"}},
       true,
       GrpcCode::kInternal},
      // Success, but no message.
      {{{":status", "200"},
        {"content-type", "application/grpc"},
        {"grpc-status", "0"}},
       true,
       GrpcCode::kInternal},
      {{{":status", "200"},
        {"content-type", "application/grpc"},
        {"grpc-status", "no number"}},
       true,
       GrpcCode::kUnknown},
  };
  std::size_t i = 0;
  for (const auto& [head, ends, code] : kCases) {
    ASSERT_TRUE(Send(i + 1, "a").ok());
    Exchange();
    server->session.SendHeaders(stream(i), head, ends);
    Exchange();
    ASSERT_EQ(got.size(), i + 1);
    EXPECT_EQ(GrpcFromStatus(got[i].status), code) << i << ' ' << got[i].text;
    ++i;
  }
}

TEST_F(GrpcClientProtocolTest, TwoMessagesInReplyAreAFailure) {
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  server->Head(stream());
  server->Message(stream(), "b");
  server->Message(stream(), "c");
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(got[0].unreadable);
  EXPECT_EQ(GrpcFromStatus(got[0].status), GrpcCode::kInternal);
  EXPECT_TRUE(stream()->closed);
}

TEST_F(GrpcClientProtocolTest, TooLargeAReplyIsAFailureByItsPrefix) {
  Start({}, {.max_packet_size = 100});
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  server->Head(stream());
  server->Message(stream(), std::string(101, 'x'));
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, STATUS_MALFORMED_DATA);
  EXPECT_NE(got[0].text.find(kClientSizeLimit), std::string::npos);
  EXPECT_TRUE(stream()->closed);
}

TEST_F(GrpcClientProtocolTest, CompressionIsSaid) {
  ASSERT_TRUE(Send(1, "packed", [](OutboundRequest* request) {
                request->compression = CompressionAlgorithm::kZlib;
              }).ok());
  Exchange();
  EXPECT_EQ(stream()->Field("grpc-encoding"), "deflate");
  EXPECT_EQ(stream()->data[0], 1);
  server->Head(stream(), {{"grpc-encoding", "gzip"}});
  server->Message(stream(), "packed reply", /*compressed=*/true);
  server->session.SendTrailers(stream(), {{"grpc-status", "0"}});
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].compression, CompressionAlgorithm::kGzip);
  EXPECT_EQ(got[0].body, "packed reply");
}

TEST_F(GrpcClientProtocolTest, AnAbandonedCallIsReset) {
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  protocol->Abandon(1);
  protocol->Abandon(1);
  protocol->Abandon(17);
  Exchange();
  EXPECT_TRUE(stream()->closed);
  EXPECT_EQ(stream()->error, Http2Error::kCancel);
  EXPECT_TRUE(got.empty());
  // The connection goes on.
  ASSERT_TRUE(Send(2, "b").ok());
  Exchange();
  EXPECT_EQ(server->streams.size(), 2u);
}

// Time passes only when the test says so.
class GrpcClientResetsTest : public GrpcClientProtocolTest {
 protected:
  GrpcClientResetsTest() { SetVirtualNow(now_); }
  ~GrpcClientResetsTest() override { EndVirtualNow(); }

  void Pass(int ms) { SetVirtualNow(now_ += ms * kNsPerMs); }

 private:
  std::int64_t now_ = NowNs();
};

// Servers end connections with more.
TEST_F(GrpcClientResetsTest, FewAbandonedCallsAreResetInASecond) {
  constexpr std::uint64_t kCalls = 900;
  const auto with_timeout = [](OutboundRequest* request) {
    request->timeout_ms = 5000;
  };
  const auto resets = [this] {
    return std::count_if(
        server->streams.begin(), server->streams.end(),
        [](const auto& s) { return s->error == Http2Error::kCancel; });
  };
  for (std::uint64_t id = 1; id <= kCalls; ++id) {
    ASSERT_TRUE(Send(id, "a", with_timeout).ok());
  }
  Exchange();
  for (std::uint64_t id = 1; id <= kCalls; ++id) protocol->Abandon(id);
  Exchange();
  const auto first = resets();
  EXPECT_GE(first, 500);
  EXPECT_LT(first, 900);
  EXPECT_GT(asked_to_send_later, 0);
  // Late replies are dropped, and their streams end.
  ServerStream* const late = stream(kCalls - 1);
  server->Head(late);
  server->Message(late, "late");
  server->session.SendTrailers(late, {{"grpc-status", "0"}});
  Exchange();
  EXPECT_TRUE(late->closed);
  EXPECT_TRUE(got.empty());
  // Nobody grants a window for more of it.
  ServerStream* const large = stream(kCalls - 2);
  server->Head(large);
  server->Message(large, std::string(100'000, 'l'));
  server->session.SendTrailers(large, {{"grpc-status", "0"}});
  Exchange();
  EXPECT_EQ(large->error, Http2Error::kCancel);
  EXPECT_TRUE(got.empty());
  // A server that doesn't know the end of the time must hear of it.
  ASSERT_TRUE(Send(1000, "a").ok());
  Exchange();
  protocol->Abandon(1000);
  Exchange();
  EXPECT_EQ(stream(kCalls)->error, Http2Error::kCancel);
  // The others follow with the next calls.
  Pass(1100);
  ASSERT_TRUE(Send(1001, "a").ok());
  Exchange();
  EXPECT_EQ(resets(), 900);
  EXPECT_TRUE(server_ok);
}

TEST_F(GrpcClientResetsTest, DelayedResetsNeedNoOtherCall) {
  constexpr std::uint64_t kCalls = 1100;
  for (std::uint64_t id = 1; id <= kCalls; ++id) {
    ASSERT_TRUE(Send(id, "a", [](OutboundRequest* request) {
                  request->timeout_ms = 5000;
                }).ok());
  }
  Exchange();
  for (std::uint64_t id = 1; id <= kCalls; ++id) protocol->Abandon(id);
  Exchange();
  const auto left = [this] {
    return std::count_if(server->streams.begin(), server->streams.end(),
                         [](const auto& s) { return !s->closed; });
  };
  // As long as some are left it asks to be called again.
  for (int seconds = 0; left() != 0; ++seconds) {
    ASSERT_LT(seconds, 4);
    EXPECT_GT(std::exchange(asked_to_send_later, 0), 0);
    Pass(1050);
    protocol->SendDelayed();
    Exchange();
  }
  EXPECT_EQ(asked_to_send_later, 0);
  EXPECT_TRUE(server_ok);
  protocol->OnClosed(flare::Status(STATUS_IO_ERROR));
  protocol->SendDelayed();
}

TEST_F(GrpcClientProtocolTest, AResetIsAFailure) {
  ASSERT_TRUE(Send(1, "a").ok());
  ASSERT_TRUE(Send(2, "b").ok());
  Exchange();
  server->session.SendReset(stream(0), Http2Error::kRefusedStream);
  server->session.SendReset(stream(1), Http2Error::kCancel);
  Exchange();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].status, STATUS_OUT_OF_SERVICE);  // Which is retried.
  EXPECT_EQ(got[1].status, StatusFromGrpc(GrpcCode::kCancelled));
}

TEST_F(GrpcClientProtocolTest, CallsWaitForTheServersLimit) {
  Start({.max_concurrent_streams = 2});
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();  // From here on the limit is known.
  for (std::uint64_t id = 2; id != 6; ++id) ASSERT_TRUE(Send(id, "b").ok());
  Exchange();
  EXPECT_EQ(server->streams.size(), 2u);
  for (std::size_t i = 0; i != 5; ++i) {
    ASSERT_GT(server->streams.size(), i);
    server->Head(stream(i));
    server->Message(stream(i), "c");
    server->session.SendTrailers(stream(i), {{"grpc-status", "0"}});
    Exchange();
  }
  EXPECT_EQ(got.size(), 5u);
}

TEST_F(GrpcClientProtocolTest, AfterGoAwayNothingIsSent) {
  ASSERT_TRUE(Send(1, "a").ok());
  Exchange();
  server->session.SendGoAway(Http2Error::kNoError, "bye");
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_TRUE(got[0].notice);
  EXPECT_TRUE(got[0].last);
  EXPECT_EQ(Send(2, "b").code(), STATUS_FAIL_TO_CONNECT);
  // The server answers the requests that it has got.
  server->Head(stream());
  server->Message(stream(), "c");
  server->session.SendTrailers(stream(), {{"grpc-status", "0"}});
  Exchange();
  ASSERT_GE(got.size(), 2u);
  EXPECT_EQ(got[1].id, 1u);
  EXPECT_EQ(got[1].status, STATUS_SUCCESS);
}

TEST_F(GrpcClientProtocolTest, WhatTheServerHasNotLookedAtIsRetried) {
  // A notice names no stream, but none may be opened behind it, either.
  for (const bool notice : {false, true}) {
    SCOPED_TRACE(notice);
    Start({.max_concurrent_streams = 1});
    got.clear();
    ASSERT_TRUE(Send(1, "a").ok());
    Exchange();
    ASSERT_TRUE(Send(2, "waits").ok());
    Exchange();
    EXPECT_EQ(server->streams.size(), 1u);
    if (notice) {
      server->session.SendShutdownNotice();
    } else {
      server->session.SendGoAway(Http2Error::kNoError, "");
    }
    Exchange();
    ASSERT_EQ(got.size(), 2u);
    for (const Got& reply : got) {
      if (reply.notice) continue;
      EXPECT_EQ(reply.id, 2u);
      EXPECT_EQ(reply.status, STATUS_OUT_OF_SERVICE);
    }
  }
}

TEST_F(GrpcClientProtocolTest, GarbageEndsTheConnection) {
  ASSERT_TRUE(Send(1, "a").ok());
  Buffer in = CreateBufferSlow("HTTP/1.1 400 Bad Request\r\n\r\n");
  InboundResponse response;
  std::size_t need = 0;
  EXPECT_EQ(protocol->Cut(in, &response, &need, &error), CutResult::kError);
  EXPECT_NE(error.find("HTTP/2"), std::string::npos) << error;
}

TEST_F(GrpcClientProtocolTest, StreamGoesBothWays) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  EXPECT_TRUE(protocol->HasOpenStreams());
  EXPECT_TRUE(wire->SendMessage(CreateBufferSlow("a"), /*last=*/false));
  Exchange();
  ASSERT_EQ(server->streams.size(), 1u);
  EXPECT_EQ(stream()->Field(":path"), "/pkg.Service/Stream");
  EXPECT_EQ(stream()->data, Prefixed("a"));
  EXPECT_FALSE(stream()->ended);
  server->Head(stream(), {{"x-first", "1"}});
  server->Message(stream(), "b");
  Exchange();
  EXPECT_EQ(receiver->messages, std::vector<std::string>{"b"});
  ASSERT_EQ(receiver->metadata.size(), 1u);
  EXPECT_EQ(receiver->metadata[0]->Get("x-first"), "1");
  EXPECT_TRUE(wire->SendMessage(CreateBufferSlow(""), /*last=*/true));
  Exchange();
  EXPECT_EQ(stream()->data, Prefixed("a") + Prefixed(""));
  EXPECT_TRUE(stream()->ended);
  server->Message(stream(), "c");
  server->session.SendTrailers(stream(), {{"grpc-status", "0"}, {"z", "2"}});
  Exchange();
  EXPECT_EQ(receiver->messages, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(receiver->metadata.size(), 2u);
  EXPECT_TRUE(receiver->ended);
  EXPECT_TRUE(receiver->status.ok());
  wire.reset();
  EXPECT_FALSE(protocol->HasOpenStreams());
}

// Whatever windows the server opens: little of a stream waits here.
TEST_F(GrpcClientProtocolTest, WritersAreNotFarAheadOfWhatHasLeft) {
  Start({.stream_window = 1 << 30, .connection_window = 65535});
  Exchange();
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  EXPECT_EQ(wire->send_window(), StreamWindow::kInitial);
  // As much as the connection's window leaves at once.
  EXPECT_TRUE(
      wire->SendMessage(CreateBufferSlow(std::string(100'000, 'b')), false));
  EXPECT_EQ(wire->TakeCredit(), 65535u);
  EXPECT_EQ(wire->TakeCredit(), 0u);
  EXPECT_TRUE(wire->SendMessage(CreateBufferSlow("more"), false));
  EXPECT_EQ(wire->TakeCredit(), 0u);
  // The rest, as the server opens the window again.
  Exchange();
  EXPECT_EQ(stream()->data.size(), 100'005u + 9);
  EXPECT_EQ(receiver->credit, 100'005u + 9 - 65535);
  EXPECT_EQ(wire->TakeCredit(), 0u);
}

// By a thread that isn't the reader, which may have nothing to read.
TEST_F(GrpcClientProtocolTest, AStreamThatBeginsLateHasItsCreditAtOnce) {
  Start({.max_concurrent_streams = 1});
  Exchange();
  const auto first_ends = [this](auto&& end) {
    auto receiver = MakeRefCounted<FakeReceiver>();
    auto late = OpenStream(receiver);
    EXPECT_TRUE(late->SendMessage(CreateBufferSlow("waits"), false));
    EXPECT_EQ(late->TakeCredit(), 0u);
    end();
    EXPECT_EQ(receiver->credit, 10u);
    late->SendReset(flare::Status(STATUS_FAILED, "enough"));
    late.reset();
    Exchange();
  };
  auto first = OpenStream(MakeRefCounted<FakeReceiver>());
  first_ends([&] {
    first->SendReset(flare::Status(STATUS_FAILED, "no more"));
    first.reset();
  });
  ASSERT_TRUE(Send(1, "a").ok());
  first_ends([&] { protocol->Abandon(1); });
}

// As a server may that neither opens the window nor resets the stream.
TEST_F(GrpcClientProtocolTest, ARequestThatWaitsIsResetByItsAnswer) {
  ASSERT_TRUE(Send(1, std::string(200'000, 'b')).ok());
  Exchange();
  sent.Clear();
  HpackEncoder encoder;
  std::string head;
  encoder.Encode(":status", "200", HpackIndexing::kOmit, &head);
  encoder.Encode("content-type", "application/grpc", HpackIndexing::kOmit,
                 &head);
  encoder.Encode("grpc-status", "7", HpackIndexing::kOmit, &head);
  ServerSends(Http2FrameType::kHeaders, kHttp2EndStream | kHttp2EndHeaders,
              stream()->id(), head);
  EXPECT_EQ(FlattenSlow(sent), std::string("\0\0\4\3\0\0\0\0\1\0\0\0\x8", 13));
  Exchange();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].status, StatusFromGrpc(GrpcCode::kPermissionDenied));
  EXPECT_FALSE(protocol->HasOpenStreams());
}

TEST_F(GrpcClientProtocolTest, MessagesBeyondTheWindowArrive) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  server->Head(stream());
  const std::string large(1'000'000, 'x');
  server->Message(stream(), large);
  server->Message(stream(), large);
  Exchange();
  // The second one waits until the first one is read.
  ASSERT_EQ(receiver->messages.size(), 1u);
  EXPECT_TRUE(receiver->messages[0] == large);
  wire->SendCredit(large.size() + kGrpcPrefixSize);
  Exchange();
  ASSERT_EQ(receiver->messages.size(), 2u);
  EXPECT_TRUE(receiver->messages[1] == large);
}

TEST_F(GrpcClientProtocolTest, UnreadMessagesHoldTheServerBack) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  server->Head(stream());
  const std::string text(10'000, 'x');
  for (int i = 0; i != 100; ++i) server->Message(stream(), text);
  Exchange();
  const std::size_t came = receiver->messages.size();
  EXPECT_LE(came, 7u);
  EXPECT_GE(came, 6u);
  wire->SendCredit(3 * (text.size() + kGrpcPrefixSize));
  Exchange();
  EXPECT_GE(receiver->messages.size(), came + 2);
  EXPECT_LE(receiver->messages.size(), came + 4);
}

TEST_F(GrpcClientProtocolTest, CompressedMessagesOfStreamsComeAsTheyAre) {
  Start({}, {.max_decompressed_size = 1000});
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  server->Head(stream(), {{"grpc-encoding", "gzip"}});
  server->Message(stream(), "packed", /*compressed=*/true);
  server->Message(stream(), "plain");
  Exchange();
  EXPECT_EQ(receiver->messages,
            (std::vector<std::string>{"gzip up to 1000: packed", "plain"}));
}

TEST_F(GrpcClientProtocolTest, ACompressedMessageNeedsAnEncoding) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  server->Head(stream(), {});
  server->Message(stream(), "packed", /*compressed=*/true);
  Exchange();
  EXPECT_TRUE(receiver->messages.empty());
  EXPECT_EQ(GrpcFromStatus(receiver->status.code()), GrpcCode::kInternal);
}

TEST_F(GrpcClientProtocolTest, StreamsSendCompressedMessages) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = protocol->OpenStream({.method = "pkg.Service.Method"}, this);
  EXPECT_FALSE(wire->UseCompression(CompressionAlgorithm::kLz4Frame));
  EXPECT_TRUE(wire->UseCompression(CompressionAlgorithm::kZstd));
  ASSERT_TRUE(wire->Begin(receiver));
  EXPECT_TRUE(wire->SendCompressed(CreateBufferSlow("packed"), false));
  EXPECT_TRUE(wire->SendMessage(CreateBufferSlow("plain"), true));
  Exchange();
  EXPECT_EQ(stream()->Field("grpc-encoding"), "zstd");
  EXPECT_EQ(stream()->data, std::string("\1\0\0\0\6packed\0\0\0\0\5plain", 21));
}

TEST_F(GrpcClientProtocolTest, AStreamThatIsGivenUpIsReset) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  wire->SendReset(flare::Status(STATUS_FAILED));
  wire.reset();
  Exchange();
  EXPECT_TRUE(stream()->closed);
  EXPECT_EQ(stream()->error, Http2Error::kCancel);
  EXPECT_FALSE(protocol->HasOpenStreams());
}

// As a server does that doesn't want the rest of the messages.
TEST_F(GrpcClientProtocolTest, AnEarlyAnswerEndsTheStream) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  server->session.SendHeaders(stream(),
                              {{":status", "200"},
                               {"content-type", "application/grpc"},
                               {"grpc-status", "7"},
                               {"grpc-message", "not you"}},
                              /*end=*/true);
  Exchange();
  EXPECT_TRUE(receiver->ended);
  EXPECT_EQ(receiver->status.code(),
            StatusFromGrpc(GrpcCode::kPermissionDenied));
  EXPECT_EQ(receiver->status.message(), "not you");
  EXPECT_TRUE(wire->SendMessage(CreateBufferSlow("late"), /*last=*/false));
  wire.reset();
  Exchange();
  EXPECT_FALSE(protocol->HasOpenStreams());
  EXPECT_FALSE(broken);
}

TEST_F(GrpcClientProtocolTest, TheConnectionsEndEndsStreams) {
  auto receiver = MakeRefCounted<FakeReceiver>();
  auto wire = OpenStream(receiver);
  Exchange();
  protocol->OnClosed(flare::Status(STATUS_IO_ERROR, "it broke"));
  EXPECT_TRUE(receiver->reset);
  EXPECT_EQ(receiver->status.code(), STATUS_IO_ERROR);
  EXPECT_FALSE(wire->SendMessage(CreateBufferSlow("late"), /*last=*/false));
  auto another = protocol->OpenStream({.method = "a.b.c"}, this);
  EXPECT_FALSE(another->Begin(MakeRefCounted<FakeReceiver>()));
}

TEST_F(GrpcClientProtocolTest, RefusesWhatItCannotCarry) {
  EXPECT_EQ(Send(1, "a",
                 [](OutboundRequest* request) { request->method = "nothing"; })
                .code(),
            STATUS_INVALID_METHOD_NAME);
  EXPECT_EQ(Send(1, "a",
                 [](OutboundRequest* request) {
                   request->attachment = CreateBufferSlow("b");
                 })
                .code(),
            STATUS_NOT_SUPPORTED);
}

}  // namespace
}  // namespace flare::rpc
