// The promise of a graceful stop: a call that was received is answered.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// Half of the time that a server has to stop, unless a test says otherwise.
constexpr std::int64_t kSoon = 5'000'000'000;

class ServerStopTest : public ServerTest {};

// Answers with the path that was asked for; "/0" once `go` is set.
auto AnswersPaths(fiber::Event* go, fiber::Latch* all_run) {
  return NewHttpGetHandler(
      [=](const HttpRequest& request, HttpResponse* response, auto*) {
        all_run->count_down();
        if (request.path() == "/0") go->Wait();
        response->set_body(std::string(request.path()));
      });
}

// For "/0", "/1", ...
std::string RequestsOfPaths(int count) {
  std::string batch;
  for (int i = 0; i != count; ++i) {
    batch += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  return batch;
}

TEST_F(ServerStopTest, WithoutStartOrTwiceIsHarmless) {
  server().Stop();
  server().Join();
  StartServer();
  StopServer();
  StopServer();
}

TEST_F(ServerStopTest, JoinStopsWhatNobodyHasStopped) {
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  // Connections that the server's kernel doesn't know yet would be refused.
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return server().statistics().connections_accepted == 1; }));
  server().Join();
  EXPECT_TRUE(client.ReadReply());
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerStopTest, WithoutConnectionsIsImmediate) {
  StartServer();
  const std::int64_t before = NowNs();
  StopServer();
  EXPECT_LT(NowNs() - before, kSoon);
}

