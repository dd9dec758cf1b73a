#include "flare/rpc/grpc/grpc_server_protocol.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::RecordingSink;
using testing::SlicedBuffer;

struct TestReceiver final : StreamReceiver {
  void OnMessage(Buffer&& message, bool) override {
    said += "message " + std::to_string(message.size()) + "\n";
  }
  void OnCompressed(Buffer&& message, CompressionAlgorithm algorithm,
                    std::size_t max_size) override {
    said += std::string(ToString(algorithm)) + " " +
            std::to_string(message.size()) + " up to " +
            std::to_string(max_size) + "\n";
  }
  void OnEnd(const flare::Status&) override { said += "end\n"; }
  void OnCredit(std::size_t bytes) override { credit += bytes; }
  void OnReset(const flare::Status& why) override {
    said += "reset: " + why.message() + "\n";
  }
  void Drop() override {}
  void OnInputLost(const flare::Status&) override { said += "lost\n"; }

  std::string said;
  std::size_t credit = 0;
};

// Knows a.B.Unary and a.B.Stream.
class TestSink final : public RecordingSink {
 public:
  MethodKind KindOfMethod(std::string_view name,
                          bool /*short_service*/) override {
    if (name == "a.B.Unary") return MethodKind::kUnary;
    return name == "a.B.Stream" ? MethodKind::kStreaming : MethodKind::kUnknown;
  }
  void StopLeftCalls() override { ++stops; }
  void CountHeld(std::size_t before, std::size_t after) override {
    held += after - before;
    most_held = std::max(most_held, held);
  }
  RefPtr<StreamReceiver> OpenStream(
      const StreamOpening& opening,
      std::unique_ptr<StreamWire> new_wire) override {
    timeout_ms = opening.timeout_ms;
    wire = std::move(new_wire);
    EXPECT_TRUE(wire->Begin(receiver));
    return receiver;
  }

  int stops = 0;
  std::size_t held = 0;
  std::size_t most_held = 0;
  std::uint32_t timeout_ms = 0;
  RefPtr<TestReceiver> receiver = MakeRefCounted<TestReceiver>();
  std::unique_ptr<StreamWire> wire;
};

struct ClientStream final : Http2Stream {
  std::string head;
  std::string trailers;
  std::string data;
  bool ended = false;
  bool reset = false;
  Http2Error error = Http2Error::kNoError;
};

class GrpcServerProtocolTest : public ::testing::Test, public Http2Handler {
 protected:
  GrpcServerProtocolTest() { Remake({}); }
  ~GrpcServerProtocolTest() override { sink.wire.reset(); }

  void Remake(const Limits& limits) {
    protocol = NewGrpcServerProtocol(limits, &sink);
    client = std::make_unique<Http2Session>(Http2Session::Role::kClient,
                                            Http2Session::Options{}, this);
  }

  // Http2Handler
  Http2Stream* OnStream() override { return nullptr; }
  bool OnField(Http2Stream* base, std::string_view name,
               std::string_view value) override {
    auto* const stream = static_cast<ClientStream*>(base);
    const bool trailers = !stream->data.empty() || stream->head.ends_with("\n");
    (trailers ? stream->trailers : stream->head)
        .append(name)
        .append("=")
        .append(value)
        .append(";");
    return true;
  }
  void OnHeaders(Http2Stream* base, bool, bool) override {
    static_cast<ClientStream*>(base)->head += "\n";
  }
  void OnData(Http2Stream* base, Buffer&& bytes) override {
    static_cast<ClientStream*>(base)->data += FlattenSlow(bytes);
    client->Grant(base, bytes.size());
  }
  void OnEnd(Http2Stream* base) override {
    static_cast<ClientStream*>(base)->ended = true;
  }
  void OnSent(Http2Stream*, std::size_t) override {}
  void OnClosed(Http2Stream* base, Http2Error error, bool) override {
    static_cast<ClientStream*>(base)->reset = error != Http2Error::kNoError;
    static_cast<ClientStream*>(base)->error = error;
  }
  void OnGoAway(std::int32_t last_id, Http2Error error,
                std::string_view) override {
    goaway = true;
    goaway_last = last_id;
    goaway_error = error;
  }

  static std::string Message(std::size_t size, char flag = 0) {
    std::string bytes(1, flag);
    bytes += testing::BigEndian(size, 4);
    return bytes + std::string(size, 'm');
  }

  // A frame that our client would not send.
  static std::string Frame(int type, int flags, std::uint32_t id,
                           std::string_view payload) {
    return testing::BigEndian(payload.size(), 3) + static_cast<char>(type) +
           static_cast<char>(flags) + testing::BigEndian(id, 4) +
           std::string(payload);
  }

  void Open(ClientStream* stream, std::string_view method,
            std::vector<Http2Field> more = {},
            std::string_view type = "application/grpc",
            std::string_view verb = "POST") {
    std::vector<Http2Field> fields = {
        {":method", verb},      {":scheme", "http"}, {":path", method},
        {":authority", "here"}, {"te", "trailers"},  {"content-type", type}};
    fields.insert(fields.end(), more.begin(), more.end());
    ASSERT_TRUE(client->Open(stream, fields, /*end=*/false));
  }

  // Passes the client's output to the protocol. Requests that it cuts are in
  // `requests`.
  void Serve(std::size_t piece = 1 << 20) {
    for (;;) {
      Buffer bytes = client->Flush();
      const std::string answer = sink.Take();
      if (bytes.empty() && answer.empty()) return;
      if (!answer.empty()) {
        static_cast<void>(client->Receive(CreateBufferSlow(answer)));
      }
      Buffer in = SlicedBuffer(FlattenSlow(bytes), piece);
      while (!in.empty()) {
        auto request = std::make_unique<InboundRequest>();
        std::size_t need = 0;
        result = protocol->Cut(in, request.get(), &need, &error);
        if (result == CutResult::kMessage) {
          requests.push_back(std::move(request));
        } else if (result != CutResult::kHandled) {
          break;
        }
      }
      ASSERT_TRUE(in.empty() || result == CutResult::kError);
      if (result == CutResult::kError) return;  // It is closed.
    }
  }

