// Servers that stop answering while calls go to them (health_options.h).
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/client/channel_list.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A server whose calls may be held.
struct HeldServer {
  HeldServer() {
    service.on_call = [this](TestCall call) {
      ++calls;
      if (hold) go.Wait();
      if (fails_with == 0) return FlexibleService::Echo(call);
      call.controller->SetFailed(fails_with, "as the test says");
      call.done->Run();
    };
    server = std::make_unique<Server>();
    server->AddService(&service);
    server->AddProtocols(
        {"flare", "http+pb", "grpc", "baidu-std", "trpc", "bolt"});
    server->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    EXPECT_TRUE(server->Start()) << server->error().ToString();
  }
  ~HeldServer() {
    go.Set();
    server->Stop();
    server->Join();
  }

  std::string address() const { return server->endpoint().ToString(); }

  std::atomic<bool> hold{false};
  std::atomic<int> fails_with{0};
  std::atomic<int> calls{0};
  fiber::Event go;
  FlexibleService service;
  std::unique_ptr<Server> server;
};

class ClientHealthTest : public ClientTest {
 protected:
  struct Tally {
    std::atomic<int> calls{0};
    std::atomic<int> failed_there{0};  // On the server that is looked at.
  };

  // Calls one after the other on some fibers until the end, 500 a second on
  // each at most: more say no more, and take the CPUs from other tests.
  void StartLoad(RpcChannel* channel, const Endpoint& there) {
    for (int i = 0; i != 16; ++i) {
      OnNewFiber([this, channel, there] {
        while (!end_) {
          Tally& tally = late_ ? after_ : before_;
          RpcClientController controller;
          controller.SetTimeout(seconds(1));
          TestRequest request;
          TestResponse response;
          request.set_body("ping");
          channel->CallMethod(MethodNamed("Call"), &controller, &request,
                              &response, nullptr);
          ++tally.calls;
          if (controller.Failed() && controller.GetRemotePeer() == there) {
            ++tally.failed_there;
          }
          this_fiber::SleepFor(milliseconds(2));
        }
      });
    }
  }
  template <class F>
  void OnNewFiber(F f) {
    auto ended = std::make_unique<fiber::Event>();
    fiber::Spawn([f, event = ended.get()] {
      f();
      event->Set();
    });
    ended_.push_back(std::move(ended));
  }
  void EndLoad() {
    end_ = true;
    for (const auto& ended : ended_) ended->Wait();
  }

  // One of `servers` stops to answer under load. Two seconds later at most 0.5%
  // of the calls fail there.
  void OneStops(std::size_t count, const std::string& balancer) {
    std::vector<std::unique_ptr<HeldServer>> servers;
    std::string uri = "flare://";
    for (std::size_t i = 0; i != count; ++i) {
      servers.push_back(std::make_unique<HeldServer>());
      uri += (i == 0 ? "" : ",") + servers[i]->address();
    }
    HeldServer& stopped = *servers[0];
    RpcChannel channel(uri, {.override_nslb = "list+" + balancer});
    StartLoad(&channel, stopped.server->endpoint());
    AwaitCalls(before_, 200);
    stopped.hold = true;
    AwaitTime(NowNs() + 2 * kNsPerSecond);
    AwaitEjection(stopped.server->endpoint());
    late_ = true;
    AwaitTime(NowNs() + 2 * kNsPerSecond);
    AwaitCalls(after_, 2000);
    const int calls = after_.calls;
    const int failed = after_.failed_there;
    EXPECT_LE(failed * 200, calls);
    EXPECT_LE(failed, 10);
    stopped.hold = false;
    EndLoad();
    servers.clear();
  }

