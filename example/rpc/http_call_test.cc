// Loads over plain HTTP, against a server of this process and against one whose
// bytes the test writes itself.

#include "example/rpc/http_call.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "example/rpc/load_test_fixture.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using namespace std::literals;
using flare::rpc::testing::RawPeer;
using flare::rpc::testing::RawServer;
using Failures = std::map<int, std::uint64_t>;

LoadOptions OptionsFor(const flare::Endpoint& server, const std::string& path) {
  LoadOptions options;
  options.server_addr = "http://" + server.ToString() + path;
  options.timeout = 60s;
  return options;
}

TEST(IsPlainHttp, IfThereIsAPath) {
  EXPECT_TRUE(IsPlainHttp("http://h:1/"));
  EXPECT_TRUE(IsPlainHttp("http://h:1/path?query"));
  EXPECT_FALSE(IsPlainHttp("http://h:1"));
  EXPECT_FALSE(IsPlainHttp("http+pb://h:1/"));
  EXPECT_TRUE(IsPlainHttp("tls+http://h:1/"));
  EXPECT_FALSE(IsPlainHttp("tls+http://h:1"));
  EXPECT_FALSE(IsPlainHttp("https://h:1/"));
  EXPECT_FALSE(IsPlainHttp(""));
}

class HttpLoadTest : public LoadTest {
 protected:
  void SetUp() override {
    server_.AddProtocol("http");
    server_.AddHttpHandler(
        "/get", flare::NewHttpGetHandler([this](const flare::HttpRequest&,
                                                flare::HttpResponse* response,
                                                flare::HttpServerContext*) {
          ++gets_;
          at_once_.Begin();
          response->set_body("a page");
        }));
    server_.AddHttpHandler(
        "/missing",
        flare::NewHttpGetHandler([this](const flare::HttpRequest&,
                                        flare::HttpResponse* response,
                                        flare::HttpServerContext*) {
          at_once_.Begin();
          response->set_status(flare::HttpStatus::NotFound);
        }));
    server_.AddHttpHandler(
        "/slow", flare::NewHttpGetHandler(
                     [this](const flare::HttpRequest&, flare::HttpResponse*,
                            flare::HttpServerContext*) { ++slow_gets_; }));
    server_.AddHttpHandler(
        "/echo", flare::NewHttpPostHandler([](const flare::HttpRequest& request,
                                              flare::HttpResponse* response,
                                              flare::HttpServerContext*) {
          response->set_body(*request.noncontiguous_body());
        }));
    server_.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_.Start()) << server_.error();
  }
  void TearDown() override {
    server_.Stop();
    server_.Join();
  }

  LoadOptions OptionsFor(const std::string& path) {
    return example::OptionsFor(server_.endpoint(), path);
  }

  flare::Server server_;
  std::atomic<int> gets_{0};
  CallsWithoutPause at_once_;
  std::atomic<int> slow_gets_{0};
};

TEST_F(HttpLoadTest, OpenSaysWhatIsWrong) {
  const std::pair<std::string, std::string> wrong[] = {
      {"http:///", "''"},
      {"http://127.0.0.1/x", "127.0.0.1"},
      {"http://127.0.0.1:1,127.0.0.1:2/x", "127.0.0.1:1,127.0.0.1:2"},
      {"http://unix:/tmp/x/y", "write host:port"},
      {"http://127.0.0.1:1/a b", "the path \"/a b\""},
      {"http://127.0.0.1:1/a#b", "the path \"/a#b\""},
      {"http://127.0.0.1:1/a\r\nb: c", "the path \"/a\r\nb: c\""},
      {"http://127.0.0.1:1/caf\xc3\xa9", "the path \"/caf\xc3\xa9\""},
  };
  LoadRecorder recorder;
  for (const auto& [address, said] : wrong) {
    LoadOptions options;
    options.server_addr = address;
    const auto status = LoadGenerator(options, &recorder).Open();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(said), std::string::npos) << status;
  }
  LoadOptions options = OptionsFor("/get");
  options.relay_stub = true;
  EXPECT_FALSE(LoadGenerator(options, &recorder).Open().ok());
  options = OptionsFor("/get");
  options.override_nslb = "list+rr";
  EXPECT_FALSE(LoadGenerator(options, &recorder).Open().ok());
  options = OptionsFor("/get");
  options.tail_path = "/a b";
  EXPECT_FALSE(LoadGenerator(options, &recorder).Open().ok());
}