  static OutboundResponse Failure(int status, std::string_view text) {
    OutboundResponse response;
    response.status = status;
    response.description = text;
    return response;
  }

  void Answer(OutboundResponse&& response) {
    ASSERT_FALSE(requests.empty());
    protocol->Write(requests.back()->ticket, std::move(response));
    Serve();
  }

  // Declared in this order: streams call their wires.
  TestSink sink;
  std::unique_ptr<ServerProtocol> protocol;
  std::unique_ptr<Http2Session> client;
  std::vector<std::unique_ptr<InboundRequest>> requests;
  CutResult result = CutResult::kNeedMore;
  std::string error;
  bool goaway = false;
  std::int32_t goaway_last = 0;
  Http2Error goaway_error = Http2Error::kNoError;
};

TEST_F(GrpcServerProtocolTest, IsKnownByItsPreface) {
  const auto cut = [&](std::string_view bytes) {
    Buffer in = CreateBufferSlow(bytes);
    InboundRequest request;
    std::size_t need = 0;
    return protocol->Cut(in, &request, &need, &error);
  };
  EXPECT_EQ(cut("P"), CutResult::kUnsure);
  EXPECT_EQ(cut("PRI"), CutResult::kUnsure);
  EXPECT_EQ(cut("PRI "), CutResult::kNeedMore);
  EXPECT_EQ(cut(Http2Session::kPreface.substr(0, 23)), CutResult::kNeedMore);
  EXPECT_EQ(cut("POST / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(cut("PRI * HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(cut("FRPC"), CutResult::kNotMine);
  EXPECT_EQ(cut(Http2Session::kPreface), CutResult::kHandled);
}

// The connection remembers some paths, and the last list of encodings.
TEST_F(GrpcServerProtocolTest, KnowsEachOfManyMethods) {
  constexpr int kMethods = 100;
  std::vector<std::string> names;
  for (int i = 0; i != kMethods; ++i) {
    names.push_back("Method" + std::to_string(i) +
                    std::string(i % 10 == 0 ? 300 : 0, 'x'));
  }
  const std::vector<std::string> lists = {"gzip",
                                          "gzip",
                                          "identity",
                                          std::string(130, 'x') + ",deflate",
                                          std::string(130, 'x') + ",gzip",
                                          std::string(128, 'x') + ",gzip",
                                          std::string(128, 'x')};
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (int i = 0; i != 3 * kMethods; ++i) {
    streams.push_back(std::make_unique<ClientStream>());
    Open(streams.back().get(), "/a.B/" + names[i % kMethods],
         {{"grpc-accept-encoding", lists[i % lists.size()]}});
    client->SendEnd(streams.back().get());
    Serve();
    ASSERT_EQ(requests.size(), streams.size());
    protocol->Write(requests.back()->ticket,
                    Failure(STATUS_METHOD_NOT_FOUND, "no such method"));
  }
  Serve();
  for (std::size_t i = 0; i != requests.size(); ++i) {
    EXPECT_EQ(requests[i]->head.method, "a.B." + names[i % kMethods]) << i;
    EXPECT_EQ(requests[i]->head.acceptable_compressions,
              ParseGrpcAcceptEncoding(lists[i % lists.size()]))
        << i;
  }
}

TEST_F(GrpcServerProtocolTest, CutsUnaryRequests) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary",
       {{"grpc-timeout", "1500u"},
        {"grpc-accept-encoding", "gzip"},
        {"key", "value"},
        {"key-bin", "AAE"}});
  client->SendData(&stream, CreateBufferSlow(Message(3)));
  client->SendEnd(&stream);
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  const InboundRequest& request = *requests[0];
  EXPECT_EQ(request.head.method, "a.B.Unary");
  EXPECT_EQ(request.head.timeout_ms, 2u);
  EXPECT_EQ(request.head.acceptable_compressions,
            ParseGrpcAcceptEncoding("gzip"));
  EXPECT_EQ(FlattenSlow(request.body), "mmm");
  ASSERT_NE(request.metadata, nullptr);
  EXPECT_EQ(request.metadata->Get("key"), "value");
  EXPECT_EQ(request.metadata->Get("key-bin"), std::string_view("\0\1", 2));
  EXPECT_EQ(request.metadata->size(), 2u);

  Metadata metadata;
  ASSERT_TRUE(metadata.Add("answer-bin", std::string_view("\0\1", 2)).ok());
  OutboundResponse response;
  response.body = CreateBufferSlow("reply");
  response.metadata = &metadata;
  Metadata trailers;
  ASSERT_TRUE(trailers.Add("cost", "3").ok());
  response.trailers = &trailers;
  Answer(std::move(response));
  EXPECT_EQ(stream.head,
            ":status=200;content-type=application/grpc;answer-bin=AAE;\n\n");
  EXPECT_EQ(stream.data, std::string("\0\0\0\0\5reply", 10));
  EXPECT_EQ(stream.trailers, "grpc-status=0;cost=3;");
  EXPECT_TRUE(stream.ended);
  EXPECT_FALSE(stream.reset);
}

