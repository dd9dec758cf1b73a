// Access control from end to end: real servers and channels, over each
// protocol.
#include "flare/rpc/access_control.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/fd.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRules[] = R"({"rules": [
  {"who": "identity:alice",
   "method": ["flare.rpc.testing.TestService.*", "/secret"]},
  {"who": "identity:alice", "method": "flare.rpc.testing.Streamer.*"},
  {"who": "*", "method": "/open"}
]})";

// Tokens are names; "bad" is none, and "later" can't be looked up.
Expected<std::string> Authenticate(const CallCredentials& call) {
  const auto token = call.BearerToken();
  if (!token) return std::string();
  if (*token == "bad") {
    return flare::Status(STATUS_UNAUTHENTICATED, "the token is unknown");
  }
  if (*token == "later") {
    return flare::Status(STATUS_OUT_OF_SERVICE, "no tokens can be looked up");
  }
  return std::string(*token);
}

class AccessControlTest : public ServerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(ServerTest::SetUp());
    file_ = ::testing::TempDir() + "/access" + std::to_string(::getpid());
    Write(kRules);
  }
  void TearDown() override {
    channel_.reset();
    ShutdownClientSide();
    ServerTest::TearDown();
    std::filesystem::remove(file_);
  }

  // As a whole, as editors do.
  void Write(std::string_view rules) {
    std::ofstream(file_ + ".new") << rules;
    std::filesystem::rename(file_ + ".new", file_);
  }
  const std::string& file() const { return file_; }

  void Serve(AccessControlOptions options) {
    auto access = AccessControl::Create(std::move(options));
    ASSERT_TRUE(access) << access.error().ToString();
    server().AddInterceptor(*access);
    server().AddService(&streamer_);
    const auto tell = [](const HttpRequest&, HttpResponse* response,
                         HttpServerContext* context) {
      response->set_body("hello " + context->caller);
    };
    server().AddHttpHandler("/secret", NewHttpGetHandler(tell));
    server().AddHttpHandler("/open", NewHttpGetHandler(tell));
    StartServer({"flare", "http+pb", "http+proto3-json", "baidu-std", "bolt",
                 "trpc", "grpc", "http"});
  }
  void Serve() { Serve({.authenticate = Authenticate, .rules_file = file_}); }

  void Connect(const std::string& protocol) {
    channel_ =
        std::make_unique<RpcChannel>(protocol + "://" + endpoint().ToString());
  }
  RpcChannel* channel() { return channel_.get(); }

  // One call with that token; returns its status.
  int Call(const std::string& token, std::string* text = nullptr) {
    TestedCall call;
    if (!token.empty()) {
      call.controller.AddMetadata("authorization", "Bearer " + token);
    }
    const int status = call.Start(channel())->Await();
    if (text != nullptr) {
      *text = status == 0 ? call.response.body() : call.controller.ErrorText();
    }
    return status;
  }

  std::string Get(const std::string& path, const std::string& token) {
    RawClient client(endpoint());
    client.Send(
        "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
        (token.empty() ? "" : "Authorization: bearer " + token + "\r\n") +
        "\r\n");
    return client.ReadAll();
  }

  FlexibleStreamer streamer_;

 private:
  std::string file_;
  std::unique_ptr<RpcChannel> channel_;
};

class AccessOverProtocols : public AccessControlTest,
                            public ::testing::WithParamInterface<const char*> {
};

TEST_P(AccessOverProtocols, DeniesWhatNoRuleAllows) {
  std::string caller;
  service().on_call = [&](TestCall call) {
    caller = call.controller->caller();
    FlexibleService::Echo(call);
  };
  Serve();
  Connect(GetParam());
  std::string text;
  EXPECT_EQ(Call("alice", &text), 0) << text;
  EXPECT_EQ(text, "ping");
  EXPECT_EQ(caller, "alice");
  EXPECT_EQ(Call("bob", &text), STATUS_PERMISSION_DENIED);
  EXPECT_THAT(text, HasSubstr("bob may not call "
                              "flare.rpc.testing.TestService.Call"));
  EXPECT_EQ(Call("", &text), STATUS_UNAUTHENTICATED);
  EXPECT_THAT(text, HasSubstr("isn't for anonymous callers"));
  EXPECT_EQ(Call("bad", &text), STATUS_UNAUTHENTICATED);
  EXPECT_THAT(text, HasSubstr("the token is unknown"));
  EXPECT_EQ(server().statistics().calls_denied, 1u);
  EXPECT_EQ(server().statistics().calls_unauthenticated, 2u);
  EXPECT_EQ(server().statistics().calls_failed, 3u);
}

