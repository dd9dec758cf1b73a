// Calls as web pages make them, by Connect and gRPC-Web, to a running server.
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "flare/fiber/event.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::string_literals::operator""s;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WebCallsTest : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(Server::Options{.service_name = "test",
                                    .http_cors_origins = "http://page"});
    server_->AddService(&service_);
    server_->AddProtocols({"http+pb", "http+proto3-json", "http"});
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start());
  }

  static std::string Ask(std::string_view method, std::string_view type,
                         std::string_view body, std::string_view fields = "") {
    return "POST /flare.rpc.testing.Streamer/" + std::string(method) +
           " HTTP/1.1\r\nHost: h\r\nOrigin: http://page\r\nContent-Type: " +
           std::string(type) + "\r\n" + std::string(fields) +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           std::string(body);
  }

  static std::string Frame(char flag, std::string_view text) {
    return flag + "\0\0\0"s + static_cast<char>(text.size()) +
           std::string(text);
  }
  static std::string Chunk(const std::string& bytes) {
    char size[20];
    snprintf(size, sizeof(size), "%zx\r\n", bytes.size());
    return size + bytes + "\r\n";
  }

  static constexpr char kVersion[] = "Connect-Protocol-Version: 1\r\n";
};

TEST_F(WebCallsTest, UnaryCallsOfAllKinds) {
  RawClient client(server_->endpoint());
  const auto ask = [&client](const std::string& request) {
    client.Send(request);
    const std::string head = client.ReadUntil("\r\n\r\n");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"
                                 "Access-Control-Allow-Origin: http://page"));
    const std::size_t at = head.find("Content-Length: ");
    return at == head.npos
               ? std::string()
               : client.ReadExactly(std::stoul(head.substr(at + 16)));
  };
  EXPECT_EQ(ask(Ask("Double", "application/json", R"({"value":4,"newer":true})",
                    kVersion)),
            R"({"value":"8"})");
  EXPECT_EQ(ask(Ask("Double", "application/proto", "\x08\x04", kVersion)),
            "\x08\x08");
  EXPECT_EQ(
      ask(Ask("Double", "application/grpc-web+proto", Frame(0, "\x08\x04"))),
      Frame(0, "\x08\x08") + Frame('\x80', "grpc-status: 0\r\n"));
  EXPECT_EQ(ask(Ask("Double", "application/grpc-web-text", "AAAAAAIIBA==")),
            "AAAAAAIICIAAAAAQZ3JwYy1zdGF0dXM6IDANCg==");
  EXPECT_EQ(ask(Ask("Double", "application/connect+json",
                    Frame(0, R"({"value":4})"))),
            Frame(0, R"({"value":"8"})") + Frame(2, "{}"));
}

