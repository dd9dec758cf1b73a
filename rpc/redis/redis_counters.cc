#include "flare/rpc/redis/redis_counters.h"

namespace flare::rpc {

ServerCells* RedisCounters::Cells() {
  static auto* const cells = new ServerCells(kOk);
  return cells;
}

std::map<std::string, CallCells::Values> RedisCounters::Read() {
  return Cells()->Read();
}

}  // namespace flare::rpc
