#include "flare/rpc/redis/resp_reader.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/random.h"
#include "flare/rpc/redis_reply.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Kind = RedisReply::Kind;
using Result = RespReader::Result;

RedisReply Array(std::vector<RedisReply> elements) {
  return RedisReply::Of(Kind::kArray, std::move(elements));
}

// Replies of `bytes`, which come in pieces of `piece` bytes. A failure is the
// last one, as kError.
std::vector<RedisReply> ReadInPieces(std::string_view bytes, std::size_t piece,
                                     const RespReader::Limits& limits = {}) {
  RespReader reader(limits);
  std::vector<RedisReply> replies;
  Buffer in;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    in.Append(bytes.substr(at, piece));
    RedisReply reply;
    Result result;
    while ((result = reader.Read(&in, &reply)) == Result::kReply) {
      replies.push_back(std::move(reply));
    }
    if (result == Result::kFailed) {
      EXPECT_EQ(reader.Read(&in, &reply), Result::kFailed);  // For good.
      replies.push_back(RedisReply::OfError("failed: " + reader.failure()));
      return replies;
    }
    EXPECT_TRUE(in.empty());
  }
  return replies;
}

std::vector<RedisReply> ReadAll(std::string_view bytes) {
  auto replies = ReadInPieces(bytes, bytes.size());
  for (std::size_t piece : {1, 2, 3, 7}) {
    EXPECT_EQ(ReadInPieces(bytes, piece), replies) << bytes << " by " << piece;
  }
  return replies;
}

RedisReply ReadOne(std::string_view bytes) {
  auto replies = ReadAll(bytes);
  EXPECT_EQ(replies.size(), 1u) << bytes;
  return replies.empty() ? RedisReply() : std::move(replies[0]);
}

std::string FailureOf(std::string_view bytes,
                      const RespReader::Limits& limits = {}) {
  const auto replies = ReadInPieces(bytes, bytes.size(), limits);
  return replies.empty() ? "" : replies.back().text();
}

TEST(RespReader, ReadsWhatResp2Has) {
  EXPECT_EQ(ReadOne("+OK\r\n"), RedisReply::OfStatus("OK"));
  EXPECT_TRUE(ReadOne("+OK\r\n").is_ok());
  EXPECT_EQ(ReadOne("+\r\n"), RedisReply::OfStatus(""));
  EXPECT_EQ(ReadOne("-ERR no\r\n"), RedisReply::OfError("ERR no"));
  EXPECT_TRUE(ReadOne("-ERR no\r\n").is_error());
  EXPECT_EQ(ReadOne(":-42\r\n"), RedisReply::OfInteger(-42));
  EXPECT_EQ(ReadOne(":+7\r\n"), RedisReply::OfInteger(7));
  EXPECT_EQ(ReadOne(":9223372036854775807\r\n"),
            RedisReply::OfInteger(INT64_MAX));
  EXPECT_EQ(ReadOne("$5\r\nhello\r\n"), RedisReply::OfString("hello"));
  EXPECT_EQ(ReadOne("$0\r\n\r\n"), RedisReply::OfString(""));
  EXPECT_TRUE(ReadOne("$-1\r\n").is_nil());
  EXPECT_TRUE(ReadOne("*-1\r\n").is_nil());
  EXPECT_TRUE(ReadOne("*-1\r\n").is_nil_array());
  EXPECT_FALSE(ReadOne("$-1\r\n").is_nil_array());
  EXPECT_EQ(ReadOne("*0\r\n"), Array({}));
  EXPECT_EQ(ReadOne("*3\r\n:1\r\n$1\r\na\r\n*2\r\n$-1\r\n+x\r\n"),
            Array({RedisReply::OfInteger(1), RedisReply::OfString("a"),
                   Array({RedisReply(), RedisReply::OfStatus("x")})}));
}

