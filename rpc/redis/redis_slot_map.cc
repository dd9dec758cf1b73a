#include "flare/rpc/redis/redis_slot_map.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/redis/redis_keys.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxServersOfSlots = 4096;
constexpr std::size_t kMaxServerHostBytes = 255;

// Without the port.
std::string_view HostOf(std::string_view address) {
  return address.substr(0, address.rfind(':'));
}

// ["10.0.0.1", 6379, "id", ...]
std::string AddressOfServer(const RedisReply& server, std::string_view asked) {
  if (server.size() < 2) return {};
  return RedisAddressOf(server[0].text(), std::to_string(server[1].integer()),
                        asked);
}

class SlotMapReader {
 public:
  explicit SlotMapReader(std::string_view asked) : asked_(asked) {
    map_.shard_of.assign(kRedisSlots, RedisSlotMap::kNoShard);
  }

  // [first slot, last slot, master, replica, ...]. False: it is malformed.
  [[nodiscard]] bool Add(const RedisReply& range) {
    if (range.size() < 3) return false;
    const std::int64_t first = range[0].integer();
    const std::int64_t last = range[1].integer();
    if (first < 0 || first > last || last >= kRedisSlots) return false;
    std::string master = AddressOfServer(range[2], asked_);
    if (master.empty()) return true;  // It may be known later.
    const std::optional<std::uint16_t> shard = ShardOf(master, range);
    if (!shard) return false;
    std::fill(map_.shard_of.begin() + first, map_.shard_of.begin() + last + 1,
              *shard);
    return true;
  }

  RedisSlotMap Take() { return std::move(map_); }

 private:
  // Nothing: there are too many.
  std::optional<std::uint16_t> ShardOf(const std::string& master,
                                       const RedisReply& range) {
    const auto known = shards_.find(master);
    if (known != shards_.end()) return known->second;
    servers_ += range.size() - 2;
    if (servers_ > kMaxServersOfSlots) return std::nullopt;
    RedisShardAddresses shard{.master = master};
    for (std::size_t i = 3; i != range.size(); ++i) {
      std::string replica = AddressOfServer(range[i], asked_);
      if (!replica.empty()) shard.replicas.push_back(std::move(replica));
    }
    const auto number = static_cast<std::uint16_t>(map_.shards.size());
    map_.shards.push_back(std::move(shard));
    shards_[master] = number;
    return number;
  }

  const std::string_view asked_;
  RedisSlotMap map_;
  std::map<std::string, std::uint16_t> shards_;  // By master.
  std::size_t servers_ = 0;
};

// "MOVED 3999 127.0.0.1:6381", the first word read.
RedisRedirect ReadSlotAndAddress(RedisRedirect::Kind kind,
                                 std::string_view text, std::string_view from) {
  const std::size_t space = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (space == text.npos || colon == text.npos || colon <= space) return {};
  const auto slot = TryParse<std::uint16_t>(text.substr(0, space));
  std::string address = RedisAddressOf(
      text.substr(space + 1, colon - space - 1), text.substr(colon + 1), from);
  if (!slot || *slot >= kRedisSlots || address.empty()) return {};
  return {.kind = kind, .slot = *slot, .address = std::move(address)};
}

}  // namespace

std::string RedisAddressOf(std::string_view host, std::string_view port,
                           std::string_view asked) {
  const auto number = TryParse<std::uint16_t>(port);
  const bool malformed = host.size() > kMaxServerHostBytes || host == "?" ||
                         std::any_of(host.begin(), host.end(), [](char c) {
                           return c <= ' ' || c > '~' || c == '/';
                         });
  if (!number || *number == 0 || malformed) return {};
  std::string address(host.empty() ? HostOf(asked) : host);
  if (address.find(':') != address.npos && address.front() != '[') {
    address = '[' + address + ']';
  }
  return address + ':' + std::to_string(*number);
}

Expected<RedisSlotMap, flare::Status> ReadSlotMap(const RedisReply& reply,
                                                  std::string_view asked) {
  if (reply.is_error()) {
    return flare::Status(REDIS_REFUSED, "CLUSTER SLOTS: " + reply.text());
  }
  SlotMapReader reader(asked);
  for (const RedisReply& range : reply.elements()) {
    if (reader.Add(range)) continue;
    return flare::Status(REDIS_FAIL_TO_CONNECT,
                         "CLUSTER SLOTS: the reply is malformed");
  }
  RedisSlotMap map = reader.Take();
  if (map.shards.empty()) {
    return flare::Status(REDIS_FAIL_TO_CONNECT,
                         "CLUSTER SLOTS: the server knows no slots");
  }
  return map;
}

RedisRedirect ReadRedirect(std::string_view error, std::string_view from) {
  using Kind = RedisRedirect::Kind;
  const std::size_t space = error.find(' ');
  const std::string_view code = error.substr(0, space);
  if (code == "TRYAGAIN" || code == "CLUSTERDOWN" || code == "LOADING" ||
      code == "MASTERDOWN") {
    return {.kind = Kind::kWait, .slot = 0, .address = {}};
  }
  const Kind kind = code == "MOVED" ? Kind::kMoved
                    : code == "ASK" ? Kind::kAsk
                                    : Kind::kNone;
  if (kind == Kind::kNone || space == error.npos) return {};
  return ReadSlotAndAddress(kind, error.substr(space + 1), from);
}

}  // namespace flare::rpc
