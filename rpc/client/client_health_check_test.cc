// Servers that are asked whether they are well (health_check_options.h).
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/client/channel_list.h"
#include "flare/rpc/client/checked_servers.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::literals;
using fiber::testing::Eventually;
using Kind = HealthCheckKind;

constexpr char kHealth[] = "/health";

// A server whose health is the test's.
struct CheckedServerUnderTest {
  CheckedServerUnderTest() {
    service.on_call = [this](TestCall call) {
      ++calls;
      FlexibleService::Echo(call);
    };
    // Checks by calls, told apart from other calls.
    service.on_other = [this](TestCall call) {
      if (hold) go.Wait();
      if (status != 200) call.controller->SetFailed("not now");
      call.Reply();
    };
    server = std::make_unique<Server>();
    server->AddService(&service);
    server->AddProtocols({"flare", "http", "http+pb", "http+proto3-json",
                          "baidu-std", "trpc", "grpc"});
    server->AddHttpHandler(
        kHealth,
        NewHttpGetHandler([this](auto&, HttpResponse* response, auto*) {
          const int now = ++checking;
          most_checking = std::max(most_checking.load(), now);
          ++checks;
          for (int i = 0; i != 20; ++i) this_fiber::Yield();
          if (hold) go.Wait();
          response->set_status(static_cast<HttpStatus>(status.load()));
          --checking;
        }));
    server->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    EXPECT_TRUE(server->Start()) << server->error().ToString();
  }
  ~CheckedServerUnderTest() {
    go.Set();
    server->Stop();
    server->Join();
  }

  const Endpoint& endpoint() const { return server->endpoint(); }

  std::atomic<int> status{200};
  std::atomic<bool> hold{false};
  std::atomic<int> calls{0};
  std::atomic<int> checks{0};
  std::atomic<int> checking{0};
  std::atomic<int> most_checking{0};
  fiber::Event go;
  FlexibleService service;
  std::unique_ptr<Server> server;
};

class ClientHealthCheckTest : public ClientTest {
 protected:
  static flare::Status Check(const HealthCheckOptions& options,
                             const Endpoint& endpoint,
                             const std::string& protocol = "flare") {
    flare::Status status;
    OnFiber([&] {
      status = CheckServer({.options = options,
                            .endpoint = endpoint,
                            .host = endpoint.ToString(),
                            .protocol = protocol},
                           {});
    });
    return status;
  }

  static RpcChannel::Options Checked(Kind kind, std::string target = "") {
    RpcChannel::Options options;
    options.health.slow_start = 0ns;
    options.health_check = {.kind = kind,
                            .target = std::move(target),
                            .interval = 5ms,
                            .timeout = 20s,
                            .rise = 2,
                            .fall = 2};
    return options;
  }

  static std::string UriOf(const std::vector<Endpoint>& servers) {
    std::string uri = "flare://";
    for (const Endpoint& server : servers) {
      uri += (&server == servers.data() ? "" : ",") + server.ToString();
    }
    return uri;
  }

  // A call that succeeds; the server that it was on.
  static Endpoint Call(RpcChannel* channel) {
    TestedCall call;
    EXPECT_EQ(call.Start(channel)->Await(), STATUS_SUCCESS);
    return call.controller.GetRemotePeer();
  }

  // The state in the only channel that has the server.
  static ChannelServerState StateOf(const Endpoint& server) {
    std::size_t all = 0;
    for (const ChannelState& channel : DescribeChannels(100, &all)) {
      for (const ChannelServerState& state : channel.servers) {
        if (state.server == server.ToString()) return state;
      }
    }
    return {};
  }
  static void AwaitState(const Endpoint& server, const std::string& state) {
    EXPECT_TRUE(Eventually([&] { return StateOf(server).state == state; }))
        << StateOf(server).state;
  }
  static void ExpectCallsOn(RpcChannel* channel, const Endpoint& server) {
    for (int i = 0; i != 20; ++i) EXPECT_EQ(Call(channel), server);
  }
  static void AwaitCallsOn(RpcChannel* channel, const Endpoint& server) {
    EXPECT_TRUE(Eventually([&] { return Call(channel) == server; }));
  }

