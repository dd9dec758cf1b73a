#include "flare/rpc/server_group.h"

#include <utility>

namespace flare {

Server* ServerGroup::AddServer(std::unique_ptr<Server> server) {
  servers_.push_back(std::move(server));
  return servers_.back().get();
}

bool ServerGroup::Start() {
  for (std::size_t i = 0; i != servers_.size(); ++i) {
    if (servers_[i]->Start()) continue;
    for (std::size_t started = 0; started != i; ++started) {
      servers_[started]->Stop();
    }
    for (std::size_t started = 0; started != i; ++started) {
      servers_[started]->Join();
    }
    return false;
  }
  return true;
}

void ServerGroup::Stop() {
  for (auto& server : servers_) server->Stop();
}

std::size_t ServerGroup::Join() {
  std::size_t abandoned = 0;
  for (auto& server : servers_) abandoned += server->Join();
  return abandoned;
}

}  // namespace flare
