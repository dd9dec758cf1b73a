// A real etcd for tests, and their operations on it.

#ifndef FLARE_RPC_TESTING_ETCD_FIXTURE_H_
#define FLARE_RPC_TESTING_ETCD_FIXTURE_H_

#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/server_process.h"
#include "gtest/gtest.h"
#include "rpc/services/etcd.flare.pb.h"

namespace flare::rpc::testing {

inline constexpr char kEtcd[] = "/usr/bin/etcd";

// A real etcd.
class EtcdProcess : public ServerProcess {
 public:
  std::string address() const { return host() + ":2379"; }

  // By a certificate of its own, which is its root, too.
  void StartWithTls() {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 2 -subj /CN=etcd -addext subjectAltName=IP:" +
        host() + " -keyout " + folder() + "/key.pem -out " + certificate() +
        " 2>/dev/null";
    ASSERT_EQ(system(command.c_str()), 0) << command;
    Start(/*tls=*/true);
  }
  std::string certificate() const { return folder() + "/certificate.pem"; }

  void Start(bool tls = false) {
    const std::string client = (tls ? "https://" : "http://") + address();
    const std::string peer = "http://" + host() + ":2380";
    std::vector<std::string> arguments = {kEtcd,
                                          "--data-dir",
                                          folder() + "/data",
                                          "--listen-client-urls",
                                          client,
                                          "--advertise-client-urls",
                                          client,
                                          "--listen-peer-urls",
                                          peer,
                                          "--initial-advertise-peer-urls",
                                          peer,
                                          "--initial-cluster",
                                          "default=" + peer,
                                          "--heartbeat-interval=20",
                                          "--election-timeout=200",
                                          "--auth-token-ttl=1",
                                          "--bcrypt-cost=4"};
    if (tls) {
      arguments.push_back("--cert-file=" + certificate());
      arguments.push_back("--key-file=" + folder() + "/key.pem");
    }
    setenv("ETCD_UNSUPPORTED_ARCH", "arm64", 0);  // 3.4 asks for it there.
    Spawn(std::move(arguments));
  }

  // While it doesn't run.
  void LoseData() { std::filesystem::remove_all(folder() + "/data"); }
};

// Skipped where there is no etcd.
class EtcdTest : public RpcTest {
 protected:
  void SetUp() override {
    if (access(kEtcd, X_OK) != 0) {
      GTEST_SKIP() << "there is no " << kEtcd << " (package etcd-server)";
    }
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    FLAGS_flare_name_resolver_update_interval_seconds = 0;  // With each call.
    OpenClientSide();
  }
  void TearDown() override {
    if (access(kEtcd, X_OK) != 0) return;
    ShutdownClientSide();
    RpcTest::TearDown();
  }

  // Until etcd takes it.
  void Put(const std::string& key, const std::string& value) {
    etcdserverpb::PutRequest request;
    request.set_key(key);
    request.set_value(value);
    Repeat([&](RpcClientController* controller) {
      return etcdserverpb::KV_SyncStub(&channel())
          .Put(request, controller)
          .has_value();
    });
  }

  void Delete(const std::string& key) {
    etcdserverpb::DeleteRangeRequest request;
    request.set_key(key);
    Repeat([&](RpcClientController* controller) {
      return etcdserverpb::KV_SyncStub(&channel())
          .DeleteRange(request, controller)
          .has_value();
    });
  }

  // From now on etcd asks for this user, which may do everything.
  void AskForUser(const std::string& password) {
    const etcdserverpb::Auth_SyncStub stub(&channel());
    etcdserverpb::AuthUserAddRequest user;
    user.set_name("root");
    user.set_password(password);
    Repeat([&](RpcClientController* controller) {
      return stub.UserAdd(user, controller).has_value();
    });
    etcdserverpb::AuthRoleAddRequest role;
    role.set_name("root");
    RpcClientController added;  // Some versions have it from the beginning.
    static_cast<void>(stub.RoleAdd(role, &added));
    etcdserverpb::AuthUserGrantRoleRequest grant;
    grant.set_user("root");
    grant.set_role("root");
    RpcClientController granted;
    ASSERT_TRUE(stub.UserGrantRole(grant, &granted)) << granted.ErrorText();
    RpcClientController enabled;
    ASSERT_TRUE(stub.AuthEnable({}, &enabled)) << enabled.ErrorText();
  }

  // Nothing: etcd doesn't have it, or doesn't say.
  std::optional<etcdserverpb::KeyValue> Get(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    RpcClientController controller;
    const auto reply =
        etcdserverpb::KV_SyncStub(&channel()).Range(request, &controller);
    if (!reply || reply->kvs_size() == 0) return std::nullopt;
    return reply->kvs(0);
  }

  // `call` with a controller, until it returns true.
  template <class F>
  static void Repeat(const F& call) {
    ASSERT_TRUE(fiber::testing::Eventually([&] {
      RpcClientController controller;
      controller.SetTimeout(std::chrono::seconds(5));
      if (call(&controller)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return false;
    })) << "etcd doesn't start";
  }

  RpcChannel& channel() {
    if (!channel_) channel_.emplace("grpc://" + etcd_.address());
    return *channel_;
  }

  EtcdProcess etcd_;

 private:
  std::optional<RpcChannel> channel_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_ETCD_FIXTURE_H_
