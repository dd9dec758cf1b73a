// Input that no well-behaved client sends to a server.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/rpc/testing/server_input_fixture.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::string_literals::operator""s;

// --- Half a message ---

TEST_F(ServerInputTest, InputThatEndsWithinAMessageIsCounted) {
  StartServer();
  const std::string call =
      RawClient(endpoint()).Encode(1, kCall, MakeRequest("body"));
  {
    RawClient client(endpoint());
    client.Send(call + call.substr(0, 20));
    client.Shutdown();
    EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
    EXPECT_TRUE(client.AtEnd());
  }
  {
    RawClient client(endpoint());
    client.Send(call);
    client.Shutdown();
    EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
    EXPECT_TRUE(client.AtEnd());
  }
  // An end by the server isn't counted as the peer's.
  RawClient client(endpoint());
  client.Send(call + call.substr(0, 20));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
  EXPECT_EQ(Final().connections_broken, 1u);
}

TEST_F(ServerInputTest, SoIsItWhereTheMessageHasBegunToBeTakenIn) {
  constexpr char kChunked[] =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  server_options().maximum_packet_size = 1000;
  StartServer({"flare", "http", "bolt"});
  const auto send_all = [&](const std::string& bytes) {
    RawClient client(endpoint());
    client.Send(bytes);
    client.Shutdown();
    return client.ReadAll();
  };
  EXPECT_EQ(send_all(kChunked + "3\r\nabc\r\n"s), "");
  // Too large ones are answered first.
  const std::string meta = Meta(1, true);
  EXPECT_NE(send_all(Frame(meta.size(), 2000, 0, meta + "some of it")), "");
  BoltRequestParts bolt;
  bolt.content = std::string(2000, 'x');
  EXPECT_NE(send_all(bolt.Bytes().substr(0, 1500)), "");

  // Whole, all of it.
  EXPECT_NE(send_all(kChunked + "3\r\nabc\r\n0\r\n\r\n"s), "");
  EXPECT_NE(send_all(bolt.Bytes()), "");
  // Refused, so that there was no more to come.
  EXPECT_NE(send_all(kChunked + "800\r\n"s), "");
  EXPECT_EQ(Final().connections_broken, 3u);
}

// --- Beyond a limit of the server's options ---

TEST_F(ServerInputTest, MetaBeyondItsLimitClosesTheConnection) {
  server_options().max_meta_size = 30;
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest("body"));
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(Final().connections_malformed, 1u);
}

TEST_F(ServerInputTest, FieldsBeyondTheirLimitAreRefused) {
  server_options().max_http_header_fields = 2;
  StartServer();
  RawClient client(endpoint());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("\r\n").starts_with("HTTP/1.1 404"));
  RawClient other(endpoint());
  other.Send("GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\nB: 2\r\n\r\n");
  EXPECT_TRUE(other.ReadUntil("\r\n").starts_with("HTTP/1.1 431"));
}

// --- An unknown protocol ---

TEST_F(ServerInputTest, GarbageClosesTheConnection) {
  StartServer();
  for (const std::string& garbage :
       {std::string("garbage!"), std::string(8, '\0'),
        std::string("\x16\x03\x01"), std::string("CPRX\1\0\0\0", 8),
        std::string("\n")}) {
    RawClient client(endpoint());
    client.Send(garbage);
    EXPECT_TRUE(client.AtEnd()) << garbage;
  }
  ExpectAlive();
  EXPECT_EQ(Final().connections_malformed, 5u);
}

TEST_F(ServerInputTest, ProtocolThatWasNotAddedIsGarbage) {
  server_options().no_builtin_pages = true;
  StartServer({"flare"});
  RawClient client(endpoint());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.AtEnd());
  ExpectAlive();
}

TEST_F(ServerInputTest, RandomBytesNeverHurt) {
  StartServer();
  std::mt19937 random(20260727);
  const std::string valid =
      RawClient(endpoint()).Encode(1, kCall, MakeRequest("valid"));
  for (int round = 0; round != 300; ++round) {
    RawClient client(endpoint());
    std::string bytes;
    if (round % 3 == 0) {
      for (int i = 0; i != 100; ++i) bytes += static_cast<char>(random());
    } else {
      bytes = valid;
      for (int i = 0; i != 1 + round % 4; ++i) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    client.TrySend(bytes);
    client.Shutdown();
    client.ReadAll();  // An answer or not, but an end.
  }
  ExpectAlive();
}

TEST_F(ServerInputTest, WhatWasUnderstoodBeforeGarbageIsAnswered) {
  fiber::Event go;
  service().on_call = FlexibleService::EchoAfter(&go);
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(1, kCall, MakeRequest("good")) + "garbage!");
  go.Set();
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->As<TestResponse>().body(), "good");
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  EXPECT_EQ(Final().connections_malformed, 1u);
}

