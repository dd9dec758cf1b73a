// Calls as web pages make them, by Connect and gRPC-Web, and plain ones, over
// HTTP/2.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/http2_client.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::string_literals::operator""s;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kPage[] = ":status=200;access-control-allow-origin=http://page;";

class WebHttp2Test : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(server_options());
    server_->AddService(&service_);
    server_->AddProtocols({"grpc", "http+pb", "http+proto3-json", "http"});
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start());
    client_.emplace(server_->endpoint());
  }
  void TearDown() override {
    client_.reset();
    StreamerTest::TearDown();
  }

  Server::Options server_options() override {
    return {.service_name = "test", .http_cors_origins = "http://page"};
  }

  Http2ClientStream* Post(std::string_view method, std::string_view type,
                          std::string_view body,
                          const std::vector<Http2Field>& more = {}) {
    std::vector<Http2Field> fields = {{"origin", "http://page"},
                                      {"content-type", type}};
    fields.insert(fields.end(), more.begin(), more.end());
    return client_->Ask("POST", kPath + std::string(method), body, fields);
  }
  // For a page that may read the reply.
  std::string Data(Http2ClientStream* stream) {
    client_->AwaitEnd(stream);
    EXPECT_THAT(stream->head, StartsWith(kPage));
    return stream->data;
  }
  std::string Get(std::string_view query) {
    Http2ClientStream* const stream =
        client_->Ask("GET", kPath + std::string(query));
    client_->AwaitEnd(stream);
    return stream->head.substr(8, 3) + " " + stream->data;
  }
  // The connection goes on.
  void ExpectAnswers() {
    EXPECT_EQ(Data(Post("Double", "application/proto", "\x08\x04", {kVersion})),
              "\x08\x08");
  }

  static std::string Frame(char flag, std::string_view text) {
    return flag + "\0\0\0"s + static_cast<char>(text.size()) +
           std::string(text);
  }

  // A request without a value.
  static std::string NoNumber(std::string_view type) {
    if (type == "application/x-protobuf") return "\x08\0"s;
    return type == "application/grpc-web-text" ? "AAAAAAA=" : Frame(0, "");
  }

  static constexpr Http2Field kVersion = {"connect-protocol-version", "1"};
  static constexpr char kPath[] = "/flare.rpc.testing.Streamer/";
  std::optional<Http2Client> client_;
};

TEST_F(WebHttp2Test, UnaryCallsOfAllKinds) {
  EXPECT_EQ(Data(Post("Double", "application/json",
                      R"({"value":4,"newer":true})", {kVersion})),
            R"({"value":"8"})");
  ExpectAnswers();
  EXPECT_EQ(
      Data(Post("Double", "application/grpc-web+proto", Frame(0, "\x08\x04"))),
      Frame(0, "\x08\x08") + Frame('\x80', "grpc-status: 0\r\n"));
  EXPECT_EQ(Data(Post("Double", "application/grpc-web-text", "AAAAAAIIBA==")),
            "AAAAAAIICIAAAAAQZ3JwYy1zdGF0dXM6IDANCg==");
  EXPECT_EQ(Data(Post("Double", "application/connect+json",
                      Frame(0, R"({"value":4})"))),
            Frame(0, R"({"value":"8"})") + Frame(2, "{}"));
}

TEST_F(WebHttp2Test, MethodsWithoutSideEffectsMayBeCalledByGet) {
  EXPECT_EQ(Get("Double?connect=v1&encoding=json&message=%7B%22value%22:4%7D"),
            R"(200 {"value":"8"})");
  EXPECT_EQ(Get("Double?message=CAQ&base64=1&encoding=proto&connect=v1"),
            "200 \x08\x08");
  EXPECT_EQ(Get("Double?connect=v1&encoding=json&message=*&base64=1"),
            R"(400 {"code":"invalid_argument","message":)"
            R"("the query's message isn't base64"})");
  EXPECT_THAT(Get("Count?connect=v1&encoding=json&message=%7B%7D"),
              StartsWith("404 "));
}

