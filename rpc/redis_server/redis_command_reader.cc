#include "flare/rpc/redis_server/redis_command_reader.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/rpc/redis_server/redis_line.h"

namespace flare::rpc {
namespace {

// More than any number, with its first character and its line's end.
constexpr std::size_t kMaxNumberLine = 32;

}  // namespace

RedisCommandReader::Result RedisCommandReader::Read(Buffer* in,
                                                    RedisCommands* out) {
  complete_ = false;
  while (failure_.empty() && !complete_ && !in->empty()) {
    in->Skip(Consume(in->FirstContiguous(), out));
  }
  if (!failure_.empty()) return Result::kFailed;
  return complete_ ? Result::kCommand : Result::kNeedMore;
}

// As much of `bytes` as belongs to this command, or as is well-formed.
std::size_t RedisCommandReader::Consume(std::string_view bytes,
                                        RedisCommands* out) {
  std::size_t used = 0;
  while (failure_.empty() && !complete_ && used != bytes.size()) {
    used += in_word_ ? ConsumeWord(bytes.substr(used), out)
                     : ConsumeLine(bytes.substr(used), out);
  }
  return used;
}

std::size_t RedisCommandReader::ConsumeWord(std::string_view bytes,
                                            RedisCommands* out) {
  const std::size_t taken = std::min(bytes_left_, bytes.size());
  const std::size_t of_word =
      bytes_left_ > 2 ? std::min(bytes_left_ - 2, taken) : 0;
  out->AddBytes(bytes.substr(0, of_word));
  for (std::size_t i = of_word; i != taken; ++i) {
    if (bytes[i] != (bytes_left_ - i == 2 ? '\r' : '\n')) {
      Fail("a string is longer than its length says");
      return taken;
    }
  }
  bytes_left_ -= taken;
  if (bytes_left_ != 0) return taken;
  in_word_ = false;
  out->EndWord();
  if (--words_left_ == 0) {
    out->EndCommand();
    complete_ = true;
    charged_ = 0;
  }
  return taken;
}

std::size_t RedisCommandReader::ConsumeLine(std::string_view bytes,
                                            RedisCommands* out) {
  const std::size_t end = bytes.find('\n');
  const std::size_t taken = end == bytes.npos ? bytes.size() : end + 1;
  const std::size_t size = line_.size() + taken;
  const char first = line_.empty() ? bytes[0] : line_[0];
  if (words_left_ != 0 && size > kMaxNumberLine) {
    Fail("too big bulk count string");
  } else if (first == '*' && size > kMaxNumberLine) {
    Fail("too big mbulk count string");
  } else if (size > kMaxLine) {
    Fail("too big inline request");
  } else if (end == bytes.npos) {
    line_ += bytes;
  } else if (line_.empty()) {
    TakeLine(bytes.substr(0, end), out);
  } else {
    line_ += bytes.substr(0, end);
    TakeLine(line_, out);
    ClearKeeping(&line_, /*max_capacity=*/64);
  }
  return taken;
}

// `line`: without its last character.
void RedisCommandReader::TakeLine(std::string_view line, RedisCommands* out) {
  const bool cr = line.ends_with('\r');
  if (cr) line.remove_suffix(1);
  if (words_left_ != 0) {
    return cr ? BeginWord(line) : Fail("invalid bulk length");
  }
  if (!line.starts_with('*')) return TakeTyped(line, out);
  return cr ? BeginCommand(line.substr(1)) : Fail("invalid multibulk length");
}

void RedisCommandReader::TakeTyped(std::string_view line, RedisCommands* out) {
  std::vector<std::string> words;
  if (!SplitRedisLine(line, &words)) {
    return Fail("unbalanced quotes in request");
  }
  if (words.empty()) return;
  // A page in a browser can make its user's browser send such lines here.
  if (IEquals(words[0], "POST") || IEquals(words[0], "Host:")) {
    return Fail("this is no HTTP server");
  }
  std::size_t cost = 0;
  for (const std::string& word : words) {
    cost += word.size() + RedisCommands::kWordCost;
  }
  if (!Charge(cost)) return;
  for (const std::string& word : words) {
    out->AddBytes(word);
    out->EndWord();
  }
  out->EndCommand();
  complete_ = true;
  charged_ = 0;
}

void RedisCommandReader::BeginCommand(std::string_view count) {
  const auto words = TryParse<std::int64_t>(count);
  if (!words || *words > static_cast<std::int64_t>(kMaxWords)) {
    return Fail("invalid multibulk length");
  }
  if (*words <= 0) return;  // Redis passes over those, too.
  const auto n = static_cast<std::size_t>(*words);
  if (Charge(n * RedisCommands::kWordCost)) words_left_ = n;
}

void RedisCommandReader::BeginWord(std::string_view line) {
  if (!line.starts_with('$')) {
    const char got[] = {line.empty() ? '\r' : line[0], '\0'};
    return Fail("expected '$', got '" + OneLine(got) + "'");
  }
  const auto size = TryParse<std::int64_t>(line.substr(1));
  if (!size || *size < 0) return Fail("invalid bulk length");
  const auto n = static_cast<std::size_t>(*size);
  if (!Charge(n)) return;
  bytes_left_ = n + 2;
  in_word_ = true;
}

bool RedisCommandReader::Charge(std::size_t bytes) {
  if (bytes > max_size_ - charged_) {
    Fail("the command is too large");
    return false;
  }
  charged_ += bytes;
  return true;
}

void RedisCommandReader::Fail(std::string_view what) {
  if (failure_.empty()) failure_ = "Protocol error: " + std::string(what);
}

}  // namespace flare::rpc