// With metadata, and with other methods and deadlines, in between.
TEST_F(GrpcServerProtocolTest, HeadsThatComeAgainSayTheSame) {
  const auto call = [&](std::string_view path, std::string_view timeout,
                        std::vector<Http2Field> more = {}) {
    ClientStream stream;
    more.push_back({"grpc-timeout", timeout});
    more.push_back({"grpc-accept-encoding", "gzip"});
    Open(&stream, path, std::move(more));
    client->SendData(&stream, CreateBufferSlow(Message(3)), /*end=*/true);
    Serve();
    const InboundRequest& request = *requests.back();
    EXPECT_EQ(request.head.acceptable_compressions,
              ParseGrpcAcceptEncoding("gzip"));
    EXPECT_EQ("/" + std::string(request.head.method.substr(0, 3)) + "/" +
                  std::string(request.head.method.substr(4)),
              path);
    std::string said = std::to_string(request.head.timeout_ms);
    if (request.metadata != nullptr) {
      said += " " + std::string(*request.metadata->Get("key"));
    }
    Answer({});
    EXPECT_EQ(stream.trailers, "grpc-status=0;");
    return said;
  };
  for (int i = 0; i != 5; ++i) {
    EXPECT_EQ(call("/a.B/Unary", "1S"), "1000");
    EXPECT_EQ(call("/a.B/Unary", "1S"), "1000");
    EXPECT_EQ(call("/a.B/Unary", "2S"), "2000");
    EXPECT_EQ(call("/a.B/Unary", "2S", {{"key", "1"}}), "2000 1");
    EXPECT_EQ(call("/a.B/Unary", "2S", {{"key", "1"}}), "2000 1");
    EXPECT_EQ(call("/a.B/Unary", "2S"), "2000");
    EXPECT_EQ(call("/a.B/Unary", "2S"), "2000");
    EXPECT_EQ(call("/a.B/None", "2S"), "2000");
  }
}

// Those of a connection's first 64 paths are kept. The next one's method lives
// no longer than its stream.
TEST_F(GrpcServerProtocolTest, AHeadWhosePathIsNotKeptIsReadEachTime) {
  for (int i = 0; i != 64; ++i) {
    ClientStream stream;
    Open(&stream, "/a.B/Method" + std::to_string(i));
    client->SendEnd(&stream);
    Serve();
    Answer(Failure(STATUS_METHOD_NOT_FOUND, "no such method"));
  }
  for (int i = 0; i != 5; ++i) {
    ClientStream stream;
    Open(&stream, "/a.B/Unary");
    client->SendData(&stream, CreateBufferSlow(Message(3)), /*end=*/true);
    Serve();
    EXPECT_EQ(requests.back()->head.method, "a.B.Unary");
    Answer({});
    EXPECT_EQ(stream.trailers, "grpc-status=0;");
  }
}

TEST_F(GrpcServerProtocolTest, FailuresAreAllInTheHead) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(0)));
  client->SendEnd(&stream);
  Serve();
  Answer(Failure(2000, "r\xc3\xa9sum\xc3\xa9 100%"));
  EXPECT_EQ(stream.head,
            ":status=200;content-type=application/grpc;grpc-status=2;"
            "grpc-message=r%C3%A9sum%C3%A9 100%25;rpc-error-code=2000;\n");
  EXPECT_TRUE(stream.ended);
}

TEST_F(GrpcServerProtocolTest, CountsRepliesThatWaitForTheWindow) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(0)));
  client->SendEnd(&stream);
  Serve();
  OutboundResponse response;
  response.body = CreateBufferSlow(std::string(200'000, 'r'));
  Answer(std::move(response));
  EXPECT_EQ(sink.most_held, 200'005u - 65'536u);
  EXPECT_EQ(sink.held, 0u);
  EXPECT_EQ(stream.data.size(), 200'005u);
  EXPECT_TRUE(stream.ended);
}

TEST_F(GrpcServerProtocolTest, GivesOneRequestAtATime) {
  ClientStream streams[5];
  for (ClientStream& stream : streams) {
    Open(&stream, "/a.B/Unary");
    client->SendData(&stream, CreateBufferSlow(Message(10)));
    client->SendEnd(&stream);
  }
  Serve();
  EXPECT_EQ(requests.size(), 5u);
}

TEST_F(GrpcServerProtocolTest, BytesMayComeOneByOne) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1000)));
  client->SendEnd(&stream);
  Serve(/*piece=*/1);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0]->body.size(), 1000u);
}

