// The reply of a Redis server to a command of a RedisClient (redis_client.h).
//
//   auto reply = client.Execute({"LRANGE", "names", "0", "-1"});
//   if (!reply) return reply.error();                 // There is no reply.
//   if (reply->is_error()) LOG(ERROR) << reply->text();   // "WRONGTYPE ..."
//   for (const flare::RedisReply& name : reply->elements()) Use(name.text());
//
// Asking for another kind of value than there is gives an empty one: 0, "" or
// no elements. Nothing blocks.
#ifndef FLARE_RPC_REDIS_REPLY_H_
#define FLARE_RPC_REDIS_REPLY_H_

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flare {

namespace rpc {
class RespReader;
}  // namespace rpc

class RedisReply {
 public:
  enum class Kind : std::uint8_t {
    kNil,     // No value, as GET of a missing key has it.
    kStatus,  // "OK", "QUEUED"
    kError,   // "ERR unknown command ..."
    kInteger,
    kDouble,  // This, kBoolean, kMap and kPush come over RESP3 only.
    kBoolean,
    kString,  // Any bytes. Numbers beyond 64 bits, and texts with a format.
    kArray,   // Also sets.
    kMap,     // Its elements are keys and values, alternating.
    kPush,    // A message that replies to no command: a subscription's.
  };

  RedisReply() = default;  // kNil.

  // For mocks and tests.
  static RedisReply OfStatus(std::string text);
  static RedisReply OfError(std::string text);
  static RedisReply OfString(std::string bytes);
  static RedisReply OfInteger(std::int64_t value);
  static RedisReply OfDouble(double value);
  static RedisReply OfBoolean(bool value);
  // Nil in place of an array, as a BLPOP that has waited in vain gives it. Over
  // RESP2 it differs from other nils.
  static RedisReply OfNilArray();
  // `kind`: kArray, kMap or kPush.
  static RedisReply Of(Kind kind, std::vector<RedisReply> elements);

  Kind kind() const noexcept { return kind_; }
  bool is_nil() const noexcept { return kind_ == Kind::kNil; }
  bool is_nil_array() const noexcept { return nil_array_; }
  bool is_error() const noexcept { return kind_ == Kind::kError; }
  // The status "OK".
  bool is_ok() const noexcept {
    return kind_ == Kind::kStatus && text_ == "OK";
  }

  // The value of kInteger and kBoolean.
  std::int64_t integer() const noexcept {
    return kind_ == Kind::kDouble ? 0 : integer_;
  }
  // The value of kDouble.
  double real() const noexcept { return kind_ == Kind::kDouble ? real_ : 0; }
  // The bytes of kString, kStatus and kError.
  const std::string& text() const& noexcept { return text_; }
  std::string text() && noexcept { return std::move(text_); }
  // The elements of kArray, kMap and kPush.
  const std::vector<RedisReply>& elements() const& noexcept {
    return elements_;
  }
  std::vector<RedisReply> elements() && noexcept {
    return std::move(elements_);
  }
  std::size_t size() const noexcept { return elements_.size(); }
  // `n` must be less than size().
  const RedisReply& operator[](std::size_t n) const { return elements_[n]; }
  // The value of a key of kMap, or of an array with keys and values
  // alternating, as RESP2 has maps. Null: there is none. Searches.
  const RedisReply* Find(std::string_view key) const;

  // For people, as `["a", 1, nil]`.
  std::string ToString() const;

  friend bool operator==(const RedisReply& a, const RedisReply& b) noexcept;

 private:
  friend class rpc::RespReader;
  RedisReply(Kind kind, std::string text)
      : text_(std::move(text)), kind_(kind) {}

  std::string text_;
  std::vector<RedisReply> elements_;
  union {
    std::int64_t integer_ = 0;
    double real_;  // For kDouble.
  };
  Kind kind_ = Kind::kNil;
  bool nil_array_ = false;  // For kNil; == doesn't compare it.
};

std::ostream& operator<<(std::ostream& out, const RedisReply& reply);

}  // namespace flare

#endif  // FLARE_RPC_REDIS_REPLY_H_
