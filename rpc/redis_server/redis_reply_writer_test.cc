#include "flare/rpc/redis_server/redis_reply_writer.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/redis/resp_reader.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Kind = RedisReply::Kind;

std::string Written(RedisReply reply, bool resp3) {
  BufferBuilder out;
  WriteRedisReply(std::move(reply), resp3, &out);
  return FlattenSlow(out.DestructiveGet());
}
std::string Resp2(RedisReply reply) { return Written(std::move(reply), false); }
std::string Resp3(RedisReply reply) { return Written(std::move(reply), true); }

TEST(RedisReplyWriterTest, WritesEachKindInBothVersions) {
  const struct {
    RedisReply reply;
    std::string resp2;
    std::string resp3;
  } cases[] = {
      {RedisReply(), "$-1\r\n", "_\r\n"},
      {RedisReply::OfNilArray(), "*-1\r\n", "_\r\n"},
      {RedisReply::OfStatus("OK"), "+OK\r\n", "+OK\r\n"},
      {RedisReply::OfError("ERR no"), "-ERR no\r\n", "-ERR no\r\n"},
      {RedisReply::OfInteger(-7), ":-7\r\n", ":-7\r\n"},
      {RedisReply::OfInteger(std::numeric_limits<std::int64_t>::min()),
       ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"},
      {RedisReply::OfDouble(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"},
      {RedisReply::OfDouble(-std::numeric_limits<double>::infinity()),
       "$4\r\n-inf\r\n", ",-inf\r\n"},
      {RedisReply::OfDouble(-std::numeric_limits<double>::quiet_NaN()),
       "$3\r\nnan\r\n", ",nan\r\n"},
      {RedisReply::OfBoolean(true), ":1\r\n", "#t\r\n"},
      {RedisReply::OfBoolean(false), ":0\r\n", "#f\r\n"},
      {RedisReply::OfString("a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"},
      {RedisReply::OfString(""), "$0\r\n\r\n", "$0\r\n\r\n"},
      {RedisReply::Of(Kind::kArray, {RedisReply(), RedisReply::OfInteger(1)}),
       "*2\r\n$-1\r\n:1\r\n", "*2\r\n_\r\n:1\r\n"},
      {RedisReply::Of(Kind::kMap,
                      {RedisReply::OfString("k"), RedisReply::OfInteger(1)}),
       "*2\r\n$1\r\nk\r\n:1\r\n", "%1\r\n$1\r\nk\r\n:1\r\n"},
      {RedisReply::Of(Kind::kMap, {RedisReply::OfInteger(1)}),
       "*2\r\n:1\r\n$-1\r\n", "%1\r\n:1\r\n_\r\n"},
      {RedisReply::Of(Kind::kPush, {RedisReply::OfInteger(1)}), "*1\r\n:1\r\n",
       ">1\r\n:1\r\n"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Resp2(c.reply), c.resp2);
    EXPECT_EQ(Resp3(c.reply), c.resp3);
  }
}

// A client's text in an error mustn't become a reply of its own.
TEST(RedisReplyWriterTest, KeepsLinesOnOneLine) {
  EXPECT_EQ(Resp2(RedisReply::OfError("ERR a\r\n+OK\n")), "-ERR a  +OK \r\n");
  EXPECT_EQ(Resp2(RedisReply::OfStatus("a\nb")), "+a b\r\n");
}

TEST(RedisReplyWriterTest, WritesLongStrings) {
  const std::string bytes(1 << 20, 'a');
  EXPECT_EQ(Resp2(RedisReply::OfString(bytes)),
            "$1048576\r\n" + bytes + "\r\n");
}

TEST(RedisReplyWriterTest, LimitsDepth) {
  const auto nested = [](std::size_t depth) {
    RedisReply reply = RedisReply::OfInteger(1);
    for (std::size_t i = 0; i != depth; ++i) {
      reply = RedisReply::Of(Kind::kArray, {std::move(reply)});
    }
    return Resp2(std::move(reply));
  };
  EXPECT_TRUE(nested(kMaxRedisReplyDepth).ends_with("*1\r\n:1\r\n"));
  EXPECT_TRUE(nested(kMaxRedisReplyDepth + 1)
                  .ends_with("*1\r\n-ERR the reply is nested too deeply\r\n"));
}

TEST(RedisReplyWriterTest, ClientsReadIt) {
  const RedisReply reply = RedisReply::Of(
      Kind::kArray,
      {RedisReply(), RedisReply::OfDouble(0.1), RedisReply::OfBoolean(true),
       RedisReply::Of(Kind::kMap, {RedisReply::OfString("k"),
                                   RedisReply::OfError("ERR no")})});
  Buffer in = CreateBufferSlow(Resp3(reply));
  RespReader reader({});
  RedisReply read;
  ASSERT_EQ(reader.Read(&in, &read), RespReader::Result::kReply);
  EXPECT_EQ(read, reply);
  EXPECT_TRUE(in.empty());
}

}  // namespace
}  // namespace flare::rpc