  static void AwaitCalls(const Tally& tally, int calls) {
    EXPECT_TRUE(
        fiber::testing::Eventually([&] { return tally.calls >= calls; }));
  }
  // Two seconds do, unless the machine is very busy.
  static void AwaitEjection(const Endpoint& server) {
    const auto is_ejected = [&] {
      std::size_t all = 0;
      for (const ChannelState& channel : DescribeChannels(100, &all)) {
        for (const ChannelServerState& state : channel.servers) {
          if (state.server == server.ToString()) {
            return state.state.starts_with("ejected");
          }
        }
      }
      return false;
    };
    EXPECT_TRUE(fiber::testing::Eventually(is_ejected));
  }
  static void AwaitTime(std::int64_t ns) {
    EXPECT_TRUE(fiber::testing::Eventually([&] { return NowNs() >= ns; }));
  }

  Tally before_;
  Tally after_;
  std::atomic<bool> late_{false};
  std::atomic<bool> end_{false};
  std::vector<std::unique_ptr<fiber::Event>> ended_;
};

TEST_F(ClientHealthTest, OneOfTwoStopsToAnswer) { OneStops(2, "rr"); }
TEST_F(ClientHealthTest, OneOfFiveStopsToAnswer) { OneStops(5, "rr"); }
TEST_F(ClientHealthTest, OneOfFiveStopsToAnswerTwoChoices) {
  OneStops(5, "p2c");
}

// Its kernel accepts connections, and nobody ever reads.
TEST_F(ClientHealthTest, OneOfTwoIsABlackHole) {
  HeldServer good;
  RawServer hole;
  RpcChannel channel("flare://" + good.address() + "," +
                     hole.endpoint().ToString());
  StartLoad(&channel, hole.endpoint());
  AwaitTime(NowNs() + 2 * kNsPerSecond);
  AwaitEjection(hole.endpoint());
  late_ = true;
  AwaitTime(NowNs() + 2 * kNsPerSecond);
  AwaitCalls(after_, 2000);
  EXPECT_LE(after_.failed_there * 200, after_.calls);
  EndLoad();
}

TEST_F(ClientHealthTest, AServerThatAnswersAgainGetsItsCallsBack) {
  HeldServer good, held;
  RpcChannel channel("flare://" + good.address() + "," + held.address(),
                     {.health = {.first_ejection = milliseconds(100),
                                 .slow_start = milliseconds(100)}});
  StartLoad(&channel, held.server->endpoint());
  AwaitCalls(before_, 100);
  held.hold = true;
  EXPECT_TRUE(
      fiber::testing::Eventually([&] { return before_.failed_there >= 10; }));
  held.hold = false;
  held.go.Set();
  const int calls = held.calls;
  EXPECT_TRUE(
      fiber::testing::Eventually([&] { return held.calls >= calls + 500; }));
  EndLoad();
}

// As it says that a request is no good, or that a third server is gone.
TEST_F(ClientHealthTest, AServerThatRepliesIsWell) {
  for (const std::string protocol :
       {"flare", "http+pb", "grpc", "baidu-std", "trpc", "bolt"}) {
    for (const int code : {STATUS_MALFORMED_DATA, STATUS_IO_ERROR}) {
      HeldServer good, failing;
      failing.fails_with = code;
      RpcChannel channel(
          protocol + "://" + good.address() + "," + failing.address(),
          {.override_nslb = "list+rr"});
      for (int i = 0; i != 60; ++i) {
        TestedCall call;
        call.Start(&channel)->Await();
      }
      EXPECT_GE(failing.calls, 25) << protocol << ", status " << code;
    }
  }
}

// A server of streams, one message each, or of none while it is out of service.
struct StreamServer {
  explicit StreamServer(const Endpoint& endpoint = EndpointFromIpv4("127.0.0.1",
                                                                    0)) {
    service.on_count = [this](const Number&, StreamWriter<Number> writer,
                              RpcServerController* controller) {
      ++streams;
      if (out_of_service) {
        controller->SetFailed(STATUS_OUT_OF_SERVICE, "as the test says");
        return;
      }
      static_cast<void>(writer.Write(MakeNumber(1, padding)));
      if (hold) go.Wait();
      writer.Close();
    };
    server.AddService(&service);
    server.AddProtocols({"flare", "grpc", "trpc", "baidu-std"});
    server.ListenOn(endpoint);
    EXPECT_TRUE(server.Start()) << server.error().ToString();
  }
  ~StreamServer() {
    go.Set();
    server.Stop();
    server.Join();
  }

