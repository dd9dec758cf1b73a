// The memory of all connections of a server has a bound, and those that hold
// little are served whatever the others do.
#include <google/protobuf/unknown_field_set.h>
#include <sys/socket.h>

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
#include "flare/fiber/event.h"
#include "flare/io/memory_budget.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

constexpr std::size_t kBudget = 16'000'000;
constexpr std::size_t kMiB = 1 << 20;

class ServerBudgetTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    server_options().max_buffered_bytes = kBudget;
    watcher_ = std::thread([this] { Watch(); });
  }

  void TearDown() override {
    done_.store(true);
    watcher_.join();
    ServerTest::TearDown();
  }

  void Start() {
    StartServer({"flare", "http+pb", "baidu-std", "trpc", "bolt"});
    started_.store(true);
  }

  // The most that was held at a time, as far as was seen.
  std::size_t most() const { return most_.load(); }

  template <class F>
  static void WaitUntil(F condition, int line = __builtin_LINE()) {
    const std::int64_t give_up_ns = NowNs() + 60'000'000'000;
    while (!condition()) {
      ASSERT_LT(NowNs(), give_up_ns) << "line " << line;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void WaitUntilNothingIsHeld() {
    WaitUntil([this] { return server().statistics().buffered_bytes == 0; });
  }

  static std::string EncodeMany(RawClient* client, int count,
                                std::size_t size) {
    std::string bytes;
    const TestRequest request = MakeRequest(std::string(size, 'x'));
    for (int i = 1; i <= count; ++i) bytes += client->Encode(i, kCall, request);
    return bytes;
  }

  // Two bytes on the wire for each.
  static TestRequest UnknownFields(std::size_t count) {
    TestRequest request;
    auto* const fields =
        request.GetReflection()->MutableUnknownFields(&request);
    for (std::size_t i = 0; i != count; ++i) fields->AddLengthDelimited(15);
    return request;
  }

  // A small call on a connection of its own.
  void ExpectOthersAreServed(const char* scheme = "flare") {
    RawClient other(endpoint(), scheme);
    other.Call(1, kOther, MakeRequest("fine"));
    const auto reply = other.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, STATUS_SUCCESS) << reply->description;
  }

 private:
  void Watch() {
    while (!done_.load()) {
      if (started_.load()) {
        const std::size_t now = server().statistics().buffered_bytes;
        if (now > most_.load()) most_.store(now);
      }
      std::this_thread::yield();
    }
  }

  std::thread watcher_;
  std::atomic<bool> started_{false};
  std::atomic<bool> done_{false};
  std::atomic<std::size_t> most_{0};
};

// Some requests bring a hundred times their size in replies: they wait, not
// their replies.
TEST_F(ServerBudgetTest, CallsBeginOnlyWhileThereIsRoomForReplies) {
  server_options().max_output_per_connection = 4 * kMiB;
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    begun.fetch_add(1);
    call.Reply(std::string(kMiB, 'x'));
  };
  Start();
  for (const char* scheme : {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
    SCOPED_TRACE(scheme);
    begun.store(0);
    RawClient greedy(endpoint(), scheme);
    greedy.Send(EncodeMany(&greedy, 64, 1));
    // Until nothing more happens: all wait but those that began.
    WaitUntil([&] { return server().statistics().calls_running > 20; });
    ExpectOthersAreServed(scheme);
    // The kernel takes some megabytes.
    EXPECT_LT(begun.load(), 40);
    for (int i = 0; i != 64; ++i) {
      const auto reply = greedy.ReadReply();
      ASSERT_TRUE(reply) << i;
      EXPECT_EQ(reply->status, STATUS_SUCCESS);
    }
    EXPECT_EQ(begun.load(), 64);
    WaitUntil([&] { return server().statistics().calls_running == 0; });
  }
  EXPECT_EQ(server().statistics().connections_greedy, 0u);
  WaitUntilNothingIsHeld();
}

