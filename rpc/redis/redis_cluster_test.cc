// RedisClient with a cluster of real servers.
#include "flare/rpc/redis/redis_cluster.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis/redis_keys.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::PatientRedisOptions;
using testing::RedisProcess;
using testing::Said;

// Three masters; the first one has a replica. For all tests of the process: to
// found a cluster takes some seconds, in which its servers do nothing.
class RedisClusterTest : public testing::RedisTest {
 protected:
  static constexpr std::size_t kMasters = 3;
  using Servers = std::array<RedisProcess, kMasters + 1>;

  static void TearDownTestSuite() { servers_ = nullptr; }

  void SetUp() override {
    RedisTest::SetUp();
    if (IsSkipped()) return;
    if (servers_ == nullptr) ASSERT_NO_FATAL_FAILURE(Found());
    client_ = OpenCluster();
  }

  static RedisClient OpenCluster(
      const RedisClientOptions& options = PatientRedisOptions()) {
    // The seeds are any of its servers.
    return Open("redis-cluster://" + (*servers_)[1].host() + ',' +
                    (*servers_)[0].host(),
                options);
  }

  static void Found() {
    servers_ = std::make_unique<Servers>();
    std::vector<RedisClient> clients;
    for (RedisProcess& server : *servers_) {
      ASSERT_NO_FATAL_FAILURE(server.Start(
          {"--cluster-enabled", "yes", "--cluster-announce-ip", server.host(),
           "--cluster-node-timeout", "1000", "--cluster-replica-no-failover",
           "yes", "--repl-diskless-sync-delay", "0"}));
      clients.push_back(Open(server.uri()));
    }
    for (std::size_t i = 0; i != kMasters; ++i) {
      const auto part = static_cast<std::int64_t>(kRedisSlots / kMasters + 1);
      const auto first = static_cast<std::int64_t>(i) * part;
      EXPECT_EQ(
          Said(clients[i].Execute(
              RedisCommand{"CLUSTER", "ADDSLOTSRANGE"}.Add(first).Add(
                  std::min<std::int64_t>(first + part, kRedisSlots) - 1))),
          "OK");
      EXPECT_EQ(Said(clients[i].Execute(
                    RedisCommand{"CLUSTER", "SET-CONFIG-EPOCH"}.Add(
                        static_cast<std::int64_t>(i + 1)))),
                "OK");
    }
    for (const RedisClient& client : clients) {
      for (const RedisProcess& server : *servers_) {
        EXPECT_EQ(
            Said(client.Execute({"CLUSTER", "MEET", server.host(), "6379"})),
            "OK");
      }
    }
    for (const RedisClient& client : clients) {
      Await(client, {"CLUSTER", "INFO"}, "cluster_known_nodes:4");
      Await(client, {"CLUSTER", "INFO"}, "cluster_state:ok");
    }
    const std::string replica = servers_->back().host();
    const std::string id = clients[0].Execute({"CLUSTER", "MYID"})->text();
    EXPECT_EQ(Said(clients[kMasters].Execute({"CLUSTER", "REPLICATE", id})),
              "OK");
    Await(clients[kMasters], {"ROLE"}, "\"connected\"");
    // Replicas without data aren't in the map. Greetings tell of a new role at
    // once.
    EXPECT_EQ(Said(clients[0].Execute({"SET", "{3}", "1"})), "OK");
    Await(clients[kMasters], {"DBSIZE"}, "1");
    for (std::size_t i = 0; i != kMasters; ++i) {
      EXPECT_EQ(Said(clients[i].Execute({"CLUSTER", "MEET", replica, "6379"})),
                "OK");
      Await(clients[i], {"CLUSTER", "SLOTS"}, replica);
    }
    // They have found each other soon, but mustn't lose each other soon.
    for (const RedisClient& client : clients) {
      EXPECT_EQ(Said(client.Execute(
                    {"CONFIG", "SET", "cluster-node-timeout", "600000"})),
                "OK");
    }
  }

