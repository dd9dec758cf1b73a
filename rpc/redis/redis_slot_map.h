// Texts in which servers of a cluster say where slots are: the reply to CLUSTER
// SLOTS, and errors such as "MOVED 3999 127.0.0.1:6381".
//
//   auto map = ReadSlotMap(reply, asked->address());
//   if (!map) return map.error();
//   map->shards[map->shard_of[slot]].master;
//
// The servers are trusted to be the cluster, but not to send texts in order.
// Nothing blocks.
#ifndef FLARE_RPC_REDIS_REDIS_SLOT_MAP_H_
#define FLARE_RPC_REDIS_REDIS_SLOT_MAP_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

// "10.0.0.1:6379", "[::1]:6379". An empty host is that of `asked`. Returns ""
// if nobody can connect there.
std::string RedisAddressOf(std::string_view host, std::string_view port,
                           std::string_view asked);

// Servers with the same slots, as "10.0.0.1:6379".
struct RedisShardAddresses {
  std::string master;
  std::vector<std::string> replicas = {};
};

struct RedisSlotMap {
  static constexpr std::uint16_t kNoShard = 0xffff;

  std::vector<RedisShardAddresses> shards;  // Each master once.
  std::vector<std::uint16_t> shard_of;      // By slot.
};

// Addresses without a host have that of `asked`. Fails with REDIS_REFUSED if
// the server isn't one of a cluster, or with REDIS_FAIL_TO_CONNECT if it knows
// no slots or the reply is malformed.
Expected<RedisSlotMap, flare::Status> ReadSlotMap(const RedisReply& reply,
                                                  std::string_view asked);

// An error of a server, and the next step: none of these commands has run.
struct RedisRedirect {
  enum class Kind : std::uint8_t {
    kNone,   // Another error, which is the reply.
    kMoved,  // The slot is at `address` for good.
    kAsk,    // This command should go to `address`, behind ASKING.
    kWait,   // Soon the server, or another one, may be able to run it.
  };

  Kind kind = Kind::kNone;
  // For kMoved and kAsk.
  int slot = 0;
  std::string address;
};

// Reads the text of an error by the server at the address `from`.
RedisRedirect ReadRedirect(std::string_view error, std::string_view from);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_SLOT_MAP_H_
