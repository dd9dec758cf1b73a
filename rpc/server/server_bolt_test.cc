// Bolt through a real server: beside other protocols on one port, heartbeats,
// one-way requests, and requests that can't be served.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/latch.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ServerBoltTest : public ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  void Start() { StartServer({"flare", "http+pb", "http", "bolt"}); }

  static BoltRequestParts Parts(const std::string& body = "body") {
    BoltRequestParts parts;
    parts.headers =
        BoltHeaders({{"service", "flare.rpc.testing.TestService:1.0"},
                     {"sofa_head_method_name", "Call"}});
    parts.content = MakeRequest(body).SerializeAsString();
    return parts;
  }

  void ExpectError(RawClient* client, const BoltRequestParts& parts,
                   std::uint16_t bolt_status, int status,
                   const std::string& text) {
    client->Send(parts.Bytes());
    const std::string expected =
        BoltErrorReply(bolt_status, status, text, parts.id, parts.codec);
    EXPECT_EQ(client->ReadExactly(expected.size()), expected);
  }

  const std::string heartbeat_reply_ =
      FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");
};

TEST_F(ServerBoltTest, AnswersACall) {
  Start();
  RawClient client(endpoint(), "bolt");
  client.Send(Parts("hello").Bytes());
  BoltResponseParts expected;
  expected.content = MakeRequest("hello").SerializeAsString();
  EXPECT_EQ(client.ReadExactly(expected.Bytes().size()), expected.Bytes());
}

