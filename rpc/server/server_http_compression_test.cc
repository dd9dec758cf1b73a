// Compressed replies of HTTP handlers, from a server over HTTP/1.1 and HTTP/2.
#include <zlib.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/fiber/event.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/testing/http2_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kGzipped = "Content-Encoding: gzip\r\n";
constexpr std::string_view kVaries = "Vary: Accept-Encoding\r\n";

std::string Unpack(CompressionAlgorithm algorithm, std::string_view bytes) {
  const auto plain = Decompress(algorithm, CreateBufferSlow(bytes), 1 << 20);
  return plain ? FlattenSlow(*plain) : plain.error().ToString();
}

// Unpacks a gzip stream as its bytes come.
class Gunzipper {
 public:
  Gunzipper() { EXPECT_EQ(inflateInit2(&stream_, 15 + 16), Z_OK); }
  ~Gunzipper() { inflateEnd(&stream_); }
  Gunzipper(const Gunzipper&) = delete;
  Gunzipper& operator=(const Gunzipper&) = delete;

  std::string Take(std::string packed) {
    char text[4096];
    stream_.next_in = reinterpret_cast<Bytef*>(packed.data());
    stream_.avail_in = static_cast<unsigned>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(text);
    stream_.avail_out = sizeof(text);
    ended_ = inflate(&stream_, Z_SYNC_FLUSH) == Z_STREAM_END;
    return std::string(text, sizeof(text) - stream_.avail_out);
  }
  bool ended() const { return ended_; }

 private:
  z_stream stream_{};
  bool ended_ = false;
};

class HttpCompressionTest : public ServerTest {
 protected:
  using Pieces = std::function<void(HttpServerContext*)>;

  // A text of 2000 bytes at /text, and `pieces` writes the body of /events.
  void Start(Pieces pieces = {}) {
    server().AddHttpHandler(
        "/text", NewHttpGetHandler(
                     [](const HttpRequest&, HttpResponse* response, auto*) {
                       response->headers()->Set("Content-Type", "text/plain");
                       response->headers()->Set("ETag", "\"1\"");
                       response->set_body(std::string(2000, 'x'));
                     }));
    server().AddHttpHandler(
        "/events",
        NewHttpGetHandler([pieces = std::move(pieces)](
                              const HttpRequest&, HttpResponse* response,
                              HttpServerContext* context) {
          response->headers()->Set("Content-Type", "text/event-stream");
          pieces(context);
        }));
    StartServer({"grpc", "http"});
  }

  static void Ask(RawClient* client, const std::string& path,
                  const std::string& accept = "gzip",
                  const std::string& method = "GET") {
    client->Send(method + ' ' + path + " HTTP/1.1\r\nHost: localhost\r\n" +
                 "Accept-Encoding: " + accept + "\r\n\r\n");
  }

  static bool Write(HttpServerContext* context, std::string_view piece) {
    return context->body->Write(CreateBufferSlow(piece)).ok();
  }

  // Empty: the last one.
  static std::string ReadChunk(RawClient* client) {
    const std::string size = client->ReadUntil("\r\n");
    const std::string chunk =
        client->ReadExactly(std::stoul(size, nullptr, 16));
    EXPECT_EQ(client->ReadExactly(2), "\r\n");
    return chunk;
  }
};

TEST_F(HttpCompressionTest, WholeRepliesGoOutCompressed) {
  server_options().compress_http_handlers_from = 2000;
  Start();
  RawClient client(endpoint());
  Ask(&client, "/text", "gzip;q=0.5, identity;q=0.1");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr(kGzipped));
  EXPECT_THAT(head, HasSubstr(kVaries));
  EXPECT_THAT(head, HasSubstr("ETag: W/\"1\"\r\n"));
  constexpr std::string_view kLength = "Content-Length: ";
  const std::size_t at = head.find(kLength);
  ASSERT_NE(at, std::string::npos);
  const std::size_t length = std::stoul(head.substr(at + kLength.size()));
  EXPECT_LT(length, 200u);
  EXPECT_EQ(Unpack(CompressionAlgorithm::kGzip, client.ReadExactly(length)),
            std::string(2000, 'x'));
  // The connection goes on, here with a client that takes none.
  Ask(&client, "/text", "br");
  const std::string plain = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(plain, Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(plain, HasSubstr(kVaries));
  EXPECT_THAT(plain, HasSubstr("Content-Length: 2000\r\n"));
  EXPECT_EQ(client.ReadExactly(2000), std::string(2000, 'x'));
  Ask(&client, "/text", "gzip", "HEAD");
  const std::string only_head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(only_head, HasSubstr(kLength.data() + std::to_string(length)));
  EXPECT_THAT(only_head, HasSubstr(kVaries));
  EXPECT_THAT(only_head, HasSubstr(kGzipped));
}

TEST_F(HttpCompressionTest, IsOffByDefault) {
  Start();
  RawClient client(endpoint());
  Ask(&client, "/text");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(head, Not(HasSubstr("Vary")));
}

