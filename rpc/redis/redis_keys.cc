#include "flare/rpc/redis/redis_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "flare/base/string.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {
namespace {

using Words = std::vector<std::string_view>;

// Where the keys of a command are; words[0] is its name.
enum class KeyRule : std::uint8_t {
  kNone,
  kFirst,       // words[1]
  kFirstTwo,    // words[1] and words[2]
  kSecond,      // words[2]
  kAll,         // From words[1] on.
  kAllButLast,  // The last word is a timeout.
  kFromSecond,  // From words[2] on.
  kPairs,       // words[1], words[3] and so on.
  kCounted,     // words[1] is how many follow.
  kCounted2,    // words[2] is how many follow.
  kStored,      // words[1]; words[2] is how many follow.
  kStreams,     // Half of the words behind STREAMS.
  kMigrate,     // words[3], or those behind KEYS.
};

struct KeyRuleOf {
  std::string_view name;
  KeyRule rule;
};

// Commands whose keys aren't just words[1], in the order of their names.
constexpr auto kKeyRules = std::to_array<KeyRuleOf>({
    {"ACL", KeyRule::kNone},
    {"ASKING", KeyRule::kNone},
    {"AUTH", KeyRule::kNone},
    {"BGREWRITEAOF", KeyRule::kNone},
    {"BGSAVE", KeyRule::kNone},
    {"BITOP", KeyRule::kFromSecond},
    {"BLMOVE", KeyRule::kFirstTwo},
    {"BLMPOP", KeyRule::kCounted2},
    {"BLPOP", KeyRule::kAllButLast},
    {"BRPOP", KeyRule::kAllButLast},
    {"BRPOPLPUSH", KeyRule::kFirstTwo},
    {"BZMPOP", KeyRule::kCounted2},
    {"BZPOPMAX", KeyRule::kAllButLast},
    {"BZPOPMIN", KeyRule::kAllButLast},
    {"CLIENT", KeyRule::kNone},
    {"CLUSTER", KeyRule::kNone},
    {"COMMAND", KeyRule::kNone},
    {"CONFIG", KeyRule::kNone},
    {"COPY", KeyRule::kFirstTwo},
    {"DBSIZE", KeyRule::kNone},
    {"DEBUG", KeyRule::kSecond},
    {"DEL", KeyRule::kAll},
    {"DISCARD", KeyRule::kNone},
    {"ECHO", KeyRule::kNone},
    {"EVAL", KeyRule::kCounted2},
    {"EVALSHA", KeyRule::kCounted2},
    {"EVALSHA_RO", KeyRule::kCounted2},
    {"EVAL_RO", KeyRule::kCounted2},
    {"EXEC", KeyRule::kNone},
    {"EXISTS", KeyRule::kAll},
    {"FAILOVER", KeyRule::kNone},
    {"FCALL", KeyRule::kCounted2},
    {"FCALL_RO", KeyRule::kCounted2},
    {"FLUSHALL", KeyRule::kNone},
    {"FLUSHDB", KeyRule::kNone},
    {"FUNCTION", KeyRule::kNone},
    {"GEOSEARCHSTORE", KeyRule::kFirstTwo},
    {"HELLO", KeyRule::kNone},
    {"INFO", KeyRule::kNone},
    {"KEYS", KeyRule::kNone},
    {"LASTSAVE", KeyRule::kNone},
    {"LATENCY", KeyRule::kNone},
    {"LCS", KeyRule::kFirstTwo},
    {"LMOVE", KeyRule::kFirstTwo},
    {"LMPOP", KeyRule::kCounted},
    {"LOLWUT", KeyRule::kNone},
    {"MEMORY", KeyRule::kSecond},
    {"MGET", KeyRule::kAll},
    {"MIGRATE", KeyRule::kMigrate},
    {"MODULE", KeyRule::kNone},
    {"MONITOR", KeyRule::kNone},
    {"MSET", KeyRule::kPairs},
    {"MSETNX", KeyRule::kPairs},
    {"MULTI", KeyRule::kNone},
    {"OBJECT", KeyRule::kSecond},
    {"PFCOUNT", KeyRule::kAll},
    {"PFDEBUG", KeyRule::kSecond},
    {"PFMERGE", KeyRule::kAll},
    {"PFSELFTEST", KeyRule::kNone},
    {"PING", KeyRule::kNone},
    {"PSUBSCRIBE", KeyRule::kNone},
    {"PUBLISH", KeyRule::kNone},
    {"PUBSUB", KeyRule::kNone},
    {"PUNSUBSCRIBE", KeyRule::kNone},
    {"QUIT", KeyRule::kNone},
    {"RANDOMKEY", KeyRule::kNone},
    {"READONLY", KeyRule::kNone},
    {"READWRITE", KeyRule::kNone},
    {"RENAME", KeyRule::kFirstTwo},
    {"RENAMENX", KeyRule::kFirstTwo},
    {"REPLICAOF", KeyRule::kNone},
    {"RESET", KeyRule::kNone},
    {"ROLE", KeyRule::kNone},
    {"RPOPLPUSH", KeyRule::kFirstTwo},
    {"SAVE", KeyRule::kNone},
    {"SCAN", KeyRule::kNone},
    {"SCRIPT", KeyRule::kNone},
    {"SDIFF", KeyRule::kAll},
    {"SDIFFSTORE", KeyRule::kAll},
    {"SELECT", KeyRule::kNone},
    {"SHUTDOWN", KeyRule::kNone},
    {"SINTER", KeyRule::kAll},
    {"SINTERCARD", KeyRule::kCounted},
    {"SINTERSTORE", KeyRule::kAll},
    {"SLAVEOF", KeyRule::kNone},
    {"SLOWLOG", KeyRule::kNone},
    {"SMOVE", KeyRule::kFirstTwo},
    {"SSUBSCRIBE", KeyRule::kAll},
    {"SUBSCRIBE", KeyRule::kNone},
    {"SUNION", KeyRule::kAll},
    {"SUNIONSTORE", KeyRule::kAll},
    {"SUNSUBSCRIBE", KeyRule::kAll},
    {"SWAPDB", KeyRule::kNone},
    {"TIME", KeyRule::kNone},
    {"TOUCH", KeyRule::kAll},
    {"UNLINK", KeyRule::kAll},
    {"UNSUBSCRIBE", KeyRule::kNone},
    {"UNWATCH", KeyRule::kNone},
    {"WAIT", KeyRule::kNone},
    {"WAITAOF", KeyRule::kNone},
    {"WATCH", KeyRule::kAll},
    {"XGROUP", KeyRule::kSecond},
    {"XINFO", KeyRule::kSecond},
    {"XREAD", KeyRule::kStreams},
    {"XREADGROUP", KeyRule::kStreams},
    {"ZDIFF", KeyRule::kCounted},
    {"ZDIFFSTORE", KeyRule::kStored},
    {"ZINTER", KeyRule::kCounted},
    {"ZINTERCARD", KeyRule::kCounted},
    {"ZINTERSTORE", KeyRule::kStored},
    {"ZMPOP", KeyRule::kCounted},
    {"ZRANGESTORE", KeyRule::kFirstTwo},
    {"ZUNION", KeyRule::kCounted},
    {"ZUNIONSTORE", KeyRule::kStored},
});
static_assert(std::is_sorted(kKeyRules.begin(), kKeyRules.end(),
                             [](const KeyRuleOf& a, const KeyRuleOf& b) {
                               return a.name < b.name;
                             }));

// Commands with keys that only read, in the order of their names.
constexpr auto kReadingCommands =
    std::to_array<std::string_view>({"BITCOUNT",
                                     "BITFIELD_RO",
                                     "BITPOS",
                                     "DUMP",
                                     "EVALSHA_RO",
                                     "EVAL_RO",
                                     "EXISTS",
                                     "EXPIRETIME",
                                     "FCALL_RO",
                                     "GEODIST",
                                     "GEOHASH",
                                     "GEOPOS",
                                     "GEORADIUSBYMEMBER_RO",
                                     "GEORADIUS_RO",
                                     "GEOSEARCH",
                                     "GET",
                                     "GETBIT",
                                     "GETRANGE",
                                     "HEXISTS",
                                     "HEXPIRETIME",
                                     "HGET",
                                     "HGETALL",
                                     "HKEYS",
                                     "HLEN",
                                     "HMGET",
                                     "HPEXPIRETIME",
                                     "HPTTL",
                                     "HRANDFIELD",
                                     "HSCAN",
                                     "HSTRLEN",
                                     "HTTL",
                                     "HVALS",
                                     "LCS",
                                     "LINDEX",
                                     "LLEN",
                                     "LPOS",
                                     "LRANGE",
                                     "MGET",
                                     "PEXPIRETIME",
                                     "PFCOUNT",
                                     "PTTL",
                                     "SCARD",
                                     "SDIFF",
                                     "SINTER",
                                     "SINTERCARD",
                                     "SISMEMBER",
                                     "SMEMBERS",
                                     "SMISMEMBER",
                                     "SORT_RO",
                                     "SRANDMEMBER",
                                     "SSCAN",
                                     "STRLEN",
                                     "SUBSTR",
                                     "SUNION",
                                     "TTL",
                                     "TYPE",
                                     "XLEN",
                                     "XPENDING",
                                     "XRANGE",
                                     "XREAD",
                                     "XREVRANGE",
                                     "ZCARD",
                                     "ZCOUNT",
                                     "ZDIFF",
                                     "ZINTER",
                                     "ZINTERCARD",
                                     "ZLEXCOUNT",
                                     "ZMSCORE",
                                     "ZRANDMEMBER",
                                     "ZRANGE",
                                     "ZRANGEBYLEX",
                                     "ZRANGEBYSCORE",
                                     "ZRANK",
                                     "ZREVRANGE",
                                     "ZREVRANGEBYLEX",
                                     "ZREVRANGEBYSCORE",
                                     "ZREVRANK",
                                     "ZSCAN",
                                     "ZSCORE",
                                     "ZUNION"});
static_assert(std::is_sorted(kReadingCommands.begin(), kReadingCommands.end()));

KeyRule KeyRuleOfCommand(std::string_view name) {
  const auto* const found = std::lower_bound(
      kKeyRules.begin(), kKeyRules.end(), name,
      [](const KeyRuleOf& rule, std::string_view n) { return rule.name < n; });
  return found != kKeyRules.end() && found->name == name ? found->rule
                                                         : KeyRule::kFirst;
}

// words[begin] up to words[end], as far as there are so many.
Words SomeWords(const Words& words, std::size_t begin, std::size_t end,
                std::size_t step = 1) {
  Words some;
  for (std::size_t i = begin; i < std::min(end, words.size()); i += step) {
    some.push_back(words[i]);
  }
  return some;
}

// words[at] says how many of the next ones are keys.
Words CountedWords(const Words& words, std::size_t at) {
  if (at >= words.size()) return {};
  const std::size_t count =
      TryParse<std::uint32_t>(words[at]).value_or(std::uint32_t{0});
  return SomeWords(words, at + 1, at + 1 + count);
}

// XREAD COUNT 1 STREAMS a b 0 0; XREADGROUP GROUP name consumer STREAMS a >
Words StreamsOf(const Words& words) {
  std::size_t at = 1;
  while (at < words.size() && !IEquals(words[at], "STREAMS")) {
    at += IEquals(words[at], "NOACK")   ? 1
          : IEquals(words[at], "GROUP") ? 3
                                        : 2;  // COUNT, BLOCK
  }
  if (at >= words.size()) return {};
  const std::size_t count = (words.size() - at - 1) / 2;
  return SomeWords(words, at + 1, at + 1 + count);
}

Words KeysOfMigrate(const Words& words) {
  if (words.size() < 4) return {};
  if (!words[3].empty()) return {words[3]};
  for (std::size_t i = 6; i < words.size(); ++i) {
    if (IEquals(words[i], "KEYS")) {
      return SomeWords(words, i + 1, words.size());
    }
  }
  return {};
}

constexpr std::uint16_t Crc16OfByte(unsigned byte) {
  unsigned crc = byte << 8;
  for (int bit = 0; bit != 8; ++bit) {
    crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
  }
  return static_cast<std::uint16_t>(crc);
}

constexpr auto kCrc16 = [] {
  std::array<std::uint16_t, 256> table{};
  for (unsigned byte = 0; byte != table.size(); ++byte) {
    table[byte] = Crc16OfByte(byte);
  }
  return table;
}();

std::string_view HashTagOf(std::string_view key) {
  const std::size_t open = key.find('{');
  if (open == key.npos) return key;
  const std::size_t close = key.find('}', open + 1);
  if (close == key.npos || close == open + 1) return key;
  return key.substr(open + 1, close - open - 1);
}

}  // namespace

