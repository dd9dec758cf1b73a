#include "flare/rpc/redis_reply.h"

#include <algorithm>
#include <ostream>

#include "flare/base/string.h"

namespace flare {

RedisReply RedisReply::OfStatus(std::string text) {
  return RedisReply(Kind::kStatus, std::move(text));
}

RedisReply RedisReply::OfError(std::string text) {
  return RedisReply(Kind::kError, std::move(text));
}

RedisReply RedisReply::OfString(std::string bytes) {
  return RedisReply(Kind::kString, std::move(bytes));
}

RedisReply RedisReply::OfInteger(std::int64_t value) {
  RedisReply reply(Kind::kInteger, {});
  reply.integer_ = value;
  return reply;
}

RedisReply RedisReply::OfDouble(double value) {
  RedisReply reply(Kind::kDouble, {});
  reply.real_ = value;
  return reply;
}

RedisReply RedisReply::OfBoolean(bool value) {
  RedisReply reply(Kind::kBoolean, {});
  reply.integer_ = value ? 1 : 0;
  return reply;
}

RedisReply RedisReply::OfNilArray() {
  RedisReply reply;
  reply.nil_array_ = true;
  return reply;
}

RedisReply RedisReply::Of(Kind kind, std::vector<RedisReply> elements) {
  RedisReply reply(kind, {});
  reply.elements_ = std::move(elements);
  return reply;
}

const RedisReply* RedisReply::Find(std::string_view key) const {
  for (std::size_t i = 0; i + 1 < elements_.size(); i += 2) {
    if (elements_[i].text_ == key) return &elements_[i + 1];
  }
  return nullptr;
}

std::string RedisReply::ToString() const {
  switch (kind_) {
    case Kind::kNil:
      return "nil";
    case Kind::kStatus:
      return OneLine(text_);
    case Kind::kError:
      return "error: " + OneLine(text_);
    case Kind::kInteger:
      return std::to_string(integer_);
    case Kind::kDouble:
      return std::to_string(real_);
    case Kind::kBoolean:
      return integer_ != 0 ? "true" : "false";
    case Kind::kString:
      return '"' + OneLine(text_) + '"';
    case Kind::kArray:
    case Kind::kMap:
    case Kind::kPush:
      break;
  }
  std::string text;
  for (const RedisReply& element : elements_) {
    text += (text.empty() ? "" : ", ") + element.ToString();
  }
  return (kind_ == Kind::kPush  ? "push ["
          : kind_ == Kind::kMap ? "map ["
                                : "[") +
         text + ']';
}

bool operator==(const RedisReply& a, const RedisReply& b) noexcept {
  if (a.kind_ != b.kind_ || a.text_ != b.text_) return false;
  if (a.kind_ == RedisReply::Kind::kDouble ? a.real_ != b.real_
                                           : a.integer_ != b.integer_) {
    return false;
  }
  return a.elements_ == b.elements_;
}

std::ostream& operator<<(std::ostream& out, const RedisReply& reply) {
  return out << reply.ToString();
}

}  // namespace flare