TEST_F(HttpCompressionTest, AHandlerMayChoose) {
  server_options().compress_http_handlers_from = 1;
  server().AddHttpHandler(
      "/secret",
      NewHttpGetHandler([](const HttpRequest&, HttpResponse* response,
                           HttpServerContext* context) {
        EXPECT_EQ(context->compress_from, 1u);
        context->compress_from = 0;
        response->headers()->Set("Content-Type", "text/plain");
        response->set_body(std::string(2000, 'x'));
      }));
  Start();
  RawClient client(endpoint());
  Ask(&client, "/secret");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), Not(HasSubstr("Encoding")));
}

TEST_F(HttpCompressionTest, EventsArriveAsTheyAreWritten) {
  fiber::Event go_on;
  Start([&](HttpServerContext* context) {
    context->compress_from = 1;
    EXPECT_TRUE(Write(context, ""));  // The head alone.
    EXPECT_TRUE(Write(context, "data: 1\n\n"));
    go_on.Wait();
    EXPECT_TRUE(Write(context, "data: 2\n\n"));
  });
  RawClient client(endpoint());
  Ask(&client, "/events", "gzip, deflate, br, zstd");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr(kGzipped));
  EXPECT_THAT(head, HasSubstr(kVaries));
  Gunzipper text;
  EXPECT_EQ(text.Take(ReadChunk(&client)), "data: 1\n\n");
  go_on.Set();
  EXPECT_EQ(text.Take(ReadChunk(&client)), "data: 2\n\n");
  EXPECT_EQ(text.Take(ReadChunk(&client)), "");
  EXPECT_TRUE(text.ended());
  EXPECT_EQ(ReadChunk(&client), "");
  // Another reply on the same connection.
  Ask(&client, "/text");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpCompressionTest, PiecesThatAreNotCompleted) {
  Start([](HttpServerContext* context) {
    context->compress_from = 1;
    EXPECT_TRUE(Write(context, "data: 1\n\n"));
    context->body->Abort();
  });
  RawClient client(endpoint());
  Ask(&client, "/events");
  EXPECT_THAT(client.ReadAll(), Not(HasSubstr("0\r\n\r\n")));
  RawClient head(endpoint());
  Ask(&head, "/text");
  EXPECT_THAT(head.ReadUntil("\r\n\r\n"), HasSubstr("HTTP/1.1 200 OK\r\n"));
}

TEST_F(HttpCompressionTest, PiecesToHttp10EndWithTheConnection) {
  Start([](HttpServerContext* context) {
    context->compress_from = 1;
    EXPECT_TRUE(Write(context, "one"));
    EXPECT_TRUE(Write(context, "two"));
  });
  RawClient client(endpoint());
  client.Send("GET /events HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
  client.ReadUntil("\r\n\r\n");
  EXPECT_EQ(Unpack(CompressionAlgorithm::kGzip, client.ReadAll()), "onetwo");
}

TEST_F(HttpCompressionTest, GoesOverHttp2) {
  server_options().compress_http_handlers_from = 1000;
  fiber::Event go_on;
  Start([&](HttpServerContext* context) {
    EXPECT_TRUE(Write(context, "data: 1\n\n"));
    go_on.Wait();
    EXPECT_TRUE(Write(context, "data: 2\n\n"));
  });
  Http2Client client(endpoint());
  Http2ClientStream* const text =
      client.Ask("GET", "/text", {}, {{"accept-encoding", "gzip, zstd"}});
  client.AwaitEnd(text);
  EXPECT_THAT(text->head, HasSubstr("content-encoding=zstd;"));
  EXPECT_THAT(text->head, HasSubstr("vary=Accept-Encoding;"));
  EXPECT_EQ(Unpack(CompressionAlgorithm::kZstd, text->data),
            std::string(2000, 'x'));
  Http2ClientStream* const events =
      client.Ask("GET", "/events", {}, {{"accept-encoding", "gzip, zstd"}});
  Gunzipper unpacked;
  std::string got;
  client.Await([&] {
    got += unpacked.Take(std::exchange(events->data, ""));
    return got == "data: 1\n\n";
  });
  EXPECT_THAT(events->head, HasSubstr("content-encoding=gzip;"));
  go_on.Set();
  client.AwaitEnd(events);
  got += unpacked.Take(events->data);
  EXPECT_EQ(got, "data: 1\n\ndata: 2\n\n");
  EXPECT_TRUE(unpacked.ended());
}

TEST_F(HttpCompressionTest, LongPagesAreCompressedForThoseThatTakeIt) {
  Start();
  RawClient client(endpoint());
  Ask(&client, "/inspect/scheduler");  // A short one.
  const std::string plain = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(plain, Not(HasSubstr("Content-Encoding")));
  EXPECT_THAT(plain, HasSubstr(kVaries));
  RawClient other(endpoint());
  other.Send(
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_THAT(other.ReadUntil("\r\n\r\n"), HasSubstr(kGzipped));
  EXPECT_THAT(Unpack(CompressionAlgorithm::kGzip, other.ReadAll()),
              HasSubstr("\nflare_scheduler_tasks_total "));
}

}  // namespace
}  // namespace flare::rpc::testing