TEST_F(HttpLoadTest, GetsWithoutABody) {
  LoadOptions options = OptionsFor("/get?query");
  options.requests = 500;
  for (CallerKind kind : kAllKinds) {
    for (std::size_t callers : {1, 10}) {
      options.caller_kind = kind;
      options.max_pending = callers;
      const CallStatistics calls = Run(options);
      EXPECT_EQ(calls.successes(), 500u);
      EXPECT_EQ(calls.failures, Failures());
    }
  }
  EXPECT_EQ(gets_.load(), 3000);
}

// The server was reached, whatever its status or its reply.
TEST_F(HttpLoadTest, FailuresThatWereAnsweredAreRepeatedAtFullSpeed) {
  LoadOptions options = OptionsFor("/missing");
  options.requests = 600;
  options.max_pending = 1;
  EXPECT_EQ(Run(options).failures, (Failures{{404, 600}}));
  const int before = at_once_.count();
  EXPECT_GE(before, 50);
  options.server_addr = OptionsFor("/get").server_addr;
  options.verify = true;  // It isn't the sent body: it is empty.
  EXPECT_EQ(Run(options).failures,
            (Failures{{flare::rpc::STATUS_MALFORMED_DATA, 600}}));
  EXPECT_GE(at_once_.count() - before, 50);
}

