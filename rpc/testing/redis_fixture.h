// A real Redis server for tests.

#ifndef FLARE_RPC_TESTING_REDIS_FIXTURE_H_
#define FLARE_RPC_TESTING_REDIS_FIXTURE_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/fd.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/scripted_redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

inline constexpr char kRedis[] = "/usr/bin/redis-server";

// A real server, at an address of the loopback network that nobody else uses,
// so that its ports are free again when it is started again; and on a Unix
// socket.
class RedisProcess {
 public:
  RedisProcess() {
    std::random_device random;
    host_ = "127." + std::to_string(1 + random() % 250) + "." +
            std::to_string(random() % 256) + "." +
            std::to_string(1 + random() % 250);
    std::string name = "/tmp/flare_redis_XXXXXX";
    folder_ = mkdtemp(name.data());
    io::testing::MakeTlsCertificate(folder_);
  }
  ~RedisProcess() {
    Kill();
    std::filesystem::remove_all(folder_);
  }

  const std::string& host() const { return host_; }
  std::string uri() const { return "redis://" + host_; }
  std::string tls_uri() const { return "rediss://" + host_ + ":6380"; }
  std::string unix_uri() const { return "unix:" + folder_ + "/socket"; }
  std::string certificate() const { return folder_ + "/certificate"; }

  // Until it accepts connections. Blocks the thread. A sentinel needs a
  // configuration.
  void Start(const std::vector<std::string>& more = {},
             const std::string& configuration = {}) {
    const std::string file = folder_ + "/configuration";
    std::ofstream(file) << configuration;
    std::vector<std::string> arguments = {kRedis,
                                          file,
                                          "--bind",
                                          host_,
                                          "--port",
                                          "6379",
                                          "--unixsocket",
                                          folder_ + "/socket",
                                          "--tls-port",
                                          "6380",
                                          "--tls-auth-clients",
                                          "no",
                                          "--tls-cert-file",
                                          certificate(),
                                          "--tls-ca-cert-file",
                                          certificate(),
                                          "--tls-key-file",
                                          folder_ + "/key",
                                          "--save",
                                          "",
                                          "--dir",
                                          folder_,
                                          "--protected-mode",
                                          "no"};
    arguments.insert(arguments.end(), more.begin(), more.end());
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
    ASSERT_EQ(
        posix_spawn(&pid_, kRedis, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    // It listens there after its ports.
    ASSERT_TRUE(fiber::testing::Eventually([this] { return Accepts(); }))
        << "Redis doesn't start: " << log;
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

 private:
  bool Accepts() const {
    sockaddr_storage address;
    const socklen_t size =
        EndpointFromUnix(folder_ + "/socket").ToSockaddr(&address);
    const io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                   size) == 0;
  }

  std::string host_;
  std::string folder_;
  pid_t pid_ = 0;
};

// A runtime, and a server that has to be started. Skipped where there is none.
class RedisTest : public RpcTest {
 protected:
  void SetUp() override {
    if (access(kRedis, X_OK) != 0) {
      GTEST_SKIP() << "there is no " << kRedis << " (package redis-server)";
    }
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
  }
  void TearDown() override {
    if (access(kRedis, X_OK) != 0) return;
    ShutdownClientSide();
    RpcTest::TearDown();
  }

  static RedisClient Open(
      const std::string& uri,
      const RedisClientOptions& options = PatientRedisOptions()) {
    RedisClient client;
    const flare::Status opened = client.Open(uri, options);
    EXPECT_TRUE(opened.ok()) << opened.ToString();
    return client;
  }

  // Asks until the reply has these words.
  static void Await(const RedisClient& server, const RedisCommand& command,
                    const std::string& words) {
    std::string said;
    EXPECT_TRUE(fiber::testing::Eventually([&] {
      said = Said(server.Execute(command));
      if (said.find(words) != said.npos) return true;
      // Servers go by their own clocks.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return false;
    })) << said;
  }

  RedisProcess redis_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_REDIS_FIXTURE_H_