  std::atomic<bool> out_of_service{false};
  std::atomic<bool> hold{false};
  std::atomic<std::size_t> padding{0};  // Bytes, of its messages.
  std::atomic<int> streams{0};
  fiber::Event go;
  FlexibleStreamer service;
  Server server;
};

std::string UriOf(const std::string& protocol, const StreamServer& one,
                  const StreamServer& other) {
  return protocol + "://" + one.server.endpoint().ToString() + "," +
         other.server.endpoint().ToString();
}

// Else it would have the fewest of them under way, and get all.
TEST_F(ClientHealthTest, AServerWhoseStreamsFailGetsNone) {
  StreamServer good, bad;
  bad.out_of_service = true;
  for (const std::string protocol : {"flare", "grpc"}) {
    for (const std::string balancer : {"p2c", "la", "rr"}) {
      RpcChannel channel(UriOf(protocol, good, bad),
                         {.override_nslb = "list+" + balancer});
      int failed = 0;
      for (int i = 0; i != 80; ++i) {
        RpcClientController controller;
        auto reader =
            Streamer_SyncStub(&channel).Count(MakeNumber(1), &controller);
        while (reader.Read()) continue;
        failed += !reader.status().ok();
      }
      EXPECT_GE(failed, 5) << protocol << ", " << balancer;
      EXPECT_LE(failed, 10) << protocol << ", " << balancer;
    }
  }
}

// Connections alone say that a server is down.
TEST_F(ClientHealthTest, AServerThatWasDownGetsStreamsAgain) {
  for (const std::string protocol : {"flare", "grpc"}) {
    StreamServer good;
    auto other = std::make_unique<StreamServer>();
    const Endpoint endpoint = other->server.endpoint();
    RpcChannel channel(UriOf(protocol, good, *other),
                       {.override_nslb = "list+rr",
                        .health = {.first_ejection = std::chrono::hours(1)}});
    Streamer_SyncStub stub(&channel);
    const auto open = [&stub] {
      RpcClientController controller;
      auto reader = stub.Count(MakeNumber(1), &controller);
      while (reader.Read()) continue;
      return reader.status().ok();
    };
    other.reset();
    for (int i = 0; i != 40; ++i) open();
    other = std::make_unique<StreamServer>(endpoint);
    EXPECT_TRUE(fiber::testing::Eventually([&] {
      open();
      return other->streams > 0;
    })) << protocol;
  }
}

// A probe may go on for hours.
TEST_F(ClientHealthTest, TheFirstMessageShowsThatAServerIsBack) {
  StreamServer good, bad;
  bad.out_of_service = true;
  RpcChannel channel(UriOf("flare", good, bad),
                     {.override_nslb = "list+rr",
                      .health = {.first_ejection = milliseconds(50),
                                 .slow_start = milliseconds(0)}});
  Streamer_SyncStub stub(&channel);
  for (int i = 0; i != 20; ++i) {
    RpcClientController controller;
    auto reader = stub.Count(MakeNumber(1), &controller);
    while (reader.Read()) continue;
  }
  const int before = bad.streams;
  EXPECT_GE(before, 5);
  EXPECT_LE(before, 8);  // With probes, if the machine is slow.
  bad.out_of_service = false;
  good.hold = bad.hold = true;
  std::vector<StreamReader<Number>> readers;
  std::vector<std::unique_ptr<RpcClientController>> controllers;
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    controllers.push_back(std::make_unique<RpcClientController>());
    readers.push_back(stub.Count(MakeNumber(1), controllers.back().get()));
    EXPECT_TRUE(readers.back().Read());
    return bad.streams >= before + 10;
  }));
  good.go.Set();
  bad.go.Set();
  for (auto& reader : readers) {
    while (reader.Read()) continue;
    EXPECT_TRUE(reader.status().ok()) << reader.status().ToString();
  }
}

