#include "flare/rpc/memcached/memcached_reader.h"

#include <optional>
#include <utility>
#include <vector>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

using MemcachedCode = MemcachedAnswer::Code;
using MemcachedOutcome = MemcachedReply::Outcome;

struct MemcachedWord {
  std::string_view word;
  MemcachedCode code;
  MemcachedOutcome outcome;
};
constexpr MemcachedWord kMemcachedWords[] = {
    {"HD", MemcachedCode::kDone, MemcachedOutcome::kOk},
    {"VA", MemcachedCode::kValue, MemcachedOutcome::kOk},
    {"EN", MemcachedCode::kMiss, MemcachedOutcome::kNotFound},
    {"NF", MemcachedCode::kNotFound, MemcachedOutcome::kNotFound},
    {"NS", MemcachedCode::kNotStored, MemcachedOutcome::kNotStored},
    {"EX", MemcachedCode::kExists, MemcachedOutcome::kExists},
    {"MN", MemcachedCode::kNothing, MemcachedOutcome::kOk},
    {"STORED", MemcachedCode::kAuthenticated, MemcachedOutcome::kOk},
    {"ERROR", MemcachedCode::kUnknownCommand, MemcachedOutcome::kOk},
    {"CLIENT_ERROR", MemcachedCode::kError, MemcachedOutcome::kOk},
    {"SERVER_ERROR", MemcachedCode::kError, MemcachedOutcome::kOk}};

const MemcachedWord* FindMemcachedWord(std::string_view word) {
  for (const MemcachedWord& known : kMemcachedWords) {
    if (known.word == word) return &known;
  }
  return nullptr;
}

template <class T>
bool ReadMemcachedNumber(std::string_view digits, T* out) {
  const auto value = TryParse<T>(digits);
  if (value) *out = *value;
  return value.has_value();
}

}  // namespace

MemcachedReader::Result MemcachedReader::Read(Buffer* in,
                                              MemcachedAnswer* out) {
  while (failure_.empty() && !complete_ && !in->empty()) {
    in->Skip(Consume(in->FirstContiguous()));
  }
  if (!failure_.empty()) return Result::kFailed;
  if (!complete_) return Result::kNeedMore;
  *out = std::exchange(answer_, {});
  complete_ = false;
  return Result::kAnswer;
}

std::size_t MemcachedReader::Consume(std::string_view bytes) {
  std::size_t taken = 0;
  if (crlf_.in_block()) {
    taken = crlf_.TakeBlock(bytes, &answer_.reply.value);
    complete_ = !crlf_.in_block();
  } else {
    std::string_view line;
    taken = crlf_.TakeLine(bytes, &line);
    if (!line.empty()) TakeLine(line);
  }
  if (failure_.empty()) failure_ = crlf_.failure();
  return taken;
}

void MemcachedReader::TakeLine(std::string_view line) {
  const std::string_view word = line.substr(0, line.find(' '));
  const MemcachedWord* const known = FindMemcachedWord(word);
  if (known == nullptr) {
    failure_ = FaultOfLine("a reply of no known kind", line);
    return;
  }
  answer_.code = known->code;
  answer_.reply.outcome = known->outcome;
  if (known->code == MemcachedCode::kError ||
      known->code == MemcachedCode::kUnknownCommand) {
    answer_.error = OneLine(line);
    complete_ = true;
    return;
  }
  std::vector<std::string_view> flags = Split(line.substr(word.size()), ' ');
  if (known->code == MemcachedCode::kValue) {
    BeginValue(flags.empty() ? "" : flags.front());
    if (!flags.empty()) flags.erase(flags.begin());
  }
  for (std::string_view flag : flags) {
    if (!TakeFlag(flag) && failure_.empty()) {
      failure_ = FaultOfLine("a malformed flag", line);
    }
  }
  complete_ = known->code != MemcachedCode::kValue;
}

void MemcachedReader::BeginValue(std::string_view size) {
  std::size_t bytes = 0;
  if (!ReadMemcachedNumber(size, &bytes)) {
    failure_ = FaultOfLine("a bad length of a value", size);
  } else if (bytes > max_value_size_) {
    failure_ = "a value of " + std::to_string(bytes) + " bytes, more than " +
               std::to_string(max_value_size_) + " (max_value_size)";
  } else {
    answer_.reply.value.reserve(bytes);
    crlf_.BeginBlock(bytes);
  }
}

// Other flags tell of a value what nobody has asked for.
bool MemcachedReader::TakeFlag(std::string_view flag) {
  const std::string_view token = flag.substr(1);
  if (flag[0] == 'f') return ReadMemcachedNumber(token, &answer_.reply.flags);
  if (flag[0] == 'c') return ReadMemcachedNumber(token, &answer_.reply.cas);
  return (flag[0] >= 'a' && flag[0] <= 'z') ||
         (flag[0] >= 'A' && flag[0] <= 'Z');
}

}  // namespace flare::rpc