TEST(RespReader, ReadsWhatResp3Adds) {
  EXPECT_TRUE(ReadOne("_\r\n").is_nil());
  EXPECT_EQ(ReadOne("#t\r\n"), RedisReply::OfBoolean(true));
  EXPECT_EQ(ReadOne("#f\r\n").integer(), 0);
  EXPECT_EQ(ReadOne(",1.5e3\r\n"), RedisReply::OfDouble(1500));
  EXPECT_EQ(ReadOne(",-inf\r\n").real(), -INFINITY);
  RespReader reader({});
  Buffer in = CreateBufferSlow(",nan\r\n");
  RedisReply nan;
  ASSERT_EQ(reader.Read(&in, &nan), Result::kReply);
  EXPECT_TRUE(std::isnan(nan.real()));
  EXPECT_EQ(ReadOne("(-12345678901234567890\r\n"),
            RedisReply::OfString("-12345678901234567890"));
  EXPECT_EQ(ReadOne("=8\r\ntxt:text\r\n"), RedisReply::OfString("text"));
  EXPECT_EQ(ReadOne("!7\r\nERR a\nb\r\n"), RedisReply::OfError("ERR a\nb"));
  EXPECT_EQ(ReadOne("~1\r\n:1\r\n"), Array({RedisReply::OfInteger(1)}));
  const RedisReply map = ReadOne("%2\r\n$1\r\na\r\n:1\r\n+b\r\n:2\r\n");
  EXPECT_EQ(map.kind(), Kind::kMap);
  EXPECT_EQ(map.size(), 4u);
  EXPECT_EQ(map.Find("b")->integer(), 2);
  EXPECT_EQ(map.Find("c"), nullptr);
  EXPECT_EQ(ReadOne(">2\r\n+message\r\n+x\r\n"),
            RedisReply::Of(Kind::kPush, {RedisReply::OfStatus("message"),
                                         RedisReply::OfStatus("x")}));
}

TEST(RespReader, SkipsAttributes) {
  EXPECT_EQ(ReadOne("|1\r\n+ttl\r\n:3\r\n:5\r\n"), RedisReply::OfInteger(5));
  EXPECT_EQ(ReadOne("*2\r\n|1\r\n+ttl\r\n*1\r\n:3\r\n:5\r\n|0\r\n:6\r\n"),
            Array({RedisReply::OfInteger(5), RedisReply::OfInteger(6)}));
}

TEST(RespReader, ReadsRepliesOneAfterTheOther) {
  EXPECT_EQ(ReadAll("+OK\r\n$2\r\n\r\n\r\n*1\r\n:1\r\n-E\r\n"),
            (std::vector{
                RedisReply::OfStatus("OK"), RedisReply::OfString("\r\n"),
                Array({RedisReply::OfInteger(1)}), RedisReply::OfError("E")}));
}

