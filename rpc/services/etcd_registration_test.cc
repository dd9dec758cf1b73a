#include "flare/rpc/services/etcd_registration.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/etcd_resolver.h"
#include "flare/rpc/services/etcd_user.h"
#include "flare/rpc/services/health.h"
#include "flare/rpc/testing/etcd_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "gtest/gtest.h"
#include "rpc/services/etcd.flare.pb.h"
#include "rpc/services/health.flare.pb.h"

namespace flare {
namespace {

using namespace std::chrono_literals;

constexpr auto kLease = 3s;
constexpr char kKey[] = "/test/10.0.0.1:5567";

class EtcdRegistrationTest : public rpc::testing::EtcdTest {
 protected:
  // Renewed each second.
  std::shared_ptr<EtcdRegistration> Create() {
    auto made = EtcdRegistration::Create(
        "etcd://" + etcd_.address() + "/test/",
        {.lease = kLease, .leave_time = std::chrono::nanoseconds(0)});
    EXPECT_TRUE(made) << made.error().ToString();
    return *made;
  }

  std::shared_ptr<EtcdRegistration> Register() {
    auto made = Create();
    EXPECT_TRUE(made->Start("10.0.0.1:5567").ok());
    return made;
  }

  void PutWithLease(const std::string& key, std::chrono::seconds length) {
    etcdserverpb::LeaseGrantRequest grant;
    grant.set_ttl(length.count());
    RpcClientController controller;
    const auto granted =
        etcdserverpb::Lease_SyncStub(&channel()).LeaseGrant(grant, &controller);
    ASSERT_TRUE(granted) << granted.error().ToString();
    etcdserverpb::PutRequest put;
    put.set_key(key);
    put.set_lease(granted->id());
    RpcClientController other;
    ASSERT_TRUE(etcdserverpb::KV_SyncStub(&channel()).Put(put, &other));
  }

  // The lease of the key, once there is one that isn't `old`.
  std::int64_t LeaseAfter(std::int64_t old) {
    std::int64_t lease = 0;
    EXPECT_TRUE(fiber::testing::Eventually([&] {
      const auto pair = Get(kKey);
      if (pair) lease = pair->lease();
      std::this_thread::sleep_for(5ms);
      return lease != 0 && lease != old;
    }));
    return lease;
  }
};

TEST_F(EtcdRegistrationTest, RegistersWhenEtcdComes) {
  const auto registration = Create();
  ASSERT_TRUE(registration->Start(" 10.0.0.1:5567;weight=3 ").ok());
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    return registration->failure().message().find("etcd wasn't told") ==
           std::string::npos;
  }));
  EXPECT_FALSE(registration->registered());
  etcd_.Start();
  const std::int64_t lease = LeaseAfter(0);
  EXPECT_NE(lease, 0);
  EXPECT_EQ(Get(kKey)->value(), "10.0.0.1:5567;weight=3");
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return registration->registered();
  })) << registration->failure().ToString();
  registration->Stop();
  EXPECT_FALSE(Get(kKey));
  EXPECT_FALSE(registration->registered());
  registration->Stop();  // Once more, without effect.
}

TEST_F(EtcdRegistrationTest, KeepsTheLeaseAlive) {
  etcd_.Start();
  const auto registration = Register();
  const std::int64_t lease = LeaseAfter(0);
  // A lease of this length that nobody renews ends.
  PutWithLease("/other", kLease);
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    std::this_thread::sleep_for(20ms);
    return !Get("/other");
  }));
  const auto pair = Get(kKey);
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->lease(), lease);
}

TEST_F(EtcdRegistrationTest, RegistersAgainWhenTheLeaseIsLost) {
  etcd_.Start();
  const auto registration = Register();
  const std::int64_t lease = LeaseAfter(0);
  const rpc::testing::LoggedLines warnings(google::WARNING);
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  Repeat([&](RpcClientController* controller) {
    return etcdserverpb::Lease_SyncStub(&channel())
        .LeaseRevoke(request, controller)
        .has_value();
  });
  EXPECT_NE(LeaseAfter(lease), 0);
  EXPECT_TRUE(warnings.Have("etcd has lost the lease")) << warnings.All();
}