TEST_F(GrpcServerProtocolTest, SaysThatPlainRequestsBelongElsewhere) {
  ClientStream stream;
  Open(&stream, "/", {}, "text/plain");
  client->SendData(&stream, CreateBufferSlow("hello"));
  Serve();
  EXPECT_EQ(stream.head, "");  // The rest may be wrong.
  EXPECT_TRUE(protocol->WithinMessage());
  client->SendEnd(&stream);
  Serve();
  EXPECT_TRUE(stream.ended);
  EXPECT_FALSE(protocol->WithinMessage());
  EXPECT_EQ(stream.data.size(), 118u);
  EXPECT_NE(stream.data.find("over HTTP/1.1.\n"), std::string::npos);

  // A body isn't waited for that doesn't fit.
  ClientStream large;
  Open(&large, "/", {}, "text/plain");
  client->SendData(&large, CreateBufferSlow(std::string(40'000, 'x')));
  Serve();
  EXPECT_TRUE(large.ended);
  EXPECT_FALSE(protocol->WithinMessage());
}

TEST_F(GrpcServerProtocolTest, TheClientIsToldBeforeTheEnd) {
  EXPECT_FALSE(protocol->AnnounceEnd());  // There is no session yet.
  ClientStream first;
  Open(&first, "/a.B/Unary");
  Serve();
  ClientStream second;  // Begun before the client knows.
  Open(&second, "/a.B/Unary");
  client->SendData(&second, CreateBufferSlow(Message(3)));
  client->SendEnd(&second);
  Buffer on_its_way = client->Flush();
  EXPECT_TRUE(protocol->AnnounceEnd());
  static_cast<void>(client->Receive(CreateBufferSlow(sink.Take())));
  EXPECT_TRUE(goaway);
  EXPECT_EQ(goaway_last, 0x7fffffff);
  EXPECT_TRUE(protocol->AnnounceEnd());  // Once is enough.
  EXPECT_EQ(sink.Take(), "");
  while (!on_its_way.empty()) {
    auto request = std::make_unique<InboundRequest>();
    std::size_t need = 0;
    result = protocol->Cut(on_its_way, request.get(), &need, &error);
    if (result == CutResult::kMessage) requests.push_back(std::move(request));
  }
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_FALSE(sink.closed());
  Serve();  // The answer to the ping.
  EXPECT_FALSE(sink.closed());
  client->SendData(&first, CreateBufferSlow(Message(3)));
  Serve();
  EXPECT_FALSE(sink.closed());
  client->SendEnd(&first);
  Serve();
  EXPECT_EQ(requests.size(), 2u);
  EXPECT_TRUE(sink.closed());
}

TEST_F(GrpcServerProtocolTest, RequestsThatAreIncompleteAtTheEndMayBeRepeated) {
  Remake({});
  protocol = NewGrpcServerProtocol({}, &sink, {.plain = true});
  ClientStream call;
  Open(&call, "/a.B/Unary");
  client->SendData(&call, CreateBufferSlow(Message(3).substr(0, 7)));
  ClientStream page;
  Open(&page, "/page", {}, "text/plain");
  ClientStream begun;
  Open(&begun, "/a.B/Unary");
  client->SendData(&begun, CreateBufferSlow(Message(3)), /*end=*/true);
  ClientStream messages;
  Open(&messages, "/a.B/Stream");
  Serve();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_TRUE(protocol->AnnounceEnd());
  Serve();
  EXPECT_FALSE(sink.closed());
  protocol->EndInput();
  Serve();
  EXPECT_EQ(call.error, Http2Error::kRefusedStream);
  EXPECT_EQ(page.error, Http2Error::kRefusedStream);
  EXPECT_FALSE(messages.reset);
  EXPECT_FALSE(protocol->WithinMessage());
  protocol->Write(requests[0]->ticket, {});
  Serve();
  EXPECT_TRUE(begun.ended);
  EXPECT_FALSE(begun.reset);
}

TEST_F(GrpcServerProtocolTest, CountsRequestsThatAreIncomplete) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1000).substr(0, 600)));
  Serve();
  EXPECT_TRUE(protocol->WithinMessage());
  EXPECT_EQ(protocol->KeptOfMessage(), 600u);
  client->SendReset(&stream, Http2Error::kCancel);
  Serve();
  EXPECT_FALSE(protocol->WithinMessage());
  EXPECT_EQ(protocol->KeptOfMessage(), 0u);
  EXPECT_EQ(sink.stops, 0);  // No call has begun.
  EXPECT_TRUE(requests.empty());
}

// By their size in memory, however few bytes HPACK makes of them.
TEST_F(GrpcServerProtocolTest, CountsMetadataOfIncompleteRequests) {
  const std::string large(3000, 'v');
  ClientStream streams[3];
  for (ClientStream& stream : streams) {
    Open(&stream, "/a.B/Unary", {{"name", large}});
    Serve();
  }
  EXPECT_EQ(protocol->KeptOfMessage(), 3u * (4 + 3000 + 32));
  for (ClientStream& stream : streams) {
    client->SendData(&stream, CreateBufferSlow(Message(7)));
    client->SendEnd(&stream);
    Serve();
    ASSERT_FALSE(requests.empty());
    ASSERT_NE(requests.back()->metadata, nullptr);
    EXPECT_GE(requests.back()->wire_size, 3000u);
  }
  EXPECT_EQ(requests.size(), 3u);
  EXPECT_EQ(protocol->KeptOfMessage(), 0u);
  // It doesn't count for the limit of messages.
  Remake({.max_packet_size = 1000});
  ClientStream stream;
  Open(&stream, "/a.B/Unary", {{"name", large}});
  client->SendData(&stream, CreateBufferSlow(Message(1000)));
  client->SendEnd(&stream);
  Serve();
  EXPECT_EQ(requests.size(), 4u);
}

// A request that comes, and others beside it that come to their ends, or none.
TEST_F(GrpcServerProtocolTest, KnowsWhetherEarlierRequestsHaveEnded) {
  ClientStream slow;
  Open(&slow, "/a.B/Unary");
  Serve();
  EXPECT_TRUE(protocol->EarlierMessagesEnded());
  client->Ping();
  Serve();
  EXPECT_FALSE(protocol->EarlierMessagesEnded());
  ClientStream next;
  Open(&next, "/a.B/Unary");
  for (ClientStream* const other : {&next, &slow}) {
    ClientStream quick;
    Open(&quick, "/a.B/Unary");
    client->SendData(&quick, CreateBufferSlow(Message(1)));
    client->SendEnd(&quick);
    Serve();
    protocol->Write(requests.back()->ticket, {});
    Serve();
    EXPECT_TRUE(quick.ended);
    EXPECT_FALSE(protocol->EarlierMessagesEnded());
    client->SendData(other, CreateBufferSlow(Message(1)));
    client->SendEnd(other);
    Serve();
    EXPECT_EQ(protocol->EarlierMessagesEnded(), other == &slow);
  }
  EXPECT_FALSE(protocol->WithinMessage());
}

