// Pipelined HTTP requests, whose replies must leave in order: more of them, or
// larger ones, than a connection holds back for the next one.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/fiber/event.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kBig = 4'000'000;
constexpr std::size_t kCallBig = kBig + 5;  // With the field's tag and length.
constexpr int kMany = 40;  // Sizes of kBig each: much to hold back.

std::string Get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
}

std::string CallWithoutNumber() {
  return "POST /rpc/flare.rpc.testing.TestService.Call HTTP/1.1\r\nHost: x\r\n"
         "Content-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
}

std::string Times(int count, const std::string& request) {
  std::string requests;
  for (int i = 0; i != count; ++i) requests += request;
  return requests;
}

class ServerOrderTest : public ServerTest {
 protected:
  // /slow, answered after go_on(), /big, and a method with large replies.
  void Start() {
    server().AddHttpHandler(
        "/slow", NewHttpGetHandler([this](auto&, HttpResponse* response, auto) {
          go_on_.Wait();
          response->set_body("slow");
        }));
    server().AddHttpHandler(
        "/big", NewHttpGetHandler([this](auto&, HttpResponse* response, auto) {
          ++big_;
          response->set_body(big_body_);
        }));
    service().on_call = [this](TestCall call) {
      ++big_;
      call.Reply(std::string(kBig, 'b'));
    };
    StartServer();
  }

  // /slow, and then so many of `request`; answered when all were served, and
  // after `delay`. Each of these replies has `size` bytes.
  void ExpectInOrder(int count, const std::string& request, std::size_t size,
                     std::chrono::milliseconds delay = {}) {
    Start();
    RawClient client(endpoint());
    client.Send(Get("/slow") + Times(count, request) + Get("/slow"));
    WaitForBig(count);
    std::this_thread::sleep_for(delay);
    GoOn();
    ExpectReply(&client, 4);
    ExpectReplies(&client, count, size);
    ExpectReply(&client, 4);
  }

  void WaitForBig(int count) const {
    while (big_ != count) std::this_thread::yield();
  }
  void GoOn() { go_on_.Set(); }

  static void ExpectReply(RawClient* client, std::size_t size) {
    const std::string head = client->ReadUntil("\r\n\r\n");
    ASSERT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << head;
    ASSERT_NE(head.find("\r\nContent-Length: " + std::to_string(size) + "\r\n"),
              std::string::npos)
        << head;
    ASSERT_EQ(client->ReadExactly(size).size(), size);
  }
  static void ExpectReplies(RawClient* client, int count, std::size_t size) {
    for (int i = 0; i != count; ++i) {
      ASSERT_NO_FATAL_FAILURE(ExpectReply(client, size)) << i;
    }
  }

 private:
  const Buffer big_body_ = CreateBufferSlow(std::string(kBig, 'b'));
  fiber::Event go_on_;
  std::atomic<int> big_{0};
};

// All wait for room, and are woken together.
TEST_F(ServerOrderTest, MuchIsTakenByAFastReader) {
  Start();
  for (int round = 0; round != 5; ++round) {
    RawClient client(endpoint());
    client.Send(Times(kMany, Get("/big")));
    ASSERT_NO_FATAL_FAILURE(ExpectReplies(&client, kMany, kBig));
  }
}

// There is room, but not their turn.
TEST_F(ServerOrderTest, MuchWaitsForASlowReply) {
  ExpectInOrder(kMany, Get("/big"), kBig);
}

// More than may ever be held back, for longer than calls would wait.
TEST_F(ServerOrderTest, HandlersWaitAsLongAsItTakes) {
  ExpectInOrder(70, Get("/big"), kBig, std::chrono::milliseconds(1300));
}

TEST_F(ServerOrderTest, CallsWaitForASlowReply) {
  ExpectInOrder(kMany, CallWithoutNumber(), kCallBig);
}

// A service that gathers calls, and answers the last ones first: the call whose
// turn it is waits for one that waits for its turn.
TEST_F(ServerOrderTest, OneFiberMayAnswerAll) {
  std::mutex mutex;
  std::vector<TestCall> gathered;
  service().on_call = [&](TestCall call) {
    std::vector<TestCall> calls;
    {
      std::scoped_lock guard(mutex);
      gathered.push_back(call);
      if (gathered.size() == kMany) calls = std::exchange(gathered, {});
    }
    for (; !calls.empty(); calls.pop_back()) {
      calls.back().Reply(std::string(kBig, 'b'));
    }
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(Times(kMany, CallWithoutNumber()));
  ExpectReplies(&client, kMany, kCallBig);
}

TEST_F(ServerOrderTest, WaitersOfAClosedConnectionEnd) {
  Start();
  {
    RawClient client(endpoint());
    client.Send(Get("/slow") + Times(kMany, Get("/big")));
    WaitForBig(kMany);
  }
  GoOn();
  while (server().statistics().calls_running != 0) std::this_thread::yield();
  EXPECT_EQ(server().statistics().calls, kMany + 1u);
}

// HTTP without Rpc-SeqNo is answered in order, and so piles up: no 503.
TEST_F(ServerOrderTest, LongPipelineIsServed) {
  server_options().max_concurrent_requests_per_connection = 16;
  fiber::Event go;
  server().AddHttpHandler(
      "/wait", NewHttpGetHandler([&](const HttpRequest&, HttpResponse* response,
                                     HttpServerContext*) {
        go.Wait();
        response->set_body("done");
      }));
  StartServer();
  RawClient client(endpoint());
  constexpr int kRequests = 2000;
  client.Send(Times(kRequests, Get("/wait")));
  go.Set();
  for (int i = 0; i != kRequests; ++i) {
    const std::string head = client.ReadUntil("\r\n\r\n");
    ASSERT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << i << ": " << head;
    ASSERT_EQ(client.ReadExactly(4), "done");
  }
}

// Replies that were ready before their turn leave together, more than one may
// write who looks first whether there is room.
TEST_F(ServerOrderTest, RepliesHeldBackMayBeMoreThanTheOutputsLimit) {
  server_options().max_output_per_connection = 100'000;
  const std::string body(99'000, 'x');
  fiber::Event go;
  std::atomic<int> ready{0};
  server().AddHttpHandler(
      "/first",
      NewHttpGetHandler(
          [&](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            go.Wait();
            response->set_body(body);
          }));
  server().AddHttpHandler(
      "/other",
      NewHttpGetHandler(
          [&](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            response->set_body(body);
            ++ready;
          }));
  StartServer();
  RawClient client(endpoint());
  constexpr int kOthers = 200;  // More than sockets take.
  client.Send(Get("/first") + Times(kOthers, Get("/other")));
  while (ready != kOthers) std::this_thread::yield();
  go.Set();
  for (int i = 0; i <= kOthers; ++i) {
    const std::string head = client.ReadUntil("\r\n\r\n");
    ASSERT_TRUE(head.starts_with("HTTP/1.1 200 OK\r\n")) << i << ": " << head;
    ASSERT_EQ(client.ReadExactly(body.size()), body) << i;
  }
}

}  // namespace
}  // namespace flare::rpc::testing