TEST_F(EtcdRegistrationTest, OutlivesEtcd) {
  etcd_.Start();
  const auto registration = Register();
  const std::int64_t lease = LeaseAfter(0);
  etcd_.Kill();
  ASSERT_TRUE(
      fiber::testing::Eventually([&] { return !registration->registered(); }));
  etcd_.LoseData();
  etcd_.Start();
  EXPECT_NE(LeaseAfter(lease), 0);
  etcd_.Kill();
  registration->Stop();  // Though nobody answers.
}

// Is told after the registration that the server stops.
class Stopping final : public Server::Listener {
 public:
  explicit Stopping(std::function<void()> f) : f_(std::move(f)) {}
  void OnStop() override { f_(); }

 private:
  const std::function<void()> f_;
};

TEST_F(EtcdRegistrationTest, LeavesBeforeTheServerStops) {
  etcd_.Start();
  Server server(Server::Options{.service_name = "test"});
  server.AddProtocols({"flare"});
  AddHealthService(&server);
  server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  const auto registration = Create();
  server.AddListener(registration);
  std::string key;
  bool registered = true;
  bool answers = false;
  server.AddListener(std::make_shared<Stopping>([&] {
    registered = Get(key).has_value();
    RpcChannel channel("flare://" + server.endpoint().ToString());
    RpcClientController controller;
    answers = grpc::health::v1::Health_SyncStub(&channel)
                  .Check(grpc::health::v1::HealthCheckRequest(), &controller)
                  .has_value();
  }));
  ASSERT_TRUE(server.Start());
  key = "/test/" + server.endpoint().ToString();
  ASSERT_TRUE(registration->Start(server.endpoint().ToString()).ok());
  ASSERT_TRUE(fiber::testing::Eventually([&] { return Get(key).has_value(); }));
  server.Stop();
  EXPECT_FALSE(registered);
  EXPECT_TRUE(answers);
  server.Join();
}

TEST_F(EtcdRegistrationTest, SpeaksTls) {
  ASSERT_NO_FATAL_FAILURE(etcd_.StartWithTls());
  const TlsClientOptions tls{.ca = etcd_.certificate()};
  const std::string place = etcd_.address() + "/test/";
  const auto registration =
      EtcdRegistration::Create("tls+etcd://" + place, {.tls = tls});
  ASSERT_TRUE(registration) << registration.error().ToString();
  ASSERT_TRUE((*registration)->Start("10.0.0.1:5567").ok());
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return (*registration)->registered(); }));
  // A name that no other test, and no repetition of this one, has taken.
  const std::string name = "etcd-at-" + etcd_.address();
  ASSERT_TRUE(RegisterEtcdResolver({.name = name, .tls = tls}));
  const auto resolution = rpc::ResolveName(name, place);
  ASSERT_TRUE(resolution) << resolution.error().ToString();
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    static_cast<void>((*resolution)->Version());
    return (*resolution)->Peers().size() == 1;
  })) << (*resolution)->Failure().ToString();
  // Its certificate isn't one of the system's.
  const auto stranger = EtcdRegistration::Create("tls+etcd://" + place);
  ASSERT_TRUE(stranger) << stranger.error().ToString();
  ASSERT_TRUE((*stranger)->Start("10.0.0.2:5567").ok());
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return (*stranger)->failure().message().find("certificate") !=
           std::string::npos;
  }));
  (*registration)->Stop();
  EXPECT_FALSE(EtcdRegistration::Create("etcd://" + place, {.tls = tls}));
}

