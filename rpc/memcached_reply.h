// A memcached server's reply to a command.
//
//   if (reply.ok()) Use(reply.value);
//
// A plain value; nothing blocks.
#ifndef FLARE_RPC_MEMCACHED_REPLY_H_
#define FLARE_RPC_MEMCACHED_REPLY_H_

#include <cstdint>
#include <iosfwd>
#include <string>

namespace flare {

struct MemcachedReply {
  enum class Outcome : std::uint8_t {
    kOk,         // Found, stored, deleted, counted or touched.
    kNotFound,   // There is no such key.
    kNotStored,  // As there is such a key (Add), or none (Replace, Append).
    kExists,     // As the value has changed since `cas` was read.
  };

  Outcome outcome = Outcome::kOk;
  // Get has it; Increment has it as digits.
  std::string value = {};
  // Get has those that the value was stored with.
  std::uint32_t flags = 0;
  // Get, Set and Increment have it: the number of the value as it is now, for
  // MemcachedStoreOptions::cas. Never 0, unless the server keeps none.
  std::uint64_t cas = 0;

  bool ok() const noexcept { return outcome == Outcome::kOk; }
  // `value` as a number; 0 if it is none.
  std::uint64_t number() const;
  // For people, as `"value"` or `not found`.
  std::string ToString() const;

  friend bool operator==(const MemcachedReply&,
                         const MemcachedReply&) = default;
};

std::ostream& operator<<(std::ostream& out, const MemcachedReply& reply);

}  // namespace flare

#endif  // FLARE_RPC_MEMCACHED_REPLY_H_