  std::string Do(const RedisCommand& command) {
    return Said(client_.Execute(command));
  }

  static std::unique_ptr<Servers> servers_;
  RedisClient client_;
};

std::unique_ptr<RedisClusterTest::Servers> RedisClusterTest::servers_;

TEST_F(RedisClusterTest, FindsTheServerOfEachKey) {
  std::vector<RedisCommand> commands;
  for (int i = 0; i != 200; ++i) {
    const std::string key = "key" + std::to_string(i);
    commands.push_back(RedisCommand{"SET", key}.Add(i));
    commands.push_back({"GET", key});
  }
  const auto replies = client_.ExecuteAll(commands);
  ASSERT_TRUE(replies) << replies.error().ToString();
  ASSERT_EQ(replies->size(), 400u);
  for (int i = 0; i != 200; ++i) {
    EXPECT_EQ((*replies)[2 * i + 1].text(), std::to_string(i));
    EXPECT_EQ(Do({"GET", "key" + std::to_string(i)}),
              '"' + std::to_string(i) + '"');
  }
  const auto masters = client_.Masters();
  ASSERT_TRUE(masters) << masters.error().ToString();
  ASSERT_EQ(masters->size(), kMasters);
  for (const RedisClient& master : *masters) {
    EXPECT_GT(master.Execute({"DBSIZE"})->integer(), 20);
  }
  EXPECT_EQ(Said(fiber::BlockingGet(client_.AsyncExecute({"GET", "key1"}))),
            "\"1\"");
  EXPECT_EQ(client_.ExecuteAll({})->size(), 0u);
}

TEST_F(RedisClusterTest, FindsKeysOfAllCommands) {
  EXPECT_EQ(Do({"PING"}), "PONG");
  EXPECT_EQ(Do({"MSET", "{c}a", "1", "{c}b", "2"}), "OK");
  EXPECT_EQ(Do({"EVAL", "return redis.call('GET', KEYS[1])", "1", "{c}b"}),
            "\"2\"");
  EXPECT_EQ(Do({"MGET", "{c}a", "{c}b", "{c}x"}), "[\"1\", \"2\", nil]");
  EXPECT_EQ(Do({"XADD", "stream", "1-1", "a", "b"}), "\"1-1\"");
  EXPECT_EQ(Do({"XREAD", "COUNT", "1", "STREAMS", "stream", "0"}),
            "[[\"stream\", [[\"1-1\", [\"a\", \"b\"]]]]]");
  EXPECT_EQ(Do({"ZADD", "{c}z", "1", "m"}), "1");
  EXPECT_EQ(Do({"ZUNIONSTORE", "{c}to", "1", "{c}z"}), "1");
  EXPECT_EQ(Do({"OBJECT", "ENCODING", "{c}a"}), "\"int\"");
}

TEST_F(RedisClusterTest, RunsTransactionsOfOneSlot) {
  EXPECT_EQ(Said(client_.Transact({{"SET", "{t}a", "1"}, {"INCR", "{t}a"}})),
            "[OK, 2]");
  EXPECT_TRUE(Said(client_.Transact({{"SET", "{t}a", "5"}, {"NOSUCH", "{t}"}}))
                  .starts_with("error: EXECABORT "));
  EXPECT_EQ(Said(client_.Transact({})), "[]");
}

TEST_F(RedisClusterTest, RefusesKeysOfSeveralSlots) {
  const auto code = [](const auto& result) {
    return result ? 0 : result.error().code();
  };
  const RedisCommand several{"MGET", "a", "b"};
  EXPECT_EQ(code(client_.Execute(several)), REDIS_CROSS_SLOT);
  EXPECT_EQ(code(client_.ExecuteAll({{"PING"}, several})), REDIS_CROSS_SLOT);
  EXPECT_EQ(code(client_.Transact({{"GET", "a"}, {"GET", "b"}})),
            REDIS_CROSS_SLOT);
  EXPECT_FALSE(RedisClient::MayHaveRun(flare::Status(REDIS_CROSS_SLOT, "")));
  EXPECT_EQ(code(client_.Execute({"BLPOP", "a", "0"})), REDIS_INVALID_COMMAND);
  EXPECT_EQ(code(client_.Transact({{"MULTI"}})), REDIS_INVALID_COMMAND);
}