TEST_F(EtcdRegistrationTest, HasAUserWithAPassword) {
  etcd_.Start();
  ASSERT_NO_FATAL_FAILURE(AskForUser("secret"));
  const std::string place = etcd_.address() + "/test/";
  EtcdUser user{.name = "root", .password = "secret"};
  EXPECT_FALSE(EtcdRegistration::Create("etcd://" + place, {.user = user}));
  user.allow_plaintext = true;
  const auto registration =
      EtcdRegistration::Create("etcd://" + place, {.user = user});
  ASSERT_TRUE(registration) << registration.error().ToString();
  ASSERT_TRUE((*registration)->Start("10.0.0.1:5567").ok());
  const std::string name = "etcd-of-user-at-" + etcd_.address();
  ASSERT_TRUE(RegisterEtcdResolver({.name = name, .user = user}));
  const auto resolution = rpc::ResolveName(name, place);
  ASSERT_TRUE(resolution) << resolution.error().ToString();
  const auto becomes = [&](std::size_t servers) {
    return fiber::testing::Eventually([&] {
      static_cast<void>((*resolution)->Version());
      std::this_thread::sleep_for(1ms);
      return (*resolution)->Peers().size() == servers &&
             (*resolution)->Failure().ok();
    });
  };
  EXPECT_TRUE(becomes(1)) << (*resolution)->Failure().ToString();
  // It has forgotten its tokens then.
  etcd_.Kill();
  EXPECT_TRUE(fiber::testing::Eventually(
      [&] { return !(*registration)->registered(); }));
  etcd_.Start();
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return (*registration)->registered();
  })) << (*registration)->failure().ToString();
  const auto second =
      EtcdRegistration::Create("etcd://" + place, {.user = user});
  ASSERT_TRUE((*second)->Start("10.0.0.2:5567").ok());
  EXPECT_TRUE(becomes(2)) << (*resolution)->Failure().ToString();

  user.password = "wrong";
  const auto stranger =
      EtcdRegistration::Create("etcd://" + place, {.user = user});
  ASSERT_TRUE((*stranger)->Start("10.0.0.3:5567").ok());
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return (*stranger)->failure().message().find("the user \"root\"") !=
           std::string::npos;
  })) << (*stranger)->failure().ToString();
  const auto nobody = EtcdRegistration::Create("etcd://" + place);
  ASSERT_TRUE((*nobody)->Start("10.0.0.4:5567").ok());
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return (*nobody)->failure().message().find("user") != std::string::npos;
  })) << (*nobody)->failure().ToString();
}

// A token that nobody has used for a second is forgotten.
TEST_F(EtcdRegistrationTest, RenewsTokens) {
  etcd_.Start();
  ASSERT_NO_FATAL_FAILURE(AskForUser("secret"));
  const EtcdUser user{
      .name = "root", .password = "secret", .allow_plaintext = true};
  const auto registration =
      EtcdRegistration::Create("etcd://" + etcd_.address() + "/test/",
                               {.lease = 30s, .leave_time = 0s, .user = user});
  ASSERT_TRUE((*registration)->Start("10.0.0.1:5567").ok());
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return (*registration)->registered(); }));
  std::this_thread::sleep_for(2500ms);
  const rpc::testing::LoggedLines lines(google::INFO);
  (*registration)->Stop();
  EXPECT_TRUE(lines.Have("isn't registered in etcd any more")) << lines.All();
}

TEST_F(EtcdRegistrationTest, SaysWhatIsWrong) {
  const auto error = [](const char* uri) {
    const auto made = EtcdRegistration::Create(uri);
    return made ? "" : made.error().message();
  };
  EXPECT_NE(error("127.0.0.1:2379/a").find("etcd://10.0.0.1:2379/"),
            std::string::npos);
  EXPECT_NE(error("etcd://127.0.0.1:2379").find("beginning of keys"),
            std::string::npos);
  EXPECT_FALSE(EtcdRegistration::Create("etcd://127.0.0.1:1/a", {.lease = 0s}));
  for (const char* server :
       {"", "0.0.0.0:5567", "[::]:5567", "10.0.0.1:5;color=red"}) {
    EXPECT_FALSE(Create()->Start(server).ok()) << server;
  }
}

}  // namespace
}  // namespace flare