  // The server that is `sick` gets no calls until it is well again.
  static void CheckSickness(
      const RpcChannel::Options& options,
      const std::function<void(CheckedServerUnderTest*)>& fall_sick,
      const std::function<void(CheckedServerUnderTest*)>& recover) {
    CheckedServerUnderTest good, sick;
    RpcChannel channel(UriOf({good.endpoint(), sick.endpoint()}), options);
    AwaitCallsOn(&channel, sick.endpoint());
    fall_sick(&sick);
    AwaitState(sick.endpoint(), "unhealthy");
    EXPECT_NE(StateOf(sick.endpoint()).check_failure, "");
    ExpectCallsOn(&channel, good.endpoint());
    recover(&sick);
    AwaitState(sick.endpoint(), "well");
    AwaitCallsOn(&channel, sick.endpoint());
  }
};

// --- One check ---

TEST_F(ClientHealthCheckTest, ConnectsAreChecked) {
  const CheckedServerUnderTest up;
  DeadAddress gone;
  const SilentAddress silent;
  EXPECT_EQ(Check({.kind = Kind::kConnect, .timeout = 20s}, up.endpoint()),
            flare::Status());
  EXPECT_EQ(
      Check({.kind = Kind::kConnect, .timeout = 20s}, gone.endpoint()).code(),
      ECONNREFUSED);
  EXPECT_EQ(Check({.kind = Kind::kConnect, .timeout = 50ms}, silent.endpoint())
                .code(),
            ETIMEDOUT);
  const RawServer back(&gone);
  EXPECT_EQ(Check({.kind = Kind::kConnect, .timeout = 20s}, back.endpoint()),
            flare::Status());
}

TEST_F(ClientHealthCheckTest, AnyGoodStatusOfHttpWillDo) {
  CheckedServerUnderTest server;
  const HealthCheckOptions options{
      .kind = Kind::kHttp, .target = kHealth, .timeout = 20s};
  EXPECT_EQ(Check(options, server.endpoint()), flare::Status());
  server.status = 204;
  EXPECT_EQ(Check(options, server.endpoint()), flare::Status());
  server.status = 500;
  EXPECT_EQ(Check(options, server.endpoint()).message(),
            "status 500 rather than 2xx");
  EXPECT_EQ(Check({.kind = Kind::kHttp, .target = "/else", .timeout = 20s},
                  server.endpoint())
                .message(),
            "status 404 rather than 2xx");
  const RawServer mute;
  EXPECT_EQ(Check({.kind = Kind::kHttp, .target = "/", .timeout = 50ms},
                  mute.endpoint())
                .message(),
            "nothing within 50ms");
}

TEST_F(ClientHealthCheckTest, CallsAreCheckedInEachProtocol) {
  CheckedServerUnderTest server;
  const std::string method = kOther;
  for (const char* protocol :
       {"flare", "http+pb", "http+proto3-json", "baidu-std", "trpc", "grpc"}) {
    server.status = 200;
    const HealthCheckOptions options{
        .kind = Kind::kCall, .target = method, .timeout = 20s};
    EXPECT_EQ(Check(options, server.endpoint(), protocol), flare::Status())
        << protocol;
    server.status = 500;
    const flare::Status failed = Check(options, server.endpoint(), protocol);
    EXPECT_EQ(failed.code(), EPROTO) << protocol;
    EXPECT_NE(failed.message().find("the check's call failed with status"),
              std::string::npos)
        << failed.message();
    const flare::Status unknown =
        Check({.kind = Kind::kCall,
               .target = "flare.rpc.testing.TestService.None",
               .timeout = 20s},
              server.endpoint(), protocol);
    EXPECT_EQ(unknown.code(), EPROTO) << protocol;
  }
  const RawServer mute;
  EXPECT_EQ(Check({.kind = Kind::kCall, .target = method, .timeout = 50ms},
                  mute.endpoint())
                .code(),
            ETIMEDOUT);
}

