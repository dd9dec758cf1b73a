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
// Not thread-safe, as Server.
#ifndef FLARE_RPC_SERVER_GROUP_H_
#define FLARE_RPC_SERVER_GROUP_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "flare/rpc/server.h"

namespace flare {

class ServerGroup {
 public:
  ServerGroup() = default;
  // Does Stop() and Join() if they weren't done.
  ~ServerGroup() = default;

  // Takes a server that is set up but not started; returns it.
  Server* AddServer(std::unique_ptr<Server> server);

  // Starts them in the order they were added. At the first that fails, those
  // already started are stopped and joined, and it returns false.
  bool Start();

  // All of them; they drain at the same time.
  void Stop();
  // Returns how many calls were abandoned, as Server::Join().
  std::size_t Join();

 private:
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVER_GROUP_H_