TEST_F(ServerStopTest, RunningCallsAreAnswered) {
  constexpr int kCalls = 100;
  fiber::Latch all_run(kCalls);
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    all_run.count_down();
    go.Wait();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  std::string batch;
  for (int i = 1; i <= kCalls; ++i) {
    batch += client.Encode(i, kCall, MakeRequest(std::string(10'000, 'x')));
  }
  client.Send(batch);
  all_run.wait();
  server().Stop();
  go.Set();
  for (int i = 0; i != kCalls; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply) << i;
    EXPECT_EQ(reply->As<TestResponse>().body().size(), 10'000u);
  }
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  EXPECT_EQ(server().Join(), 0u);
  EXPECT_EQ(server().statistics().calls_running, 0u);
  EXPECT_EQ(server().statistics().connections_open, 0u);
}

// The request has been received by the kernel, but the only worker has had no
// chance to look when the server is told to stop.
class OneWorkerStopTest : public ServerTest {
 protected:
  int workers() const override { return 1; }
};

// Has the peer's kernel all that was sent?
bool IsAcknowledged(int fd) {
  int unsent = -1;
  return ::ioctl(fd, SIOCOUTQ, &unsent) == 0 && unsent == 0;
}

TEST_F(OneWorkerStopTest, WhatWaitsInTheKernelIsAnswered) {
  std::atomic<bool> sent{false};
  fiber::Event runs;
  service().on_call = [&](TestCall call) {
    runs.Set();
    while (!sent) {  // Blocks the worker's thread.
    }
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient first(endpoint());
  RawClient second(endpoint());
  second.Call(1, kOther, MakeRequest("warm"));
  ASSERT_TRUE(second.ReadReply());
  first.Call(1, kCall, MakeRequest("first"));
  runs.Wait();
  // Neither on an open connection nor on one that isn't accepted yet.
  second.Call(2, kOther, MakeRequest("second"));
  RawClient third(endpoint());
  third.Call(3, kOther, MakeRequest("third"));
  for (const RawClient* client : {&second, &third}) {
    ASSERT_TRUE(fiber::testing::Eventually(
        [client] { return IsAcknowledged(client->fd()); }));
  }
  std::thread stopper([&] { server().Stop(); });
  sent = true;
  stopper.join();
  EXPECT_EQ(first.ReadReply()->As<TestResponse>().body(), "first");
  EXPECT_EQ(second.ReadReply()->As<TestResponse>().body(), "second");
  EXPECT_EQ(third.ReadReply()->As<TestResponse>().body(), "third");
  for (RawClient* client : {&first, &second, &third}) {
    EXPECT_TRUE(client->AtEnd());
    client->Close();
  }
  server().Join();
}

// Queued calls don't keep a process that has no time left.
TEST_F(OneWorkerStopTest, AfterTheDrainTimeoutNoCallIsBegun) {
  server_options().drain_timeout = std::chrono::nanoseconds(0);
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    ++begun;
    server().Stop();
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(client.Encode(1, kCall, MakeRequest("")) +
              client.Encode(2, kCall, MakeRequest("")));
  std::vector<int> statuses;
  for (int i = 0; i != 2; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    statuses.push_back(reply->status);
  }
  std::sort(statuses.begin(), statuses.end());
  EXPECT_EQ(statuses,
            (std::vector<int>{STATUS_SUCCESS, STATUS_OUT_OF_SERVICE}));
  EXPECT_EQ(begun, 1);
  server().Join();
}

// A client that keeps connections must know the last reply: it is marked when
// all are there, though those behind the first are ready long since.
TEST_F(OneWorkerStopTest, TheLastHttpReplySaysClose) {
  if (fiber::IsShuffleRequested()) GTEST_SKIP();
  constexpr int kRequests = 5;
  fiber::Event go;
  fiber::Latch all_run(kRequests);
  server().AddHttpPrefixHandler("/", AnswersPaths(&go, &all_run));
  StartServer();
  RawClient client(endpoint());
  client.Send(RequestsOfPaths(kRequests));
  all_run.wait();
  server().Stop();
  // When the only worker comes to this, it has been told of the end.
  fiber::Spawn([&] { go.Set(); });
  for (int i = 0; i != kRequests; ++i) {
    const bool last = i == kRequests - 1;
    const std::string head = client.ReadUntil("\r\n\r\n");
    EXPECT_EQ(head.find("\r\nConnection: close\r\n") != head.npos, last)
        << head;
    EXPECT_EQ(client.ReadExactly(2), "/" + std::to_string(i));
  }
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  server().Join();
}

// The body comes in pieces, and its head leaves while the server stops.
TEST_F(OneWorkerStopTest, TheLastHttpReplyInPiecesSaysClose) {
  if (fiber::IsShuffleRequested()) GTEST_SKIP();
  fiber::Event runs, go;
  server().AddHttpHandler(
      "/", NewHttpGetHandler([&](auto&, auto*, HttpServerContext* context) {
        runs.Set();
        go.Wait();
        EXPECT_TRUE(context->body->Write(CreateBufferSlow("piece")).ok());
      }));
  StartServer();
  RawClient client(endpoint());
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  runs.Wait();
  server().Stop();
  fiber::Spawn([&] { go.Set(); });
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("\r\nConnection: close\r\n"), head.npos) << head;
  EXPECT_EQ(client.ReadAll(), "5\r\npiece\r\n0\r\n\r\n");
  client.Close();
  server().Join();
}

TEST_F(ServerStopTest, PortIsClosedAtOnce) {
  StartServer();
  const Endpoint address = endpoint();
  server().Stop();
  const io::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage bytes;
  const socklen_t length = address.ToSockaddr(&bytes);
  EXPECT_NE(connect(fd.get(), reinterpret_cast<sockaddr*>(&bytes), length), 0);
  server().Join();
}

TEST_F(ServerStopTest, IncompleteRequestDoesNotHoldItUp) {
  StartServer();
  RawClient client(endpoint());
  const std::string bytes = client.Encode(1, kCall, MakeRequest("never"));
  client.Send(bytes.substr(0, bytes.size() - 1));
  RawClient idle(endpoint());
  server().Stop();
  EXPECT_TRUE(client.AtEnd());
  EXPECT_TRUE(idle.AtEnd());
  client.Close();
  idle.Close();
  const std::int64_t before = NowNs();
  server().Join();
  EXPECT_LT(NowNs() - before, kSoon);
}

TEST_F(ServerStopTest, PipelinedHttpIsAnsweredInOrder) {
  fiber::Event go;
  fiber::Latch all_run(20);
  server().AddHttpPrefixHandler("/", AnswersPaths(&go, &all_run));
  StartServer();
  RawClient client(endpoint());
  client.Send(RequestsOfPaths(20));
  all_run.wait();
  server().Stop();
  go.Set();
  const std::string replies = client.ReadAll();
  std::size_t at = 0;
  for (int i = 0; i != 20; ++i) {
    at = replies.find("\r\n\r\n/" + std::to_string(i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  client.Close();
  server().Join();
}

TEST_F(ServerStopTest, CallsBeyondTheDrainTimeoutAreAbandoned) {
  server_options().drain_timeout = std::chrono::milliseconds(30);
  fiber::Event runs, go, finished;
  service().on_call = [&](TestCall call) {
    runs.Set();
    go.Wait();
    FlexibleService::Echo(call);
    finished.Set();
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  runs.Wait();
  const LoggedLines warnings(google::WARNING);
  const std::int64_t before = NowNs();
  EXPECT_EQ(server().Join(), 1u);
  EXPECT_LT(NowNs() - before, kSoon);
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(server().statistics().calls_running, 1u);
  EXPECT_EQ(server().Join(), 1u);
  EXPECT_EQ(warnings.Count("abandoning 1 call(s)"), 1u);
  // The call ends in peace.
  go.Set();
  finished.Wait();
  while (server().Join() != 0) std::this_thread::yield();
}

// One whose method waits, one whose method has returned, and a request of HTTP.
TEST_F(ServerStopTest, AbandonedCallsAreListed) {
  server_options().drain_timeout = std::chrono::milliseconds(30);
  fiber::Event go;
  fiber::Latch all_run(3);
  std::mutex lock;
  std::vector<TestCall> kept;
  std::vector<std::string> expected;
  service().on_call = [&](TestCall call) {
    {
      std::scoped_lock guard(lock);
      kept.push_back(call);
      expected.push_back(std::string(kCall) + " of " +
                         call.controller->GetRemotePeer().ToString() +
                         ", over flare, ");
    }
    all_run.count_down();
  };
  service().on_other = [&](TestCall call) {
    {
      std::scoped_lock guard(lock);
      expected.push_back(std::string(kOther) + " of " +
                         call.controller->GetRemotePeer().ToString() +
                         ", over trpc, ");
    }
    all_run.count_down();
    go.Wait();
    FlexibleService::Echo(call);
  };
  server().AddHttpPrefixHandler("/", AnswersPaths(&go, &all_run));
  StartServer({"flare", "trpc"});
  RawClient returned(endpoint());
  returned.Call(1, kCall, MakeRequest(""));
  RawClient waits(endpoint(), "trpc");
  waits.Call(1, kOther, MakeRequest(""));
  RawClient web(endpoint());
  web.Send(RequestsOfPaths(1));
  all_run.wait();
  EXPECT_TRUE(server().abandoned_calls().empty());
  const LoggedLines warnings(google::WARNING);
  EXPECT_EQ(server().Join(), 3u);
  expected.push_back("a request of ");
  ASSERT_EQ(server().abandoned_calls().size(), 3u);
  for (const std::string& text : expected) {
    const auto has_text = [&](const AbandonedCall& call) {
      return call.ToString().find(text) == 0;
    };
    const auto& calls = server().abandoned_calls();
    const auto found = std::find_if(calls.begin(), calls.end(), has_text);
    ASSERT_NE(found, calls.end()) << text;
    EXPECT_GE(found->age, std::chrono::milliseconds(30));
    EXPECT_LT(found->age, std::chrono::nanoseconds(kSoon));
    EXPECT_EQ(warnings.Count(found->ToString()), 1u);
  }
  // They stay in the list though they end.
  go.Set();
  for (const TestCall& call : kept) FlexibleService::Echo(call);
  while (server().Join() != 0) std::this_thread::yield();
  EXPECT_EQ(server().abandoned_calls().size(), 3u);
}

// The Server is gone before the call ends.
TEST_F(ServerStopTest, AbandonedCallsOutliveTheServer) {
  fiber::Event runs, go, finished;
  service().on_call = [&](TestCall call) {
    runs.Set();
    go.Wait();
    FlexibleService::Echo(call);
    finished.Set();
  };
  {
    Server::Options options;
    options.drain_timeout = std::chrono::milliseconds(1);
    Server local(options);
    local.AddProtocol("flare");
    local.AddService(&service());
    local.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(local.Start());
    RawClient client(local.endpoint());
    client.Call(1, kCall, MakeRequest(""));
    runs.Wait();
  }
  go.Set();
  finished.Wait();
}

// Clients that send without pause, until they are hung up on. Every request
// that the server has taken off a connection must have been answered: nothing
// a client misses was counted as a call.
void StopUnderLoad(Server* server, std::string_view scheme, int depth) {
  constexpr int kClients = 4;
  std::atomic<std::uint64_t> replies{0};
  std::atomic<std::uint64_t> wrong{0};
  fiber::Latch under_way(kClients);
  std::vector<std::thread> clients;
  for (int c = 0; c != kClients; ++c) {
    clients.emplace_back([&] {
      RawClient client(server->endpoint(), scheme);
      std::uint64_t id = 0;
      std::string batch;
      for (int i = 0; i != depth; ++i) {
        batch += client.Encode(++id, kCall, MakeRequest("ping"));
      }
      bool sending = client.TrySend(batch);
      for (std::uint64_t n = 0;; ++n) {
        if (n == 500) under_way.count_down();
        const auto reply = client.ReadReply();
        if (!reply) break;
        ++replies;
        wrong += reply->status != STATUS_SUCCESS;
        sending = sending && client.TrySend(client.Encode(++id, kCall,
                                                          MakeRequest("ping")));
      }
    });
  }
  under_way.wait();
  server->Stop();
  server->Join();
  for (auto& client : clients) client.join();
  const auto statistics = server->statistics();
  EXPECT_EQ(statistics.calls, replies);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(statistics.calls_running, 0u);
  EXPECT_EQ(statistics.connections_open, 0u);
  EXPECT_GE(replies, 500u * kClients);
}

TEST_F(ServerStopTest, UnderLoadNoCallIsLost) {
  StartServer();
  StopUnderLoad(&server(), "flare", 20);
}

TEST_F(ServerStopTest, UnderLoadOverHttpNoCallIsLost) {
  StartServer();
  StopUnderLoad(&server(), "http+pb", 20);
}

TEST_F(ServerStopTest, UnderLoadWithFibersThatBlockNoCallIsLost) {
  service().on_call = [](TestCall call) {
    this_fiber::Yield();
    FlexibleService::Echo(call);
  };
  StartServer();
  StopUnderLoad(&server(), "flare", 100);
}

// Clients that keep their connections, as long as replies don't say that they
// are the last. No request goes unanswered.
TEST_F(ServerStopTest, EachHttpRequestIsAnswered) {
  server_options().stop_linger = std::chrono::seconds(10);
  server().AddHttpHandler(
      "/", NewHttpGetHandler([](auto&, HttpResponse* response, auto*) {
        response->set_body("pong");
      }));
  StartServer();
  constexpr int kClients = 4;
  fiber::Latch under_way(kClients);
  std::atomic<int> told{0};
  std::vector<std::thread> clients;
  for (int c = 0; c != kClients; ++c) {
    clients.emplace_back([&] {
      RawClient client(endpoint());
      for (int n = 0;; ++n) {
        if (n == 200) under_way.count_down();
        if (!client.TrySend("GET / HTTP/1.1\r\nHost: x\r\n\r\n")) break;
        const std::string head = client.ReadUntil("\r\n\r\n");
        if (!head.ends_with("\r\n\r\n")) break;
        EXPECT_EQ(client.ReadExactly(4), "pong");
        if (head.find("\r\nConnection: close\r\n") != head.npos) {
          ++told;
          EXPECT_TRUE(client.AtEnd());
          break;
        }
      }
    });
  }
  under_way.wait();
  server().Stop();
  for (auto& client : clients) client.join();
  EXPECT_EQ(told, kClients);
  EXPECT_EQ(server().Join(), 0u);
}

// Its first request is on its way, for all that the server knows.
TEST_F(ServerStopTest, ANewConnectionsFirstRequestIsAnswered) {
  server_options().stop_linger = std::chrono::seconds(10);
  StartServer();
  RawClient over_flare(endpoint());
  RawClient over_http(endpoint(), "http+pb");
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return server().statistics().connections_accepted == 2; }));
  server().Stop();
  for (RawClient* client : {&over_flare, &over_http}) {
    client->Call(1, kCall, MakeRequest("first"));
    const auto reply = client->ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->As<TestResponse>().body(), "first");
    // The other one was told by the reply, and may have sent more.
    EXPECT_TRUE(client == &over_http || client->AtEnd());
    client->Close();
  }
  EXPECT_EQ(server().Join(), 0u);
}

// Takes nothing from other protocols. Keeps the state of the server, as do
// connections that are gone but not freed.
class StayingProtocol : public ServerProtocol {
 public:
  explicit StayingProtocol(ReplySink* sink) : ServerProtocol(sink) {
    // No other cast reaches across the protected base.
    // NOLINTNEXTLINE(google-readability-casting)
    kept = ((CallConnection*)sink)->shared_state();
  }
  std::string_view name() const override { return "staying"; }
  ProtocolTraits traits() const override { return {}; }
  CutResult Cut(Buffer&, InboundRequest*, std::size_t*, std::string*) override {
    return CutResult::kNotMine;
  }
  ParseResult Parse(InboundRequest*) const override { return ParseResult::kOk; }
  void Write(const ReplyTicket&, OutboundResponse&&) override {}

  static inline RefPtr<ServerState> kept;  // By the last one.
};

TEST_F(ServerStopTest, WhatWasGivenAwayGoesWithTheServer) {
  struct Given : FlexibleService {
    std::shared_ptr<int> data;
  };
  RegisterServerProtocol("staying", [](const Limits&, ReplySink* sink) {
    return std::make_unique<StayingProtocol>(sink);
  });
  auto data = std::make_shared<int>();
  Server::Options options;
  options.conn_filter = [data](const Endpoint&) { return true; };
  auto server = std::make_unique<Server>(std::move(options));
  auto given = std::make_unique<Given>();
  given->data = data;
  server->AddService(std::move(given));
  server->AddHttpHandler(
      "/", NewHttpGetHandler([data](auto&, HttpResponse*, auto*) {}));
  server->AddHttpPrefixHandler(
      "/all", NewHttpGetHandler([data](auto&, HttpResponse*, auto*) {}));
  server->SetDefaultHttpHandler(
      NewHttpGetHandler([data](auto&, HttpResponse*, auto*) {}));
  server->AddProtocols({"flare", "staying"});
  server->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(server->Start());
  {
    RawClient client(server->endpoint());
    client.Call(1, kCall, MakeRequest(""));
    EXPECT_TRUE(client.ReadReply());
  }
  EXPECT_EQ(data.use_count(), 6);
  server.reset();
  ASSERT_NE(StayingProtocol::kept, nullptr);
  EXPECT_EQ(data.use_count(), 1);
  StayingProtocol::kept = nullptr;
}

TEST_F(ServerStopTest, OverAndOver) {
  for (int round = 0; round != 10; ++round) {
    Server local;
    local.AddProtocol("flare");
    local.AddService(&service());
    local.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(local.Start());
    StopUnderLoad(&local, "flare", 5);
  }
}

}  // namespace
}  // namespace flare::rpc::testing
