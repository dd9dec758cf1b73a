// A real etcd for tests, and their operations on it.

#ifndef FLARE_RPC_TESTING_ETCD_FIXTURE_H_
#define FLARE_RPC_TESTING_ETCD_FIXTURE_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "gtest/gtest.h"
#include "rpc/services/etcd.flare.pb.h"

namespace flare::rpc::testing {

inline constexpr char kEtcd[] = "/usr/bin/etcd";

// A real etcd, at an address of the loopback network that nobody else uses, so
// that its ports are free again when it is started again.
class EtcdProcess {
 public:
  EtcdProcess() {
    std::random_device random;
    host_ = "127." + std::to_string(1 + random() % 250) + "." +
            std::to_string(random() % 256) + "." +
            std::to_string(1 + random() % 250);
    std::string name = ::testing::TempDir() + "/etcdXXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~EtcdProcess() {
    Kill();
    std::filesystem::remove_all(folder_);
  }

  std::string address() const { return host_ + ":2379"; }

  // By a certificate of its own, which is its root, too.
  void StartWithTls() {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 2 -subj /CN=etcd -addext subjectAltName=IP:" +
        host_ + " -keyout " + folder_ + "/key.pem -out " + certificate() +
        " 2>/dev/null";
    ASSERT_EQ(system(command.c_str()), 0) << command;
    Start(/*tls=*/true);
  }
  std::string certificate() const { return folder_ + "/certificate.pem"; }

  void Start(bool tls = false) {
    const std::string client = (tls ? "https://" : "http://") + address();
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
                                          "default=" + peer,
                                          "--heartbeat-interval=20",
                                          "--election-timeout=200",
                                          "--auth-token-ttl=1",
                                          "--bcrypt-cost=4"};
    if (tls) {
      arguments.push_back("--cert-file=" + certificate());
      arguments.push_back("--key-file=" + folder_ + "/key.pem");
    }
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

  // In between it is as if it were cut off: nothing is answered.
  void Pause() { kill(pid_, SIGSTOP); }
  void Resume() { kill(pid_, SIGCONT); }

  // While it doesn't run.
  void LoseData() { std::filesystem::remove_all(folder_ + "/data"); }

 private:
  std::string host_;
  std::string folder_;
  pid_t pid_ = 0;
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