TEST(RespReader, TakesAnyBytesInStrings) {
  std::string bytes;
  for (int i = 0; i != 70'000; ++i) bytes += static_cast<char>(i);
  const std::string reply =
      "$" + std::to_string(bytes.size()) + "\r\n" + bytes + "\r\n";
  EXPECT_EQ(ReadOne(reply).text(), bytes);
  // It says how much is to come.
  RespReader reader({});
  Buffer in = CreateBufferSlow(reply.substr(0, 1008));
  RedisReply out;
  EXPECT_EQ(reader.Read(&in, &out), Result::kNeedMore);
  EXPECT_EQ(reader.expected(), reply.size() - 1008);
}

TEST(RespReader, RefusesWhatIsMalformed) {
  for (std::string_view bytes : {
           "OK\r\n",
           "\r\n",
           "\n",
           "+OK\n",
           "+O\rK\r\n",
           "x\r\n",
           ":\r\n",
           ":1x\r\n",
           ":+-1\r\n",
           ":1.5\r\n",
           ": 1\r\n",
           ":9223372036854775808\r\n",
           ",\r\n",
           ",1.5x\r\n",
           "(12a\r\n",
           "(\r\n",
           "#x\r\n",
           "_x\r\n",
           "$-2\r\n",
           "$x\r\n",
           "$?\r\n",
           "$2\r\nabc\r\n",
           "$2\r\nab\rx",
           "*-2\r\n",
           "*?\r\n",
           "%-1\r\n",
           ">-1\r\n",
           "=3\r\ntxt\r\n",
           "=5\r\ntxt5:\r\n",
           "=-1\r\n",
           "!-1\r\n",
           "*1\r\n$-1\n",
           "$18446744073709551616\r\n",
           "*18446744073709551616\r\n",
           "HTTP/1.1 400 Bad Request\r\n",
       }) {
    EXPECT_TRUE(FailureOf(bytes).starts_with("failed: ")) << bytes;
    EXPECT_EQ(ReadInPieces(bytes, 1).size(), 1u) << bytes;
  }
  // The text can be printed.
  EXPECT_EQ(FailureOf("\x01\x02\r\n"),
            "failed: a reply of no known type: \"\\x01\\x02\"");
}

TEST(RespReader, LimitsTheSizeBeforeItTakesMemory) {
  RespReader::Limits limits;
  limits.max_size = 1000;
  EXPECT_EQ(FailureOf("$1000\r\n", limits), "");
  for (std::string_view bytes :
       {"$1001\r\n", "$9223372036854775807\r\n", "*14\r\n", "%7\r\n",
        "*9223372036854775807\r\n", "%9223372036854775807\r\n",
        // All parts of a reply together.
        "*7\r\n$500\r\n", "*1\r\n*1\r\n$1000\r\n", "|1\r\n+a\r\n$900\r\n"}) {
    EXPECT_EQ(FailureOf(bytes, limits),
              "failed: a reply takes more than 1000 bytes of memory")
        << bytes;
  }
  // Each reply has the limit to itself.
  const std::string full = "$990\r\n" + std::string(990, 'x') + "\r\n";
  EXPECT_EQ(ReadInPieces(full + full, 1, limits).size(), 2u);
  // Lines.
  EXPECT_EQ(FailureOf('+' + std::string(RespReader::kMaxLine, 'x')),
            "failed: a line of more than 64 KiB");
}

TEST(RespReader, LimitsTheDepth) {
  std::string bytes;
  for (int i = 0; i != 32; ++i) bytes += "*1\r\n";
  EXPECT_EQ(ReadAll(bytes + ":1\r\n").size(), 1u);
  EXPECT_EQ(FailureOf(bytes + "*1\r\n"),
            "failed: arrays are nested more than 32 deep");
  RespReader reader({.max_depth = 1});
  Buffer in = CreateBufferSlow("*1\r\n*1\r\n");
  RedisReply reply;
  EXPECT_EQ(reader.Read(&in, &reply), Result::kFailed);
  EXPECT_TRUE(reader.too_large());
}

// Whatever comes, reading ends, and the split makes no difference.
TEST(RespReader, SurvivesGarbage) {
  constexpr std::string_view kBytes = "+-:$*_#,(=!~%>|\r\n\r\n0123tf";
  std::uint64_t seed = 1;
  for (int round = 0; round != 2000; ++round) {
    std::string bytes;
    for (int i = 0; i != 40; ++i) {
      bytes += kBytes[MixBits(++seed) % kBytes.size()];
      if (MixBits(++seed) % 3 == 0) bytes += "\r\n";
    }
    EXPECT_EQ(ReadInPieces(bytes, bytes.size()), ReadInPieces(bytes, 1))
        << bytes;
  }
}

TEST(RedisReply, IsWrittenForPeople) {
  EXPECT_EQ(ReadOne("*4\r\n$2\r\na\n\r\n:1\r\n_\r\n-ERR x\r\n").ToString(),
            "[\"a\\x0a\", 1, nil, error: ERR x]");
  EXPECT_EQ(ReadOne("%1\r\n+a\r\n#t\r\n").ToString(), "map [a, true]");
  EXPECT_EQ(ReadOne(">1\r\n*0\r\n").ToString(), "push [[]]");
}

TEST(RedisReply, HasEmptyValuesOfOtherKinds) {
  const RedisReply real = RedisReply::OfDouble(1.5);
  EXPECT_EQ(real.integer(), 0);
  EXPECT_EQ(real.text(), "");
  EXPECT_EQ(real.size(), 0u);
  EXPECT_EQ(RedisReply::OfInteger(3).real(), 0);
  EXPECT_EQ(real.Find("a"), nullptr);
  EXPECT_NE(real, RedisReply::OfDouble(2));
}

}  // namespace
}  // namespace flare::rpc
