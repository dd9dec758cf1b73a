#include "flare/rpc/http_client/http_client_counters.h"

#include <utility>
#include <vector>

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

CallCells* HttpClientCounters::Of(const std::string& server, bool connected) {
  Registry* const registry = Registry::Get();
  const ScopedLock guard(registry->lock);
  auto found = registry->servers.find(server);
  if (found == registry->servers.end()) {
    const bool named =
        connected && registry->servers.size() < metrics::kMaxSeries;
    found = registry->servers
                .try_emplace(named ? server : "(other)",
                             static_cast<int>(HttpStatus::OK))
                .first;
  }
  return &found->second;
}

std::map<std::string, CallCells::Values> HttpClientCounters::Read() {
  using Server = std::pair<const std::string, CallCells>;
  // Read without the lock, which each request takes: none ever goes.
  std::vector<const Server*> servers;
  {
    Registry* const registry = Registry::Get();
    const ScopedLock guard(registry->lock);
    servers.reserve(registry->servers.size());
    for (const Server& server : registry->servers) servers.push_back(&server);
  }
  std::map<std::string, CallCells::Values> all;
  for (const Server* const server : servers) {
    all.emplace(server->first, server->second.Read());
  }
  return all;
}

}  // namespace flare::rpc