// They began together, and hold their replies together.
TEST_F(ServerBudgetTest, ConnectionWhoseRepliesAreTooManyIsClosed) {
  fiber::Event go;
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    begun.fetch_add(1);
    go.Wait();
    call.Reply(std::string(kMiB, 'x'));
  };
  Start();
  RawClient greedy(endpoint());
  greedy.Send(EncodeMany(&greedy, 200, 1));
  WaitUntil([&] { return begun.load() == 200; });
  go.Set();
  WaitUntil([&] { return server().statistics().connections_greedy == 1; });
  ExpectOthersAreServed();
  WaitUntilNothingIsHeld();
  // Those of the closed connection may not have got past `go`.
  WaitUntil([&] { return server().statistics().calls_running == 0; });
  // They would hold 200 MiB. On a busy machine others go on for a moment before
  // it is closed.
  EXPECT_LT(most(), kBudget * 5);
}

TEST_F(ServerBudgetTest, UnreadEchoesStayWithinTheBudget) {
  Start();
  std::vector<std::unique_ptr<RawClient>> greedy;
  std::vector<std::thread> senders;
  std::atomic<bool> stop{false};
  for (int i = 0; i != 3; ++i) {
    greedy.push_back(std::make_unique<RawClient>(endpoint()));
    RawClient* const client = greedy.back().get();
    senders.emplace_back([this, client, &stop] {
      const std::string calls = EncodeMany(client, 20, 60'000);
      for (int n = 0; n != 100 && !stop.load(); ++n) {
        if (!client->TrySend(calls)) return;
      }
    });
  }
  WaitUntil([&] { return most() > kBudget / 4; });
  for (int i = 0; i != 100; ++i) ExpectOthersAreServed();
  EXPECT_LT(most(), kBudget * 2);
  stop.store(true);
  for (auto& client : greedy) ::shutdown(client->fd(), SHUT_RDWR);
  for (auto& sender : senders) sender.join();
  greedy.clear();
  WaitUntilNothingIsHeld();
}

// It had to wait as others held much, and its peer reads nothing before it has
// sent all.
TEST_F(ServerBudgetTest, AConnectionGoesOnWhenOthersHaveLeft) {
  constexpr int kCalls = 2400;
  server_options().max_buffered_bytes = 64 * kMiB;
  server_options().max_output_per_connection = 64 * kMiB;
  server_options().remove_idle_connection_interval = {};
  Start();
  std::vector<std::unique_ptr<RawClient>> greedy;
  for (int i = 0; i != 36; ++i) {
    greedy.push_back(std::make_unique<RawClient>(endpoint()));
    std::string message = EncodeMany(greedy.back().get(), 1, kMiB);
    message.pop_back();
    greedy.back()->Send(message);
  }
  WaitUntil([&] { return server().statistics().buffered_bytes > 33 * kMiB; });
  RawClient client(endpoint());
  std::atomic<bool> sent{false};
  std::thread sender(
      [&] { sent = client.TrySend(EncodeMany(&client, kCalls, 10'000)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_FALSE(sent);
  greedy.clear();
  sender.join();
  EXPECT_TRUE(sent);
  for (int i = 0; i != kCalls; ++i) ASSERT_TRUE(client.ReadReply()) << i;
  WaitUntilNothingIsHeld();
}

TEST_F(ServerBudgetTest, UnfinishedMessagesStayWithinTheBudget) {
  Start();
  int closed = 0;
  for (const char* scheme : {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
    SCOPED_TRACE(scheme);
    std::vector<std::unique_ptr<RawClient>> greedy;
    for (int i = 0; i != 60; ++i) {
      greedy.push_back(std::make_unique<RawClient>(endpoint(), scheme));
      std::string message = EncodeMany(greedy.back().get(), 1, kMiB);
      message.pop_back();
      // It may be closed before it has taken all.
      static_cast<void>(greedy.back()->TrySend(message));
    }
    closed += 40;
    WaitUntil([&] {
      return server().statistics().connections_greedy >=
             static_cast<std::uint64_t>(closed);
    });
    ExpectOthersAreServed(scheme);
    // They would hold 60 MiB. On a busy machine connections go on for a moment
    // before they are closed.
    EXPECT_LT(most(), kBudget * 5 / 2);
    greedy.clear();
    WaitUntilNothingIsHeld();
  }
}

// In chunks a body is taken off the input as it comes.
TEST_F(ServerBudgetTest, UnfinishedChunksCount) {
  Start();
  std::vector<std::unique_ptr<RawClient>> greedy;
  for (int i = 0; i != 40; ++i) {
    greedy.push_back(std::make_unique<RawClient>(endpoint(), "http+pb"));
    std::string message = "POST /rpc/" + std::string(kCall) +
                          " HTTP/1.1\r\nHost: x\r\nContent-Type: "
                          "application/x-protobuf\r\n"
                          "Transfer-Encoding: chunked\r\n\r\n";
    for (int chunk = 0; chunk != 16; ++chunk) {
      message += "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
    }
    static_cast<void>(greedy.back()->TrySend(message));
  }
  WaitUntil([&] { return server().statistics().connections_greedy >= 20; });
  ExpectOthersAreServed("http+pb");
  greedy.clear();
  WaitUntilNothingIsHeld();
}

// Replies that wait for an earlier one.
TEST_F(ServerBudgetTest, HeldRepliesCount) {
  fiber::Event go;
  service().on_call = [&](TestCall call) {
    if (call.request->number() == 1) go.Wait();
    call.Reply(std::string(kMiB / 2, 'x'));
  };
  Start();
  RawClient client(endpoint(), "http+pb");
  // Without Rpc-SeqNo: in order.
  for (int i = 1; i != 9; ++i) {  // The first one's reply holds the others.
    const std::string body = MakeRequest("", i).SerializeAsString();
    client.Send("POST /rpc/" + std::string(kCall) +
                " HTTP/1.1\r\nHost: x\r\nContent-Type: "
                "application/x-protobuf\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  WaitUntil([&] { return server().statistics().buffered_bytes >= 3 * kMiB; });
  go.Set();
  client.ReadExactly(8 * kMiB / 2);
  WaitUntilNothingIsHeld();
}

// Requests that a service keeps can't be given back: no more of them come in.
TEST_F(ServerBudgetTest, LargeRequestsAreRefusedWhileOthersAreKept) {
  std::mutex mutex;
  std::vector<TestCall> kept;
  service().on_call = [&](TestCall call) {
    std::scoped_lock guard(mutex);
    kept.push_back(call);
  };
  Start();
  RawClient greedy(endpoint());
  std::thread sender([&] {
    RawClient encoder(endpoint());
    greedy.TrySend(EncodeMany(&encoder, 40, kMiB));
  });
  WaitUntil([&] { return server().statistics().connections_greedy == 1; });
  sender.join();
  // Its earlier input may not be stored yet, and what waits to be parsed isn't
  // any more.
  WaitUntil([&] {
    std::scoped_lock guard(mutex);
    return server().statistics().calls_running == kept.size();
  });
  EXPECT_FALSE(kept.empty());
  EXPECT_GE(server().statistics().buffered_bytes, kept.size() * kMiB);
  if (server().statistics().buffered_bytes > kBudget) {
    for (const char* scheme :
         {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
      SCOPED_TRACE(scheme);
      RawClient client(endpoint(), scheme);
      client.Call(1, kOther, MakeRequest(std::string(kMiB, 'x')));
      const auto reply = client.ReadReply();
      // It may be closed instead: it holds most of all that are open.
      if (reply) {
        EXPECT_EQ(reply->status, STATUS_OVERLOADED);
      }
      ExpectOthersAreServed(scheme);
    }
  }
  for (const TestCall& call : kept) call.Reply();
  WaitUntilNothingIsHeld();
  RawClient client(endpoint());
  client.Call(1, kOther, MakeRequest(std::string(kMiB, 'x')));
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, STATUS_SUCCESS);
}

// Two bytes of a request may be a hundred as a message; here it is five for
// one.
TEST_F(ServerBudgetTest, ParsedRequestsCountAsMessages) {
  fiber::Event go, started;
  service().on_call = FlexibleService::EchoAfter(&go, &started);
  Start();
  RawClient client(endpoint());
  client.Call(1, kCall, MakeRequest(std::string(kMiB, 'x')));
  started.Wait();
  EXPECT_GE(server().statistics().buffered_bytes, kMiB - 65536);
  EXPECT_LE(server().statistics().buffered_bytes, 2 * kMiB);
  go.Set();
  EXPECT_TRUE(client.ReadReply());
  WaitUntilNothingIsHeld();
}

// 3 KiB of unknown fields are 70 as messages.
TEST_F(ServerBudgetTest, SmallRequestsThatGrowCount) {
  constexpr int kCalls = 40;
  fiber::Event go;
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    begun.fetch_add(1);
    go.Wait();
    call.Reply();
  };
  Start();
  RawClient client(endpoint());
  for (int i = 1; i <= kCalls; ++i) client.Call(i, kCall, UnknownFields(1500));
  WaitUntil([&] { return begun.load() == kCalls; });
  EXPECT_GE(server().statistics().buffered_bytes, kCalls * 64'000u);
  go.Set();
  for (int i = 1; i <= kCalls; ++i) EXPECT_TRUE(client.ReadReply());
  WaitUntilNothingIsHeld();
}

TEST_F(ServerBudgetTest, RequestsOfStreamsCountAsMessages) {
  constexpr int kStreams = 40;
  fiber::Event go;
  std::atomic<int> begun{0};
  FlexibleStreamer streamer;
  streamer.on_count = [&](const Number&, StreamWriter<Number> writer,
                          RpcServerController*) {
    begun.fetch_add(1);
    go.Wait();
    writer.Close();
  };
  Server::Options options;
  options.max_buffered_bytes = kBudget;
  Server streams(options);
  streams.AddService(&streamer);
  streams.AddProtocols({"flare", "grpc"});
  streams.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(streams.Start());
  Number request;
  auto* const fields = request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i != 1500; ++i) fields->AddLengthDelimited(15);
  for (const std::string protocol : {"flare", "grpc"}) {
    SCOPED_TRACE(protocol);
    go.Reset();
    begun = 0;
    RpcChannel channel(protocol + "://" + streams.endpoint().ToString());
    Streamer_SyncStub stub(&channel);
    std::vector<std::unique_ptr<RpcClientController>> controllers;
    std::vector<StreamReader<Number>> readers;
    for (int i = 0; i != kStreams; ++i) {
      controllers.push_back(std::make_unique<RpcClientController>());
      readers.push_back(stub.Count(request, controllers.back().get()));
    }
    WaitUntil([&] { return begun.load() == kStreams; });
    EXPECT_GE(streams.statistics().buffered_bytes, kStreams * 64'000u);
    go.Set();
    for (auto& reader : readers) {
      EXPECT_FALSE(reader.Read());
      EXPECT_TRUE(reader.status().ok()) << reader.status().ToString();
    }
    WaitUntil([&] { return streams.statistics().buffered_bytes == 0; });
  }
  streams.Stop();
  streams.Join();
}

// A few kilobytes that unpack to a message of more than the budget.
TEST_F(ServerBudgetTest, WhatUnpacksToTooMuchIsRefused) {
  std::atomic<int> begun{0};
  service().on_call = [&](TestCall call) {
    begun.fetch_add(1);
    call.Reply();
  };
  Start();
  for (const char* scheme : {"flare", "baidu-std", "trpc"}) {
    SCOPED_TRACE(scheme);
    RawClient client(endpoint(), scheme);
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = kCall;
    request.compression = CompressionAlgorithm::kGzip;
    request.body =
        *Compress(CompressionAlgorithm::kGzip,
                  CreateBufferSlow(UnknownFields(kMiB).SerializeAsString()));
    EXPECT_LT(request.body.size(), 10'000u);
    client.Send(client.Encode(std::move(request)));
    // It may be closed instead.
    if (const auto reply = client.ReadReply()) {
      EXPECT_EQ(reply->status, STATUS_OVERLOADED) << reply->description;
    }
    ExpectOthersAreServed(scheme);
  }
  EXPECT_EQ(begun.load(), 0);
  WaitUntilNothingIsHeld();
}

}  // namespace
}  // namespace flare::rpc::testing
