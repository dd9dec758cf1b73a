// Peers that send more than is good for others, or take less: a connection
// isn't read from while it has enough of the server.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/testing/rounds.h"
#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// Keeps calls until the test releases them.
class Holder {
 public:
  // Ready once `count` calls are held.
  explicit Holder(std::size_t count) : count_(count) {}

  void Hold(TestCall call) {
    {
      std::scoped_lock guard(mutex_);
      if (holding_) {
        calls_.push_back(call);
        if (calls_.size() == count_) full_.Set();
        return;
      }
    }
    FlexibleService::Echo(call);
  }

  void WaitUntilFull() {
    ASSERT_TRUE(full_.WaitUntil(NowNs() + 20'000'000'000));
  }

  std::size_t size() {
    std::scoped_lock guard(mutex_);
    return calls_.size();
  }

  // Answers held calls, and later ones at once.
  void Release() {
    std::vector<TestCall> calls;
    {
      std::scoped_lock guard(mutex_);
      holding_ = false;
      calls.swap(calls_);
    }
    for (const TestCall& call : calls) FlexibleService::Echo(call);
  }

 private:
  const std::size_t count_;
  fiber::Event full_;
  std::mutex mutex_;
  bool holding_ = true;
  std::vector<TestCall> calls_;
};

class ServerPressureTest : public ServerTest {
 protected:
  // Calls 1 to `count`, to be sent at once.
  static std::string EncodeMany(RawClient* client, int count) {
    std::string bytes;
    for (int i = 1; i <= count; ++i) {
      bytes += client->Encode(i, kCall, MakeRequest(std::to_string(i)));
    }
    return bytes;
  }

  // All of 1 to `count` are answered well, in any order.
  static void ExpectReplies(RawClient* client, int count) {
    std::vector<bool> seen(count + 1);
    for (int i = 0; i != count; ++i) {
      const auto reply = client->ReadReply();
      ASSERT_TRUE(reply) << "after " << i;
      ASSERT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
      ASSERT_LE(reply->id, static_cast<std::uint64_t>(count));
      EXPECT_FALSE(seen[reply->id]);
      seen[reply->id] = true;
    }
  }

  // Until the server has taken `calls` off its connections and finished them.
  void WaitFinished(std::uint64_t calls) {
    for (;;) {
      const Server::Statistics now = server().statistics();
      if (now.calls >= calls && now.calls_running == 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
};

TEST_F(ServerPressureTest, OneConnectionLeavesRoomForOthers) {
  server_options().max_concurrent_requests = 5;
  server_options().max_concurrent_requests_per_connection = 4;
  std::unique_ptr<Holder> holder;
  service().on_call = [&](TestCall call) { holder->Hold(call); };
  StartServer({"flare", "http+pb", "baidu-std", "trpc", "bolt"});
  for (const char* scheme : {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
    SCOPED_TRACE(scheme);
    holder = std::make_unique<Holder>(4);
    RawClient greedy(endpoint(), scheme);
    greedy.Send(EncodeMany(&greedy, 50));
    holder->WaitUntilFull();
    RawClient modest(endpoint(), scheme);
    for (int i = 1; i <= 20; ++i) {
      modest.Call(i, kOther, MakeRequest("fine"));
      const auto reply = modest.ReadReply();
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
    }
    EXPECT_EQ(holder->size(), 4u);
    // And the greedy one is served, too, only slower.
    holder->Release();
    ExpectReplies(&greedy, 50);
  }
  EXPECT_EQ(server().statistics().calls_overloaded, 0u);
}

TEST_F(ServerPressureTest, LimitOfOneIsACallAtATime) {
  server_options().max_concurrent_requests_per_connection = 1;
  std::atomic<int> running{0};
  service().on_call = [&](TestCall call) {
    EXPECT_EQ(running.fetch_add(1), 0);
    this_fiber::Yield();
    running.fetch_sub(1);
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 300));
  ExpectReplies(&client, 300);
}

// Calls finish on all workers while the reader pauses.
TEST_F(ServerPressureTest, NoResumeIsLost) {
  constexpr int kCalls = flare::testing::Rounds(20'000);
  for (std::size_t limit : {1, 2, 3, 64, 65, 100}) {
    server_options().max_concurrent_requests_per_connection = limit;
    Server server(server_options());
    server.AddService(&service());
    server.AddProtocol("flare");
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server.Start());
    RawClient client(server.endpoint());
    std::thread sender([&] {
      RawClient encoder(server.endpoint());
      client.Send(EncodeMany(&encoder, kCalls));
    });
    ExpectReplies(&client, kCalls);
    sender.join();
  }
}

TEST_F(ServerPressureTest, StopAnswersWhatAPausedConnectionHasNotRead) {
  server_options().max_concurrent_requests_per_connection = 2;
  Holder holder(2);
  service().on_call = [&](TestCall call) { holder.Hold(call); };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 50));
  holder.WaitUntilFull();
  server().Stop();
  holder.Release();
  ExpectReplies(&client, 50);
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  server().Join();
}

TEST_F(ServerPressureTest, EndOfInputIsNoticedAfterAPause) {
  server_options().max_concurrent_requests_per_connection = 2;
  Holder holder(2);
  service().on_call = [&](TestCall call) { holder.Hold(call); };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 50));
  client.Shutdown();
  holder.WaitUntilFull();
  holder.Release();
  ExpectReplies(&client, 50);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerPressureTest, PausedConnectionIsCutAtTheDrainTimeout) {
  server_options().max_concurrent_requests_per_connection = 2;
  server_options().drain_timeout = std::chrono::milliseconds(10);
  Holder holder(2);
  service().on_call = [&](TestCall call) { holder.Hold(call); };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 50));
  holder.WaitUntilFull();
  StopServer();
  EXPECT_EQ(server().statistics().connections_open, 0u);
  holder.Release();
}

