#include "flare/rpc/redis/redis_counters.h"

#include "flare/rpc/client/server_cells.h"

namespace flare::rpc {
namespace {

ServerCells* CellsOfRedisClients() {
  static auto* const cells = new ServerCells(RedisCounters::kOk);
  return cells;
}

}  // namespace

CallCells* RedisCounters::Of(const std::string& server, bool connected) {
  return CellsOfRedisClients()->Of(server, connected);
}

std::map<std::string, CallCells::Values> RedisCounters::Read() {
  return CellsOfRedisClients()->Read();
}

}  // namespace flare::rpc
