#include "flare/rpc/redis_server/redis_command_counters.h"

#include <functional>
#include <memory>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {
namespace {

struct RedisCommandCells {
  ThreadMutex mutex;
  std::map<std::string, std::unique_ptr<CallCells>, std::less<>> of
      FLARE_GUARDED_BY(mutex);
};

// Never destroyed: handlers may run while the process ends.
RedisCommandCells* CellsOfRedisCommands() {
  static auto* const cells = new RedisCommandCells;
  return cells;
}

}  // namespace

CallCells* RedisCommandCounters::Of(std::string_view command) {
  RedisCommandCells* const cells = CellsOfRedisCommands();
  ScopedLock lock(cells->mutex);
  const auto found = cells->of.find(command);
  if (found != cells->of.end()) return found->second.get();
  return cells->of
      .emplace(std::string(command), std::make_unique<CallCells>(kOk))
      .first->second.get();
}

std::map<std::string, CallCells::Values> RedisCommandCounters::Read() {
  RedisCommandCells* const cells = CellsOfRedisCommands();
  ScopedLock lock(cells->mutex);
  std::map<std::string, CallCells::Values> values;
  for (const auto& [command, counts] : cells->of) {
    values.emplace(command, counts->Read());
  }
  return values;
}

}  // namespace flare::rpc