TEST_F(WebHttp2Test, FailuresOfUnaryCalls) {
  Http2ClientStream* const connect =
      Post("Nothing", "application/json", "{}", {kVersion});
  client_->AwaitEnd(connect);
  EXPECT_THAT(connect->head, StartsWith(":status=501;"));
  EXPECT_THAT(connect->data,
              StartsWith(R"({"code":"unimplemented","message":"Method )"));
  EXPECT_THAT(Data(Post("Nothing", "application/grpc-web", Frame(0, ""))),
              HasSubstr("grpc-status: 12\r\ngrpc-message: Method "));
  EXPECT_THAT(Data(Post("Double", "application/grpc-web-text", "*")),
              HasSubstr("cnBjLXN0YXR1czogMw0K"));  // grpc-status: 3
}

// The first message is empty.
TEST_F(WebHttp2Test, StreamsOfReplies) {
  struct Case {
    const char* type;
    std::string request;
    std::string body;
  } cases[] = {
      {"application/connect+proto", Frame(0, "\x08\x02"),
       Frame(0, "") + Frame(0, "\x08\x01") + Frame(2, "{}")},
      {"application/connect+json", Frame(0, R"({"value":2})"),
       Frame(0, "{}") + Frame(0, R"({"value":"1"})") + Frame(2, "{}")},
      {"application/grpc-web+proto", Frame(0, "\x08\x02"),
       Frame(0, "") + Frame(0, "\x08\x01") +
           Frame('\x80', "grpc-status: 0\r\n")},
      {"application/grpc-web-text",
       "AAAAAAIIAg==", "AAAAAAA=AAAAAAIIAQ==gAAAABBncnBjLXN0YXR1czogMA0K"},
  };
  for (const auto& [type, request, body] : cases) {
    Http2ClientStream* const stream = Post("Count", type, request);
    EXPECT_EQ(Data(stream), body) << type;
    EXPECT_TRUE(stream->ended);
    EXPECT_THAT(stream->head, HasSubstr("content-type="s + type + ";"));
  }
}

TEST_F(WebHttp2Test, StreamsFailBehindTheirMessages) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(controller->AddResponseMetadata("a", "1"));
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    EXPECT_TRUE(controller->AddResponseTrailer("b", "2"));
    controller->SetFailed(StatusFromGrpc(GrpcCode::kNotFound), "no more");
  };
  Http2ClientStream* stream =
      Post("Count", "application/connect+proto", Frame(0, ""));
  EXPECT_EQ(Data(stream),
            Frame(0, "\x08\x01") +
                Frame(2, R"({"error":{"code":"not_found","message":)"
                         R"("no more"},"metadata":{"b":["2"]}})"));
  EXPECT_THAT(stream->head, HasSubstr(";a=1;"));
  stream = Post("Count", "application/grpc-web", Frame(0, ""));
  EXPECT_EQ(
      Data(stream),
      Frame(0, "\x08\x01") +
          Frame('\x80', "grpc-status: 5\r\ngrpc-message: no more\r\nb: 2\r\n"));
}

// Replies to calls that aren't web pages'. The first message is empty.
TEST_F(WebHttp2Test, PlainCallsHaveStreamsOfReplies) {
  struct Case {
    const char* type;
    std::string request;
    std::string reply_type;
    std::string body;
  } cases[] = {
      {"application/x-protobuf", "\x08\x02",
       "application/x-protobuf; encoding=delimited", "\0\2\x08\x01"s},
      {"application/x-proto3-json", R"({"value":2})",
       "application/x-proto3-json", "{}\n{\"value\":\"1\"}\n"},
      {"application/json", R"({"value":2})", "application/json",
       R"({"value":"0","padding":""})"
       "\n"
       R"({"value":"1","padding":""})"
       "\n"},
  };
  for (const auto& [type, request, reply_type, body] : cases) {
    Http2ClientStream* const stream =
        Post("Count", type, request, {{"rpc-seqno", "7"}});
    EXPECT_EQ(Data(stream), body) << type;
    EXPECT_TRUE(stream->ended);
    EXPECT_THAT(stream->head,
                HasSubstr("content-type=" + reply_type + ";rpc-seqno=7;"));
    EXPECT_THAT(stream->head, EndsWith(";rpc-error-code=success;"));
  }
}

