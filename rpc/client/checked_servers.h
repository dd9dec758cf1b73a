// The servers that channels of this process have checked (checks/): one fiber
// for each kind of checks of a server, however many channels want it.
//
//   auto watch = ServerWatch::Begin(check, [](bool healthy) { ... });
//   ...
//   watch.reset();  // The last one of a server ends its checks.

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

// One channel's interest in one server. No two checks of a server, by its
// address, run at a time in the process.
class ServerWatch {
 public:
  // Told whether the server is healthy: when checks have first decided it, and
  // when it changes; if others watch the server already, maybe within Begin().
  // One call at a time, on a fiber. Must not block, nor begin or end a watch.
  using OnVerdict = std::function<void(bool healthy)>;

  // Begins to watch. While the client side is shut down: without any checks.
  // Within a running runtime; doesn't block.
  static std::unique_ptr<ServerWatch> Begin(const ServerCheck& check,
                                            OnVerdict on_verdict);
  // Nothing is told any more. Any thread; waits for an OnVerdict that runs.
  ~ServerWatch();

  ServerWatch(const ServerWatch&) = delete;
  ServerWatch& operator=(const ServerWatch&) = delete;

  // Why the last check failed; empty: it was good, or there was none yet. Any
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