// --- Broken frames ---

TEST_F(ServerInputTest, FrameInSinglesBytesIsFine) {
  StartServer();
  RawClient client(endpoint());
  for (char c : client.Encode(3, kCall, MakeRequest("slowly"))) {
    client.Send(std::string(1, c));
  }
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "slowly");
}

TEST_F(ServerInputTest, TruncatedFrameEndsQuietly) {
  StartServer();
  RawClient whole(endpoint());
  const std::string bytes = whole.Encode(1, kCall, MakeRequest("cut off"));
  for (std::size_t n : {std::size_t{1}, std::size_t{15}, std::size_t{16},
                        std::size_t{20}, bytes.size() - 1}) {
    RawClient client(endpoint());
    client.Send(bytes.substr(0, n));
    client.Shutdown();
    EXPECT_TRUE(client.AtEnd()) << n;
  }
  ExpectAlive();
}

TEST_F(ServerInputTest, OversizedFrameIsAnsweredAndSkipped) {
  server_options().maximum_packet_size = 1000;
  StartServer();
  RawClient client(endpoint());
  const std::string meta = Meta(1, true);
  // The answer comes before the body.
  client.Send(Frame(meta.size(), 200'000, 100'000, meta));
  const auto refused = client.ReadReply();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->id, 5u);
  EXPECT_EQ(refused->status, STATUS_MALFORMED_DATA);
  EXPECT_NE(refused->description.find("1000"), std::string::npos)
      << refused->description;
  client.Send(std::string(300'000, 'x'));
  // Just below the limit is fine.
  client.Call(1, kCall, MakeRequest(std::string(900, 'x')));
  EXPECT_EQ(client.ReadReply()->status, STATUS_SUCCESS);
}

// A head may be larger than all that is taken, and is refused as well, in
// however many pieces it comes.
TEST_F(ServerInputTest, AHeadBeyondTheLimitIsAnsweredToo) {
  server_options().maximum_packet_size = 1000;
  StartServer();
  RawClient client(endpoint());
  // A field that nobody knows, of 8,000 bytes.
  const std::string meta =
      Meta(1, true) + "\x7a\xc0\x3e" + std::string(8000, 'x');
  const std::string frame = Frame(meta.size(), 0, 0, meta);
  for (std::size_t at = 0; at < frame.size(); at += 1500) {
    client.Send(frame.substr(at, 1500));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto refused = client.ReadReply();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, STATUS_MALFORMED_DATA);
}

TEST_F(ServerInputTest, HugeMetaClosesTheConnection) {
  StartServer();
  for (std::uint32_t size : {0x00100000u, 0x80000000u, 0xffffffffu}) {
    RawClient client(endpoint());
    client.Send(Frame(size, size, size, ""));
    EXPECT_TRUE(client.AtEnd());
  }
  ExpectAlive();
  EXPECT_EQ(Final().connections_malformed, 3u);
}

TEST_F(ServerInputTest, OversizedHttpIsRefused) {
  server_options().maximum_packet_size = 1000;
  StartServer();
  RawClient client(endpoint());
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  client.Send(post + "Content-Length: 99999\r\n\r\n");
  EXPECT_EQ(client.ReadUntil(" ").size(), 9u);
  EXPECT_EQ(client.ReadUntil(" "), "413 ");
  // The next one is found behind the body.
  client.Send(std::string(99999, 'x') + post +
              "Transfer-Encoding: chunked\r\n\r\n800\r\n");
  EXPECT_NE(client.ReadUntil("HTTP/1.1 413 ").find("1000 bytes ("),
            std::string::npos);
  client.ReadAll();
  ExpectAlive();
}

TEST_F(ServerInputTest, OversizedHttpCallLeavesOthersAlone) {
  server_options().maximum_packet_size = 1000;
  StartServer();
  RawClient client(endpoint(), "http+pb");
  client.Call(1, kCall, MakeRequest(std::string(500'000, 'x')));
  client.Call(2, kCall, MakeRequest("fine"));
  for (int i = 0; i != 2; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status,
              reply->id == 1 ? STATUS_MALFORMED_DATA : STATUS_SUCCESS);
  }
}

TEST_F(ServerInputTest, UnreadableMetaClosesTheConnection) {
  StartServer();
  for (const std::string& meta :
       {std::string("\xff\xff\xff\xff"), std::string(), std::string("\x08")}) {
    RawClient client(endpoint());
    client.Send(Frame(meta.size(), 0, 0, meta));
    EXPECT_TRUE(client.AtEnd());
  }
  ExpectAlive();
  EXPECT_EQ(Final().connections_malformed, 3u);
}

TEST_F(ServerInputTest, MethodTypeZeroIsAnswered) {
  StartServer();
  RawClient client(endpoint());
  const std::string meta = Meta(0, true);
  client.Send(Frame(meta.size(), 0, 0, meta));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 5u);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  EXPECT_NE(reply->description, "");
  client.Close();
  ExpectAlive();
  EXPECT_EQ(Final().calls_malformed, 1u);
}

TEST_F(ServerInputTest, RequestWithoutRequestMetaIsAnswered) {
  StartServer();
  RawClient client(endpoint());
  const std::string meta = Meta(1, false);
  client.Send(Frame(meta.size(), 0, 0, meta));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->id, 5u);
  EXPECT_NE(reply->status, STATUS_SUCCESS);
  ExpectAlive();
}

// --- Calls that can't be served ---

TEST_F(ServerInputTest, UnknownMethodAndUnknownService) {
  Server other;  // Knows OtherService; this process does, thereby.
  class Unused : public OtherService {};
  Unused unused;
  ASSERT_TRUE(other.AddService(&unused));
  StartServer();
  struct Case {
    const char* method;
    int status;
    const char* text;
  };
  RawClient client(endpoint());
  std::uint64_t id = 0;
  for (const Case& c : std::vector<Case>{
           {"no.such.Service.Method", STATUS_METHOD_NOT_FOUND,
            "Method [no.such.Service.Method] is not implemented."},
           {"flare.rpc.testing.TestService.Nope", STATUS_METHOD_NOT_FOUND,
            "Method [flare.rpc.testing.TestService.Nope] is not implemented."},
           {"x", STATUS_METHOD_NOT_FOUND, "Method [x] is not implemented."},
           {"flare.rpc.testing.OtherService.Call", STATUS_SERVICE_NOT_FOUND,
            "Service [flare.rpc.testing.OtherService] is not found."}}) {
    client.Call(++id, c.method, MakeRequest(""));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->id, id);
    EXPECT_EQ(reply->status, c.status);
    EXPECT_EQ(reply->description, c.text);
  }
  EXPECT_EQ(server().statistics().calls_unknown, 4u);
  // The connection goes on.
  client.Call(++id, kCall, MakeRequest("fine"));
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "fine");
}

