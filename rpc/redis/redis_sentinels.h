// The sentinels of a Redis master: they know which server is the master now.
//
//   RedisSentinels sentinels(uri, options);
//   auto address = sentinels.FindMaster();   // "10.0.0.1:6379"
//   if (!address) return address.error();
#ifndef FLARE_RPC_REDIS_REDIS_SENTINELS_H_
#define FLARE_RPC_REDIS_REDIS_SENTINELS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/redis/redis_uri.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {

// All functions are thread-safe.
class RedisSentinels final {
 public:
  using Address = Expected<std::string, flare::Status>;

  RedisSentinels(RedisUri uri, RedisClientOptions options);

  // Asks one sentinel after the other, beginning with the one that answered
  // last, over a connection for this question only. Blocks, for connect_timeout
  // at most. Fails with a RedisErrorCode of commands that weren't sent.
  Address FindMaster();

  // The address found was no master's: the next search begins at the next
  // sentinel.
  void AskAnotherFirst();

 private:
  Address Ask(const std::string& sentinel, std::chrono::nanoseconds limit);

  const RedisUri uri_;
  const RedisClientOptions options_;  // For connections to sentinels.
  std::atomic<std::size_t> first_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_SENTINELS_H_
