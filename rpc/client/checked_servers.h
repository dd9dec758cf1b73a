// Shared health checks (checks/) of the servers of this process' channels: one
// fiber for each kind of checks of a server, however many channels want it.
//
//   auto watch = ServerWatch::Begin(check, [](bool healthy) { ... });
//   ...
//   watch.reset();  // The last watch of a server ends its checks.

#ifndef FLARE_RPC_CLIENT_CHECKED_SERVERS_H_
#define FLARE_RPC_CLIENT_CHECKED_SERVERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/checks/server_check.h"

namespace flare::rpc {

class CheckedServer;

// One channel's interest in one server. Two checks of the same address never
// run at the same time in a process.
class ServerWatch {
 public:
  // Told whether the server is healthy: after the first verdict, and after each
  // change. If others watch the server already, the first call may come within
  // Begin(). Called one at a time, on a fiber. Must not block, nor begin or end
  // a watch.
  using OnVerdict = std::function<void(bool healthy)>;

  // Begins to watch, without any checks if the client side is shut down. Call
  // it in a running runtime; doesn't block.
  static std::unique_ptr<ServerWatch> Begin(const ServerCheck& check,
                                            OnVerdict on_verdict);
  // Ends the watch: OnVerdict isn't called any more. Any thread; waits for an
  // OnVerdict that runs.
  ~ServerWatch();

  ServerWatch(const ServerWatch&) = delete;
  ServerWatch& operator=(const ServerWatch&) = delete;

  // Why the last check failed; empty if it passed, or there was none yet. Any
  // thread; waits for an OnVerdict that runs.
  std::string LastFailure() const;

 private:
  friend class CheckedServer;

  explicit ServerWatch(OnVerdict on_verdict)
      : on_verdict_(std::move(on_verdict)) {}

  const OnVerdict on_verdict_;
  std::shared_ptr<CheckedServer> server_;  // Null: nothing is checked.
};

// How many servers are checked, for tests.
std::size_t CountCheckedServers();

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CHECKED_SERVERS_H_