// That a reply is larger than this client takes says nothing of its server.
TEST_F(ClientHealthTest, AServerWithLargeRepliesIsWell) {
  for (const std::string protocol :
       {"flare", "http+pb", "grpc", "baidu-std", "trpc", "bolt"}) {
    HeldServer plain, large;
    int calls = 0;
    large.service.on_call = [&](TestCall call) {
      // One of ten, and six in a row.
      const bool is_large = ++calls % 10 == 0 || (calls >= 61 && calls <= 66);
      call.response->set_body(is_large ? std::string(5000, 'x') : "pong");
      call.Reply();
    };
    RpcChannel channel(
        protocol + "://" + plain.address() + "," + large.address(),
        {.maximum_packet_size = 2000,
         .override_nslb = "list+rr",
         .health = {.min_calls = 10, .interval = milliseconds(50)}});
    int failed = 0;
    for (int i = 0; i != 200; ++i) {
      TestedCall call;
      failed += call.Start(&channel)->Await() != STATUS_SUCCESS;
    }
    EXPECT_EQ(calls, 100) << protocol;
    EXPECT_EQ(failed, 16) << protocol;
  }
}

TEST_F(ClientHealthTest, AServerOfStreamsWithLargeMessagesIsWell) {
  StreamServer plain, large;
  large.padding = 5000;
  for (const std::string protocol : {"flare", "grpc", "trpc", "baidu-std"}) {
    RpcChannel channel(UriOf(protocol, plain, large),
                       {.maximum_packet_size = 2000,
                        .override_nslb = "list+rr",
                        .health = {.first_ejection = std::chrono::hours(1)}});
    int failed = 0;
    for (int i = 0; i != 40; ++i) {
      RpcClientController controller;
      auto reader =
          Streamer_SyncStub(&channel).Count(MakeNumber(1), &controller);
      while (reader.Read()) continue;
      failed += !reader.status().ok();
    }
    EXPECT_EQ(failed, 20) << protocol;
  }
}