TEST_F(WebHttp2Test, PlainStreamsFailBehindTheirMessages) {
  service_.on_count = [](const Number&, StreamWriter<Number> writer,
                         RpcServerController* controller) {
    EXPECT_TRUE(writer.Write(MakeNumber(1)));
    controller->SetFailed(STATUS_OVERLOADED, "too\nmuch");
  };
  Http2ClientStream* const stream = Post("Count", "application/x-protobuf", "");
  EXPECT_EQ(Data(stream), "\2\x08\x01");
  EXPECT_THAT(stream->head,
              EndsWith("rpc-error-code=ServerOverload;"
                       "rpc-error-reason=too much;rpc-error-number=11;"));
}

TEST_F(WebHttp2Test, AFailureMayBeAllOfAPlainStream) {
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController* controller) {
    controller->SetFailed(1234, "nothing");
  };
  Http2ClientStream* const stream =
      Post("Count", "application/x-proto3-json", "{}");
  EXPECT_EQ(Data(stream), R"({"code":1234,"message":"nothing"})");
  EXPECT_THAT(stream->head, HasSubstr("rpc-error-code=1234;"));
}

TEST_F(WebHttp2Test, OtherKindsOfMethodsAreRefused) {
  Http2ClientStream* const unary =
      Post("Count", "application/json", "{}", {kVersion});
  client_->AwaitEnd(unary);
  EXPECT_THAT(unary->head, HasSubstr(":status=415;"));
  EXPECT_THAT(unary->data,
              HasSubstr("needs Content-Type application/connect+proto or"));
  EXPECT_THAT(Data(Post("Sum", "application/grpc-web", Frame(0, ""))),
              HasSubstr("grpc-status: 12\r\ngrpc-message: Method "));
}

// Much more than a stream's window, in messages of all remainders by three.
TEST_F(WebHttp2Test, StreamsGoAsFastAsTheirClient) {
  constexpr std::size_t kMessages = 300;
  constexpr std::size_t kLeast = 3000;
  std::atomic<std::size_t> written{0};
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    written = 0;
    for (std::size_t i = 0; i != kMessages; ++i) {
      ASSERT_TRUE(writer.Write(MakeNumber(1, kLeast + i)));
      written += kLeast + i;
    }
    writer.Close();
  };
  for (const char* type :
       {"application/connect+proto", "application/grpc-web-text",
        "application/x-protobuf"}) {
    Http2ClientStream* const stream = Post("Count", type, NoNumber(type));
    stream->takes = false;
    client_->Await(
        [stream] { return stream->data.size() == Http2Client::kWindow; });
    ExpectAnswers();  // Others aren't held up.
    EXPECT_LE(written.load(), 2 * Http2Client::kWindow + kLeast + kMessages);
    EXPECT_FALSE(stream->ended);
    client_->Take(stream);
    client_->AwaitEnd(stream);
    EXPECT_GT(written.load(), kMessages * kLeast);
    EXPECT_GT(stream->data.size(), written.load());
  }
}

// Base64 loses nothing of a window of 64 KiB, whose groups have more room than
// the bytes.
TEST_F(WebHttp2Test, ManySmallMessagesInBase64) {
  constexpr std::size_t kMessages = 35'000;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    for (std::size_t i = 0; i != kMessages; ++i) {
      ASSERT_TRUE(writer.Write(MakeNumber(20'000)));  // Four bytes.
    }
    writer.Close();
  };
  EXPECT_EQ(Data(Post("Count", "application/grpc-web-text", "AAAAAAA=")).size(),
            kMessages * 12 + "gAAAABBncnBjLXN0YXR1czogMA0K"s.size());
}

TEST_F(WebHttp2Test, AResetStopsTheStream) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  using Reset = std::pair<const char*, Http2Error>;
  for (const auto& [type, error] :
       {Reset("application/grpc-web", Http2Error::kCancel),
        Reset("application/connect+proto", Http2Error::kCancel),
        Reset("application/x-protobuf", Http2Error::kCancel),
        Reset("application/grpc-web", Http2Error::kNoError)}) {
    Http2ClientStream* const stream = Post("Count", type, NoNumber(type));
    stream->takes = false;
    client_->Await([stream] { return !stream->data.empty(); });
    client_->Reset(stream, error);
    ended.Wait();
    ended.Reset();
    ExpectAnswers();
  }
}