TEST_F(WebCallsTest, ConnectCallsAMalformedRequestAnInvalidArgument) {
  RawClient client(server_->endpoint());
  const auto ask = [&client](const std::string& request) {
    client.Send(request);
    const std::string head = client.ReadUntil("\r\n\r\n");
    const std::size_t at = head.find("Content-Length: ");
    return at == head.npos
               ? head
               : head + client.ReadExactly(std::stoul(head.substr(at + 16)));
  };
  for (const auto& [type, body] :
       {std::pair("application/json", "{\"value\":[]}"),
        std::pair("application/json", "not json"),
        std::pair("application/proto", "\x0f")}) {
    const std::string reply = ask(Ask("Double", type, body, kVersion));
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 400 "));
    EXPECT_THAT(reply, HasSubstr(R"({"code":"invalid_argument","message":")"));
  }
  const std::string stream =
      ask(Ask("Double", "application/connect+json", Frame(0, "not json")));
  EXPECT_THAT(stream, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(stream, HasSubstr(R"("code":"invalid_argument")"));
}

TEST_F(WebCallsTest, MethodsWithoutSideEffectsMayBeCalledByGet) {
  RawClient client(server_->endpoint());
  const auto get = [&client](const std::string& target) {
    client.Send("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n");
    const std::string head = client.ReadUntil("\r\n\r\n");
    const std::size_t at = head.find("Content-Length: ");
    // Caches keep successes.
    EXPECT_EQ(head.find("\r\nVary: Accept-Encoding\r\n") != head.npos,
              head.substr(9, 3) == "200");
    return head.substr(9, 3) + " " +
           client.ReadExactly(std::stoul(head.substr(at + 16)));
  };
  const std::string path = "/flare.rpc.testing.Streamer/";
  EXPECT_EQ(get(path + "Double?connect=v1&encoding=json&message=%7B%22value%22"
                       ":+4%7D"),
            R"(200 {"value":"8"})");
  EXPECT_EQ(get(path + "Double?message=CAQ&base64=1&encoding=proto&connect=v1"),
            "200 \x08\x08");
  EXPECT_EQ(get(path + "Double?connect=v1&encoding=json&message=*&base64=1"),
            R"(400 {"code":"invalid_argument","message":)"
            R"("the query's message isn't base64"})");
  EXPECT_THAT(get(path + "Double?connect=v1&encoding=json&message=%7B%7D&"
                         "compression=br"),
              StartsWith(R"(415 {"code":"unimplemented","message":"compres)"));
  for (const std::string& other :
       {path + "Double?encoding=json&message=%7B%7D",
        path + "Double?connect=v1&encoding=xml&message=%7B%7D",
        path + "Count?connect=v1&encoding=json&message=%7B%7D",
        "/rpc/flare.rpc.testing.Streamer.Count?connect=v1&encoding=json"s,
        "/rpc/flare.rpc.testing.Streamer.Double?connect=v1&encoding=json"s}) {
    EXPECT_THAT(get(other), StartsWith("40")) << other;
  }
}

TEST_F(WebCallsTest, FailuresOfUnaryCalls) {
  RawClient client(server_->endpoint());
  client.Send(Ask("Nothing", "application/json", "{}", kVersion));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"),
              StartsWith("HTTP/1.1 501 Not Implemented\r\n"));
  EXPECT_THAT(client.ReadUntil("}"),
              StartsWith(R"({"code":"unimplemented","message":"Method )"));
  client.Send(Ask("Nothing", "application/grpc-web", Frame(0, "")));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(client.ReadUntil("implemented."),
              HasSubstr("grpc-status: 12\r\ngrpc-message: Method "));
}

// The first message is empty.
TEST_F(WebCallsTest, StreamsOfReplies) {
  struct Case {
    const char* type;
    std::string request;
    std::string body;
  } cases[] = {
      {"application/connect+proto", Frame(0, "\x08\x02"),
       Chunk(Frame(0, "")) + Chunk(Frame(0, "\x08\x01")) +
           Chunk(Frame(2, "{}"))},
      {"application/connect+json", Frame(0, R"({"value":2})"),
       Chunk(Frame(0, "{}")) + Chunk(Frame(0, R"({"value":"1"})")) +
           Chunk(Frame(2, "{}"))},
      {"application/grpc-web+proto", Frame(0, "\x08\x02"),
       Chunk(Frame(0, "")) + Chunk(Frame(0, "\x08\x01")) +
           Chunk(Frame('\x80', "grpc-status: 0\r\n"))},
      {"application/grpc-web-text", "AAAAAAIIAg==",
       Chunk("AAAAAAA=") + Chunk("AAAAAAIIAQ==") +
           Chunk("gAAAABBncnBjLXN0YXR1czogMA0K")},
  };
  RawClient client(server_->endpoint());
  for (const auto& [type, request, body] : cases) {
    client.Send(Ask("Count", type, request));
    const std::string head = client.ReadUntil("\r\n\r\n");
    EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"
                                 "Access-Control-Allow-Origin: http://page"));
    EXPECT_THAT(head, HasSubstr("\r\nContent-Type: "s + type + "\r\n"));
    EXPECT_THAT(head, HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
    const std::string expected = body + "0\r\n\r\n";
    EXPECT_EQ(client.ReadExactly(expected.size()), expected) << type;
  }
}

TEST_F(WebCallsTest, StreamsFailBehindTheirMessages) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(controller->AddResponseMetadata("a", "1"));
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    EXPECT_TRUE(controller->AddResponseTrailer("b", "2"));
    controller->SetFailed(StatusFromGrpc(GrpcCode::kNotFound), "no more");
  };
  RawClient client(server_->endpoint());
  client.Send(Ask("Count", "application/connect+proto", Frame(0, "")));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("\r\na: 1\r\n"));
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"),
            Chunk(Frame(0, "\x08\x01")) +
                Chunk(Frame(2, R"({"error":{"code":"not_found","message":)"
                               R"("no more"},"metadata":{"b":["2"]}})")) +
                "0\r\n\r\n");
  client.Send(Ask("Count", "application/grpc-web", Frame(0, "")));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("\r\na: 1\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n0\r\n\r\n"),
            Chunk(Frame(0, "\x08\x01")) +
                Chunk(Frame('\x80',
                            "grpc-status: 5\r\ngrpc-message: no "
                            "more\r\nb: 2\r\n")) +
                "0\r\n\r\n");
}

TEST_F(WebCallsTest, StreamsMayFailAtOnce) {
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController* controller) {
    controller->SetFailed(StatusFromGrpc(GrpcCode::kNotFound), "none");
  };
  RawClient client(server_->endpoint());
  client.Send(Ask("Count", "application/grpc-web", Frame(0, "")));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n0\r\n\r\n"),
            Chunk(Frame('\x80', "grpc-status: 5\r\ngrpc-message: none\r\n")) +
                "0\r\n\r\n");
}

TEST_F(WebCallsTest, OtherKindsOfMethodsAreRefused) {
  RawClient client(server_->endpoint());
  client.Send(Ask("Count", "application/json", "{}", kVersion));
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(head, HasSubstr("\r\nAccept-Post: application/connect+proto, "
                              "application/connect+json\r\n"));
  EXPECT_THAT(
      client.ReadUntil("}"),
      HasSubstr(R"({"code":"unimplemented","message":"Method )"
                "[flare.rpc.testing.Streamer.Count] streams its replies, "
                "which needs Content-Type application/connect+proto"));
  client.Send(Ask("Sum", "application/grpc-web", Frame(0, "")));
  client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("message.\r\n"),
              HasSubstr("grpc-status: 12\r\ngrpc-message: Method "));
  client.Send(Ask("Sum", "application/proto", "", kVersion));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(client.ReadUntil("}"),
              StartsWith(R"({"code":"unimplemented","message":"Method )"));
}

TEST_F(WebCallsTest, APageThatLeavesStopsItsStream) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  RawClient client(server_->endpoint());
  client.Send(Ask("Count", "application/grpc-web", Frame(0, "")));
  client.ReadUntil("\r\n\r\n");
  client.Close();
  ended.Wait();
}

TEST_F(WebCallsTest, PagesAskFirst) {
  RawClient client(server_->endpoint());
  client.Send(
      "OPTIONS /flare.rpc.testing.Streamer/Count HTTP/1.1\r\nHost: h\r\n"
      "Origin: http://page\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: connect-protocol-version\r\n\r\n");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 204 No Content\r\n"));
  EXPECT_THAT(head, HasSubstr("Access-Control-Allow-Headers: "
                              "connect-protocol-version\r\n"));
}

}  // namespace
}  // namespace flare::rpc::testing