TEST_F(GrpcServerProtocolTest, AHeadInPiecesIsOneRequest) {
  Serve();
  const auto feed = [&](std::string_view bytes) {
    Buffer in = CreateBufferSlow(bytes);
    InboundRequest request;
    std::size_t need = 0;
    EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kHandled);
    EXPECT_TRUE(protocol->WithinMessage());
    return protocol->EarlierMessagesEnded();
  };
  EXPECT_TRUE(feed(Frame(1, 0, 1, "\x83")));  // HEADERS: POST
  EXPECT_FALSE(feed(Frame(9, 0, 1, "")));
  EXPECT_FALSE(feed(Frame(9, 0, 1, "\x86")));  // CONTINUATION: http
  // Its rest, and another one's begin.
  EXPECT_TRUE(feed(Frame(9, 4, 1, "\x84\x41\x01h") + Frame(1, 0, 3, "\x83")));
}

TEST_F(GrpcServerProtocolTest, CountsAHeadThatComesInPieces) {
  Serve();
  constexpr std::size_t kPiece = 10'000;
  for (std::size_t i = 0; i != 5; ++i) {
    Buffer in = CreateBufferSlow(
        Frame(i == 0 ? 1 : 9, 0, 1, std::string(kPiece, '\0')));
    InboundRequest request;
    std::size_t need = 0;
    EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kHandled);
    EXPECT_EQ(protocol->KeptOfMessage(), (i + 1) * kPiece);
  }
}

// The first one says whose request it is.
TEST_F(GrpcServerProtocolTest, ARepeatedContentTypeHidesNoFields) {
  protocol = NewGrpcServerProtocol({}, &sink, {.plain = true});
  const auto post = [&](std::string_view first, std::string_view second) {
    ClientStream stream;
    EXPECT_TRUE(client->Open(&stream,
                             {{":method", "POST"},
                              {":scheme", "http"},
                              {":path", "/page"},
                              {":authority", "here"},
                              {"content-type", first},
                              {"content-type", second},
                              {"x-forwarded-for", "there"}},
                             /*end=*/true));
    Serve();
    EXPECT_TRUE(requests.empty());
    return stream.reset ? "reset" : stream.head;
  };
  EXPECT_EQ(post("application/grpc", "text/plain"), "reset");
  EXPECT_TRUE(
      post("text/plain", "application/grpc").starts_with(":status=400;"));
}

// No field may begin or end with a blank.
TEST_F(GrpcServerProtocolTest, TextsOfFailuresMayEndWithBlanks) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1)));
  client->SendEnd(&stream);
  Serve();
  Answer(Failure(1234, "cannot open: "));
  EXPECT_FALSE(stream.reset);
  EXPECT_NE(stream.head.find("grpc-message=cannot open:%20;"),
            std::string::npos)
      << stream.head;
}

TEST_F(GrpcServerProtocolTest, RefusesWhatItCantServe) {
  const auto head_for = [&](std::string_view path,
                            std::vector<Http2Field> more = {},
                            std::string_view type = "application/grpc",
                            std::string_view verb = "POST") {
    ClientStream stream;
    Open(&stream, path, std::move(more), type, verb);
    client->SendEnd(&stream);
    Serve();
    EXPECT_TRUE(stream.ended) << path;
    EXPECT_TRUE(requests.empty()) << path;
    return stream.head;
  };
  EXPECT_EQ(head_for("/a.B/Unary", {}, "text/html"),
            ":status=415;content-type=text/plain;content-length=118;\n");
  EXPECT_EQ(head_for("/a.B/Unary", {}, "application/grpc", "HEAD"),
            ":status=405;content-type=text/plain;content-length=96;\n");
  const auto has = [&](const std::string& head, std::string_view part) {
    EXPECT_NE(head.find(part), std::string::npos) << head;
  };
  has(head_for("/nothing"), "grpc-status=12;");
  has(head_for("/a.B/Unary", {{"grpc-timeout", "soon"}}), "grpc-status=13;");
  has(head_for("/a.B/Unary", {{"grpc-encoding", "best"}}), "grpc-status=12;");
  has(head_for("/a.B/Unary", {{"grpc-encoding", "best"}}),
      "grpc-accept-encoding=identity,");
  has(head_for("/a.B/Unary"), "grpc-status=13;");  // No message.
}

TEST_F(GrpcServerProtocolTest, UnknownMethodsNeedNoMessage) {
  ClientStream stream;
  Open(&stream, "/a.B/Nothing");
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0]->head.method, "a.B.Nothing");
  Answer(Failure(STATUS_METHOD_NOT_FOUND, "no"));
  EXPECT_NE(stream.head.find("grpc-status=12;"), std::string::npos);
  EXPECT_TRUE(stream.ended);
  EXPECT_FALSE(stream.reset);
}

TEST_F(GrpcServerProtocolTest, RefusesLargeMessagesBeforeTheyCome) {
  Remake({.max_packet_size = 1000});
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1001).substr(0, 100)));
  Serve();
  EXPECT_NE(stream.head.find("grpc-status=8;"), std::string::npos)
      << stream.head;
  EXPECT_TRUE(stream.ended);
  EXPECT_EQ(protocol->KeptOfMessage(), 0u);
}

TEST_F(GrpcServerProtocolTest, LargeMessagesGetTheWindowTheyNeed) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(3'000'000)));
  client->SendEnd(&stream);
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0]->body.size(), 3'000'000u);
}

