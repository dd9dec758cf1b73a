// Calls over HTTP by clients that aren't ours: paths, formats, compressed
// bodies, web pages.
#include <string>

#include "flare/base/compression.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct HttpReply {
  std::string head;
  std::string body;
};

class ServerHttpCallsTest : public ServerTest {
 protected:
  static constexpr char kPath[] = "/flare.rpc.testing.TestService/Call";

  // Sends a POST, with further fields (each with its CRLF), and reads the
  // reply.
  HttpReply Post(const std::string& path, const std::string& type,
                 const std::string& body, const std::string& fields = "") {
    RawClient client(endpoint());
    client.Send("POST " + path +
                " HTTP/1.1\r\nHost: x\r\nContent-Type: " + type + "\r\n" +
                fields + "Content-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return Read(&client);
  }

  static HttpReply Read(RawClient* client) {
    HttpReply reply{client->ReadUntil("\r\n\r\n"), ""};
    const std::size_t at = reply.head.find("Content-Length: ");
    if (at != std::string::npos) {
      reply.body = client->ReadExactly(std::stoul(reply.head.substr(at + 16)));
    }
    return reply;
  }

  static std::string Pack(CompressionAlgorithm algorithm,
                          const std::string& bytes) {
    return FlattenSlow(*Compress(algorithm, CreateBufferSlow(bytes)));
  }
  static std::string Unpack(CompressionAlgorithm algorithm,
                            const std::string& bytes) {
    const auto plain =
        Decompress(algorithm, CreateBufferSlow(bytes), std::size_t{1} << 30);
    return plain ? FlattenSlow(*plain) : "corrupt";
  }
};

TEST_F(ServerHttpCallsTest, TakesPathsAndTypesOfOtherFrameworks) {
  StartServer();
  for (const char* path : {kPath, "/TestService/Call", "/TestService/Call?x"}) {
    const HttpReply json =
        Post(path, "application/json", R"({"body":"you","unknown":1})");
    EXPECT_THAT(json.head, StartsWith("HTTP/1.1 200 OK\r\n"
                                      "Content-Type: application/json\r\n"));
    EXPECT_THAT(json.body, HasSubstr(R"("body":"you")"));
    for (const char* type : {"application/proto", "application/octet-stream",
                             "application/x-protobuf"}) {
      const HttpReply reply =
          Post(path, type, MakeRequest("you").SerializeAsString());
      EXPECT_THAT(reply.head, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: " +
                                         std::string(type) + "\r\n"));
      TestResponse response;
      EXPECT_TRUE(response.ParseFromString(reply.body));
      EXPECT_EQ(response.body(), "you");
    }
  }
}

TEST_F(ServerHttpCallsTest, NeedsNoPlainHttpForThem) {
  server_options().no_builtin_pages = true;
  StartServer({"http+proto3-json"});
  EXPECT_THAT(Post(kPath, "application/json", "{}").head,
              StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Post("/a/b", "application/json", "{}").head,
              StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Post(kPath, "application/proto", "").head,
              StartsWith("HTTP/1.1 415 "));
}

TEST_F(ServerHttpCallsTest, HandlersKeepTheirPaths) {
  server().AddHttpHandler(
      kPath, NewHttpPostHandler([](auto&, HttpResponse* response, auto*) {
        response->set_body("handled");
      }));
  StartServer();
  EXPECT_EQ(Post(kPath, "application/json", "{}").body, "handled");
  EXPECT_THAT(Post("/TestService/Call", "application/json", "{}").head,
              HasSubstr("\r\nRpc-SeqNo: 0\r\n"));
}

