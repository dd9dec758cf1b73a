#include "flare/rpc/memcached_command.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "flare/base/clock.h"

namespace flare {
namespace {

constexpr std::size_t kMaxMemcachedKey = 250;

const char* FaultOfMemcachedKey(std::string_view key) {
  if (key.empty()) return "the key is empty";
  if (key.size() > kMaxMemcachedKey) return "the key is over 250 bytes long";
  const bool printable = std::all_of(key.begin(), key.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '\x7f';
  });
  return printable ? "" : "the key has a space or a control character";
}

// " T60". More than 30 days are a point in time for the server, of 31 bits.
std::string MemcachedTtl(std::chrono::seconds ttl) {
  constexpr std::int64_t kMaxRelative = 30 * 24 * 3600;
  std::int64_t value = ttl.count();
  if (value > kMaxRelative) {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::system_clock::now().time_since_epoch());
    value = std::min<std::int64_t>(SaturatingAdd(value, now.count()),
                                   std::numeric_limits<std::int32_t>::max());
  }
  return " T" + std::to_string(value);
}

}  // namespace

MemcachedCommand::MemcachedCommand(Kind kind, std::string_view key,
                                   std::chrono::seconds ttl)
    : kind_(kind), key_(key), fault_(FaultOfMemcachedKey(key)) {
  if (ttl.count() < 0) fault_ = "the time to live is negative";
}

void MemcachedCommand::CheckCas(const std::optional<std::uint64_t>& cas) {
  if (cas != 0) return;
  fault_ = "its cas is 0: the server keeps no such numbers (its option -C)";
}

template <class... Pieces>
MemcachedCommand MemcachedCommand::With(const Pieces&... pieces) && {
  if (*fault_ == '\0') {
    BufferBuilder builder;
    builder.Append(pieces..., "\r\n");
    bytes_ = builder.DestructiveGet();
  }
  return std::move(*this);
}

MemcachedCommand MemcachedCommand::Get(std::string_view key) {
  return MemcachedCommand(Kind::kGet, key, {}).With("mg ", key, " v f c");
}

MemcachedCommand MemcachedCommand::GetAndTouch(std::string_view key,
                                               std::chrono::seconds ttl) {
  return MemcachedCommand(Kind::kGet, key, ttl)
      .With("mg ", key, " v f c", MemcachedTtl(ttl));
}

MemcachedCommand MemcachedCommand::Touch(std::string_view key,
                                         std::chrono::seconds ttl) {
  return MemcachedCommand(Kind::kTouch, key, ttl)
      .With("mg ", key, MemcachedTtl(ttl));
}

MemcachedCommand MemcachedCommand::Store(char mode, std::string_view key,
                                         std::string_view value,
                                         const MemcachedStoreOptions& options) {
  MemcachedCommand command(Kind::kStore, key, options.ttl);
  command.value_size_ = value.size();
  // Servers take a value that they can't count for commands.
  constexpr std::size_t kMaxValue = (std::size_t{1} << 31) - 3;
  if (value.size() > kMaxValue) command.fault_ = "the value has 2 GiB or more";
  command.CheckCas(options.cas);
  std::string head(" c M");
  head += mode;
  if (options.flags != 0) head += " F" + std::to_string(options.flags);
  if (options.ttl.count() != 0) head += MemcachedTtl(options.ttl);
  if (options.cas) head += " C" + std::to_string(*options.cas);
  return std::move(command).With("ms ", key, " ", std::to_string(value.size()),
                                 head, "\r\n", value);
}

MemcachedCommand MemcachedCommand::Set(std::string_view key,
                                       std::string_view value,
                                       const MemcachedStoreOptions& options) {
  return Store('S', key, value, options);
}

MemcachedCommand MemcachedCommand::Add(std::string_view key,
                                       std::string_view value,
                                       const MemcachedStoreOptions& options) {
  return Store('E', key, value, options);
}

MemcachedCommand MemcachedCommand::Replace(
    std::string_view key, std::string_view value,
    const MemcachedStoreOptions& options) {
  return Store('R', key, value, options);
}

MemcachedCommand MemcachedCommand::Append(std::string_view key,
                                          std::string_view value) {
  return Store('A', key, value, {});
}

MemcachedCommand MemcachedCommand::Prepend(std::string_view key,
                                           std::string_view value) {
  return Store('P', key, value, {});
}

MemcachedCommand MemcachedCommand::Delete(std::string_view key,
                                          std::optional<std::uint64_t> cas) {
  MemcachedCommand command(Kind::kDelete, key, {});
  command.CheckCas(cas);
  return std::move(command).With("md ", key,
                                 cas ? " C" + std::to_string(*cas) : "");
}

MemcachedCommand MemcachedCommand::Count(char mode, std::string_view key,
                                         std::uint64_t by,
                                         const MemcachedCountOptions& options) {
  std::string flags;
  if (options.initial) {
    flags = MemcachedTtl(options.ttl);
    flags[1] = 'N';
    flags += " J" + std::to_string(*options.initial);
  }
  return MemcachedCommand(Kind::kCount, key, options.ttl)
      .With("ma ", key, " v c M", std::string_view(&mode, 1), " D",
            std::to_string(by), flags);
}

MemcachedCommand MemcachedCommand::Increment(
    std::string_view key, std::uint64_t by,
    const MemcachedCountOptions& options) {
  return Count('I', key, by, options);
}

MemcachedCommand MemcachedCommand::Decrement(
    std::string_view key, std::uint64_t by,
    const MemcachedCountOptions& options) {
  return Count('D', key, by, options);
}

}  // namespace flare
