#include "flare/rpc/redis/redis_slot_map.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/redis/redis_keys.h"
#include "flare/rpc/redis_client_options.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using RedirectKind = RedisRedirect::Kind;

RedisReply ArrayOf(std::vector<RedisReply> elements) {
  return RedisReply::Of(RedisReply::Kind::kArray, std::move(elements));
}

RedisReply ServerAt(RedisReply host, std::int64_t port) {
  return ArrayOf({std::move(host), RedisReply::OfInteger(port),
                  RedisReply::OfString("id"), ArrayOf({})});
}

RedisReply ServerAt(const std::string& host, std::int64_t port) {
  return ServerAt(RedisReply::OfString(host), port);
}

RedisReply RangeOf(std::int64_t first, std::int64_t last,
                   std::vector<RedisReply> servers) {
  servers.insert(servers.begin(),
                 {RedisReply::OfInteger(first), RedisReply::OfInteger(last)});
  return ArrayOf(std::move(servers));
}

std::string FailureOf(const RedisReply& reply) {
  const auto map = ReadSlotMap(reply, "asked:1");
  return map ? "" : map.error().message();
}

TEST(RedisSlotMap, HasMastersAndReplicas) {
  const auto map = ReadSlotMap(
      ArrayOf(
          {RangeOf(0, 99,
                   {ServerAt("10.0.0.1", 7000), ServerAt("10.0.0.2", 7001)}),
           RangeOf(200, kRedisSlots - 1, {ServerAt("::1", 7002)}),
           RangeOf(150, 150, {ServerAt("10.0.0.1", 7000)})}),
      "asked:1");
  ASSERT_TRUE(map) << map.error().ToString();
  ASSERT_EQ(map->shards.size(), 2u);
  EXPECT_EQ(map->shards[0].master, "10.0.0.1:7000");
  EXPECT_EQ(map->shards[0].replicas, std::vector<std::string>{"10.0.0.2:7001"});
  EXPECT_EQ(map->shards[1].master, "[::1]:7002");
  EXPECT_EQ(map->shard_of[0], 0);
  EXPECT_EQ(map->shard_of[99], 0);
  EXPECT_EQ(map->shard_of[100], RedisSlotMap::kNoShard);
  EXPECT_EQ(map->shard_of[150], 0);
  EXPECT_EQ(map->shard_of[kRedisSlots - 1], 1);
}

TEST(RedisSlotMap, TakesTheHostOfTheAskedServer) {
  const auto map =
      ReadSlotMap(ArrayOf({RangeOf(0, 1, {ServerAt("", 1), ServerAt("?", 2)}),
                           RangeOf(2, 3, {ServerAt(RedisReply(), 3)}),
                           RangeOf(4, 5, {ServerAt("?", 4)})}),
                  "[::2]:6379");
  ASSERT_TRUE(map) << map.error().ToString();
  ASSERT_EQ(map->shards.size(), 2u);  // The last one has no address yet.
  EXPECT_EQ(map->shards[0].master, "[::2]:1");
  EXPECT_TRUE(map->shards[0].replicas.empty());
  EXPECT_EQ(map->shards[1].master, "[::2]:3");
  EXPECT_EQ(map->shard_of[4], RedisSlotMap::kNoShard);
}

TEST(RedisSlotMap, SaysWhatIsWrong) {
  EXPECT_EQ(FailureOf(RedisReply::OfError("ERR no cluster")),
            "CLUSTER SLOTS: ERR no cluster");
  EXPECT_EQ(FailureOf(ArrayOf({})), "CLUSTER SLOTS: the server knows no slots");
  for (const RedisReply& range :
       {RangeOf(0, kRedisSlots, {ServerAt("a", 1)}),
        RangeOf(-1, 1, {ServerAt("a", 1)}), RangeOf(2, 1, {ServerAt("a", 1)}),
        RangeOf(0, 1, {}), RedisReply::OfInteger(1)}) {
    EXPECT_EQ(FailureOf(ArrayOf({range})),
              "CLUSTER SLOTS: the reply is malformed");
  }
  // Servers that nobody can connect to.
  for (const RedisReply& server :
       {ServerAt("a", 0), ServerAt("a", 65536), ServerAt("a b", 1),
        ServerAt("a/b", 1), ServerAt(std::string(256, 'a'), 1),
        RedisReply::OfInteger(1)}) {
    EXPECT_EQ(FailureOf(ArrayOf({RangeOf(0, 1, {server})})),
              "CLUSTER SLOTS: the server knows no slots");
  }
  std::vector<RedisReply> many;
  for (int i = 0; i != 5000; ++i) {
    many.push_back(RangeOf(i, i, {ServerAt("a", i + 1)}));
  }
  EXPECT_NE(FailureOf(ArrayOf(std::move(many))), "");
}

TEST(RedisRedirect, IsReadFromErrors) {
  const auto moved = ReadRedirect("MOVED 3999 127.0.0.1:6381", "asked:1");
  EXPECT_EQ(moved.kind, RedirectKind::kMoved);
  EXPECT_EQ(moved.slot, 3999);
  EXPECT_EQ(moved.address, "127.0.0.1:6381");
  EXPECT_EQ(ReadRedirect("MOVED 1 :7000", "asked:1").address, "asked:7000");
  EXPECT_EQ(ReadRedirect("MOVED 1 ::1:7000", "asked:1").address, "[::1]:7000");
  const auto ask = ReadRedirect("ASK 0 host.example:1", "asked:1");
  EXPECT_EQ(ask.kind, RedirectKind::kAsk);
  EXPECT_EQ(ask.address, "host.example:1");
  for (const char* text :
       {"TRYAGAIN Multiple keys", "CLUSTERDOWN The cluster is down", "LOADING",
        "MASTERDOWN Link with MASTER is down"}) {
    EXPECT_EQ(ReadRedirect(text, "asked:1").kind, RedirectKind::kWait) << text;
  }
  for (const char* text :
       {"", "ERR MOVED", "MOVED", "MOVED ", "MOVED 1", "MOVED 1 ", "MOVED 1 a",
        "MOVED 16384 a:1", "MOVED x a:1", "MOVED 1 a:0", "MOVED 1 ?:1",
        "MOVED 1 a b:1", "MOVED :1 a"}) {
    EXPECT_EQ(ReadRedirect(text, "asked:1").kind, RedirectKind::kNone) << text;
  }
}

}  // namespace
}  // namespace flare::rpc