// As they come they are small.
TEST_F(ClientHealthTest, AServerWithRepliesThatUnpackToMuchIsWell) {
  HeldServer plain, large;
  large.service.on_call = [](TestCall call) {
    call.controller->SetCompressionAlgorithm(CompressionAlgorithm::kGzip);
    call.response->set_body(std::string(50'000, 'x'));
    call.Reply();
  };
  RpcChannel channel(
      "flare://" + plain.address() + "," + large.address(),
      {.override_nslb = "list+rr", .max_decompressed_size = 2000});
  int failed = 0;
  for (int i = 0; i != 40; ++i) {
    TestedCall call;
    failed += call.Start(&channel)->Await() == STATUS_MALFORMED_DATA;
  }
  EXPECT_EQ(failed, 20);
}

// A server whose replies `reply` sends gets few calls, beside a good one.
class ClientReplyTest : public ClientHealthTest {
 protected:
  void ExpectEjection(const std::string& protocol,
                      void (*reply)(RawPeer* peer)) {
    FLAGS_flare_rpc_client_max_connections_per_server = 1;
    HeldServer good;
    RawServer bad;
    RpcChannel channel(
        protocol + "://" + good.address() + "," + bad.endpoint().ToString(),
        {.maximum_packet_size = 1000, .override_nslb = "list+rr"});
    std::unique_ptr<RawPeer> peer;
    int failed = 0;
    for (int i = 0; i != 60; ++i) {
      TestedCall call;
      call.Start(&channel);
      EXPECT_TRUE(fiber::testing::Eventually([&] {
        if (peer == nullptr && bad.HasVisitor()) peer = bad.Accept();
        return call.HasEnded() || (peer != nullptr && peer->HasInput());
      }));
      if (!call.HasEnded()) reply(peer.get());
      const int status = call.Await();
      failed += status == STATUS_MALFORMED_DATA;
      EXPECT_TRUE(status == 0 || status == STATUS_MALFORMED_DATA) << status;
    }
    EXPECT_GE(failed, 5);
    EXPECT_LE(failed, 10);  // With probes, if the machine is slow.
  }
};

TEST_F(ClientReplyTest, AMessageThatCannotBeRead) {
  ExpectEjection("flare", [](RawPeer* peer) {
    OutboundResponse response;
    response.body = CreateBufferSlow("\xff");
    peer->Send(peer->Encode(peer->ReadRequest()->id, std::move(response)));
  });
}

TEST_F(ClientReplyTest, AnHttpResponseThatCannotBeRead) {
  ExpectEjection("http+pb", [](RawPeer* peer) {
    const std::string request = peer->ReadUntil("ping");
    const std::size_t at = request.find("Rpc-SeqNo: ");
    peer->Send("HTTP/1.1 503 Busy\r\n" +
               request.substr(at, request.find('\n', at) + 1 - at) +
               "Content-Length: 0\r\n\r\n");
  });
}

// A balancer of one's own sees servers, and how calls end.
TEST_F(ClientHealthTest, ABalancerLearnsHowCallsEnd) {
  struct Seen {
    std::atomic<int> begun{0};
    std::atomic<int> answered{0};
    std::atomic<int> failed{0};
    std::atomic<std::int64_t> latency_ns{0};
    std::atomic<std::uint32_t> weight{0};
  };
  static Seen seen;
  struct Observer : Picker {
    std::size_t Pick(const PickedCall&) override { return 1; }
    bool Observes() const override { return true; }
    void OnBegin(std::size_t index) override { seen.begun += index == 1; }
    void OnEnd(std::size_t, const EndedCall& call) override {
      seen.latency_ns = call.latency.count();
      ++(call.status == 0 ? seen.answered : seen.failed);
    }
  };
  struct Observing : LoadBalancer {
    std::unique_ptr<Picker> NewPicker(const Backends& backends) override {
      seen.weight = backends[1].peer().weight;
      return std::make_unique<Observer>();
    }
  };
  RegisterLoadBalancer("test-observing",
                       [] { return std::make_unique<Observing>(); });
  HeldServer one, two;
  RpcChannel channel(
      "flare://" + one.address() + "," + two.address() + ";weight=7",
      {.override_nslb = "list+test-observing"});
  EXPECT_TRUE(channel.status().ok()) << channel.status().ToString();
  TestedCall answered;
  EXPECT_EQ(answered.Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(answered.controller.GetRemotePeer(), two.server->endpoint());
  EXPECT_EQ(seen.weight, 7);
  EXPECT_EQ(seen.begun, 1);
  EXPECT_EQ(seen.answered, 1);
  EXPECT_GT(seen.latency_ns, 0);
  two.hold = true;
  TestedCall late;
  late.controller.SetTimeout(milliseconds(500));
  EXPECT_EQ(late.Start(&channel)->Await(), STATUS_TIMEOUT);
  EXPECT_EQ(seen.failed, 1);
  two.go.Set();
  // One that the channel has no credential for isn't sent: that is no fast
  // answer of a server.
  RpcChannel::Options options;
  options.override_nslb = "list+test-observing";
  options.credentials = *ChannelCredentials::Create(
      []() -> Expected<Credential> {
        return Credential{.value = "a",
                          .expires = ReadSteadyClock() - seconds(1)};
      },
      {.allow_plaintext = true});
  RpcChannel expired("flare://" + one.address() + "," + two.address(), options);
  TestedCall unsent;
  EXPECT_EQ(unsent.Start(&expired)->Await(), STATUS_UNAUTHENTICATED);
  EXPECT_EQ(seen.failed, 2);
  EXPECT_EQ(seen.latency_ns, 0);
}

TEST_F(ClientHealthTest, CallsWithOneKeyGoToOneServer) {
  HeldServer servers[3];
  RpcChannel channel("flare://" + servers[0].address() + "," +
                         servers[1].address() + "," + servers[2].address(),
                     {.override_nslb = "list+chash"});
  Endpoint first;
  for (int i = 0; i != 20; ++i) {
    TestedCall call;
    call.controller.SetBalancingKey("a user");
    ASSERT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
    if (i == 0) first = call.controller.GetRemotePeer();
    EXPECT_EQ(call.controller.GetRemotePeer(), first);
  }
}

TEST_F(ClientHealthTest, CallsStayInTheZoneWhileItIsWell) {
  auto near = std::make_unique<HeldServer>();
  HeldServer far;
  FLAGS_flare_rpc_client_zone = "a";
  RpcChannel channel("flare://" + far.address() + ";zone=b," + near->address() +
                     ";zone=a," + far.address());
  const auto call = [&] {
    TestedCall call;
    return call.Start(&channel)->Await();
  };
  for (int i = 0; i != 50; ++i) ASSERT_EQ(call(), STATUS_SUCCESS);
  EXPECT_EQ(near->calls, 50);
  EXPECT_EQ(far.calls, 0);
  // The option goes before the flag.
  RpcChannel other(
      "flare://" + far.address() + ";zone=b," + near->address() + ";zone=a",
      {.zone = "b"});
  TestedCall there;
  EXPECT_EQ(there.Start(&other)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(far.calls, 1);
  near.reset();
  // The connection's end may be seen a moment later.
  EXPECT_TRUE(fiber::testing::Eventually(
      [&] { return call() == STATUS_SUCCESS && far.calls > 1; }));
  for (int i = 0; i != 50; ++i) ASSERT_EQ(call(), STATUS_SUCCESS);
}

// Also if all of its servers were ejected: some call must look whether they
// are well again.
TEST_F(ClientHealthTest, CallsComeBackToTheZone) {
  HeldServer near, far;
  RpcChannel::Options options;
  options.zone = "a";
  options.health.consecutive_failures = 2;
  options.health.interval = milliseconds(50);
  options.health.first_ejection = milliseconds(100);
  options.health.max_ejection = milliseconds(200);
  options.health.slow_start = milliseconds(0);
  RpcChannel channel(
      "flare://" + near.address() + ";zone=a," + far.address() + ";zone=b",
      options);
  const auto call = [&](std::chrono::milliseconds timeout) {
    TestedCall call;
    call.controller.SetTimeout(timeout);
    return call.Start(&channel)->Await();
  };
  ASSERT_EQ(call(seconds(10)), STATUS_SUCCESS);
  near.hold = true;
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    static_cast<void>(call(milliseconds(500)));
    return far.calls >= 5;
  }));
  near.hold = false;
  near.go.Set();
  const int before = near.calls;
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    EXPECT_EQ(call(seconds(10)), STATUS_SUCCESS);
    return near.calls >= before + 20;
  }));
}

