#include "flare/rpc/redis/redis_keys.h"

#include <string>
#include <string_view>
#include <vector>

#include "flare/rpc/redis_client_options.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// The keys, joined by spaces.
std::string KeysIn(const RedisCommand& command) {
  std::string keys;
  for (const std::string_view key : RedisKeysOf(command)) {
    keys += (keys.empty() ? "" : " ") + std::string(key);
  }
  return keys;
}

TEST(RedisKeys, HaveTheSlotsOfRedis) {
  // As CLUSTER KEYSLOT of Redis 7.0 has them.
  EXPECT_EQ(RedisSlotOfKey(""), 0);
  EXPECT_EQ(RedisSlotOfKey("123456789"), 12739);
  EXPECT_EQ(RedisSlotOfKey("foo"), 12182);
  EXPECT_EQ(RedisSlotOfKey("somekey"), 11058);
  EXPECT_EQ(RedisSlotOfKey("\xff\xfe\x80"), RedisSlotOfKey("{\xff\xfe\x80}x"));
}

TEST(RedisKeys, HaveHashTags) {
  EXPECT_EQ(RedisSlotOfKey("{foo}.a"), RedisSlotOfKey("foo"));
  EXPECT_EQ(RedisSlotOfKey("a{foo}{bar}"), RedisSlotOfKey("foo"));
  EXPECT_EQ(RedisSlotOfKey("a{{foo}}b"), RedisSlotOfKey("{foo"));
  // These are none.
  EXPECT_NE(RedisSlotOfKey("{}foo"), RedisSlotOfKey(""));
  EXPECT_NE(RedisSlotOfKey("foo{bar"), RedisSlotOfKey("bar"));
  EXPECT_NE(RedisSlotOfKey("foo}bar{"), RedisSlotOfKey("foo"));
}

TEST(RedisKeys, AreFoundInCommands) {
  EXPECT_EQ(KeysIn({"get", "k"}), "k");
  EXPECT_EQ(KeysIn({"SET", "k", "v"}), "k");
  EXPECT_EQ(KeysIn({"MGET", "a", "b", "c"}), "a b c");
  EXPECT_EQ(KeysIn({"MSET", "a", "1", "b", "2"}), "a b");
  EXPECT_EQ(KeysIn({"RENAME", "a", "b"}), "a b");
  EXPECT_EQ(KeysIn({"BLPOP", "a", "b", "0"}), "a b");
  EXPECT_EQ(KeysIn({"BITOP", "AND", "to", "a", "b"}), "to a b");
  EXPECT_EQ(KeysIn({"OBJECT", "ENCODING", "a"}), "a");
  EXPECT_EQ(KeysIn({"XGROUP", "CREATE", "a", "group", "$"}), "a");
  EXPECT_EQ(KeysIn({"MEMORY", "USAGE", "a"}), "a");
  EXPECT_EQ(KeysIn({"MEMORY", "DOCTOR"}), "");
  EXPECT_EQ(KeysIn({"LMPOP", "2", "a", "b", "LEFT"}), "a b");
  EXPECT_EQ(KeysIn({"EVAL", "return 1", "2", "a", "b", "c"}), "a b");
  EXPECT_EQ(KeysIn({"FCALL", "f", "0", "a"}), "");
  EXPECT_EQ(KeysIn({"ZUNIONSTORE", "to", "2", "a", "b", "WEIGHTS", "1", "2"}),
            "a b to");
  EXPECT_EQ(KeysIn({"XREAD", "COUNT", "2", "STREAMS", "a", "b", "0", "0"}),
            "a b");
  EXPECT_EQ(KeysIn({"XREADGROUP", "GROUP", "streams", "me", "NOACK", "streams",
                    "a", ">"}),
            "a");
  EXPECT_EQ(KeysIn({"MIGRATE", "host", "6379", "a", "0", "100"}), "a");
  EXPECT_EQ(KeysIn({"MIGRATE", "host", "6379", "", "0", "100", "COPY", "KEYS",
                    "a", "b"}),
            "a b");
  // A module has this one.
  EXPECT_EQ(KeysIn({"JSON.SET", "a", "$", "1"}), "a");
  EXPECT_EQ(KeysIn({"PING", "a"}), "");
}

TEST(RedisKeys, AreFewerInMalformedCommands) {
  for (const std::string name :
       {"GET", "RENAME", "OBJECT", "MGET", "BLPOP", "BITOP", "MSET", "LMPOP",
        "EVAL", "ZUNIONSTORE", "XREAD", "MIGRATE"}) {
    EXPECT_EQ(KeysIn(RedisCommand(std::vector{name})), "");
  }
  EXPECT_EQ(KeysIn({"EVAL", "s", "9999999999", "a"}), "");
  EXPECT_EQ(KeysIn({"EVAL", "s", "-1", "a"}), "");
  EXPECT_EQ(KeysIn({"EVAL", "s", "4000000000", "a"}), "a");
  EXPECT_EQ(KeysIn({"XREAD", "COUNT"}), "");
  EXPECT_EQ(KeysIn({"XREAD", "STREAMS", "a"}), "");
  EXPECT_EQ(KeysIn({"MIGRATE", "h", "1", "", "0", "1", "KEYS"}), "");
}

TEST(RedisKeys, AreInOneSlot) {
  EXPECT_EQ(*RedisSlotOf({"GET", "foo"}), 12182);
  EXPECT_EQ(*RedisSlotOf({"MGET", "{foo}1", "{foo}2"}), 12182);
  EXPECT_EQ(*RedisSlotOf({"PING"}), kNoRedisSlot);
  const auto crossing = RedisSlotOf({"MGET", "a", "b"});
  ASSERT_FALSE(crossing);
  EXPECT_EQ(crossing.error().code(), REDIS_CROSS_SLOT);
  EXPECT_TRUE(crossing.error().message().starts_with("MGET: "));
}

TEST(RedisKeys, AreOnlyReadBySomeCommands) {
  EXPECT_TRUE(OnlyReads({"get", "a"}));
  EXPECT_TRUE(OnlyReads({"ZUNION", "1", "a"}));
  EXPECT_FALSE(OnlyReads({"GETDEL", "a"}));
  EXPECT_FALSE(OnlyReads({"EVAL", "s", "0"}));
  EXPECT_FALSE(OnlyReads({"PING"}));
}

}  // namespace
}  // namespace flare::rpc
