// URIs of Redis servers.
//
//   redis://user:password@10.0.0.1:6379/2
//   rediss://cache.example.com              TLS
//   unix:/run/redis/redis.sock?db=2         a Unix socket
#ifndef FLARE_RPC_REDIS_REDIS_URI_H_
#define FLARE_RPC_REDIS_REDIS_URI_H_

#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

struct RedisUri {
  bool tls = false;
  std::string user;
  std::string password;
  int database = 0;
  // To connect to: "example.com:6379", "[::1]:6379", "unix:/run/redis.sock".
  std::string address;

  // "redis://example.com:6379/2", without user and password.
  std::string ToString() const;
};

// Fails with REDIS_INVALID_URI; the text has neither user nor password. In both
// of them %40 is '@', and so on. Doesn't block.
Expected<RedisUri, flare::Status> ParseRedisUri(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_URI_H_