// Before the limit for stalled streams, which is minutes.
TEST_F(WebHttp2Test, ADeadlineEndsAStreamThatWaitsForItsWindow) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    EXPECT_TRUE(controller->IsCanceled());
    ended.Set();
  };
  struct Case {
    const char* type;
    Http2Field timeout;
    Http2Error error;
  } cases[] = {
      {"application/grpc", {"grpc-timeout", "1S"}, Http2Error::kCancel},
      {"application/connect+proto",
       {"connect-timeout-ms", "1000"},
       Http2Error::kInternalError},
  };
  for (const auto& [type, timeout, error] : cases) {
    Http2ClientStream* const stream =
        Post("Count", type, NoNumber(type), {timeout});
    stream->takes = false;
    client_->Await([stream] { return stream->closed; });
    ended.Wait();
    ended.Reset();
    EXPECT_EQ(stream->data.size(), Http2Client::kWindow) << type;
    EXPECT_FALSE(stream->ended);
    EXPECT_EQ(stream->error, error);
    ExpectAnswers();
    EXPECT_EQ(server_->statistics().buffered_bytes, 0u);
  }
}

// Their methods have returned.
TEST_F(WebHttp2Test, MessagesThatWaitForAWindowAreInTheBudget) {
  constexpr std::size_t kSize = 500'000;
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    EXPECT_TRUE(writer.WriteLast(MakeNumber(1, kSize)));
    ended.Set();
  };
  for (const char* type : {"application/grpc", "application/connect+proto",
                           "application/x-protobuf"}) {
    Http2ClientStream* const stream = Post("Count", type, NoNumber(type));
    stream->takes = false;
    client_->Await(
        [stream] { return stream->data.size() == Http2Client::kWindow; });
    ended.Wait();
    ended.Reset();
    ExpectAnswers();
    // A connection's first 64 KiB don't count.
    EXPECT_GE(server_->statistics().buffered_bytes,
              kSize - Http2Client::kWindow - (64 << 10))
        << type;
    client_->Take(stream);
    client_->AwaitEnd(stream);
    EXPECT_GT(stream->data.size(), kSize);
    ExpectAnswers();
    EXPECT_EQ(server_->statistics().buffered_bytes, 0u) << type;
  }
}

// They may never be complete.
TEST_F(WebHttp2Test, PartsOfMessagesAreInTheBudget) {
  constexpr std::size_t kSize = 500'000;
  const std::string part = "\0\0\7\xa1\x20"s + std::string(kSize - 1, '\0');
  std::vector<Http2ClientStream*> streams;
  for (int i = 0; i != 3; ++i) {
    streams.push_back(client_->Begin("POST", kPath + "Echo"s, part,
                                     {{"content-type", "application/grpc"}}));
  }
  const std::int64_t give_up_ns = NowNs() + 60'000'000'000;
  while (server_->statistics().buffered_bytes < 3 * kSize - (64 << 10)) {
    ASSERT_LT(NowNs(), give_up_ns);
    ExpectAnswers();
  }
  for (Http2ClientStream* const stream : streams) client_->Reset(stream);
  ExpectAnswers();
  EXPECT_EQ(server_->statistics().buffered_bytes, 0u);
}

class StoppedHttp2Test : public WebHttp2Test {
 protected:
  Server::Options server_options() override {
    Server::Options options = WebHttp2Test::server_options();
    options.drain_timeout = drain_timeout_;
    options.stop_linger = stop_linger_;
    return options;
  }

  // Stops the server while a request of Double, whose first bytes have come,
  // is on its way, and the client knows of the stop.
  void StopWithin(std::string_view first) {
    stream_ = client_->Begin("POST", kPath + "Double"s, first,
                             {{"content-type", "application/grpc"}});
    ExpectAnswers();
    server_->Stop();
    client_->Await([this] { return client_->has_goaway(); });
  }