TEST_F(RedisClusterTest, FollowsASlotThatMoves) {
  const int slot = RedisSlotOfKey("{m}");
  const std::string number = std::to_string(slot);
  EXPECT_EQ(Do({"SET", "{m}old", "1"}), "OK");
  RedisClient from;
  RedisClient to;
  RedisProcess* target = nullptr;
  for (RedisProcess& server : *servers_) {
    RedisClient client = Open(server.uri());
    if (Said(client.Execute({"ROLE"})).find("\"master\"") ==
        std::string::npos) {
      continue;
    }
    if (Said(client.Execute({"GET", "{m}old"})) == "\"1\"") {
      from = client;
    } else {
      to = client;
      target = &server;
    }
  }
  const auto id = [](const RedisClient& server) {
    return server.Execute({"CLUSTER", "MYID"})->text();
  };
  const auto set_slot = [&](const RedisClient& server, const char* state,
                            const RedisClient& other) {
    EXPECT_EQ(
        Said(server.Execute({"CLUSTER", "SETSLOT", number, state, id(other)})),
        "OK");
  };
  set_slot(to, "IMPORTING", from);
  set_slot(from, "MIGRATING", to);
  // New keys are made there, and old ones are here.
  EXPECT_EQ(Do({"GET", "{m}old"}), "\"1\"");
  EXPECT_EQ(Do({"SET", "{m}new", "2"}), "OK");
  EXPECT_EQ(Do({"GET", "{m}new"}), "\"2\"");
  EXPECT_EQ(Said(to.Execute({"CLUSTER", "COUNTKEYSINSLOT", number})), "1");
  EXPECT_EQ(Said(client_.Transact({{"INCR", "{m}new"}, {"GET", "{m}new"}})),
            "[3, \"3\"]");
  EXPECT_EQ(
      client_.ExecuteAll({{"GET", "{m}new"}, {"GET", "{m}old"}})->at(0).text(),
      "3");
  // Nobody has both.
  auto options = PatientRedisOptions();
  options.max_attempts = 2;
  EXPECT_TRUE(Said(OpenCluster(options).Execute({"MGET", "{m}old", "{m}new"}))
                  .starts_with("error: TRYAGAIN "));
  EXPECT_EQ(Said(from.Execute(
                {"MIGRATE", target->host(), "6379", "{m}old", "0", "20000"})),
            "OK");
  EXPECT_EQ(Do({"MGET", "{m}old", "{m}new"}), "[\"1\", \"3\"]");
  set_slot(to, "NODE", to);
  set_slot(from, "NODE", to);
  EXPECT_EQ(Do({"MGET", "{m}old", "{m}new"}), "[\"1\", \"3\"]");
  EXPECT_EQ(Do({"INCR", "{m}new"}), "4");
}

TEST_F(RedisClusterTest, BlocksInSessions) {
  auto session = client_.DedicateFor("jobs");
  ASSERT_TRUE(session) << session.error().ToString();
  auto popped = fiber::Async([&] {
    return Said(session->Execute({"BLPOP", "jobs", "0"}));
  });
  EXPECT_EQ(Do({"RPUSH", "jobs", "first"}), "1");
  EXPECT_EQ(fiber::BlockingGet(std::move(popped)), "[\"jobs\", \"first\"]");
  auto news = client_.DedicateFor("news");
  ASSERT_TRUE(news) << news.error().ToString();
  ASSERT_TRUE(news->Subscribe({"SSUBSCRIBE", "news"}).ok());
  EXPECT_EQ(Said(news->Receive()), "[\"ssubscribe\", \"news\", 1]");
  EXPECT_EQ(Do({"SPUBLISH", "news", "it rains"}), "1");
  EXPECT_EQ(Said(news->Receive()), "[\"smessage\", \"news\", \"it rains\"]");
  auto any = client_.Dedicate();
  ASSERT_TRUE(any) << any.error().ToString();
  EXPECT_EQ(Said(any->Execute({"PING"})), "PONG");
}

