#include "flare/rpc/services/etcd_resolver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/health.h"
#include "flare/rpc/testing/etcd_fixture.h"
#include "gtest/gtest.h"
#include "rpc/services/etcd.flare.pb.h"
#include "rpc/services/health.flare.pb.h"

namespace flare {
namespace {

using namespace std::chrono_literals;
using Servers = std::vector<std::string>;

class EtcdResolverTest : public rpc::testing::EtcdTest {
 protected:
  static void SetUpTestSuite() { RegisterEtcdResolver(); }

  std::shared_ptr<rpc::NameResolution> Resolve() {
    auto found = rpc::ResolveName("etcd", etcd_.address() + "/test/");
    EXPECT_TRUE(found) << found.error().ToString();
    return *found;
  }

  // Asks for the version, as calls do, until these are the servers.
  static bool Becomes(rpc::NameResolution* resolution, const Servers& expected,
                      bool ok = true) {
    return fiber::testing::Eventually([&] {
      static_cast<void>(resolution->Version());
      std::this_thread::sleep_for(1ms);
      Servers servers;
      for (const rpc::Peer& peer : resolution->Peers()) {
        servers.push_back(peer.endpoint.ToString() + "*" +
                          std::to_string(peer.weight));
      }
      std::sort(servers.begin(), servers.end());
      return servers == expected && resolution->Failure().ok() == ok;
    });
  }
};

TEST_F(EtcdResolverTest, FollowsEtcdAndOutlivesIt) {
  const auto resolution = Resolve();  // etcd doesn't run yet.
  EXPECT_TRUE(resolution->Peers().empty());
  EXPECT_FALSE(resolution->Failure().ok());
  etcd_.Start();
  Put("/test/a", "10.0.0.1:1");
  Put("/tesu", "10.0.0.9:9");
  Put("/test", "10.0.0.9:9");
  Put("/test/b", "10.0.0.2:2;weight=3");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.1:1*1", "10.0.0.2:2*3"}));
  Put("/test/a", "nonsense;");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.2:2*3"}, false));
  EXPECT_NE(resolution->Failure().message().find("\"/test/a\""),
            std::string::npos)
      << resolution->Failure().message();
  Delete("/test/a");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.2:2*3"}));

  etcd_.Kill();
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.2:2*3"}, false));
  etcd_.Start();
  Put("/test/c", "10.0.0.3:3");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.2:2*3", "10.0.0.3:3*1"}));
  Delete("/test/b");
  Delete("/test/c");  // None is left: the last that were known stay.
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    static_cast<void>(resolution->Version());
    return !resolution->Failure().ok();
  }));
  EXPECT_FALSE(resolution->Peers().empty());
}

TEST_F(EtcdResolverTest, OutlivesAnEtcdThatIsCutOff) {
  etcd_.Start();
  Put("/test/a", "10.0.0.1:1");
  const auto resolution = Resolve();
  ASSERT_TRUE(Becomes(resolution.get(), {"10.0.0.1:1*1"}));
  etcd_.Pause();
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.1:1*1"}, false));
  etcd_.Resume();
  Put("/test/b", "10.0.0.2:2");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.1:1*1", "10.0.0.2:2*1"}));
}

// Nobody asks for changes, and five are seen at once.
TEST_F(EtcdResolverTest, SeesChangesAtOnce) {
  FLAGS_flare_name_resolver_update_interval_seconds = 3600;
  etcd_.Start();
  Put("/test/a", "10.0.0.1:1");
  const auto resolution = Resolve();
  int at_once = 0;
  for (int port = 1; at_once != 5 && port != 100; ++port) {
    const std::string server = "10.0.0.2:" + std::to_string(port);
    Put("/test/b", server);
    const std::int64_t put_ns = NowNs();
    ASSERT_TRUE(Becomes(resolution.get(), {"10.0.0.1:1*1", server + "*1"}));
    at_once += NowNs() - put_ns < 100'000'000 ? 1 : 0;
  }
  EXPECT_EQ(at_once, 5);
}

TEST_F(EtcdResolverTest, ReadsTheListAgainAfterCompaction) {
  etcd_.Start();
  Put("/test/a", "10.0.0.1:1");
  const auto resolution = Resolve();
  // Before the first watch, which would begin before these.
  Put("/test/a", "10.0.0.2:2");
  Put("/test/a", "10.0.0.3:3");
  etcdserverpb::CompactionRequest request;
  request.set_revision(Get("/test/a")->mod_revision());
  Repeat([&](RpcClientController* controller) {
    return etcdserverpb::KV_SyncStub(&channel())
        .Compact(request, controller)
        .has_value();
  });
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.3:3*1"}));
  Put("/test/b", "10.0.0.4:4");
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.3:3*1", "10.0.0.4:4*1"}));
}

TEST_F(EtcdResolverTest, FollowsAnEtcdThatHasLostItsData) {
  etcd_.Start();
  for (const char* server : {"10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"}) {
    Put("/test/a", server);
  }
  const auto resolution = Resolve();
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.3:3*1"}));
  etcd_.Kill();
  etcd_.LoseData();
  etcd_.Start();
  Put("/test/a", "10.0.0.4:4");  // With an earlier revision.
  EXPECT_TRUE(Becomes(resolution.get(), {"10.0.0.4:4*1"}));
}

