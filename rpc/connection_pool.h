// The connections of the client side, shared by all channels of the process:
// one PeerConnections (peer_connections.h) for each scheduling group, protocol,
// server and packet size. Replies are read, and calls complete, in the group
// that made the call. Those flare_rpc_client_max_connections_per_server that a
// server may have are dealt out to the groups; a set may have its share, but at
// least one.
//
// Connections without traffic for flare_rpc_client_connection_max_idle seconds
// are closed.

#ifndef FLARE_RPC_CONNECTION_POOL_H_
#define FLARE_RPC_CONNECTION_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/status.h"
#include "flare/rpc/client/peer_connections.h"

namespace flare::rpc {

// The set for `key` in scheduling group `group`, made if there is none. Any
// thread; doesn't block, but takes a lock of the whole group: keep the result.
// While the client side is shut down: a set of its own that refuses all calls.
std::shared_ptr<PeerConnections> FindPeerConnections(std::size_t group,
                                                     const ConnectionKey& key);

// Ends the client side: closes all connections (calls under way fail with
// STATUS_CHANNEL_SHUTDOWN, and so do later ones of channels that exist), stops
// the refreshing of names, and waits until nothing of it runs any more. Blocks
// the fiber (or thread). For flare::Start(), before the runtime ends; a runtime
// started later has a client side again, for channels opened then.
void ShutdownClientSide();

// While it exists, the client side stays shut once ShutdownClientSide() has
// run, whoever opens channels: fibers may still run until the runtime has
// ended, and connections and refreshes of names that they began would be left
// behind. For flare::Start(). One at a time.
class ClientSideEnd {
 public:
  ClientSideEnd();
  ~ClientSideEnd();

  ClientSideEnd(const ClientSideEnd&) = delete;
  ClientSideEnd& operator=(const ClientSideEnd&) = delete;
};

// A channel is being opened: there is a client side again, which refreshes
// names, except while ShutdownClientSide() runs or the runtime is about to end.
// Any thread; doesn't block.
void OpenClientSide();
// Any thread; takes the lock of FindPeerConnections().
bool IsClientSideOpen();
// What calls end with while it isn't.
flare::Status ShutDownStatus();

// Counted since the start of the process.
struct ClientStatistics {
  std::uint64_t connections_opened = 0;
  std::uint64_t connections_failed = 0;  // Could not be established.
  std::uint64_t connections_broken = 0;  // Established, then closed by others.
  std::uint64_t connections_idle_closed = 0;
  std::uint64_t late_replies = 0;  // Nobody waited for them (any more).
};
ClientStatistics GetClientStatistics();

// One of these. For ClientConnection.
enum class ClientEvent {
  kOpened,
  kFailed,
  kBroken,
  kIdleClosed,
  kLateReply,
};
void CountClientEvent(ClientEvent event);
// Connections whose OnClosed() is still to come, for ShutdownClientSide().
void ConnectionBorn();
void ConnectionGone();

}  // namespace flare::rpc

#endif  // FLARE_RPC_CONNECTION_POOL_H_
