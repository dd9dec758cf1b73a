// The client side of the process: its end with flare::Start(), and its
// counters.

#ifndef FLARE_RPC_CLIENT_CLIENT_SIDE_H_
#define FLARE_RPC_CLIENT_CLIENT_SIDE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "flare/base/status.h"

namespace flare::rpc {

// Ends the client side: closes all connections of all pools (calls under way
// fail with STATUS_CHANNEL_SHUTDOWN, and so do later ones of channels that
// exist), stops the refreshing of names, and waits until nothing of it runs any
// more. Blocks the fiber (or thread). For flare::Start(), before the runtime
// ends; a runtime started later has a client side again, for channels opened
// then.
void ShutdownClientSide();

// While it exists, the client side stays shut once ShutdownClientSide() has
// run, even if channels are opened: fibers may still run until the runtime has
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
// Any thread; takes the lock of IfClientSideIsOpen().
bool IsClientSideOpen();
// The status of calls while it isn't open.
flare::Status ShutDownStatus();

// --- For pools ---

class ClientSideMember {
 public:
  // Closes all that there is. From the beginning of ShutdownClientSide() until
  // its end nothing is added, as IfClientSideIsOpen() says no.
  virtual void Shutdown() = 0;

 protected:
  ~ClientSideMember() = default;
};
void JoinClientSide(const std::shared_ptr<ClientSideMember>& member);

// Calls `f()`, which must not block, under a lock of the client side if that is
// open. So ShutdownClientSide() comes before or after it.
void IfClientSideIsOpen(const std::function<void()>& f);

// --- For connections ---

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

#endif  // FLARE_RPC_CLIENT_CLIENT_SIDE_H_
