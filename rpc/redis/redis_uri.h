// URIs of Redis servers.
//
//   redis://user:password@10.0.0.1:6379/2
//   rediss://cache.example.com              TLS
//   unix:/run/redis/redis.sock?db=2         a Unix socket
//   redis-cluster://10.0.0.1,10.0.0.2:7000  some servers of a cluster
//   redis-sentinel://10.0.0.1,10.0.0.2/0#mymaster   sentinels of a master
//   rediss-cluster://..., rediss-sentinel://...     TLS
#ifndef FLARE_RPC_REDIS_REDIS_URI_H_
#define FLARE_RPC_REDIS_REDIS_URI_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

struct RedisUri {
  enum class Kind : std::uint8_t { kServer, kCluster, kSentinel };

  Kind kind = Kind::kServer;
  bool tls = false;
  std::string user = {};
  std::string password = {};
  int database = 0;
  // To connect to: "example.com:6379", "[::1]:6379", "unix:/run/redis.sock".
  // One for a server; those of a cluster, or of sentinels, are tried one after
  // the other.
  std::vector<std::string> addresses = {};
  // Its name, for sentinels.
  std::string master = {};

  // "redis://example.com:6379/2", without user and password.
  std::string ToString() const;
};

// Fails with REDIS_INVALID_URI; the text has neither user nor password. In both
// of them %40 is '@', and so on. Doesn't block.
Expected<RedisUri, flare::Status> ParseRedisUri(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_URI_H_