TEST_F(ServerHttpCallsTest, FailuresOfCallsInJsonAreJson) {
  service().on_call = [](TestCall call) {
    call.controller->SetFailed(1001, "no such \"user\"");
    call.Reply();
  };
  StartServer();
  for (const char* type : {"application/json", "application/x-proto3-json"}) {
    for (const char* path :
         {kPath, "/rpc/flare.rpc.testing.TestService.Call"}) {
      const HttpReply reply = Post(path, type, "{}");
      EXPECT_THAT(reply.head,
                  StartsWith("HTTP/1.1 500 Internal Server Error\r\n"
                             "Content-Type: " +
                             std::string(type) +
                             "\r\nRpc-SeqNo: 0\r\nRpc-Error-Code: 1001\r\n"
                             "Rpc-Error-Reason: no such \"user\"\r\n"));
      EXPECT_EQ(reply.body, R"({"code":1001,"message":"no such \"user\""})");
    }
  }
  EXPECT_THAT(Post("/TestService/Nothing", "application/json", "{}").body,
              StartsWith(R"({"code":10,"message":"Method )"));
  EXPECT_THAT(Post(kPath, "application/json", "{oops").body,
              StartsWith(R"({"code":102,"message":"can't read a )"));
  // Others are answered without a body, as ever.
  EXPECT_EQ(Post(kPath, "application/x-protobuf", "").body, "");
}

TEST_F(ServerHttpCallsTest, UnpacksRequests) {
  StartServer();
  const std::string request = R"({"body":")" + std::string(50'000, 'x') + "\"}";
  for (const auto& [name, algorithm] :
       {std::pair("gzip", CompressionAlgorithm::kGzip),
        std::pair("deflate", CompressionAlgorithm::kZlib)}) {
    const HttpReply reply =
        Post(kPath, "application/json", Pack(algorithm, request),
             "Content-Encoding: " + std::string(name) + "\r\n");
    EXPECT_THAT(reply.head, StartsWith("HTTP/1.1 200 OK\r\n")) << name;
    // A client without Accept-Encoding gets plain bytes.
    EXPECT_THAT(reply.head, Not(HasSubstr("Content-Encoding")));
    EXPECT_GT(reply.body.size(), 50'000u);
  }
  EXPECT_THAT(
      Post(kPath, "application/json", "x", "Content-Encoding: gzip\r\n").body,
      HasSubstr("can't be decompressed"));
}

TEST_F(ServerHttpCallsTest, UnpacksNoMoreThanAPacket) {
  server_options().maximum_packet_size = 100'000;
  StartServer();
  const auto status_of = [&](std::size_t size) {
    const std::string request =
        MakeRequest(std::string(size, 'x')).SerializeAsString();
    return Post(kPath, "application/proto",
                Pack(CompressionAlgorithm::kGzip, request),
                "Content-Encoding: gzip\r\n")
        .head.substr(9, 3);
  };
  EXPECT_EQ(status_of(99'000), "200");
  EXPECT_EQ(status_of(100'001), "500");
  EXPECT_EQ(status_of(50'000'000), "500");
}

TEST_F(ServerHttpCallsTest, PacksLargeRepliesForThoseThatReadThem) {
  service().on_call = [](TestCall call) {
    call.Reply(std::string(call.request->number(), 'r'));
  };
  StartServer();
  const auto ask = [&](int size, const std::string& accepted) {
    return Post(kPath, "application/proto",
                MakeRequest("", size).SerializeAsString(),
                "Accept-Encoding: " + accepted + "\r\n");
  };
  const std::string plain = [&] {
    TestResponse response;
    response.set_body(std::string(5000, 'r'));
    return response.SerializeAsString();
  }();
  const HttpReply gzip = ask(5000, "gzip, deflate, br");
  EXPECT_THAT(gzip.head, HasSubstr("\r\nContent-Encoding: gzip\r\n"));
  EXPECT_LT(gzip.body.size(), 1000u);
  EXPECT_EQ(Unpack(CompressionAlgorithm::kGzip, gzip.body), plain);
  const HttpReply deflate = ask(5000, "deflate;q=0.5");
  EXPECT_THAT(deflate.head, HasSubstr("\r\nContent-Encoding: deflate\r\n"));
  EXPECT_EQ(Unpack(CompressionAlgorithm::kZlib, deflate.body), plain);
  // Neither small ones, nor for others.
  EXPECT_THAT(ask(100, "gzip").head, Not(HasSubstr("Content-Encoding")));
  EXPECT_EQ(ask(5000, "identity, gzip;q=0").body, plain);
}

TEST_F(ServerHttpCallsTest, RepliesThatWouldGrowStayAsTheyAre) {
  std::string noise(10'000, '\0');
  std::uint32_t state = 1;
  for (char& c : noise) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>('0' + (state >> 25) % 10);
  }
  // Random bytes can't be compressed.
  const std::string packed = Pack(CompressionAlgorithm::kZstd, noise);
  service().on_call = [&](TestCall call) {
    call.controller->SetResponseRawBytes(CreateBufferSlow(packed));
    call.Reply();
  };
  server_options().compress_http_replies_from = 1;
  StartServer();
  const HttpReply reply =
      Post(kPath, "application/proto", "", "Accept-Encoding: gzip\r\n");
  EXPECT_THAT(reply.head, Not(HasSubstr("Content-Encoding")));
  EXPECT_EQ(reply.body, packed);
}

TEST_F(ServerHttpCallsTest, PackingCanBeLeftToTheService) {
  service().on_call = [](TestCall call) {
    if (call.request->number() != 0) {
      call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    }
    call.Reply(std::string(100'000, 'r'));
  };
  server_options().compress_http_replies_from = 0;
  StartServer();
  const auto ask = [&](int number, const std::string& fields) {
    return Post(kPath, "application/proto",
                MakeRequest("", number).SerializeAsString(), fields);
  };
  const std::string accept = "Accept-Encoding: gzip\r\n";
  EXPECT_GT(ask(0, accept).body.size(), 100'000u);
  EXPECT_LT(ask(1, accept).body.size(), 1000u);
  // One that asks for it doesn't fail the calls of others.
  EXPECT_GT(ask(1, "").body.size(), 100'000u);
}

TEST_F(ServerHttpCallsTest, WebPagesMayCallIfTheyAreNamed) {
  server_options().http_cors_origins = "http://page";
  StartServer();
  RawClient client(endpoint());
  for (const char* path : {"/rpc/flare.rpc.testing.TestService.Call", kPath}) {
    client.Send("OPTIONS " + std::string(path) +
                " HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\n"
                "Access-Control-Request-Method: POST\r\n\r\n");
    const std::string head = client.ReadUntil("\r\n\r\n");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 204 No Content\r\n"));
    EXPECT_THAT(head,
                HasSubstr("Access-Control-Allow-Origin: http://page\r\n"));
    const HttpReply reply =
        Post(path, "application/json", "{}", "Origin: http://page\r\n");
    EXPECT_THAT(reply.head,
                StartsWith("HTTP/1.1 200 OK\r\n"
                           "Access-Control-Allow-Origin: http://page\r\n"));
  }
  client.Send(
      "OPTIONS /rpc/x HTTP/1.1\r\nHost: x\r\nOrigin: http://other\r\n\r\n");
  EXPECT_THAT(Read(&client).head, StartsWith("HTTP/1.1 403 Forbidden\r\n"));
}

TEST_F(ServerHttpCallsTest, NoWebPageMayCallByDefault) {
  StartServer();
  RawClient client(endpoint());
  client.Send(
      "OPTIONS /rpc/x HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\n\r\n");
  EXPECT_THAT(Read(&client).head,
              StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(
      Post(kPath, "application/json", "{}", "Origin: http://page\r\n").head,
      Not(HasSubstr("Access-Control")));
}

TEST_F(ServerHttpCallsTest, OriginsThatAreNoneKeepAServerFromStarting) {
  server_options().http_cors_origins = "page.example";
  server().AddProtocols({"http+pb"});
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  EXPECT_THAT(server().error().message(), HasSubstr("http_cors_origins"));
}

}  // namespace
}  // namespace flare::rpc::testing
