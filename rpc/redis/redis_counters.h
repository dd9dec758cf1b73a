// Counters of the requests of all RedisClients of the process, for the page
// /metrics. Any thread; nothing blocks for long.
#ifndef FLARE_RPC_REDIS_REDIS_COUNTERS_H_
#define FLARE_RPC_REDIS_REDIS_COUNTERS_H_

#include <map>
#include <string>

#include "flare/rpc/call_cells.h"

namespace flare::rpc {

class RedisCounters {
 public:
  // Outcomes beside the RedisErrorCodes.
  static constexpr int kOk = 0;
  static constexpr int kErrorReply = -1;

  // Those of requests to a server: ServerCells::Of(). Valid until the process
  // ends.
  static CallCells* Of(const std::string& server, bool connected);

  // By server.
  static std::map<std::string, CallCells::Values> Read();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_COUNTERS_H_
