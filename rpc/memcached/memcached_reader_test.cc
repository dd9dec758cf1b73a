// Bytes to a memcached server and from it.
#include "flare/rpc/memcached/memcached_reader.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/string.h"
#include "flare/rpc/memcached/ketama_ring.h"
#include "flare/rpc/memcached_command.h"
#include "flare/rpc/memcached_reply.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using MemcachedCode = MemcachedAnswer::Code;
using MemcachedOutcome = MemcachedReply::Outcome;

// All answers, or the failure.
struct MemcachedOutcomes {
  std::vector<MemcachedAnswer> answers;
  std::string failure;
};
MemcachedOutcomes ReadMemcached(std::string_view bytes, std::size_t piece) {
  MemcachedReader reader(16);
  MemcachedOutcomes outcomes;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    Buffer in = CreateBufferSlow(bytes.substr(0, piece));
    MemcachedAnswer answer;
    auto result = MemcachedReader::Result::kAnswer;
    while (result == MemcachedReader::Result::kAnswer) {
      result = reader.Read(&in, &answer);
      if (result == MemcachedReader::Result::kAnswer) {
        outcomes.answers.push_back(answer);
      }
    }
    if (result == MemcachedReader::Result::kFailed) break;
  }
  outcomes.failure = reader.failure();
  return outcomes;
}

std::string MemcachedFailureOf(std::string_view bytes) {
  const MemcachedOutcomes whole = ReadMemcached(bytes, bytes.size());
  const MemcachedOutcomes pieces = ReadMemcached(bytes, 1);
  EXPECT_TRUE(whole.answers.empty() && pieces.answers.empty()) << bytes;
  EXPECT_EQ(whole.failure, pieces.failure);
  return whole.failure;
}

std::string BytesOf(const MemcachedCommand& command) {
  return FlattenSlow(command.bytes());
}

TEST(MemcachedReader, ReadsAnswersInPieces) {
  constexpr std::string_view kBytes =
      "HD\r\nHD c7 W\r\nVA 4 f5 c18446744073709551615\r\na\r\nb\r\n"
      "VA 0 f4294967295\r\n\r\nEN\r\nNF\r\nNS\r\nEX k3 Oabc\r\nMN\r\n"
      "ERROR\r\nERROR Too many\r\nCLIENT_ERROR bad\tthing\r\nSERVER_ERROR\r\n";
  const std::vector<MemcachedAnswer> expected = {
      {MemcachedCode::kDone, {MemcachedOutcome::kOk, "", 0, 0}, ""},
      {MemcachedCode::kDone, {MemcachedOutcome::kOk, "", 0, 7}, ""},
      {MemcachedCode::kValue, {MemcachedOutcome::kOk, "a\r\nb", 5, ~0ull}, ""},
      {MemcachedCode::kValue, {MemcachedOutcome::kOk, "", ~0u, 0}, ""},
      {MemcachedCode::kMiss, {MemcachedOutcome::kNotFound, "", 0, 0}, ""},
      {MemcachedCode::kNotFound, {MemcachedOutcome::kNotFound, "", 0, 0}, ""},
      {MemcachedCode::kNotStored, {MemcachedOutcome::kNotStored, "", 0, 0}, ""},
      {MemcachedCode::kExists, {MemcachedOutcome::kExists, "", 0, 0}, ""},
      {MemcachedCode::kNothing, {MemcachedOutcome::kOk, "", 0, 0}, ""},
      {MemcachedCode::kUnknownCommand,
       {MemcachedOutcome::kOk, "", 0, 0},
       "ERROR"},
      {MemcachedCode::kUnknownCommand,
       {MemcachedOutcome::kOk, "", 0, 0},
       "ERROR Too many"},
      {MemcachedCode::kError,
       {MemcachedOutcome::kOk, "", 0, 0},
       OneLine("CLIENT_ERROR bad\tthing")},
      {MemcachedCode::kError,
       {MemcachedOutcome::kOk, "", 0, 0},
       "SERVER_ERROR"}};
  for (std::size_t piece = 1; piece <= kBytes.size(); ++piece) {
    const MemcachedOutcomes outcomes = ReadMemcached(kBytes, piece);
    EXPECT_EQ(outcomes.failure, "");
    EXPECT_TRUE(outcomes.answers == expected) << piece;
  }
}

TEST(MemcachedReader, FailsOnMalformedAnswers) {
  EXPECT_EQ(MemcachedFailureOf("HTTP/1.1 400 Bad Request\r\n"),
            "a reply of no known kind: \"HTTP/1.1 400 Bad Request\"");
  EXPECT_EQ(MemcachedFailureOf("VA 17\r\n"),
            "a value of 17 bytes, more than 16 (max_value_size)");
  EXPECT_EQ(MemcachedFailureOf("VA 2\r\nabc\r\n"),
            "a string is longer than its length says");
  EXPECT_EQ(MemcachedFailureOf("VA -1\r\n"), "a bad length of a value: \"-1\"");
  for (std::string_view bytes :
       {"\r\n", "HD\n", "hd\r\n", " HD\r\n", "HDX\r\n", "H\rD\r\n", "VA\r\n",
        "VA x\r\n", "VA 1x\r\n", "VA 99999999999999999999\r\n",
        "VA 1 fx\r\nx\r\n", "HD c\r\n", "HD c18446744073709551616\r\n",
        "VA 1 f4294967296\r\nx\r\n", "HD 5\r\n", "VALUE a 0 1\r\n",
        "END\r\n"}) {
    EXPECT_NE(MemcachedFailureOf(bytes), "") << bytes;
  }
  EXPECT_EQ(MemcachedFailureOf(std::string(65537, 'x')),
            "a line of more than 64 KiB");
}