TEST_F(EtcdResolverTest, ReadsServersInJson) {
  etcd_.Start();
  Put("/test/10.0.0.1:1", R"({"weight": 2, "zone": "a"})");
  Put("/test/b", R"({"address": "10.0.0.2:2", "tags": {"env": "new"}})");
  Put("/test/c", "10.0.0.3:3;weight=0;zone=b;tag.env=old");
  const auto resolution = Resolve();
  ASSERT_TRUE(Becomes(resolution.get(),
                      {"10.0.0.1:1*2", "10.0.0.2:2*1", "10.0.0.3:3*0"}));
  const auto peers = resolution->Peers();
  EXPECT_EQ(peers[0].zone, "a");
  EXPECT_TRUE(peers[0].tags.empty());
  EXPECT_EQ(peers[1].zone, "");
  EXPECT_EQ(peers[1].tags.at("env"), "new");
  EXPECT_EQ(peers[2].zone, "b");
  EXPECT_EQ(peers[2].tags.at("env"), "old");
  // A zone alone is a change, too.
  Put("/test/10.0.0.1:1", R"({"weight": 2, "zone": "b"})");
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    static_cast<void>(resolution->Version());
    return resolution->Peers()[0].zone == "b";
  }));
  for (const char* wrong :
       {R"({"weight": 65536})", R"({"weight": "much"})", R"({"wieght": 1})",
        R"({"address": 3)", R"({"address": "10.0.0.1:0"})"}) {
    Put("/test/10.0.0.1:1", "10.0.0.1:1");
    ASSERT_TRUE(Becomes(resolution.get(),
                        {"10.0.0.1:1*1", "10.0.0.2:2*1", "10.0.0.3:3*0"}));
    Put("/test/10.0.0.1:1", wrong);
    EXPECT_TRUE(
        Becomes(resolution.get(), {"10.0.0.2:2*1", "10.0.0.3:3*0"}, false))
        << wrong;
  }
}

TEST_F(EtcdResolverTest, LeadsCallsToServers) {
  Server server(Server::Options{.service_name = "test"});
  server.AddProtocols({"flare"});
  AddHealthService(&server);
  server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(server.Start());
  etcd_.Start();
  Put("/test/a", server.endpoint().ToString());
  RpcChannel::Options options;
  options.override_nslb = "etcd+rr";
  RpcChannel channel("flare://" + etcd_.address() + "/test/", options);
  ASSERT_TRUE(channel.status().ok()) << channel.status().ToString();
  const grpc::health::v1::Health_SyncStub stub(&channel);
  // Though etcd may have been too slow when the channel was opened.
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    RpcClientController controller;
    return stub.Check(grpc::health::v1::HealthCheckRequest(), &controller)
        .has_value();
  }));
}

TEST_F(EtcdResolverTest, NeedsAddressesAndKeys) {
  for (const char* address : {"", "/a", "127.0.0.1:1", "127.0.0.1:1/"}) {
    const auto found = rpc::ResolveName("etcd", address);
    ASSERT_FALSE(found) << address;
    EXPECT_NE(found.error().message().find("10.0.0.1:2379"), std::string::npos)
        << found.error().message();
  }
}

class OneServer : public etcdserverpb::SyncKV {
  void Range(const etcdserverpb::RangeRequest&,
             etcdserverpb::RangeResponse* response,
             RpcServerController*) override {
    auto* const pair = response->add_kvs();
    pair->set_key("/test/a");
    pair->set_value("10.0.0.1:1");
  }
};

class AnyUser : public etcdserverpb::SyncAuth {
 public:
  std::atomic<int> log_ins{0};

 private:
  void Authenticate(const etcdserverpb::AuthenticateRequest&,
                    etcdserverpb::AuthenticateResponse* response,
                    RpcServerController*) override {
    response->set_token("token." + std::to_string(++log_ins));
  }
};

class NoWatches : public etcdserverpb::SyncWatch {
  void Watch_(StreamReader<etcdserverpb::WatchRequest> reader,
              StreamWriter<etcdserverpb::WatchResponse> writer,
              RpcServerController*) override {
    static_cast<void>(reader.Read());
    etcdserverpb::WatchResponse response;
    response.set_created(true);
    response.set_canceled(true);
    response.set_cancel_reason("no watches here");
    static_cast<void>(writer.WriteLast(response));
  }
};

// An etcd, or a proxy before it, that lists servers, but tells nobody of
// changes.
TEST_F(EtcdResolverTest, SaysWhyAUserIsToldOfNoChanges) {
  AnyUser users;
  Server server(Server::Options{.service_name = "etcd"});
  server.AddProtocol("grpc");
  server.AddService(std::make_unique<OneServer>());
  server.AddService(&users);
  server.AddService(std::make_unique<NoWatches>());
  server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(server.Start());
  ASSERT_TRUE(RegisterEtcdResolver(
      {.name = "etcd-user",
       .user = EtcdUser{
           .name = "alice", .password = "secret", .allow_plaintext = true}}));
  const auto found =
      rpc::ResolveName("etcd-user", server.endpoint().ToString() + "/test/");
  ASSERT_TRUE(found) << found.error().ToString();
  rpc::NameResolution* const resolution = found->get();
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    static_cast<void>(resolution->Version());
    std::this_thread::sleep_for(1ms);
    return resolution->Failure().message().find("no watches here") !=
           std::string::npos;
  })) << resolution->Failure().message();
  EXPECT_EQ(resolution->Peers().size(), 1);
  // The first cancellation may be for an old token.
  EXPECT_GE(users.log_ins, 2);
}

}  // namespace
}  // namespace flare
