#include "flare/rpc/redis/resp_reader.h"

#include <algorithm>
#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

// The sign that TryParse() doesn't take.
std::string_view WithoutPlus(std::string_view number) {
  const bool plus = number.size() > 1 && number[0] == '+' && number[1] != '-';
  return number.substr(plus ? 1 : 0);
}

bool IsBigNumber(std::string_view text) {
  text = WithoutPlus(text);
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c >= '0' && c <= '9';
  });
}

}  // namespace

RespReader::Result RespReader::Read(Buffer* in, RedisReply* out) {
  while (failure_.empty() && !complete_ && !in->empty()) {
    in->Skip(Consume(in->FirstContiguous()));
  }
  if (!failure_.empty()) return Result::kFailed;
  if (!complete_) return Result::kNeedMore;
  *out = std::exchange(value_, RedisReply());
  complete_ = false;
  reply_size_ = std::exchange(charged_, 0);
  return Result::kReply;
}

// As much of `bytes` as belongs to this reply, or as is well-formed.
std::size_t RespReader::Consume(std::string_view bytes) {
  std::size_t used = 0;
  while (failure_.empty() && !complete_ && used != bytes.size()) {
    used += crlf_.in_block() ? ConsumeString(bytes.substr(used))
                             : ConsumeLine(bytes.substr(used));
  }
  return used;
}

std::size_t RespReader::ConsumeString(std::string_view bytes) {
  const std::size_t taken = crlf_.TakeBlock(bytes, &value_.text_);
  if (!crlf_.failure().empty()) {
    Fail(crlf_.failure());
  } else if (!crlf_.in_block()) {
    EndString();
  }
  return taken;
}

std::size_t RespReader::ConsumeLine(std::string_view bytes) {
  std::string_view line;
  const std::size_t taken = crlf_.TakeLine(bytes, &line);
  if (!crlf_.failure().empty()) {
    too_large_ = crlf_.too_long();
    Fail(crlf_.failure());
  } else if (!line.empty()) {
    TakeLine(line);
  }
  return taken;
}

void RespReader::TakeLine(std::string_view line) {
  const char type = line[0];
  const std::string_view rest = line.substr(1);
  switch (type) {
    case '+':
      if (Charge(rest.size())) {
        TakeValue(RedisReply::OfStatus(std::string(rest)));
      }
      return;
    case '-':
      if (Charge(rest.size())) {
        TakeValue(RedisReply::OfError(std::string(rest)));
      }
      return;
    case ':':
      if (const auto value = TryParse<std::int64_t>(WithoutPlus(rest))) {
        return TakeValue(RedisReply::OfInteger(*value));
      }
      break;
    case ',':
      if (const auto value = TryParse<double>(WithoutPlus(rest))) {
        return TakeValue(RedisReply::OfDouble(*value));
      }
      break;
    case '(':
      if (!IsBigNumber(rest)) break;
      if (Charge(rest.size())) {
        TakeValue(RedisReply::OfString(std::string(rest)));
      }
      return;
    case '#':
      if (rest != "t" && rest != "f") break;
      return TakeValue(RedisReply::OfBoolean(rest == "t"));
    case '_':
      if (!rest.empty()) break;
      return TakeValue(RedisReply());
    case '$':
    case '=':
    case '!':
      return BeginString(type, rest);
    case '*':
    case '~':
    case '%':
    case '>':
    case '|':
      return BeginAggregate(type, rest);
    default:
      return FailOf("a reply of no known type", line);
  }
  FailOf("a malformed value", line);
}

void RespReader::BeginString(char type, std::string_view length) {
  const auto size = TryParse<std::int64_t>(length);
  if (type == '$' && size == -1) return TakeValue(RedisReply());
  if (!size || *size < 0) return FailOf("a bad length of a string", length);
  if (!Charge(static_cast<std::uint64_t>(*size))) return;
  string_type_ = type;
  crlf_.BeginBlock(static_cast<std::size_t>(*size));
  value_ = RedisReply(
      type == '!' ? RedisReply::Kind::kError : RedisReply::Kind::kString, {});
  value_.text_.reserve(static_cast<std::size_t>(*size));
}

void RespReader::EndString() {
  if (string_type_ == '=') {  // "txt:", the format.
    if (value_.text_.size() < 4 || value_.text_[3] != ':') {
      return Fail("a text without its format");
    }
    value_.text_.erase(0, 4);
  }
  TakeValue(std::exchange(value_, RedisReply()));
}

void RespReader::BeginAggregate(char type, std::string_view count) {
  const auto given = TryParse<std::int64_t>(count);
  if (type == '*' && given == -1) return TakeValue(RedisReply::OfNilArray());
  if (!given || *given < 0) return FailOf("a bad count of elements", count);
  const auto size = static_cast<std::uint64_t>(*given);
  const bool pairs = type == '%' || type == '|';
  if (size > limits_.max_size / sizeof(RedisReply)) return FailTooLarge();
  if (!Charge(size * sizeof(RedisReply) * (pairs ? 2 : 1))) return;
  if (levels_.size() == limits_.max_depth) {
    too_large_ = true;
    return Fail("arrays are nested more than " +
                std::to_string(limits_.max_depth) + " deep");
  }
  auto kind = RedisReply::Kind::kArray;
  if (pairs) kind = RedisReply::Kind::kMap;
  if (type == '>') kind = RedisReply::Kind::kPush;
  Level level{RedisReply(kind, {}), pairs ? 2 * size : size, type == '|'};
  if (level.left != 0) {
    levels_.push_back(std::move(level));
  } else if (!level.attribute) {
    TakeValue(std::move(level.reply));
  }
}

void RespReader::TakeValue(RedisReply value) {
  while (!levels_.empty()) {
    Level& level = levels_.back();
    level.reply.elements_.push_back(std::move(value));
    if (--level.left != 0) return;
    const bool attribute = level.attribute;
    value = std::move(level.reply);
    levels_.pop_back();
    if (attribute) return;  // The value that it is of follows.
  }
  value_ = std::move(value);
  complete_ = true;
}

bool RespReader::Charge(std::uint64_t bytes) {
  if (bytes <= limits_.max_size - charged_) {
    charged_ += static_cast<std::size_t>(bytes);
    return true;
  }
  FailTooLarge();
  return false;
}

void RespReader::FailTooLarge() {
  too_large_ = true;
  Fail("a reply takes more than " + std::to_string(limits_.max_size) +
       " bytes of memory");
}

void RespReader::Fail(std::string_view what) {
  if (failure_.empty()) failure_ = what;
}

void RespReader::FailOf(std::string_view what, std::string_view line) {
  Fail(FaultOfLine(what, line));
}

}  // namespace flare::rpc