TEST_F(GrpcServerProtocolTest, BoundsMetadata) {
  Remake({.metadata = {.entries = 3, .bytes = 1000}});
  ClientStream stream;
  Open(&stream, "/a.B/Unary", {{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}});
  Serve();
  EXPECT_NE(stream.head.find("grpc-status=8;"), std::string::npos)
      << stream.head;
  ClientStream large;
  const std::string value(20'000, 'v');
  Open(&large, "/a.B/Unary", {{"large", value}});
  Serve();
  EXPECT_TRUE(large.reset);
  EXPECT_EQ(large.error, Http2Error::kEnhanceYourCalm);
  EXPECT_TRUE(requests.empty());
}

TEST_F(GrpcServerProtocolTest, BoundsStreams) {
  Remake({.max_pipeline = 3});
  ClientStream streams[5];
  for (ClientStream& stream : streams) {
    Open(&stream, "/a.B/Unary");
    client->SendData(&stream, CreateBufferSlow(Message(10)));
    client->SendEnd(&stream);
  }
  Serve();
  // A client that doesn't know the limit yet is refused, and ours waits. With
  // as many calls as max_pipeline the connection would read no more.
  EXPECT_LE(requests.size(), 2u);
  std::size_t served = 0;
  while (served != requests.size()) {
    protocol->Write(requests[served++]->ticket, {});
    Serve();
  }
  for (const ClientStream& stream : streams) {
    EXPECT_TRUE(stream.ended || stream.error == Http2Error::kRefusedStream);
  }
}

TEST_F(GrpcServerProtocolTest, KnowsCallersThatHaveLeft) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1)));
  client->SendEnd(&stream);
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_FALSE(protocol->CallerLeft(requests[0]->ticket));
  client->SendReset(&stream, Http2Error::kCancel);
  Serve();
  EXPECT_EQ(sink.stops, 1);
  EXPECT_TRUE(protocol->CallerLeft(requests[0]->ticket));
  protocol->Write(requests[0]->ticket, {});
  EXPECT_EQ(sink.Take(), "");
  EXPECT_FALSE(protocol->CallerLeft(requests[0]->ticket));
}

// It closes the stream by breaking a rule.
TEST_F(GrpcServerProtocolTest, CallersWhoseStreamsAreRejectedHaveLeft) {
  ClientStream stream;
  Open(&stream, "/a.B/Unary");
  client->SendData(&stream, CreateBufferSlow(Message(1)));
  client->SendEnd(&stream);
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  Buffer in = CreateBufferSlow(Frame(8, 0, 1, std::string(4, '\0')));
  InboundRequest none;
  std::size_t need = 0;
  EXPECT_EQ(protocol->Cut(in, &none, &need, &error), CutResult::kHandled);
  EXPECT_EQ(sink.stops, 1);
  EXPECT_TRUE(protocol->CallerLeft(requests[0]->ticket));
  protocol->Write(requests[0]->ticket, {});
  EXPECT_FALSE(protocol->CallerLeft(requests[0]->ticket));
}

// Their streams have ended, by frames of their client, and they run on.
TEST_F(GrpcServerProtocolTest, HandlersThatRunForNobodyAreBounded) {
  Remake({.max_pipeline = 3});
  std::vector<std::unique_ptr<StreamWire>> running;
  const auto outcome = [&](bool break_it) {
    ClientStream stream;
    Open(&stream, "/a.B/Stream");
    client->SendData(&stream, CreateBufferSlow(Message(1, break_it ? 2 : 0)));
    client->SendEnd(&stream);
    Serve();
    if (sink.wire != nullptr) {
      if (!break_it) {
        EXPECT_TRUE(sink.wire->SendEnd(flare::Status()));
      }
      running.push_back(std::move(sink.wire));
      Serve();
    }
    return stream.error;
  };
  for (int i = 0; i != 100; ++i) {
    ASSERT_EQ(outcome(/*break_it=*/i % 2 == 0), Http2Error::kNoError) << i;
  }
  EXPECT_EQ(running.size(), 100u);
  EXPECT_EQ(outcome(false), Http2Error::kRefusedStream);
  running.pop_back();
  EXPECT_EQ(outcome(false), Http2Error::kNoError);
  EXPECT_EQ(outcome(false), Http2Error::kRefusedStream);
  running.clear();
  // One whose stream is still open is none of them.
  ClientStream open;
  Open(&open, "/a.B/Stream");
  Serve();
  sink.wire.reset();
  Serve();
  EXPECT_EQ(open.error, Http2Error::kCancel);
  for (int i = 0; i != 100; ++i) {
    ASSERT_EQ(outcome(false), Http2Error::kNoError) << i;
  }
  EXPECT_EQ(outcome(false), Http2Error::kRefusedStream);
  running.clear();
}

TEST_F(GrpcServerProtocolTest, CarriesStreams) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream", {{"grpc-timeout", "3S"}});
  client->SendData(&stream, CreateBufferSlow(Message(5) + Message(6)));
  Serve();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_NE(requests[0]->stream, nullptr);
  EXPECT_EQ(sink.timeout_ms, 3000u);
  EXPECT_EQ(sink.receiver->said, "message 5\nmessage 6\n");

  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow("one"), false));
  EXPECT_EQ(sink.wire->TakeCredit(), 8u);
  EXPECT_EQ(sink.wire->TakeCredit(), 0u);
  Serve();
  EXPECT_EQ(stream.data, std::string("\0\0\0\0\3one", 8));
  client->SendEnd(&stream);
  Serve();
  EXPECT_EQ(sink.receiver->said, "message 5\nmessage 6\nend\n");
  EXPECT_TRUE(sink.wire->SendEnd(flare::Status()));
  Serve();
  EXPECT_EQ(stream.trailers, "grpc-status=0;");
  EXPECT_TRUE(stream.ended);
}

TEST_F(GrpcServerProtocolTest, StreamsTakeCompressedMessages) {
  Remake({.max_packet_size = 100});
  ClientStream stream;
  Open(&stream, "/a.B/Stream", {{"grpc-encoding", "deflate"}});
  client->SendData(&stream,
                   CreateBufferSlow(Message(5, /*flag=*/1) + Message(6)));
  Serve();
  EXPECT_EQ(sink.receiver->said, "zlib 5 up to 100\nmessage 6\n");
}

