#include "flare/rpc/services/etcd_resolver.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/health.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "gtest/gtest.h"
#include "rpc/services/etcd.flare.pb.h"
#include "rpc/services/health.flare.pb.h"

namespace flare {
namespace {

using namespace std::chrono_literals;
using Servers = std::vector<std::string>;

constexpr char kEtcd[] = "/usr/bin/etcd";

// A real etcd, at an address of the loopback network that nobody else uses, so
// that its ports are free again when it is started again.
class Etcd {
 public:
  Etcd() {
    std::random_device random;
    host_ = "127." + std::to_string(1 + random() % 250) + "." +
            std::to_string(random() % 256) + "." +
            std::to_string(1 + random() % 250);
    std::string name = ::testing::TempDir() + "/etcdXXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Etcd() {
    Kill();
    std::filesystem::remove_all(folder_);
  }

  std::string address() const { return host_ + ":2379"; }

  void Start() {
    const std::string client = "http://" + address();
    const std::string peer = "http://" + host_ + ":2380";
    std::vector<std::string> arguments = {kEtcd,
                                          "--data-dir",
                                          folder_ + "/data",
                                          "--listen-client-urls",
                                          client,
                                          "--advertise-client-urls",
                                          client,
                                          "--listen-peer-urls",
                                          peer,
                                          "--initial-advertise-peer-urls",
                                          peer,
                                          "--initial-cluster",
                                          "default=" + peer};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string log = folder_ + "/log";
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&actions, fd, log.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 0);  // 3.4 asks for it there.
    ASSERT_EQ(
        posix_spawn(&pid_, kEtcd, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  std::string host_;
  std::string folder_;
  pid_t pid_ = 0;
};

class EtcdResolverTest : public rpc::testing::RpcTest {
 protected:
  static void SetUpTestSuite() { RegisterEtcdResolver(); }

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    FLAGS_flare_name_resolver_update_interval_seconds = 0;  // With each call.
    rpc::OpenClientSide();
  }
  void TearDown() override {
    rpc::ShutdownClientSide();
    RpcTest::TearDown();
  }

  std::shared_ptr<rpc::NameResolution> Resolve() {
    auto found = rpc::ResolveName("etcd", etcd_.address() + "/test/");
    EXPECT_TRUE(found) << found.error().ToString();
    return *found;
  }

  // Until etcd takes it.
  void Put(const std::string& key, const std::string& value) {
    RpcChannel channel("grpc://" + etcd_.address());
    const etcdserverpb::KV_SyncStub stub(&channel);
    etcdserverpb::PutRequest request;
    request.set_key(key);
    request.set_value(value);
    ASSERT_TRUE(fiber::testing::Eventually([&] {
      RpcClientController controller;
      controller.SetTimeout(5s);
      if (stub.Put(request, &controller)) return true;
      std::this_thread::sleep_for(20ms);
      return false;
    })) << "etcd doesn't start";
  }

  void Delete(const std::string& key) {
    RpcChannel channel("grpc://" + etcd_.address());
    const etcdserverpb::KV_SyncStub stub(&channel);
    etcdserverpb::DeleteRangeRequest request;
    request.set_key(key);
    RpcClientController controller;
    controller.SetTimeout(30s);
    ASSERT_TRUE(stub.DeleteRange(request, &controller));
  }

  // Asks for the version, as calls do, until these are the servers.
  static bool Becomes(rpc::NameResolution* resolution, const Servers& expected,
                      bool ok = true) {
    return fiber::testing::Eventually([&] {
      static_cast<void>(resolution->Version());
      std::this_thread::sleep_for(5ms);
      Servers servers;
      for (const rpc::Peer& peer : resolution->Peers()) {
        servers.push_back(peer.endpoint.ToString() + "*" +
                          std::to_string(peer.weight));
      }
      std::sort(servers.begin(), servers.end());
      return servers == expected && resolution->Failure().ok() == ok;
    });
  }

  Etcd etcd_;
};

TEST_F(EtcdResolverTest, FollowsEtcdAndOutlivesIt) {
  if (access(kEtcd, X_OK) != 0) {
    GTEST_SKIP() << "there is no " << kEtcd << " (package etcd-server)";
  }
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

TEST_F(EtcdResolverTest, LeadsCallsToServers) {
  if (access(kEtcd, X_OK) != 0) {
    GTEST_SKIP() << "there is no " << kEtcd << " (package etcd-server)";
  }
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
  rpc::ShutdownClientSide();
}

TEST_F(EtcdResolverTest, NeedsAddressesAndKeys) {
  for (const char* address : {"", "/a", "127.0.0.1:1", "127.0.0.1:1/"}) {
    const auto found = rpc::ResolveName("etcd", address);
    ASSERT_FALSE(found) << address;
    EXPECT_NE(found.error().message().find("10.0.0.1:2379"), std::string::npos)
        << found.error().message();
  }
}

}  // namespace
}  // namespace flare