// HTTP/2 has no such answer.
TEST_F(ClientHealthCheckTest, AnAnswerInAnotherProtocolIsBad) {
  RawServer server;
  std::thread answering([&] {
    auto peer = server.Accept();
    peer->Send("HTTP/1.1 200 OK\r\n\r\n");
    peer->AtEnd();
  });
  const flare::Status status =
      Check({.kind = Kind::kGrpc, .timeout = 20s}, server.endpoint());
  answering.join();
  EXPECT_EQ(status.code(), EPROTO) << status.ToString();
}

// --- Channels ---

TEST_F(ClientHealthCheckTest, AServerThatAnswers500GetsNoCalls) {
  CheckSickness(
      Checked(Kind::kHttp, kHealth), [](auto* server) { server->status = 500; },
      [](auto* server) { server->status = 200; });
}

TEST_F(ClientHealthCheckTest, AServerWhoseCallFailsGetsNoCalls) {
  CheckSickness(
      Checked(Kind::kCall, kOther), [](auto* server) { server->status = 500; },
      [](auto* server) { server->status = 200; });
}

// Its kernel accepts connections, but nobody answers.
TEST_F(ClientHealthCheckTest, AServerThatNeverAnswersGetsNoCalls) {
  RpcChannel::Options options = Checked(Kind::kHttp, kHealth);
  options.health_check.timeout = 1500ms;
  CheckSickness(
      options, [](auto* server) { server->hold = true; },
      [](auto* server) {
        server->hold = false;
        server->go.Set();
      });
}

TEST_F(ClientHealthCheckTest, AServerThatIsGoneGetsNoCalls) {
  const CheckedServerUnderTest good;
  DeadAddress gone;
  RpcChannel channel(UriOf({good.endpoint(), gone.endpoint()}),
                     Checked(Kind::kConnect));
  ExpectCallsOn(&channel, good.endpoint());
  AwaitState(gone.endpoint(), "unhealthy");
  EXPECT_NE(StateOf(gone.endpoint()).check_failure.find("refused"),
            std::string::npos);
  const RawServer back(&gone);
  EXPECT_TRUE(Eventually(
      [&] { return StateOf(back.endpoint()).state != "unhealthy"; }));
}

// Else no server would get any call.
TEST_F(ClientHealthCheckTest, ChecksAreIgnoredIfTooFewServersPass) {
  CheckedServerUnderTest one, two;
  one.status = two.status = 500;
  RpcChannel channel(UriOf({one.endpoint(), two.endpoint()}),
                     Checked(Kind::kHttp, kHealth));
  Call(&channel);
  AwaitState(one.endpoint(), "unhealthy");
  AwaitState(two.endpoint(), "unhealthy");
  std::size_t all = 0;
  EXPECT_TRUE(Eventually([&] { return DescribeChannels(1, &all)[0].panic; }));
  AwaitCallsOn(&channel, one.endpoint());
  AwaitCallsOn(&channel, two.endpoint());
  one.status = 200;
  EXPECT_TRUE(Eventually([&] { return !DescribeChannels(1, &all)[0].panic; }));
  ExpectCallsOn(&channel, one.endpoint());
}

TEST_F(ClientHealthCheckTest, ChannelsShareChecks) {
  CheckedServerUnderTest one, two;
  const std::string uri = UriOf({one.endpoint(), two.endpoint()});
  {
    RpcChannel first(uri, Checked(Kind::kHttp, kHealth));
    RpcChannel second(uri, Checked(Kind::kHttp, kHealth));
    Call(&first);
    Call(&second);
    EXPECT_EQ(CountCheckedServers(), 2);
    // Other checks of these servers are others, and take turns with them.
    RpcChannel third(uri, Checked(Kind::kHttp, kHealth + "?third"s));
    Call(&third);
    EXPECT_EQ(CountCheckedServers(), 4);
    const int before = one.checks;
    EXPECT_TRUE(Eventually([&] { return one.checks >= before + 20; }));
    EXPECT_EQ(one.most_checking, 1);
  }
  EXPECT_EQ(CountCheckedServers(), 0);
}