TEST_F(ClientHealthTest, TagsChooseServers) {
  HeldServer old_one, new_one;
  const std::string uri = "flare://" + old_one.address() +
                          ";tag.env=old;tag.disk=ssd," + new_one.address() +
                          ";tag.env=new;tag.disk=ssd";
  RpcChannel channel(uri, {.tags = {{"disk", "ssd"}, {"env", "new"}}});
  for (int i = 0; i != 20; ++i) {
    TestedCall call;
    ASSERT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS);
  }
  EXPECT_EQ(new_one.calls, 20);
  EXPECT_EQ(old_one.calls, 0);
  RpcChannel none(uri, {.tags = {{"env", "future"}}});
  TestedCall call;
  EXPECT_EQ(call.Start(&none)->Await(), STATUS_NO_PEER);
  EXPECT_NE(call.controller.ErrorText().find("none of 2 has the tags"),
            std::string::npos)
      << call.controller.ErrorText();
}

TEST_F(ClientHealthTest, BadWeightsAreRefused) {
  for (const char* weight : {";weight=", ";weight=-1", ";weight=x", ";w=1", ";",
                             ";weight=70000", ";weight=1;weight=2", ";zone=",
                             ";zone=a;zone=b", ";tag.=1", ";tag.a", ";tag=1"}) {
    RpcChannel channel("flare://127.0.0.1:1" + std::string(weight));
    EXPECT_NE(channel.status().message().find("weight=3"), std::string::npos)
        << weight;
  }
}

}  // namespace
}  // namespace flare::rpc::testing