TEST_F(GrpcServerProtocolTest, ACompressedMessageNeedsAnEncoding) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  client->SendData(&stream, CreateBufferSlow(Message(5, /*flag=*/1)));
  Serve();
  EXPECT_TRUE(sink.receiver->said.starts_with("reset: grpc: a compressed"));
  EXPECT_NE(stream.head.find("grpc-status=13;"), std::string::npos);
}

TEST_F(GrpcServerProtocolTest, StreamsAreCompressedAsTheClientAccepts) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream", {{"grpc-accept-encoding", "gzip, zstd, br"}});
  Serve();
  EXPECT_FALSE(sink.wire->UseCompression(CompressionAlgorithm::kSnappy));
  EXPECT_FALSE(sink.wire->UseCompression(CompressionAlgorithm::kNone));
  EXPECT_TRUE(sink.wire->UseCompression(CompressionAlgorithm::kGzip));
  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow("plain"), false));
  EXPECT_TRUE(sink.wire->SendCompressed(CreateBufferSlow("packed"), false));
  Serve();
  EXPECT_NE(stream.head.find("grpc-encoding=gzip;"), std::string::npos);
  EXPECT_EQ(stream.data, std::string("\0\0\0\0\5plain\1\0\0\0\6packed", 21));
}

TEST_F(GrpcServerProtocolTest, StreamsHaveMetadataAtBothEnds) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  Metadata initial;
  ASSERT_TRUE(initial.Add("first", "1").ok());
  Metadata trailing;
  ASSERT_TRUE(trailing.Add("last", "2").ok());
  EXPECT_TRUE(
      sink.wire->AddMetadata(StreamWire::MetadataPlace::kInitial, initial));
  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow("m"), false));
  EXPECT_TRUE(
      sink.wire->AddMetadata(StreamWire::MetadataPlace::kTrailing, trailing));
  EXPECT_TRUE(sink.wire->SendEnd(flare::Status(STATUS_TIMEOUT, "late")));
  Serve();
  EXPECT_NE(stream.head.find("first=1;"), std::string::npos);
  EXPECT_EQ(stream.trailers, "grpc-status=4;grpc-message=late;last=2;");
}

TEST_F(GrpcServerProtocolTest, WritersWaitForThePeersWindow) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  const std::string large(200'000, 'l');
  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow(large), false));
  // As much as the windows of the connection and the stream had, which the
  // client's replies open again.
  EXPECT_EQ(sink.wire->TakeCredit(), 65'536u);
  EXPECT_EQ(sink.held, 200'005u - 65'536u);
  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow("more"), false));
  EXPECT_EQ(sink.held, 200'005u + 9u - 65'536u);
  Serve();
  EXPECT_EQ(stream.data.size(), 200'005u + 9u);
  EXPECT_EQ(sink.receiver->credit, 200'005u + 9u - 65'536u);
  EXPECT_EQ(sink.held, 0u);
}