TEST(MemcachedCommand, IsAMetaCommand) {
  EXPECT_EQ(BytesOf(MemcachedCommand::Get("k")), "mg k v f c\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::GetAndTouch("k", 60s)),
            "mg k v f c T60\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Touch("k", 0s)), "mg k T0\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Set("k", "a\r\nb")),
            "ms k 4 c MS\r\na\r\nb\r\n");
  EXPECT_EQ(
      BytesOf(MemcachedCommand::Set("k", "", {.ttl = 30 * 24h, .flags = ~0u})),
      "ms k 0 c MS F4294967295 T2592000\r\n\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Add("k", "v", {.cas = ~0ull})),
            "ms k 1 c ME C18446744073709551615\r\nv\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Replace("k", "v")),
            "ms k 1 c MR\r\nv\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Append("k", "v")),
            "ms k 1 c MA\r\nv\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Prepend("k", "v")),
            "ms k 1 c MP\r\nv\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Delete("k")), "md k\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Delete("k", 7)), "md k C7\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Increment("k")), "ma k v c MI D1\r\n");
  EXPECT_EQ(BytesOf(MemcachedCommand::Decrement("k", ~0ull,
                                                {.initial = 5, .ttl = 2s})),
            "ma k v c MD D18446744073709551615 N2 J5\r\n");
}

// The server takes more than 30 days for seconds since 1970.
TEST(MemcachedCommand, SaysWhenLongTimesEnd) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  const std::string sent = BytesOf(MemcachedCommand::Touch("k", 31 * 24h));
  const auto at =
      TryParse<std::int64_t>(std::string_view(sent).substr(6, sent.size() - 8));
  ASSERT_TRUE(at) << sent;
  EXPECT_GE(*at, now + 31 * 24 * 3600);
  EXPECT_LE(*at, now + 32 * 24 * 3600);
  EXPECT_EQ(BytesOf(MemcachedCommand::Touch("k", std::chrono::seconds::max())),
            "mg k T2147483647\r\n");
}

TEST(MemcachedCommand, ChecksKeys) {
  for (const std::string& key : {""s, " "s, "a b"s, "a\r\nmd x"s, "a\t"s,
                                 "a\0"s, "\x7f"s, std::string(251, 'k')}) {
    const auto command = MemcachedCommand::Set(key, "v");
    EXPECT_NE(command.fault(), ""s) << key;
    EXPECT_EQ(BytesOf(command), "");
  }
  EXPECT_NE(MemcachedCommand::Touch("k", -1s).fault(), ""s);
  EXPECT_NE(MemcachedCommand::Set("k", "v", {.ttl = -1s}).fault(), ""s);
  // Nobody reads it.
  const std::string_view large("v", (std::size_t{1} << 31) - 2);
  EXPECT_NE(MemcachedCommand::Set("k", large).fault(), ""s);
  for (const std::string& key :
       {"!"s, "schl\xc3\xbcssel"s, "~"s, std::string(250, 'k')}) {
    EXPECT_EQ(MemcachedCommand::Get(key).fault(), ""s) << key;
  }
}

TEST(MemcachedReply, IsShown) {
  EXPECT_EQ((MemcachedReply{.value = "a"}).ToString(), "\"a\"");
  EXPECT_EQ((MemcachedReply{.outcome = MemcachedOutcome::kNotFound}).ToString(),
            "not found");
  EXPECT_EQ((MemcachedReply{.value = "9 "}).number(), 9u);
  EXPECT_EQ((MemcachedReply{.value = "a"}).number(), 0u);
}

// As libmemcached has it, with MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED and
// MEMCACHED_HASH_MD5.
TEST(KetamaRing, IsThatOfLibmemcached) {
  const KetamaRing ring({"10.0.0.1:11211", "10.0.0.2:11211", "10.0.0.2:11212",
                         "cache.example.com:11300"});
  std::string first;
  std::uint64_t all = 0;
  for (int i = 0; i != 100'000; ++i) {
    const std::size_t server = ring.Find("key:" + std::to_string(i));
    if (i < 40) first += static_cast<char>('0' + server);
    all = all * 31 + server;
  }
  EXPECT_EQ(first, "1232103322211211123122030323203222003220");
  EXPECT_EQ(all, 8835199420685996396u);
  std::vector<std::string> many;
  for (int i = 0; i != 25; ++i) {
    many.push_back("10.0.0." + std::to_string(i) + ":11211");
  }
  const KetamaRing large(many);
  all = 0;
  for (int i = 0; i != 20'000; ++i) {
    all = all * 31 + large.Find("key:" + std::to_string(i));
  }
  EXPECT_EQ(all, 640832885192311298u);
  EXPECT_EQ(KetamaRing({"10.0.0.1:11211"}).Find("key"), 0u);
}

}  // namespace
}  // namespace flare::rpc
