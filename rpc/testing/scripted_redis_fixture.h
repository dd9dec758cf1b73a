// RedisClients in tests: patient options, and results as texts; and tests whose
// servers do what the test says.
//
//   class MyTest : public ScriptedRedisTest {};
//   TEST_F(MyTest, Pings) {
//     RawServer server;
//     Open("redis://" + server.endpoint().ToString());
//     auto ping = Do({"PING"});
//     auto peer = server.Accept();
//     Answer(peer.get(), kPing, "+PONG\r\n");
//     EXPECT_EQ(Said(std::move(ping)), "PONG");
//   }
#ifndef FLARE_RPC_TESTING_SCRIPTED_REDIS_FIXTURE_H_
#define FLARE_RPC_TESTING_SCRIPTED_REDIS_FIXTURE_H_

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/future.h"
#include "flare/base/status.h"
#include "flare/fiber/future.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

inline constexpr std::string_view kPing = "*1\r\n$4\r\nPING\r\n";

// Tests aren't to end by time, however busy the machine is.
inline RedisClientOptions PatientRedisOptions() {
  RedisClientOptions options;
  options.timeout = std::chrono::seconds(20);
  options.connect_timeout = std::chrono::seconds(100);
  options.max_silence = std::chrono::seconds(60);
  options.min_reconnect_delay = std::chrono::nanoseconds(0);
  options.max_reconnect_delay = std::chrono::nanoseconds(0);
  return options;
}

// The reply, or the error for people.
inline std::string Said(const RedisClient::Result& result) {
  return result ? result->ToString() : result.error().ToString();
}
inline std::string Said(Future<RedisClient::Result> future) {
  return Said(fiber::BlockingGet(std::move(future)));
}

// OK: there is a reply.
inline flare::Status ErrorOf(Future<RedisClient::Result> future) {
  const auto result = fiber::BlockingGet(std::move(future));
  return result ? flare::Status() : result.error();
}

class ScriptedRedisTest : public ClientTest {
 protected:
  void Open(const std::string& uri,
            const RedisClientOptions& options = PatientRedisOptions()) {
    const flare::Status opened = client_.Open(uri, options);
    ASSERT_TRUE(opened.ok()) << opened.ToString();
  }

  Future<RedisClient::Result> Do(RedisCommand command,
                                 const RedisCallOptions& options = {}) {
    return client_.AsyncExecute(std::move(command), options);
  }

  // The server gets these bytes, and sends those.
  static void Answer(RawPeer* peer, std::string_view command,
                     std::string_view reply) {
    EXPECT_EQ(peer->ReadExactly(command.size()), command);
    peer->Send(reply);
  }

  RedisClient client_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_SCRIPTED_REDIS_FIXTURE_H_
