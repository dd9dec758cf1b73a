// Counters of the requests of all RedisClients of the process, for the page
// /metrics. Any thread; nothing blocks for long.
#ifndef FLARE_RPC_REDIS_REDIS_COUNTERS_H_
#define FLARE_RPC_REDIS_REDIS_COUNTERS_H_

#include <map>
#include <string>

#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/server_cells.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"

namespace flare::rpc {

class RedisCounters {
 public:
  // Outcomes beside the RedisErrorCodes.
  static constexpr int kOk = PIPELINE_OK;
  static constexpr int kErrorReply = PIPELINE_ERROR_REPLY;

  // All. Valid until the process ends.
  static ServerCells* Cells();

  // By server.
  static std::map<std::string, CallCells::Values> Read();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_COUNTERS_H_
