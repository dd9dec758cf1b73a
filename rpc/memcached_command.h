// A command for a memcached server.
//
//   std::vector<flare::MemcachedCommand> commands;
//   for (const auto& [key, value] : all) {
//     commands.push_back(MemcachedCommand::Set(key, value, {.ttl = 1h}));
//   }
//   auto results = client.ExecuteAll(commands);
//
// A key has 1 to 250 bytes, none of which is a space or a control character; a
// command with another one fails, and isn't sent. Values may have any bytes, up
// to 2 GiB - 3 of them.
// Holds the bytes to send, so the arguments needn't live on. Like an int as to
// threads. Nothing blocks.
#ifndef FLARE_RPC_MEMCACHED_COMMAND_H_
#define FLARE_RPC_MEMCACHED_COMMAND_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"

namespace flare {

// A time to live is 0 for values that don't expire.
struct MemcachedStoreOptions {
  std::chrono::seconds ttl = std::chrono::seconds(0);
  // Any number, which the server keeps with the value.
  std::uint32_t flags = 0;
  // Stores only if the value is still that of the MemcachedReply with this
  // `cas`: else the outcome is kExists, or kNotFound. Without one: whatever it
  // is. With 0, which a server without these numbers (its option -C) gives to
  // all values, the command fails.
  std::optional<std::uint64_t> cas = {};
};

struct MemcachedCountOptions {
  // If there is no such key it is made, with this value, which is the result.
  std::optional<std::uint64_t> initial = {};
  std::chrono::seconds ttl = std::chrono::seconds(0);  // Then.
};

class MemcachedCommand {
 public:
  enum class Kind : std::uint8_t { kGet, kTouch, kStore, kDelete, kCount };

  static MemcachedCommand Get(std::string_view key);
  // With a new time to live for the value.
  static MemcachedCommand GetAndTouch(std::string_view key,
                                      std::chrono::seconds ttl);
  static MemcachedCommand Touch(std::string_view key, std::chrono::seconds ttl);

  static MemcachedCommand Set(std::string_view key, std::string_view value,
                              const MemcachedStoreOptions& options = {});
  // Only if there is no such key.
  static MemcachedCommand Add(std::string_view key, std::string_view value,
                              const MemcachedStoreOptions& options = {});
  // This and the others: only if there is one.
  static MemcachedCommand Replace(std::string_view key, std::string_view value,
                                  const MemcachedStoreOptions& options = {});
  static MemcachedCommand Append(std::string_view key, std::string_view value);
  static MemcachedCommand Prepend(std::string_view key, std::string_view value);

  // `cas`: as in MemcachedStoreOptions.
  static MemcachedCommand Delete(std::string_view key,
                                 std::optional<std::uint64_t> cas = {});

  // The value, which is a number in digits, is the result: MemcachedReply::
  // number(). It wraps around at 2^64; below 0 it stays 0.
  static MemcachedCommand Increment(std::string_view key, std::uint64_t by = 1,
                                    const MemcachedCountOptions& options = {});
  static MemcachedCommand Decrement(std::string_view key, std::uint64_t by = 1,
                                    const MemcachedCountOptions& options = {});

  Kind kind() const noexcept { return kind_; }
  const std::string& key() const noexcept { return key_; }
  std::size_t value_size() const noexcept { return value_size_; }
  // Why it can't be sent. Empty: it can.
  const char* fault() const noexcept { return fault_; }
  // The bytes to send.
  const Buffer& bytes() const noexcept { return bytes_; }

 private:
  MemcachedCommand(Kind kind, std::string_view key, std::chrono::seconds ttl);
  void CheckCas(const std::optional<std::uint64_t>& cas);
  // These bytes, if it has no fault.
  template <class... Pieces>
  MemcachedCommand With(const Pieces&... pieces) &&;
  static MemcachedCommand Store(char mode, std::string_view key,
                                std::string_view value,
                                const MemcachedStoreOptions& options);
  static MemcachedCommand Count(char mode, std::string_view key,
                                std::uint64_t by,
                                const MemcachedCountOptions& options);

  Kind kind_;
  std::string key_;
  std::size_t value_size_ = 0;
  const char* fault_;
  Buffer bytes_;
};

}  // namespace flare

#endif  // FLARE_RPC_MEMCACHED_COMMAND_H_