  // Time for its rest, on a busy machine, too.
  std::chrono::milliseconds stop_linger_{15'000};
  std::chrono::milliseconds drain_timeout_{30'000};
  Http2ClientStream* stream_ = nullptr;
};

TEST_F(StoppedHttp2Test, ARequestThatHasBegunIsServed) {
  const std::string request = Frame(0, "\x08\x04");
  StopWithin(request.substr(0, 6));
  client_->End(stream_, request.substr(6));
  client_->AwaitEnd(stream_);
  EXPECT_EQ(stream_->data, Frame(0, "\x08\x08"));
  client_->Close();
  EXPECT_EQ(server_->Join(), 0u);
}

class SoonStoppedHttp2Test : public StoppedHttp2Test {
 protected:
  SoonStoppedHttp2Test() {
    stop_linger_ = std::chrono::milliseconds(200);
    drain_timeout_ = std::chrono::milliseconds(400);
  }
};

// Its rest doesn't come in time.
TEST_F(SoonStoppedHttp2Test, ARequestThatHasBegunMayBeRepeated) {
  StopWithin(Frame(0, "\x08\x04").substr(0, 6));
  client_->AwaitEnd(stream_);
  EXPECT_TRUE(stream_->closed);
  EXPECT_EQ(stream_->error, Http2Error::kRefusedStream);
  client_->Close();
  EXPECT_EQ(server_->Join(), 0u);
}

class StalledHttp2Test : public WebHttp2Test {
 protected:
  Server::Options server_options() override {
    Server::Options options = WebHttp2Test::server_options();
    options.stalled_stream_timeout = std::chrono::milliseconds(100);
    return options;
  }
};

class ImpatientHttp2Test : public WebHttp2Test {
 protected:
  Server::Options server_options() override {
    Server::Options options = WebHttp2Test::server_options();
    options.message_timeout = std::chrono::milliseconds(100);
    return options;
  }
};

// A call that waits for it holds places before anybody knows whose it is.
TEST_F(ImpatientHttp2Test, ACallWhoseMessageNeverComesFails) {
  service_.on_count = [](const Number&, StreamWriter<Number>,
                         RpcServerController*) { ADD_FAILURE(); };
  for (const std::string& part : {""s, "\0\0\0\0\2"s}) {
    Http2ClientStream* const stream = client_->Begin(
        "POST", kPath + "Count"s, part, {{"content-type", "application/grpc"}});
    client_->AwaitEnd(stream);
    EXPECT_THAT(stream->head, HasSubstr("grpc-status=4;"));
    EXPECT_THAT(stream->head, HasSubstr("message_timeout"));
    ExpectAnswers();
  }
  EXPECT_EQ(server_->statistics().calls_running, 0u);
}

// Its connection goes on.
TEST_F(StalledHttp2Test, AWindowThatNeverOpensEndsTheStream) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController* controller) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    EXPECT_TRUE(controller->IsCanceled());
    ended.Set();
  };
  using Stalled = std::pair<const char*, Http2Error>;
  for (const auto& [type, error] :
       {Stalled("application/grpc", Http2Error::kCancel),
        Stalled("application/connect+proto", Http2Error::kInternalError),
        Stalled("application/x-protobuf", Http2Error::kInternalError)}) {
    Http2ClientStream* const stream = Post("Count", type, NoNumber(type));
    stream->takes = false;
    client_->Await([stream] { return stream->closed; });
    ended.Wait();
    ended.Reset();
    EXPECT_EQ(stream->data.size(), Http2Client::kWindow) << type;
    EXPECT_FALSE(stream->ended);
    EXPECT_EQ(stream->error, error);
    ExpectAnswers();
  }
}

TEST_F(WebHttp2Test, APageThatLeavesStopsItsStream) {
  fiber::Event ended;
  service_.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    while (writer.Write(MakeNumber(1, 10'000))) continue;
    ended.Set();
  };
  Http2ClientStream* const stream =
      Post("Count", "application/grpc-web", Frame(0, ""));
  client_->Await([stream] { return !stream->data.empty(); });
  client_->Close();
  ended.Wait();
}

}  // namespace
}  // namespace flare::rpc::testing