TEST_F(HttpLoadTest, PostsBodiesAndVerifiesTheReply) {
  LoadOptions options = OptionsFor("/echo");
  options.requests = 200;
  options.max_pending = 3;
  options.body = std::string(100'000, 'x');
  options.body_sizes = *ParseSizeDistribution("1:8,100000:2");
  options.verify = true;
  EXPECT_EQ(Run(options).successes(), 200u);

  options.server_addr = OptionsFor("/get").server_addr;  // Has no POST.
  options.requests = 5;
  EXPECT_EQ(Run(options).failures, (Failures{{405, 5}}));
}

TEST_F(HttpLoadTest, VerifyFindsRepliesThatDiffer) {
  LoadOptions options = OptionsFor("/get");
  options.requests = 5;
  options.verify = true;
  EXPECT_EQ(Run(options).failures,
            (Failures{{flare::rpc::STATUS_MALFORMED_DATA, 5}}));
}

TEST_F(HttpLoadTest, StatusesThatAreNoSuccessAreFailures) {
  LoadOptions options = OptionsFor("/nowhere");
  options.requests = 5;
  EXPECT_EQ(Run(options).failures, (Failures{{404, 5}}));
}

TEST_F(HttpLoadTest, TailAsksForAnotherPath) {
  LoadOptions options = OptionsFor("/get");
  options.requests = 500;
  options.max_pending = 4;
  options.tail_ratio = 0.3;
  options.tail_path = "/slow";
  const auto [ordinary, tail] = RunWithTail(options);
  EXPECT_EQ(ordinary.successes(), gets_.load());
  EXPECT_EQ(tail.successes(), slow_gets_.load());
  EXPECT_EQ(ordinary.successes() + tail.successes(), 500u);
  EXPECT_GT(tail.successes(), 0u);
}

// A server that follows the test's script, on a thread of its own: for each
// connection, in turn, one of `scripts`.
class ScriptedServer {
 public:
  using Script = std::function<void(RawPeer*)>;

  explicit ScriptedServer(std::vector<Script> scripts)
      : thread_([this, scripts = std::move(scripts)] {
          for (const Script& script : scripts) {
            if (const auto peer = server_.Accept()) script(peer.get());
          }
        }) {}
  ~ScriptedServer() { thread_.join(); }

  LoadOptions OptionsForCalls(std::uint64_t requests) const {
    LoadOptions options = OptionsFor(server_.endpoint(), "/path");
    options.requests = requests;
    return options;
  }

 private:
  RawServer server_;
  std::thread thread_;
};

// Waits for a request and answers with `bytes`.
void Answer(RawPeer* peer, std::string_view bytes) {
  EXPECT_NE(peer->ReadUntil("\r\n\r\n").find("GET /path HTTP/1.1\r\nHost: "),
            std::string::npos);
  peer->Send(bytes);
}

constexpr std::string_view kOk =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

class ScriptedHttpTest : public LoadTest {};

TEST_F(ScriptedHttpTest, OneConnectionIsUsedAgain) {
  ScriptedServer server({[](RawPeer* peer) {
    for (int i = 0; i != 3; ++i) Answer(peer, kOk);
    // Chunks, in pieces, after an interim response.
    Answer(peer,
           "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"
           "Transfer-Encoding: chunked\r\n\r\n5\r\nhe");
    peer->Send("llo\r\n0\r\n\r\n");
    EXPECT_TRUE(peer->AtEnd());
  }});
  EXPECT_EQ(Run(server.OptionsForCalls(4)).successes(), 4u);
}

TEST_F(ScriptedHttpTest, TheHostIsNamedWithoutItsZone) {
  ScriptedServer server({[](RawPeer* peer) {
    const std::string request = peer->ReadUntil("\r\n\r\n");
    EXPECT_NE(request.find("\r\nHost: [::ffff:127.0.0.1]:"), std::string::npos)
        << request;
    peer->Send(kOk);
    EXPECT_TRUE(peer->AtEnd());
  }});
  LoadOptions options = server.OptionsForCalls(1);
  const std::string address = "127.0.0.1";  // For IPv4 any zone will do.
  options.server_addr.replace(options.server_addr.find(address), address.size(),
                              "[::ffff:" + address + "%1]");
  EXPECT_EQ(Run(options).successes(), 1u);
}

TEST_F(ScriptedHttpTest, ConnectionThatEndsWithItsReplyIsReplaced) {
  const auto close = [](RawPeer* peer) {
    Answer(peer,
           "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(peer->AtEnd());
  };
  const auto old = [](RawPeer* peer) {
    Answer(peer, "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
    EXPECT_TRUE(peer->AtEnd());
  };
  for (CallerKind kind : kAllKinds) {
    ScriptedServer server({close, old, close});
    LoadOptions options = server.OptionsForCalls(3);
    options.caller_kind = kind;
    const CallStatistics calls = Run(options);
    EXPECT_EQ(calls.successes(), 3u);
    EXPECT_EQ(calls.failures, Failures());
  }
}

TEST_F(ScriptedHttpTest, ConnectionClosedInBetweenIsReplaced) {
  const auto answer_and_close = [](RawPeer* peer) { Answer(peer, kOk); };
  std::uint64_t successes = 0;
  // Time to close it, and to notice, of which a busy machine needs more.
  for (const double qps : {5.0, 1.0, 0.1}) {
    ScriptedServer server({answer_and_close, answer_and_close});
    LoadOptions options = server.OptionsForCalls(2);
    options.qps = qps;
    successes = Run(options).successes();
    if (successes == 2) break;
  }
  EXPECT_EQ(successes, 2u);
}

TEST_F(ScriptedHttpTest, BrokenAndMalformedRepliesFailOneCall) {
  const auto say = [](std::string_view bytes) {
    return [bytes](RawPeer* peer) { Answer(peer, bytes); };
  };
  ScriptedServer server({
      say(""),                                // The end instead of a reply.
      say("HTTP/1.1 200 OK\r\nContent-Len"),  // Inside the head.
      say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"),
      say("I don't speak HTTP.\r\n\r\n"),
      say("HTTP/1.1 200 OK\r\n\r\n"),  // Without a length.
      say("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"),
      [](RawPeer* peer) { Answer(peer, kOk); },
  });
  const CallStatistics calls = Run(server.OptionsForCalls(7));
  EXPECT_EQ(calls.failures, (Failures{{flare::rpc::STATUS_IO_ERROR, 6}}));
  EXPECT_EQ(calls.successes(), 1u);
}

TEST_F(ScriptedHttpTest, TimeoutClosesTheConnection) {
  const auto stop_inside = [](RawPeer* peer) {
    peer->Send("HTTP/1.1 200 OK\r\n");
    static_cast<void>(peer->ReadAll());  // To the end of the connection.
  };
  for (CallerKind kind : {CallerKind::kLoop, CallerKind::kThread}) {
    ScriptedServer server({stop_inside, stop_inside});
    LoadOptions options = server.OptionsForCalls(2);
    options.caller_kind = kind;
    options.timeout = 100ms;
    EXPECT_EQ(Run(options).failures,
              (Failures{{flare::rpc::STATUS_TIMEOUT, 2}}));
  }
}

TEST_F(ScriptedHttpTest, RefusedConnectionsAreTold) {
  const flare::rpc::testing::DeadAddress nobody;
  LoadOptions options = OptionsFor(nobody.endpoint(), "/");
  options.requests = 5;
  for (CallerKind kind : kAllKinds) {
    options.caller_kind = kind;
    EXPECT_EQ(Run(options).failures,
              (Failures{{flare::rpc::STATUS_FAIL_TO_CONNECT, 5}}));
  }
}

}  // namespace
}  // namespace example