int RedisSlotOfKey(std::string_view key) {
  unsigned crc = 0;  // CRC-16/XMODEM
  for (const char c : HashTagOf(key)) {
    const auto byte = static_cast<unsigned char>(c);
    crc = (crc << 8 & 0xffff) ^ kCrc16[(crc >> 8 ^ byte) & 0xff];
  }
  return static_cast<int>(crc % kRedisSlots);
}

std::vector<std::string_view> RedisKeysOf(const RedisCommand& command) {
  const Words words = command.Words();
  const std::size_t size = words.size();
  switch (KeyRuleOfCommand(command.name())) {
    case KeyRule::kNone:
      return {};
    case KeyRule::kFirst:
      return SomeWords(words, 1, 2);
    case KeyRule::kFirstTwo:
      return SomeWords(words, 1, 3);
    case KeyRule::kSecond:
      return SomeWords(words, 2, 3);
    case KeyRule::kAll:
      return SomeWords(words, 1, size);
    case KeyRule::kAllButLast:
      return SomeWords(words, 1, std::max<std::size_t>(size, 1) - 1);
    case KeyRule::kFromSecond:
      return SomeWords(words, 2, size);
    case KeyRule::kPairs:
      return SomeWords(words, 1, size, 2);
    case KeyRule::kCounted:
      return CountedWords(words, 1);
    case KeyRule::kCounted2:
      return CountedWords(words, 2);
    case KeyRule::kStored: {
      Words keys = CountedWords(words, 2);
      if (size > 1) keys.push_back(words[1]);
      return keys;
    }
    case KeyRule::kStreams:
      return StreamsOf(words);
    case KeyRule::kMigrate:
      return KeysOfMigrate(words);
  }
  return {};
}

Expected<int, flare::Status> RedisSlotOf(const RedisCommand& command) {
  int slot = kNoRedisSlot;
  for (const std::string_view key : RedisKeysOf(command)) {
    const int own = RedisSlotOfKey(key);
    if (slot == kNoRedisSlot) slot = own;
    if (slot == own) continue;
    return flare::Status(
        REDIS_CROSS_SLOT,
        command.name() +
            ": its keys are in several slots of the cluster; keys "
            "with the same {hash tag} are in one");
  }
  return slot;
}

bool OnlyReads(const RedisCommand& command) {
  return std::binary_search(kReadingCommands.begin(), kReadingCommands.end(),
                            command.name());
}

}  // namespace flare::rpc
