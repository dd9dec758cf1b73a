// Several servers that start and stop together.
//
//   flare::ServerGroup group;
//   group.AddServer(std::move(public_server));
//   group.AddServer(std::move(admin_server));
//   if (!group.Start()) return 1;
//   flare::WaitForQuitSignal();
//   group.Stop();
//   group.Join();
//
// It isn't thread-safe, as Server isn't.
#ifndef FLARE_RPC_SERVER_GROUP_H_
#define FLARE_RPC_SERVER_GROUP_H_

#include <google/protobuf/service.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/rpc/server.h"

namespace flare {

class ServerGroup {
 public:
  ServerGroup() = default;
  // Does Stop() and Join() of servers that were given away, if they weren't
  // done.
  ~ServerGroup() = default;
  ServerGroup(const ServerGroup&) = delete;
  ServerGroup& operator=(const ServerGroup&) = delete;

  // Takes a server that is set up but not started; returns it.
  Server* AddServer(std::unique_ptr<Server> server);
  // ... which stays the caller's, and must live until Join() has returned.
  Server* AddServer(Server* server);
  // A new one, for the caller to set up.
  Server* AddServer();
  // ... set up already, for one service, which is given away or stays the
  // caller's as in Server::AddService(). A failure of these makes Start() fail.
  Server* AddServer(const Endpoint& address,
                    const std::vector<std::string>& protocols,
                    std::unique_ptr<google::protobuf::Service> service);
  Server* AddServer(const Endpoint& address,
                    const std::vector<std::string>& protocols,
                    google::protobuf::Service* service);

  // Starts them in the order they were added. At the first that fails, those
  // already started are stopped and joined, and it returns false.
  [[nodiscard]] bool Start();

  // All of them; they drain at the same time.
  void Stop();
  // Returns how many calls were abandoned, as Server::Join().
  std::size_t Join();
  // Returns those of all servers, as Server::abandoned_calls().
  std::vector<AbandonedCall> abandoned_calls() const;

 private:
  std::vector<Server*> servers_;
  std::vector<std::unique_ptr<Server>> owned_;  // ... of these
};

}  // namespace flare

#endif  // FLARE_RPC_SERVER_GROUP_H_