// A peer that sends and doesn't read gets no more calls than a connection may
// have, however long its replies wait.
TEST_F(ServerPressureTest, WhoReadsNothingIsNotReadFrom) {
  server_options().max_concurrent_requests = 100;
  server_options().max_concurrent_requests_per_connection = 50;
  server_options().max_output_per_connection = 16'000'000;
  service().on_call = [](TestCall call) {
    call.Reply(std::string(400'000, 'x'));
  };
  StartServer({"flare", "http+pb", "baidu-std", "trpc", "bolt"});
  std::uint64_t before = 0;
  for (const char* scheme : {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
    SCOPED_TRACE(scheme);
    RawClient slow(endpoint(), scheme);
    slow.Send(EncodeMany(&slow, 200));
    RawClient other(endpoint(), scheme);
    for (int i = 1; i <= 50; ++i) {
      other.Call(i, kOther, MakeRequest("fine"));
      const auto reply = other.ReadReply();
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
    }
    EXPECT_LT(server().statistics().calls, before + 200);
    ExpectReplies(&slow, 200);
    before += 250;
  }
  EXPECT_EQ(server().statistics().calls_overloaded, 0u);
}

// Requests that are small as they come and large unpacked, as are their
// replies.
class UnpackingTest : public ServerPressureTest {
 protected:
  static constexpr int kRequests = 20;
  static constexpr std::size_t kBody = 8'000'000;

  void SetUp() override {
    ServerPressureTest::SetUp();
    server_options().max_output_per_connection = 1'000'000;
    server_options().maximum_packet_size = 2 * kBody;
    service().on_call = [this](TestCall call) {
      unpacked_.fetch_add(1);
      FlexibleService::Echo(call);
    };
    StartServer();
  }

  int unpacked() const { return unpacked_.load(); }

  // Sends them all, and sees the first reply begin.
  void SendAll(RawClient* client) {
    const Buffer body = *Compress(
        CompressionAlgorithm::kZstd,
        CreateBufferSlow(
            MakeRequest(std::string(kBody, 'x')).SerializeAsString()));
    std::string requests;
    for (int i = 1; i <= kRequests; ++i) {
      OutboundRequest request;
      request.correlation_id = i;
      request.method = kCall;
      request.compression = CompressionAlgorithm::kZstd;
      request.body = body;
      requests += client->Encode(std::move(request));
    }
    ASSERT_LT(requests.size(), 100'000u);
    client->Send(requests);
    ASSERT_EQ(client->ReadExactly(100).size(), 100u);
    const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
    while (server().statistics().calls < kRequests && NowNs() < give_up_ns) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    // Time enough for unpacking them, if nothing is waited for.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }

 private:
  std::atomic<int> unpacked_{0};
};

TEST_F(UnpackingTest, WaitsForRoomForReplies) {
  RawClient client(endpoint());
  SendAll(&client);
  EXPECT_LT(unpacked(), kRequests / 2);  // Sockets take a few MB.
  EXPECT_EQ(server().statistics().calls, static_cast<unsigned>(kRequests));
  client.ReadExactly(kRequests * kBody);
  EXPECT_EQ(unpacked(), kRequests);
}

TEST_F(UnpackingTest, IsNotDoneForWhoIsGone) {
  RawClient client(endpoint());
  SendAll(&client);
  client.Close();
  WaitFinished(kRequests);
  EXPECT_LT(unpacked(), kRequests / 2);
}

// One reply above the mark, no call that waits: only output can resume it.
TEST_F(ServerPressureTest, WaitingOutputAlonePausesAndResumes) {
  service().on_call = [](TestCall call) {
    call.Reply(std::string(60'000'000, 'x'));
  };
  StartServer();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(""));
  // It is being sent, so it waits there as a whole, and the next one can't
  // overtake it.
  EXPECT_EQ(client.ReadExactly(100).size(), 100u);
  client.Call(2, kOther, MakeRequest("the end"));
  // More than a RawClient takes for a reply.
  EXPECT_EQ(client.ReadExactly(59'999'900).size(), 59'999'900u);
  EXPECT_TRUE(client.ReadUntil("the end").ends_with("the end"));
}

TEST_F(ServerPressureTest, IdleConnectionThatTakesNoRepliesIsClosed) {
  // So long that neither of the two sends comes too late, however busy the
  // machine is.
  server_options().connection_max_idle = std::chrono::milliseconds(2000);
  server_options().remove_idle_connection_interval =
      std::chrono::milliseconds(5);
  service().on_call = [](TestCall call) {
    call.Reply(std::string(60'000'000, 'x'));
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 1));
  WaitFinished(1);
  // The run of the reader that took the first request may still go on, and
  // would take the second. Nothing tells when it is over.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  client.Send(EncodeMany(&client, 1));  // Stays unread.
  while (server().statistics().connections_open != 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server().statistics().calls, 1u);
  EXPECT_EQ(server().statistics().connections_idle, 1u);
}

class OneWorkerPressureTest : public ServerPressureTest {
 protected:
  int workers() const override { return 1; }
};

TEST_F(OneWorkerPressureTest, HttpRequestsThatWaitedTooLongAreRefused) {
  server_options().max_request_queueing_delay = std::chrono::milliseconds(500);
  service().on_call = [](TestCall call) {
    // Blocks the only worker's thread.
    const auto until = call.controller->GetTimestampReceived() +
                       std::chrono::milliseconds(600);
    while (std::chrono::steady_clock::now() < until) {
    }
    FlexibleService::Echo(call);
  };
  StartServer();
  const std::int64_t give_up_ns = NowNs() + 20'000'000'000;
  for (;;) {
    RawClient client(endpoint());
    client.Send(EncodeMany(&client, 1) + "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    const auto first = client.ReadReply();
    ASSERT_TRUE(first);
    // On a busy machine the first one may have waited as long.
    if (first->status == STATUS_OVERLOADED && NowNs() < give_up_ns) continue;
    EXPECT_EQ(first->status, STATUS_SUCCESS) << first->description;
    EXPECT_EQ(client.ReadUntil("\r\n"), "HTTP/1.1 503 Service Unavailable\r\n");
    break;
  }
}

// --- Bad input behind good ---

TEST_F(ServerPressureTest, WhatCameBeforeAMalformedFrameIsAnswered) {
  StartServer();
  RawClient client(endpoint());
  // A meta without a correlation id: nobody to answer.
  const std::string bad("CPRF\2\0\0\0\0\0\0\0\0\0\0\0\x38\x01", 18);
  client.Send(EncodeMany(&client, 50) + bad);
  ExpectReplies(&client, 50);
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_malformed, 1u);
}

TEST_F(ServerPressureTest, RepliesThatStillWaitAreSentInSpiteOfGarbage) {
  service().on_call = [](TestCall call) {
    call.Reply(std::string(4'000'000, 'x'));
  };
  StartServer();
  RawClient client(endpoint());
  client.Send(EncodeMany(&client, 8));
  WaitFinished(8);
  client.Send("garbage!");
  ExpectReplies(&client, 8);
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_malformed, 1u);
}

}  // namespace
}  // namespace flare::rpc::testing