TEST_F(RedisClusterTest, ReadsFromReplicas) {
  auto options = PatientRedisOptions();
  options.read_from_replicas = true;
  RedisClient reader = OpenCluster(options);
  std::string key;  // For the server that has a replica.
  for (int i = 0; key.empty() || RedisSlotOfKey(key) > kRedisSlots / 4; ++i) {
    key = "read" + std::to_string(i);
  }
  EXPECT_EQ(Said(reader.Execute({"SET", key, "1"})), "OK");
  Await(reader, {"GET", key}, "\"1\"");
  bool by_replica = false;
  for (const auto& [server, values] : RedisCounters::Read()) {
    if (server.find((*servers_)[kMasters].host() + ":") == std::string::npos) {
      continue;
    }
    // Its reads, and perhaps a question for the map.
    by_replica = values.counts.at(RedisCounters::kOk) >= 1;
  }
  EXPECT_TRUE(by_replica);
  // But not behind writes of the same batch.
  for (int i = 0; i != 50; ++i) {
    const std::string value = std::to_string(i);
    const auto replies = reader.ExecuteAll({{"SET", key, value}, {"GET", key}});
    ASSERT_TRUE(replies) << replies.error().ToString();
    EXPECT_EQ((*replies)[1].text(), value);
  }
}

TEST_F(RedisClusterTest, SpeaksTlsAndShowsItsPassword) {
  // One server that knows no other one, and not its own address. It takes
  // writes only after some seconds.
  ASSERT_NO_FATAL_FAILURE(redis_.Start(
      {"--cluster-enabled", "yes", "--tls-cluster", "yes",
       "--cluster-allow-reads-when-down", "yes", "--requirepass", "secret"}));
  const std::string host = redis_.host();
  EXPECT_EQ(Said(Open("redis://:secret@" + host)
                     .Execute({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"})),
            "OK");
  auto options = PatientRedisOptions();
  options.tls.insecure_skip_verify = true;
  options.resp3 = true;
  EXPECT_EQ(Said(Open("rediss-cluster://:secret@" + host + ":6380", options)
                     .Execute({"GET", "key"})),
            "nil");
  const auto refused =
      Open("rediss-cluster://:wrong@" + host + ":6380", options)
          .Execute({"GET", "key"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), REDIS_REFUSED);
}

TEST_F(RedisClusterTest, RefusesAServerWithoutCluster) {
  ASSERT_NO_FATAL_FAILURE(redis_.Start());
  const auto refused =
      Open("redis-cluster://" + redis_.host()).Execute({"GET", "a"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), REDIS_REFUSED);
  EXPECT_NE(refused.error().message().find("cluster support disabled"),
            std::string::npos)
      << refused.error().message();
  auto options = PatientRedisOptions();
  options.database = 1;
  EXPECT_FALSE(RedisClient().Open("redis-cluster://a", options).ok());
}

TEST_F(RedisClusterTest, FollowsAFailOver) {
  RedisProcess& replica = (*servers_)[kMasters];
  EXPECT_EQ(Do({"SET", "{m}f", "1"}), "OK");
  EXPECT_EQ(
      Said(Open(replica.uri()).Execute({"CLUSTER", "FAILOVER", "TAKEOVER"})),
      "OK");
  // The old master learns of it, and refuses writes.
  std::string key;
  for (int i = 0; key.empty() || RedisSlotOfKey(key) > kRedisSlots / 4; ++i) {
    key = "over" + std::to_string(i);
  }
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    EXPECT_EQ(Do({"SET", key, "1"}), "OK");
    return Said(Open(replica.uri()).Execute({"GET", key})) == "\"1\"";
  }));
}

}  // namespace
}  // namespace flare::rpc
