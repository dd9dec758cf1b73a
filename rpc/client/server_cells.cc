#include "flare/rpc/client/server_cells.h"

#include <utility>
#include <vector>

#include "flare/rpc/metrics.h"

namespace flare::rpc {

CallCells* ServerCells::Of(const std::string& server, bool connected) {
  const ScopedLock guard(lock_);
  auto found = servers_.find(server);
  if (found == servers_.end()) {
    const bool named = connected && servers_.size() < metrics::kMaxSeries;
    found = servers_.try_emplace(named ? server : "(other)", usual_).first;
  }
  return &found->second;
}

std::map<std::string, CallCells::Values> ServerCells::Read() const {
  using Server = std::pair<const std::string, CallCells>;
  // Read without the lock, which each request takes: none ever goes.
  std::vector<const Server*> servers;
  {
    const ScopedLock guard(lock_);
    servers.reserve(servers_.size());
    for (const Server& server : servers_) servers.push_back(&server);
  }
  std::map<std::string, CallCells::Values> all;
  for (const Server* const server : servers) {
    all.emplace(server->first, server->second.Read());
  }
  return all;
}

}  // namespace flare::rpc
