#include "flare/rpc/redis_command.h"

#include <algorithm>
#include <array>
#include <utility>

#include "flare/base/string.h"

namespace flare {
namespace {

// In the order of their names.
constexpr auto kSessionCommands = std::to_array<std::string_view>(
    {"ASKING",       "AUTH",       "BLMOVE",       "BLMPOP",     "BLPOP",
     "BRPOP",        "BRPOPLPUSH", "BZMPOP",       "BZPOPMAX",   "BZPOPMIN",
     "DISCARD",      "EXEC",       "HELLO",        "MONITOR",    "MULTI",
     "PSUBSCRIBE",   "PSYNC",      "PUNSUBSCRIBE", "QUIT",       "READONLY",
     "READWRITE",    "RESET",      "SELECT",       "SSUBSCRIBE", "SUBSCRIBE",
     "SUNSUBSCRIBE", "SYNC",       "UNSUBSCRIBE",  "UNWATCH",    "WAIT",
     "WAITAOF",      "WATCH"});
static_assert(std::is_sorted(kSessionCommands.begin(), kSessionCommands.end()));

// In the order of their names, too. Those of replication have no replies at
// all.
constexpr auto kMessageCommands = std::to_array<std::string_view>(
    {"MONITOR", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE", "SSUBSCRIBE",
     "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC", "UNSUBSCRIBE"});
static_assert(std::is_sorted(kMessageCommands.begin(), kMessageCommands.end()));

constexpr std::size_t kMaxName = 31;

std::string NameOfRedisCommand(std::string_view word) {
  std::string name(word.substr(0, kMaxName));
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return name;
}

}  // namespace

RedisCommand::RedisCommand(std::initializer_list<std::string_view> words) {
  std::size_t size = 0;
  for (std::string_view word : words) size += word.size() + 16;
  bytes_.reserve(size);
  for (std::string_view word : words) Add(word);
}

RedisCommand::RedisCommand(const std::vector<std::string>& words) {
  for (const std::string& word : words) Add(word);
}

RedisCommand& RedisCommand::Add(std::string_view word) {
  if (words_ == 0) {
    name_ = NameOfRedisCommand(word);
  } else if (words_ == 1 && name_ == "CLIENT") {
    if (IEquals(word, "REPLY")) silences_ = true;
  } else if (name_.starts_with("XREAD") && IEquals(word, "BLOCK")) {
    blocks_ = true;
  }
  ++words_;
  bytes_ += '$';
  bytes_ += std::to_string(word.size());
  bytes_ += "\r\n";
  bytes_ += word;
  bytes_ += "\r\n";
  return *this;
}

RedisCommand& RedisCommand::Add(std::int64_t number) {
  return Add(std::to_string(number));
}

std::vector<std::string_view> RedisCommand::Words() const {
  std::vector<std::string_view> words;
  words.reserve(words_);
  std::string_view rest = bytes_;
  while (!rest.empty()) {  // "$3\r\nGET\r\n"
    const std::size_t line = rest.find('\r');
    const std::size_t size = *TryParse<std::size_t>(rest.substr(1, line - 1));
    words.push_back(rest.substr(line + 2, size));
    rest.remove_prefix(line + 2 + size + 2);
  }
  return words;
}

bool RedisCommand::needs_session() const noexcept {
  return blocks_ || silences_ ||
         std::binary_search(kSessionCommands.begin(), kSessionCommands.end(),
                            name_);
}

bool RedisCommand::has_messages() const noexcept {
  return std::binary_search(kMessageCommands.begin(), kMessageCommands.end(),
                            name_);
}

Buffer RedisCommand::Encode() const {
  BufferBuilder builder;
  builder.Append("*", std::to_string(words_), "\r\n", bytes_);
  return builder.DestructiveGet();
}

}  // namespace flare
