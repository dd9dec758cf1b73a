#include "flare/rpc/server_group.h"

#include <utility>

namespace flare {
namespace {

template <class Service>
Server* SetUpServer(Server* server, const Endpoint& address,
                    const std::vector<std::string>& protocols,
                    Service service) {
  server->AddProtocols(protocols);
  server->AddService(std::move(service));
  server->ListenOn(address);
  return server;
}

}  // namespace

Server* ServerGroup::AddServer(std::unique_ptr<Server> server) {
  owned_.push_back(std::move(server));
  return AddServer(owned_.back().get());
}

Server* ServerGroup::AddServer(Server* server) {
  servers_.push_back(server);
  return server;
}

Server* ServerGroup::AddServer() {
  return AddServer(std::make_unique<Server>());
}

Server* ServerGroup::AddServer(
    const Endpoint& address, const std::vector<std::string>& protocols,
    std::unique_ptr<google::protobuf::Service> service) {
  return SetUpServer(AddServer(), address, protocols, std::move(service));
}

Server* ServerGroup::AddServer(const Endpoint& address,
                               const std::vector<std::string>& protocols,
                               google::protobuf::Service* service) {
  return SetUpServer(AddServer(), address, protocols, service);
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
  for (Server* server : servers_) server->Stop();
}

std::size_t ServerGroup::Join() {
  std::size_t abandoned = 0;
  for (Server* server : servers_) abandoned += server->Join();
  return abandoned;
}

std::vector<AbandonedCall> ServerGroup::abandoned_calls() const {
  std::vector<AbandonedCall> all;
  for (const Server* server : servers_) {
    const std::vector<AbandonedCall>& calls = server->abandoned_calls();
    all.insert(all.end(), calls.begin(), calls.end());
  }
  return all;
}

}  // namespace flare