// Its reply may wait for the window for ever.
TEST_F(GrpcServerProtocolTest, APartOfAMessageIsDroppedWhenTheCallIsAnswered) {
  for (const bool by_method : {true, false}) {
    Remake({});
    sink.receiver = MakeRefCounted<TestReceiver>();
    ClientStream stream;
    Open(&stream, "/a.B/Stream");
    Serve();
    EXPECT_TRUE(sink.wire->SendMessage(
        CreateBufferSlow(std::string(200'000, 'l')), false));
    const std::size_t queued = sink.held;
    const std::string part = Message(9000).substr(0, 6000);
    bool kept = true;
    Buffer in = CreateBufferSlow(Frame(0, 0, 1, part).substr(0, 9));
    in.Append(MakeReferencingBuffer(part.data(), part.size(),
                                    [&kept] { kept = false; }));
    InboundRequest request;
    std::size_t need = 0;
    EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kHandled);
    EXPECT_TRUE(kept);
    EXPECT_EQ(sink.held, queued + 6000);
    if (by_method) {
      EXPECT_TRUE(sink.wire->SendEnd(flare::Status()));
      sink.wire.reset();
    } else {
      in = CreateBufferSlow(Frame(0, 1, 1, ""));  // Ends within a message.
      EXPECT_EQ(protocol->Cut(in, &request, &need, &error),
                CutResult::kHandled);
    }
    EXPECT_EQ(sink.held, queued);
    EXPECT_FALSE(kept);
    sink.wire.reset();
    sink.held = 0;  // The connection's end.
  }
}

// They don't make a request incomplete: the connection isn't slow.
TEST_F(GrpcServerProtocolTest, CountsPartsOfStreamsMessages) {
  ClientStream streams[2];
  const std::string message = Message(1000);
  for (ClientStream& stream : streams) {
    sink.receiver = MakeRefCounted<TestReceiver>();
    Open(&stream, "/a.B/Stream");
    client->SendData(&stream, CreateBufferSlow(message + message.substr(0, 9)));
    Serve();
    std::unique_ptr<StreamWire> wire = std::move(sink.wire);
    client->SendData(&stream, CreateBufferSlow(message.substr(9, 600)));
    Serve();
    EXPECT_EQ(sink.held, 609u);
    EXPECT_FALSE(protocol->WithinMessage());
    EXPECT_EQ(protocol->KeptOfMessage(), 0u);
    if (&stream == streams) {
      client->SendData(&stream, CreateBufferSlow(message.substr(609)));
    } else {
      client->SendReset(&stream, Http2Error::kCancel);
    }
    Serve();
    EXPECT_EQ(sink.held, 0u);
  }
  EXPECT_EQ(sink.most_held, 609u);  // Nothing that came whole.
}

TEST_F(GrpcServerProtocolTest, WhatWaitsIsDroppedWhenTheCallIsGivenUp) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  EXPECT_TRUE(sink.wire->SendMessage(
      CreateBufferSlow(std::string(200'000, 'l')), false));
  EXPECT_NE(sink.held, 0u);
  sink.wire->SendReset(flare::Status(STATUS_TIMEOUT, "late"));
  EXPECT_EQ(sink.held, 0u);
  Serve();
  EXPECT_EQ(stream.data.size(), 65'536u);
  EXPECT_EQ(stream.error, Http2Error::kCancel);
  EXPECT_EQ(stream.trailers, "");
}

TEST_F(GrpcServerProtocolTest, ACallThatIsGivenUpHasItsStatusIfNothingWaits) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  EXPECT_TRUE(sink.wire->SendMessage(CreateBufferSlow("m"), false));
  sink.wire->SendReset(flare::Status(STATUS_TIMEOUT, "late"));
  Serve();
  EXPECT_EQ(stream.trailers, "grpc-status=4;grpc-message=late;");
}

TEST_F(GrpcServerProtocolTest, ReadersHoldTheirStreamBack) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  for (int i = 0; i != 20; ++i) {
    client->SendData(&stream, CreateBufferSlow(Message(10'000)));
  }
  Serve();
  const std::size_t at_first = sink.receiver->said.size();
  EXPECT_GT(at_first, 0u);
  EXPECT_LE(at_first, std::string("message 10000\n").size() * 10);
  // Others go on.
  ClientStream other;
  Open(&other, "/a.B/Unary");
  client->SendData(&other, CreateBufferSlow(Message(1)));
  client->SendEnd(&other);
  Serve();
  EXPECT_EQ(requests.size(), 2u);
  sink.wire->SendCredit(6 * 10'005);
  Serve();
  EXPECT_GT(sink.receiver->said.size(), at_first);
  // By its window, and not by a number of messages.
  EXPECT_TRUE(sink.wire->enforces_window());
  std::string beyond;
  for (int i = 0; i != 5; ++i) beyond += Frame(0, 0, 1, Message(16'000));
  Buffer in = CreateBufferSlow(beyond);
  InboundRequest request;
  std::size_t need = 0;
  EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kHandled);
  static_cast<void>(client->Receive(CreateBufferSlow(sink.Take())));
  EXPECT_EQ(stream.error, Http2Error::kFlowControlError);
}

TEST_F(GrpcServerProtocolTest, ResetsAndLossesReachTheStream) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  client->SendReset(&stream, Http2Error::kCancel);
  Serve();
  EXPECT_EQ(sink.receiver->said, "reset: the caller gave the call up\n");
  sink.receiver->said.clear();
  sink.wire.reset();

  ClientStream next;
  Open(&next, "/a.B/Stream");
  Serve();
  protocol->EndInput();
  EXPECT_EQ(sink.receiver->said, "lost\n");
  Serve();
  EXPECT_TRUE(goaway);
  EXPECT_EQ(goaway_error, Http2Error::kNoError);
  protocol->OnClosed(flare::Status(1, "gone"));
  EXPECT_EQ(sink.receiver->said, "lost\nreset: gone\n");
}

TEST_F(GrpcServerProtocolTest, BadMessagesEndTheStream) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  client->SendData(&stream, CreateBufferSlow(Message(3, /*flag=*/7)));
  Serve();
  EXPECT_TRUE(sink.receiver->said.starts_with("reset: grpc: a message"));
  EXPECT_TRUE(stream.ended);
  EXPECT_FALSE(sink.wire->SendMessage(CreateBufferSlow("m"), false) &&
               !sink.Take().empty());

  sink.wire.reset();
  ClientStream cut_short;
  Open(&cut_short, "/a.B/Stream");
  client->SendData(&cut_short, CreateBufferSlow(Message(3).substr(0, 6)));
  client->SendEnd(&cut_short);
  Serve();
  EXPECT_NE((cut_short.head + cut_short.trailers).find("grpc-status=13;"),
            std::string::npos);
}

TEST_F(GrpcServerProtocolTest, AWireThatIsDroppedResetsItsStream) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  sink.wire.reset();
  Serve();
  EXPECT_TRUE(stream.reset);
}

TEST_F(GrpcServerProtocolTest, GarbageIsAnError) {
  Serve();
  Buffer in = CreateBufferSlow(std::string("\0\0\1\0\0\0\0\0\0x", 10));
  InboundRequest request;
  std::size_t need = 0;
  EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kError);
  EXPECT_TRUE(error.starts_with("HTTP/2: ")) << error;
  static_cast<void>(client->Receive(CreateBufferSlow(sink.Take())));
  EXPECT_EQ(goaway_error, Http2Error::kProtocolError);
}

// Their writers would write into nothing.
TEST_F(GrpcServerProtocolTest, GarbageEndsStreams) {
  ClientStream stream;
  Open(&stream, "/a.B/Stream");
  Serve();
  Buffer in = CreateBufferSlow(Frame(0, 0, 0, "x"));
  InboundRequest request;
  std::size_t need = 0;
  EXPECT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kError);
  EXPECT_EQ(sink.receiver->said, "");  // The connection's reader says so.
  protocol->EndInput();
  EXPECT_EQ(sink.receiver->said,
            "reset: the caller broke the rules of HTTP/2\n");
}

TEST_F(GrpcServerProtocolTest, FloodsEndTheConnection) {
  Serve();
  for (int i = 0; i != 30'000; ++i) client->Ping();
  Serve();
  EXPECT_EQ(result, CutResult::kError);
  EXPECT_TRUE(error.starts_with("HTTP/2: ")) << error;
}

TEST_F(GrpcServerProtocolTest, AClientThatLeavesEndsTheConnection) {
  Serve();
  client->SendGoAway(Http2Error::kNoError, "bye");
  Serve();
  EXPECT_TRUE(sink.closed());
}

}  // namespace
}  // namespace flare::rpc