TEST_P(AccessOverProtocols, TheNextCallIsAnother) {
  std::string caller = "nobody asked";
  service().on_call = [&](TestCall call) {
    caller = call.controller->caller();
    FlexibleService::Echo(call);
  };
  Serve({.authenticate = Authenticate});  // No rules: anonymous may call.
  Connect(GetParam());
  EXPECT_EQ(Call("alice"), 0);
  EXPECT_EQ(caller, "alice");
  EXPECT_EQ(Call(""), 0);
  EXPECT_EQ(caller, "");
}

INSTANTIATE_TEST_SUITE_P(All, AccessOverProtocols,
                         ::testing::Values("flare", "http+pb",
                                           "http+proto3-json", "baidu-std",
                                           "bolt", "trpc", "grpc"));

class StreamAccess : public AccessControlTest,
                     public ::testing::WithParamInterface<const char*> {};

TEST_P(StreamAccess, DeniesStreams) {
  Serve();
  Connect(GetParam());
  Streamer_SyncStub stub(channel());
  const auto count = [&](const std::string& token) {
    RpcClientController controller;
    if (!token.empty()) {
      controller.AddMetadata("authorization", "Bearer " + token);
    }
    auto reader = stub.Count(MakeNumber(3), &controller);
    int numbers = 0;
    while (reader.Read()) ++numbers;
    EXPECT_EQ(numbers, token == "alice" ? 3 : 0);
    return reader.status().code();
  };
  EXPECT_EQ(count("alice"), 0);
  EXPECT_EQ(count("bob"), STATUS_PERMISSION_DENIED);
  EXPECT_EQ(count(""), STATUS_UNAUTHENTICATED);
  EXPECT_EQ(server().statistics().calls_denied, 1u);
  EXPECT_EQ(server().statistics().calls_unauthenticated, 1u);
}

INSTANTIATE_TEST_SUITE_P(All, StreamAccess,
                         ::testing::Values("flare", "http+pb", "trpc", "grpc"));

TEST_F(AccessControlTest, DeniesStreamsOfRequests) {
  Serve();
  for (const char* protocol : {"flare", "trpc", "grpc"}) {
    Connect(protocol);
    Streamer_SyncStub stub(channel());
    RpcClientController controller;
    controller.AddMetadata("authorization", "Bearer bob");
    auto [reader, writer] = stub.Echo(&controller);
    static_cast<void>(writer.Write(MakeNumber(1)));  // Opens it over flare.
    EXPECT_FALSE(reader.Read());
    EXPECT_EQ(reader.status().code(), STATUS_PERMISSION_DENIED) << protocol;
    writer.Close();
  }
}