// Its fields have 16 bits for their sizes. The protocol's own keys aren't
// metadata, which has a limit.
TEST_F(ServerBoltTest, IsNotLimitedByTheSizeOfMetas) {
  server_options().max_meta_size = 30;
  server_options().maximum_packet_size = 200'000;
  Start();
  RawClient client(endpoint(), "bolt");
  BoltRequestParts parts = Parts("hello");
  parts.headers += BoltHeaders({{"sofa_head_k", std::string(65'000, 'v')}});
  client.Send(parts.Bytes());
  BoltResponseParts expected;
  expected.content = MakeRequest("hello").SerializeAsString();
  EXPECT_EQ(client.ReadExactly(expected.Bytes().size()), expected.Bytes());

  parts = Parts("hello");
  parts.headers += BoltHeaders({{"k", std::string(20'000, 'v')}});
  ExpectError(&client, parts, 18, STATUS_MALFORMED_DATA,
              "bolt: metadata of 20001 bytes exceeds the limit of 16384");
}

TEST_F(ServerBoltTest, SharesAPortWithOthers) {
  Start();
  std::vector<std::thread> callers;
  std::atomic<int> good = 0;
  for (const char* scheme : {"bolt", "flare", "http+pb", "bolt"}) {
    callers.emplace_back([&, scheme] {
      RpcChannel channel(std::string(scheme) + "://" + endpoint().ToString());
      for (int i = 0; i != 200; ++i) {
        TestedCall call;
        call.request.set_body(std::string(i, 'x'));
        EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
            << call.controller.ErrorText();
        good += call.response.body() == call.request.body();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, 800);
  RawClient http(endpoint(), "http+pb");
  http.Send("GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(http.ReadAll().substr(0, 12), "HTTP/1.1 404");
}

// Many calls of one connection under way, answered in any order.
TEST_F(ServerBoltTest, CallsOvertakeEachOther) {
  constexpr int kCalls = 20;
  fiber::Latch all_there(kCalls);
  service().on_call = [&](TestCall call) {
    all_there.count_down();
    all_there.wait();
    FlexibleService::Echo(call);
  };
  Start();
  RawClient client(endpoint(), "bolt");
  std::string batch;
  for (int i = 1; i <= kCalls; ++i) {
    batch += client.Encode(i, kCall, MakeRequest("body", i));
  }
  client.Send(batch);
  std::uint64_t sum = 0;
  for (int i = 1; i <= kCalls; ++i) {
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(static_cast<std::uint64_t>(reply->As<TestResponse>().number()),
              reply->id);
    sum += reply->id;
  }
  EXPECT_EQ(sum, kCalls * (kCalls + 1u) / 2);
}

TEST_F(ServerBoltTest, AnswersHeartbeats) {
  Start();
  RawClient client(endpoint(), "bolt");
  for (int i = 0; i != 3; ++i) {
    client.Send(kBoltHeartbeatVector);
    EXPECT_EQ(client.ReadExactly(20), heartbeat_reply_);
  }
  constexpr int kMany = 10'000;
  std::string many, replies;
  for (int i = 0; i != kMany; ++i) {
    many += kBoltHeartbeatVector;
    replies += heartbeat_reply_;
  }
  client.Send(many);
  EXPECT_EQ(client.ReadExactly(replies.size()), replies);
  client.Shutdown();
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(server().statistics().calls, 0u);
  EXPECT_EQ(server().statistics().connections_malformed, 0u);
}

TEST_F(ServerBoltTest, RunsOneWayRequestsWithoutReply) {
  std::atomic<int> calls = 0;
  service().on_call = [&](TestCall call) {
    if (++calls == 2) call.controller->SetFailed("not that anybody hears it");
    FlexibleService::Echo(call);
  };
  Start();
  RawClient client(endpoint(), "bolt");
  BoltRequestParts parts = Parts();
  parts.type = 2;
  const std::string good = parts.Bytes();
  parts.class_name = "unknown";
  client.Send(good + good + parts.Bytes() + good);
  client.Shutdown();
  // The end comes when all of them have been dealt with.
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(server().statistics().calls, 4u);
  EXPECT_EQ(server().statistics().calls_malformed, 1u);
}

TEST_F(ServerBoltTest, AnswersWhatItCannotServe) {
  Start();
  RawClient client(endpoint(), "bolt");
  BoltRequestParts parts = Parts();
  parts.class_name = "java.lang.Object";
  ExpectError(&client, parts, 6, STATUS_SERVICE_NOT_FOUND,
              "bolt: no processor for class java.lang.Object");
  parts = Parts();
  parts.headers =
      BoltHeaders({{"service", "a.B"}, {"sofa_head_method_name", "C"}});
  ExpectError(&client, parts, 6, STATUS_METHOD_NOT_FOUND,
              "Method [a.B.C] is not implemented.");
  parts = Parts();
  parts.codec = 2;
  ExpectError(&client, parts, 9, STATUS_NOT_SUPPORTED,
              "bolt: the content must be protobuf (codec 11), not of codec 2");
  parts = Parts();
  parts.headers += "x";
  ExpectError(&client, parts, 18, STATUS_MALFORMED_DATA,
              "bolt: malformed header map");
  parts = Parts();
  parts.content = "\x0a\x7f";  // A string of 127 bytes, which aren't there.
  client.Send(parts.Bytes());
  const auto unparsable = client.ReadReply();
  ASSERT_TRUE(unparsable);
  EXPECT_EQ(unparsable->status, STATUS_MALFORMED_DATA);
  client.Send(Parts().Bytes());
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
}

TEST_F(ServerBoltTest, SkipsOversizedRequests) {
  server_options().maximum_packet_size = 10'000;
  Start();
  RawClient client(endpoint(), "bolt");
  const BoltRequestParts large = Parts(std::string(1 << 20, 'x'));
  ExpectError(&client, large, 18, STATUS_MALFORMED_DATA,
              "a message of " + std::to_string(large.Bytes().size()) +
                  " bytes exceeds the limit of 10000 "
                  "(flare_rpc_server_max_packet_size)");
  client.Send(Parts().Bytes());
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
}

TEST_F(ServerBoltTest, ClosesOnWhatIsNoBolt1) {
  Start();
  const std::vector<std::string> bad = {BoltResponseParts().Bytes(), "\x01\x03",
                                        "\x03"};
  for (const std::string& bytes : bad) {
    RawClient client(endpoint(), "bolt");
    client.Send(bytes);
    EXPECT_TRUE(client.AtEnd());
  }
  // Earlier valid requests are answered.
  RawClient client(endpoint(), "bolt");
  client.Send(Parts().Bytes() + BoltResponseParts().Bytes());
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
  EXPECT_TRUE(client.AtEnd());
  // A heartbeat is a message, too.
  RawClient idle(endpoint(), "bolt");
  idle.Send(kBoltHeartbeatVector + BoltResponseParts().Bytes());
  EXPECT_EQ(idle.ReadAll(), heartbeat_reply_);
  client.Close();
  idle.Close();
  StopServer();
  EXPECT_EQ(server().statistics().connections_malformed, bad.size() + 2);
}

// Whichever of the two is asked first.
class BoltBesideFlare : public ServerTest,
                        public ::testing::WithParamInterface<bool> {};

TEST_P(BoltBesideFlare, HeartbeatsStandBeforeMessagesOfOthers) {
  if (GetParam()) {
    StartServer({"flare", "bolt"});
  } else {
    StartServer({"bolt", "flare"});
  }
  const std::string reply =
      FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");
  RawClient client(endpoint());
  client.Send(kBoltHeartbeatVector +
              client.Encode(1, kCall, MakeRequest("body")));
  EXPECT_EQ(client.ReadExactly(reply.size()), reply);
  EXPECT_EQ(client.ReadReply()->As<TestResponse>().body(), "body");
}

INSTANTIATE_TEST_SUITE_P(BothOrders, BoltBesideFlare, ::testing::Bool());

TEST_F(ServerBoltTest, DeadlinesReachTheService) {
  std::atomic<bool> has_timeout = false;
  service().on_call = [&](TestCall call) {
    has_timeout = call.controller->GetTimeout().has_value();
    FlexibleService::Echo(call);
  };
  Start();
  RawClient client(endpoint(), "bolt");
  BoltRequestParts parts = Parts();
  client.Send(parts.Bytes());
  ASSERT_TRUE(client.ReadReply());
  EXPECT_TRUE(has_timeout);
  parts.timeout_ms = -1;
  client.Send(parts.Bytes());
  ASSERT_TRUE(client.ReadReply());
  EXPECT_FALSE(has_timeout);
}

}  // namespace
}  // namespace flare::rpc::testing