TEST_F(ServerInputTest, StreamingMethodCalledWithOneMessage) {
  StartServer();
  RawClient client(endpoint());
  client.Call(1, "flare.rpc.testing.TestService.CallStreaming",
              MakeRequest(""));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
}

TEST_F(ServerInputTest, BodiesThatCannotBeParsedAreAnswered) {
  StartServer();
  RawClient client(endpoint());
  for (const char* method : {kCall, kCallStrict}) {
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = method;
    request.body = CreateBufferSlow("\xff\xff\xff garbage");
    client.Send(client.Encode(std::move(request)));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  }
  // A required field is missing.
  OutboundRequest request;
  request.correlation_id = 3;
  request.method = kCallStrict;
  client.Send(client.Encode(std::move(request)));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
  EXPECT_EQ(server().statistics().calls_malformed, 3u);
}

TEST_F(ServerInputTest, BombsDoNotExplode) {
  StartServer();
  RawClient client(endpoint());
  OutboundRequest request;
  request.correlation_id = 1;
  request.method = kCall;
  request.compression = CompressionAlgorithm::kGzip;
  request.body = *Compress(CompressionAlgorithm::kGzip,
                           CreateBufferSlow(std::string(80 << 20, '\0')));
  ASSERT_LT(request.body.size(), 1'000'000u);
  client.Send(client.Encode(std::move(request)));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_MALFORMED_DATA) << reply->description;
}

TEST_F(ServerInputTest, ProtocolsMayAlternateOnAConnection) {
  StartServer();
  RawClient flare_side(endpoint());
  RawClient http_side(endpoint(), "http+pb");
  // One socket; each of the two encodes and decodes for it in turn.
  for (int i = 0; i != 3; ++i) {
    flare_side.Call(1, kCall, MakeRequest("x"));
    EXPECT_EQ(flare_side.ReadReply()->As<TestResponse>().body(), "x");
    flare_side.Send(http_side.Encode(2, kCall, MakeRequest("y")));
    EXPECT_EQ(flare_side.ReadUntil("\r\n"), "HTTP/1.1 200 OK\r\n");
    const std::string header = flare_side.ReadUntil("\r\n\r\n");
    EXPECT_NE(header.find("Rpc-SeqNo: 2"), std::string::npos) << header;
    EXPECT_EQ(flare_side.ReadExactly(5), std::string("\x0a\x01y\x10\0", 5));
  }
}

}  // namespace
}  // namespace flare::rpc::testing