TEST_F(ClientHealthCheckTest, ALateChannelLearnsTheVerdict) {
  CheckedServerUnderTest good, sick;
  sick.status = 500;
  const std::string uri = UriOf({good.endpoint(), sick.endpoint()});
  RpcChannel::Options options = Checked(Kind::kHttp, kHealth);
  options.health_check.interval = 1h;  // There is no second check.
  RpcChannel first(uri, options);
  Call(&first);
  AwaitState(sick.endpoint(), "unhealthy");
  RpcChannel second(uri, options);
  Call(&second);
  ExpectCallsOn(&second, good.endpoint());
  EXPECT_EQ(sick.checks, 1);
}

TEST_F(ClientHealthCheckTest, ALoneServerIsNotChecked) {
  const CheckedServerUnderTest server;
  RpcChannel channel(UriOf({server.endpoint()}), Checked(Kind::kConnect));
  Call(&channel);
  EXPECT_EQ(CountCheckedServers(), 0);
}

// A list of servers that changes.
class ChangingNames : public NameResolution {
 public:
  bool IsStatic() const override { return false; }
  std::uint64_t Version() override { return version; }
  std::vector<Peer> Peers() override {
    ScopedLock guard(lock);
    return peers;
  }
  void Set(std::vector<Peer> new_peers) {
    ScopedLock guard(lock);
    peers = std::move(new_peers);
    ++version;
  }

  Spinlock lock;
  std::vector<Peer> peers FLARE_GUARDED_BY(lock);
  std::atomic<std::uint64_t> version{1};
};

TEST_F(ClientHealthCheckTest, ServersThatStayInTheListAreCheckedOn) {
  static auto names = std::make_shared<ChangingNames>();
  RegisterNameResolver(
      "test-changing",
      [](std::string_view) -> Expected<std::shared_ptr<NameResolution>> {
        return std::shared_ptr<NameResolution>(names);
      });
  CheckedServerUnderTest good, sick, third;
  sick.status = 500;
  const auto peer = [](const CheckedServerUnderTest& server) {
    return Peer{server.endpoint(), server.endpoint().ToString()};
  };
  names->Set({peer(good), peer(sick), peer(third)});
  RpcChannel::Options options = Checked(Kind::kHttp, kHealth);
  options.health_check.interval = 1h;
  options.override_nslb = "test-changing+rr";
  RpcChannel channel("flare://any", options);
  Call(&channel);
  AwaitState(sick.endpoint(), "unhealthy");
  EXPECT_EQ(CountCheckedServers(), 3);
  names->Set({peer(good), peer(sick)});
  ExpectCallsOn(&channel, good.endpoint());
  EXPECT_EQ(CountCheckedServers(), 2);
  EXPECT_EQ(sick.checks, 1);
  // It is alone, and has its calls whatever its checks said.
  names->Set({peer(sick)});
  ExpectCallsOn(&channel, sick.endpoint());
  EXPECT_EQ(CountCheckedServers(), 0);
}

TEST_F(ClientHealthCheckTest, BadOptionsAreRefused) {
  for (const HealthCheckOptions& bad :
       {HealthCheckOptions{.kind = Kind::kHttp},
        HealthCheckOptions{.kind = Kind::kConnect, .interval = 0s}}) {
    RpcChannel::Options options;
    options.health_check = bad;
    const RpcChannel channel("flare://127.0.0.1:1,127.0.0.1:2", options);
    EXPECT_NE(channel.status().message().find("Options::health_check: "),
              std::string::npos)
        << channel.status().message();
  }
}

// A check that goes on doesn't hold up the end.
TEST_F(ClientHealthCheckTest, TheEndOfTheClientSideEndsChecks) {
  RawServer mute, other;
  RpcChannel channel(UriOf({mute.endpoint(), other.endpoint()}),
                     Checked(Kind::kHttp, kHealth));
  TestedCall call;
  call.Start(&channel);
  auto first = mute.Accept();
  ShutdownClientSide();
  EXPECT_EQ(call.Await(), STATUS_CHANNEL_SHUTDOWN);
  EXPECT_EQ(CountCheckedServers(), 0);
}

}  // namespace
}  // namespace flare::rpc::testing
