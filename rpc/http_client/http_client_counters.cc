#include "flare/rpc/http_client/http_client_counters.h"

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/metrics.h"

namespace flare::rpc {
namespace {

struct Registry {
  // Never destroyed: requests may end while the process does.
  static Registry* Get() {
    static auto* const registry = new Registry();
    return registry;
  }

  ThreadMutex lock;
  std::map<std::string, CallCells> servers FLARE_GUARDED_BY(lock);
};

}  // namespace

CallCells* HttpClientCounters::Of(const std::string& server) {
  Registry* const registry = Registry::Get();
  const ScopedLock guard(registry->lock);
  auto found = registry->servers.find(server);
  if (found == registry->servers.end()) {
    const bool full = registry->servers.size() >= metrics::kMaxSeries;
    found = registry->servers
                .try_emplace(full ? "(other)" : server,
                             static_cast<int>(HttpStatus::OK))
                .first;
  }
  return &found->second;
}

std::map<std::string, CallCells::Values> HttpClientCounters::Read() {
  std::map<std::string, CallCells::Values> all;
  Registry* const registry = Registry::Get();
  const ScopedLock guard(registry->lock);
  for (const auto& [server, cells] : registry->servers) {
    all.emplace(server, cells.Read());
  }
  return all;
}

}  // namespace flare::rpc
