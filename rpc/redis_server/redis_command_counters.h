// Counters of the handlers of all RedisServices of the process, by the name of
// their command, for the page /metrics. Any thread; nothing blocks for long.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_COUNTERS_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_COUNTERS_H_

#include <map>
#include <string>
#include <string_view>

#include "flare/rpc/call_cells.h"

namespace flare::rpc {

class RedisCommandCounters {
 public:
  // Outcomes: an error is a reply that is one, or an exception.
  static constexpr int kOk = 0;
  static constexpr int kError = 1;

  // Those of the handler of a command, made if there are none. Valid until the
  // process ends.
  static CallCells* Of(std::string_view command);

  // By command.
  static std::map<std::string, CallCells::Values> Read();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_COUNTERS_H_