TEST_F(AccessControlTest, AnswersHttpByItsOwnStatuses) {
  Serve();
  EXPECT_THAT(Get("/open", ""), HasSubstr("\r\n\r\nhello "));
  EXPECT_THAT(Get("/secret", "alice"), HasSubstr("\r\n\r\nhello alice"));
  EXPECT_THAT(Get("/secret", "bob"), HasSubstr("HTTP/1.1 403 "));
  const std::string anonymous = Get("/secret", "");
  EXPECT_THAT(anonymous, HasSubstr("HTTP/1.1 401 "));
  EXPECT_THAT(anonymous, HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"));
  EXPECT_THAT(Get("/secret", "later"), HasSubstr("HTTP/1.1 503 "));
  // The pages are handlers, too.
  EXPECT_THAT(Get("/inspect/server", "alice"), HasSubstr("HTTP/1.1 403 "));
  EXPECT_EQ(server().statistics().calls_denied, 2u);
  EXPECT_EQ(server().statistics().calls_unauthenticated, 1u);
}

TEST_F(AccessControlTest, CallsOverHttpAreAnsweredLikewise) {
  Serve({.authenticate = Authenticate,
         .rules_file = file(),
         .challenge = "Bearer realm=\"test\""});
  const auto call = [&](const std::string& method, const std::string& token) {
    RawClient client(endpoint());
    const std::string fields =
        token.empty() ? "" : "Authorization: Bearer " + token + "\r\n";
    client.Send("POST /rpc/flare.rpc.testing." + method +
                " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                "Content-Type: application/json\r\nContent-Length: 2\r\n" +
                fields + "\r\n{}");
    return client.ReadAll();
  };
  EXPECT_THAT(call("TestService.Call", "alice"), HasSubstr("HTTP/1.1 200 "));
  const std::string denied = call("TestService.Call", "bob");
  EXPECT_THAT(denied, HasSubstr("HTTP/1.1 403 "));
  EXPECT_THAT(denied, Not(HasSubstr("www-authenticate")));
  const std::string anonymous = call("TestService.Call", "");
  EXPECT_THAT(anonymous, HasSubstr("HTTP/1.1 401 "));
  EXPECT_THAT(anonymous,
              HasSubstr("www-authenticate: Bearer realm=\"test\"\r\n"));
  EXPECT_THAT(anonymous, Not(HasSubstr("WWW-Authenticate")));
  // A stream, whose reply would have begun with 200.
  EXPECT_THAT(call("Streamer.Count", "bob"), HasSubstr("HTTP/1.1 403 "));
  const std::string stream = call("Streamer.Count", "");
  EXPECT_THAT(stream, HasSubstr("HTTP/1.1 401 "));
  EXPECT_THAT(stream, HasSubstr("www-authenticate: Bearer realm=\"test\"\r\n"));
  EXPECT_THAT(stream, Not(HasSubstr("WWW-Authenticate")));
  EXPECT_EQ(stream.find("www-authenticate"), stream.rfind("www-authenticate"));
}

TEST_F(AccessControlTest, FailuresOfTheAuthenticationAreTheCalls) {
  Serve();
  Connect("flare");
  std::string text;
  EXPECT_EQ(Call("later", &text), STATUS_OUT_OF_SERVICE);
  EXPECT_EQ(text, "no tokens can be looked up");
  EXPECT_EQ(server().statistics().calls_unauthenticated, 0u);
}

TEST_F(AccessControlTest, RulesChangeWhileTheServerRuns) {
  Serve({.authenticate = Authenticate,
         .rules_file = file(),
         .reload_interval = std::chrono::nanoseconds(1)});
  Connect("flare");
  EXPECT_EQ(Call("bob"), STATUS_PERMISSION_DENIED);
  Write(R"({"rules": [{"who": "identity:bob", "method": "*"}]})");
  // A call goes on by the old ones if the look takes long.
  EXPECT_TRUE(fiber::testing::Eventually([&] { return Call("bob") == 0; }));
  EXPECT_EQ(Call("alice"), STATUS_PERMISSION_DENIED);
  // Those that can't be used change nothing.
  Write("{\"rules\": [");
  EXPECT_EQ(Call("bob"), 0);
  std::filesystem::remove(file());
  EXPECT_EQ(Call("bob"), 0);
  Write(kRules);
  EXPECT_TRUE(fiber::testing::Eventually([&] { return Call("alice") == 0; }));
}

// As on a network mount whose server is gone: here the file is a pipe that
// nobody writes to, so reads wait.
TEST_F(AccessControlTest, CallsDoNotWaitForAFileThatHangs) {
  Serve({.authenticate = Authenticate,
         .rules_file = file(),
         .reload_interval = std::chrono::nanoseconds(1)});
  Connect("flare");
  EXPECT_EQ(Call("alice"), 0);
  const std::string kept = file() + ".kept";
  std::filesystem::rename(file(), kept);
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  const std::int64_t start_ns = NowNs();
  for (int i = 0; i != 100; ++i) {
    EXPECT_EQ(Call("alice"), 0);
    EXPECT_EQ(Call("bob"), STATUS_PERMISSION_DENIED);
  }
  EXPECT_LT(NowNs() - start_ns, 20 * kNsPerSecond);
  // Lets the read go on, which finds nothing of use.
  const io::UniqueFd writer(::open(file().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer);
  std::filesystem::rename(kept, file());
}

TEST_F(AccessControlTest, UnusableFilesAreErrors) {
  Write("{\"rules\": [\n  {\"who\": \"alice\", \"method\": \"*\"}\n]}");
  auto access = AccessControl::Create({.rules_file = file()});
  ASSERT_FALSE(access);
  EXPECT_THAT(access.error().message(),
              HasSubstr(file() + ":2:11: who: \"alice\" is none of *"));
  std::filesystem::remove(file());
  access = AccessControl::Create({.rules_file = file()});
  ASSERT_FALSE(access);
  EXPECT_THAT(access.error().message(), HasSubstr(file()));
}

}  // namespace
}  // namespace flare::rpc::testing
