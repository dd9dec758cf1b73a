// A real Redis server for tests.

#ifndef FLARE_RPC_TESTING_REDIS_FIXTURE_H_
#define FLARE_RPC_TESTING_REDIS_FIXTURE_H_

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/scripted_redis_fixture.h"
#include "flare/rpc/testing/server_process.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

inline constexpr char kRedis[] = "/usr/bin/redis-server";

// A real server, on TCP, with and without TLS, and on a Unix socket.
class RedisProcess : public ServerProcess {
 public:
  RedisProcess() { io::testing::MakeTlsCertificate(folder()); }

  std::string uri() const { return "redis://" + host(); }
  std::string tls_uri() const { return "rediss://" + host() + ":6380"; }
  std::string unix_uri() const { return "unix:" + folder() + "/socket"; }
  std::string certificate() const { return folder() + "/certificate"; }

  // Until it accepts connections. Blocks the thread. A sentinel needs a
  // configuration.
  void Start(const std::vector<std::string>& more = {},
             const std::string& configuration = {}) {
    const std::string file = folder() + "/configuration";
    std::ofstream(file) << configuration;
    std::vector<std::string> arguments = {kRedis,
                                          file,
                                          "--bind",
                                          host(),
                                          "--port",
                                          "6379",
                                          "--unixsocket",
                                          folder() + "/socket",
                                          "--tls-port",
                                          "6380",
                                          "--tls-auth-clients",
                                          "no",
                                          "--tls-cert-file",
                                          certificate(),
                                          "--tls-ca-cert-file",
                                          certificate(),
                                          "--tls-key-file",
                                          folder() + "/key",
                                          "--save",
                                          "",
                                          "--dir",
                                          folder(),
                                          "--protected-mode",
                                          "no"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(Spawn(std::move(arguments)));
    // It listens there after its ports.
    AwaitListening(EndpointFromUnix(folder() + "/socket"));
  }
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
