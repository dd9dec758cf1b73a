// The keys of commands, and the slots of a cluster that they are in.
//
//   const auto slot = RedisSlotOf(command);
//   if (!slot) return slot.error();         // Its keys are in several slots.
//   if (*slot == kNoRedisSlot) ...          // It has no keys: any server.
//
// Nothing blocks.
#ifndef FLARE_RPC_REDIS_REDIS_KEYS_H_
#define FLARE_RPC_REDIS_REDIS_KEYS_H_

#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/redis_command.h"

namespace flare::rpc {

inline constexpr int kRedisSlots = 16384;
inline constexpr int kNoRedisSlot = -1;

// The slot of a key: CRC16 of its hash tag, "user" in "{user}:name", or of all
// of it.
int RedisSlotOfKey(std::string_view key);

// The keys among the words of a command. In commands of modules and others that
// aren't known that is the first word behind the name. They live as long as the
// command isn't changed.
std::vector<std::string_view> RedisKeysOf(const RedisCommand& command);

// The slot of all keys; kNoRedisSlot if there is none. Fails with
// REDIS_CROSS_SLOT.
Expected<int, flare::Status> RedisSlotOf(const RedisCommand& command);

// It only reads keys, so that a replica can run it.
bool OnlyReads(const RedisCommand& command);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_KEYS_H_
