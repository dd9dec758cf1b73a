#include "flare/rpc/redis/redis_uri.h"

#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_command.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

std::string Name(std::string_view text) {
  const auto uri = ParseRedisUri(text);
  return uri ? uri->ToString() : uri.error().message();
}

TEST(RedisUri, HasDefaults) {
  EXPECT_EQ(Name("redis://10.0.0.1"), "redis://10.0.0.1:6379/0");
  EXPECT_EQ(Name("redis://Cache.Example/"), "redis://cache.example:6379/0");
  EXPECT_EQ(Name("rediss://[::1]:7000/15"), "rediss://[::1]:7000/15");
  EXPECT_EQ(Name("unix:/run/redis.sock"), "unix:/run/redis.sock?db=0");
  EXPECT_EQ(Name("unix:///run/redis.sock?db=3"), "unix:/run/redis.sock?db=3");
  EXPECT_TRUE(ParseRedisUri("rediss://a")->tls);
  EXPECT_FALSE(ParseRedisUri("redis://a")->tls);
}

TEST(RedisUri, HasServersOfACluster) {
  EXPECT_EQ(Name("redis-cluster://A,b:7000"), "redis-cluster://a:6379,b:7000");
  EXPECT_EQ(Name("rediss-cluster://:secret@[::1]:1,[::2]/0"),
            "rediss-cluster://[::1]:1,[::2]:6379");
  const auto uri = ParseRedisUri("rediss-cluster://:secret@a,b");
  ASSERT_TRUE(uri) << uri.error().ToString();
  EXPECT_TRUE(uri->tls);
  EXPECT_EQ(uri->kind, RedisUri::Kind::kCluster);
  EXPECT_EQ(uri->password, "secret");
  EXPECT_EQ(uri->addresses, (std::vector<std::string>{"a:6379", "b:6379"}));
}

TEST(RedisUri, HasSentinelsOfAMaster) {
  EXPECT_EQ(Name("redis-sentinel://a,b:1/2#mymaster"),
            "redis-sentinel://a:26379,b:1/2#mymaster");
  EXPECT_EQ(Name("rediss-sentinel://u:p@a#my-master"),
            "rediss-sentinel://a:26379/0#my-master");
  const auto uri = ParseRedisUri("redis-sentinel://u:p#w@a#m");
  ASSERT_TRUE(uri) << uri.error().ToString();
  EXPECT_EQ(uri->kind, RedisUri::Kind::kSentinel);
  EXPECT_EQ(uri->password, "p#w");
  EXPECT_EQ(uri->master, "m");
}

TEST(RedisUri, HasUserAndPassword) {
  const auto both = ParseRedisUri("redis://al%69ce:p%40s:s/w@rd@host:1/2");
  ASSERT_TRUE(both) << both.error().ToString();
  EXPECT_EQ(both->user, "alice");
  EXPECT_EQ(both->password, "p@s:s/w@rd");
  EXPECT_EQ(both->ToString(), "redis://host:1/2");
  EXPECT_EQ(ParseRedisUri("redis://:secret@host")->user, "");
  EXPECT_EQ(ParseRedisUri("redis://:secret@host")->password, "secret");
}

TEST(RedisUri, SaysWhatIsWrong) {
  for (std::string_view text : {"",
                                "host",
                                "http://host",
                                "redis:host",
                                "redis://a,b",
                                "redis-://host",
                                "redis-clusters://host",
                                "redi-cluster://host",
                                "redis-cluster://",
                                "redis-cluster://a,",
                                "redis-cluster://a,,b",
                                "redis-cluster://a/1",
                                "redis-sentinel://a",
                                "redis-sentinel://a#",
                                "redis-sentinel://a#my master",
                                "redis-sentinel:///0#m",
                                "redis-sentinel://a/x#m",
                                "redis-sentinels://a#m",
                                "redis://",
                                "redis://:6379",
                                "redis://[]",
                                "redis://host:0",
                                "redis://host:65536",
                                "redis://host:x",
                                "redis://host/x",
                                "redis://host/-1",
                                "redis://host/65536",
                                "redis://ho st",
                                "redis://user@host",
                                "redis://:%4@host",
                                "redis://:%zz@host",
                                "redis://:x%@host",
                                "redis://host?db=1",
                                "unix:",
                                "unix://",
                                "unix:/a?x=1",
                                "unix:/a?db=x"}) {
    const auto uri = ParseRedisUri(text);
    ASSERT_FALSE(uri) << text;
    EXPECT_EQ(uri.error().code(), REDIS_INVALID_URI);
  }
  EXPECT_EQ(Name("redis://:secret@host:x").find("secret"), std::string::npos);
  EXPECT_FALSE(ParseRedisUri("redis://" + std::string(256, 'a')));
}

TEST(RedisCommand, IsWrittenWithLengths) {
  RedisCommand command{"set", std::string_view("a\0b", 3)};
  command.Add(-7).Add("");
  EXPECT_EQ(command.name(), "SET");
  EXPECT_EQ(command.words(), 4u);
  EXPECT_EQ(FlattenSlow(command.Encode()),
            std::string("*4\r\n$3\r\nset\r\n$3\r\na\0b\r\n$2\r\n-7\r\n$0\r\n"
                        "\r\n",
                        36));
}

TEST(RedisCommand, KnowsWhatNeedsASession) {
  for (std::string_view name :
       {"BLPOP", "bzpopmin", "Multi", "EXEC", "WATCH", "SELECT", "SUBSCRIBE",
        "MONITOR", "AUTH", "HELLO", "WAIT", "QUIT", "RESET"}) {
    EXPECT_TRUE(RedisCommand{name}.needs_session()) << name;
  }
  for (std::string_view name : {"GET", "LPOP", "PUBLISH", "XREAD", "CLIENT",
                                "EVAL", "", "BLPOPX", "A"}) {
    EXPECT_FALSE(RedisCommand{name}.needs_session()) << name;
  }
  EXPECT_TRUE((RedisCommand{"XREADGROUP", "GROUP", "g", "c", "BLOCK", "0"})
                  .needs_session());
  EXPECT_FALSE((RedisCommand{"SET", "BLOCK", "BLPOP"}).needs_session());
  EXPECT_FALSE((RedisCommand{"CLIENT", "ID"}).needs_session());
  EXPECT_TRUE((RedisCommand{"client", "reply", "SKIP"}).needs_session());
}

TEST(RedisCommand, KnowsWhatHasNotOneReply) {
  for (std::string_view name :
       {"SUBSCRIBE", "psubscribe", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE",
        "SUNSUBSCRIBE", "MONITOR", "SYNC", "PSYNC"}) {
    EXPECT_TRUE(RedisCommand{name}.has_messages()) << name;
  }
  for (std::string_view name : {"GET", "PUBLISH", "BLPOP", "RESET", ""}) {
    EXPECT_FALSE(RedisCommand{name}.has_messages()) << name;
  }
  EXPECT_TRUE((RedisCommand{"client", "Reply", "ON"}).silences());
  EXPECT_FALSE((RedisCommand{"CLIENT", "ID", "REPLY"}).silences());
  EXPECT_FALSE((RedisCommand{"SET", "REPLY", "OFF"}).silences());
}

}  // namespace
}  // namespace flare::rpc
