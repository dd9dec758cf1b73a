// The connections of one scheduling group to one server: which of them gets a
// call, and when another one is opened.
//
// Shared connections carry many calls at once; a dedicated one carries one call
// (or one stream) at a time, and is kept or closed after it. Both kinds have
// one history of failures.
//
// A call on shared connections takes one that is idle; another one is opened
// only if none is idle and the limit isn't reached. At the limit they take
// turns, in which fibers' calls of one moment share one, up to 16, since those
// are sent, received and answered together
// (docs/decisions/0025-calls-of-one-moment.md). Connections that are still
// being established get calls only if there are no others.
//
// A connection that breaks fails its calls and leaves the set; the next call
// opens a new one. If that can't be connected (within the
// settings' connect_timeout), or breaks before it has brought a whole
// reply, attempts are spaced out: 20 ms at first, doubling up to a second. In
// between, calls that find no connection wait for the next attempt, all on one
// connection that isn't started yet (or each on one of its own, if dedicated);
// those without time for that fail at once, and say so.

#ifndef FLARE_RPC_CLIENT_PEER_CONNECTIONS_H_
#define FLARE_RPC_CLIENT_PEER_CONNECTIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/connection_settings.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/name_resolver.h"

namespace flare::rpc {

// The purpose of a set.
struct ConnectionKey {
  std::string protocol;  // A name known to NewClientProtocol.
  Peer peer;
  ConnectionSettings settings;

  friend bool operator==(const ConnectionKey&, const ConnectionKey&) = default;
};

class PeerConnections final
    : public ConnectionOwner,
      public std::enable_shared_from_this<PeerConnections> {
 public:
  // May have `limit` shared connections and `dedicated_limit` others.
  PeerConnections(ConnectionKey key, std::size_t group, std::size_t limit,
                  std::size_t dedicated_limit);
  ~PeerConnections() { StopKeepAlive(); }

  PeerConnections(const PeerConnections&) = delete;
  PeerConnections& operator=(const PeerConnections&) = delete;

  // A connection for one call, which becomes its user (Release() at the end).
  //   kMultiplexed  a shared one. `preferred` is taken if it is one of the
  //                 set's, and idle or there may be no more; now and then
  //                 another one, if that has fewer calls
  //   kPooled       a dedicated one that was kept, or else a new one
  //   kShort        a new dedicated one
  // While attempts are spaced out it is one that will be started at the next
  // one's time; if that is after `patience_ns`, fails with
  // STATUS_FAIL_TO_CONNECT. Fails with STATUS_OVERLOADED if there may be no
  // further dedicated one, and with STATUS_CHANNEL_SHUTDOWN after Shutdown().
  // Any thread; may suspend the fiber (or thread) for as long as somebody else
  // opens a connection, which doesn't include waiting for the server.
  Expected<ClientConnection*, flare::Status> Acquire(
      const void* preferred, std::int64_t patience_ns = 0,
      ConnectionKind kind = ConnectionKind::kMultiplexed);

  // True: there is an established connection, or one may be opened right now
  // and nobody is at it yet. So of many calls, one finds out whether a server
  // is (back) there. Calls that open their own connections (`dedicated`) also
  // go to a server that hasn't failed while others connect to it. A hint, for
  // choosing another server; one load for a set that is well.
  bool Promising(bool dedicated = false) const;
  // True: that, or somebody is at it. False: the last attempt has failed, and
  // the next one isn't due.
  bool Hopeful() const;
  // When that is. A hint.
  std::int64_t retry_at_ns() const {
    // relaxed: a hint.
    return retry_at_ns_.load(std::memory_order_relaxed);
  }

  const ConnectionKey& key() const { return key_; }

  // A server has shown that streams may share connections with calls.
  bool streams_can_share() const {
    // relaxed: a fact that doesn't change, for streams to come.
    return streams_can_share_.load(std::memory_order_relaxed);
  }

  // ConnectionOwner.
  void OnConnected(ClientConnection* connection) override;
  void OnProven() override;
  void OnStreamsCanShare() override {
    // relaxed: as in streams_can_share().
    streams_can_share_.store(true, std::memory_order_relaxed);
  }
  void OnClosed(ClientConnection* connection,
                const flare::Status* why) override;
  void Return(ClientConnection* connection, bool keep) override;
  void Retire(ClientConnection* connection) override;
  bool proven() const override;
  flare::Status LastFailure() const override;

  // Closes connections that carried nothing since `since_ns`. True if nothing
  // is left, so that the set may be dropped if nobody else has it.
  bool CloseIdle(std::int64_t since_ns);
  // Closes all connections and refuses new ones.
  void Shutdown();

  // For tests: shared connections offered to calls; dedicated ones in use and
  // kept.
  std::size_t size() const;
  std::size_t dedicated_size() const;
  std::size_t kept_size() const;

 private:
  ClientConnection* Find(const void* connection) const FLARE_REQUIRES(lock_);
  ClientConnection* Pick(const void* preferred, bool may_open)
      FLARE_REQUIRES(lock_);
  std::size_t Turn() FLARE_REQUIRES(lock_);
  Expected<ClientConnection*, flare::Status> Open(const void* preferred,
                                                  std::int64_t patience_ns);
  Expected<ClientConnection*, flare::Status> OpenLocked(
      std::int64_t patience_ns) FLARE_REQUIRES(open_mutex_);
  Expected<ClientConnection*, flare::Status> OpenDedicated(
      ConnectionKind kind, std::int64_t patience_ns);
  Expected<ClientConnection*, flare::Status> MakeConnection(
      ConnectionKind kind);
  Expected<ClientConnection*, flare::Status> Launch(ConnectionKind kind,
                                                    std::int64_t wait_until_ns)
      FLARE_REQUIRES(open_mutex_);
  void StartWaiting(ClientConnection* connection) FLARE_REQUIRES(open_mutex_);
  void StartDedicated(std::int64_t due_ns) FLARE_REQUIRES(open_mutex_);
  void StartKeepAlive() FLARE_REQUIRES(open_mutex_);
  void StopKeepAlive();
  void KeepAlive();
  void SetRetryTimer(std::int64_t due_ns);
  void OnRetryDue(std::int64_t due_ns);
  void Offer(ClientConnection* connection) FLARE_REQUIRES(lock_);
  void OfferDedicated(ClientConnection* connection) FLARE_REQUIRES(lock_);
  ClientConnection* TakeKept() FLARE_REQUIRES(lock_);
  ClientConnection* TakeDue(std::int64_t due_ns, std::size_t* place)
      FLARE_REQUIRES(lock_);
  bool RemoveDedicated(ClientConnection* connection) FLARE_REQUIRES(lock_);
  flare::Status WhyNot() const FLARE_REQUIRES(lock_);
  bool Remove(ClientConnection* connection) FLARE_REQUIRES(lock_);
  void CountConnections() FLARE_REQUIRES(lock_);

  std::atomic<bool> streams_can_share_{false};
  const ConnectionKey key_;
  const std::size_t group_;
  const std::size_t limit_;
  const std::size_t dedicated_limit_;

  // One connection is opened at a time.
  fiber::Mutex open_mutex_;
  // For KeepAlive(); 0: it isn't needed, or not yet.
  fiber::TimerId keep_alive_timer_ FLARE_GUARDED_BY(open_mutex_) = 0;

  mutable Spinlock lock_;
  // Those offered to calls, and those that only wait for their last replies.
  // Each is used by the set itself, too.
  std::vector<ClientConnection*> connections_ FLARE_GUARDED_BY(lock_);
  std::vector<ClientConnection*> retired_ FLARE_GUARDED_BY(lock_);
  // Has the calls that wait for the next attempt, and starts then; null: none
  // wait. While there is one no other is opened.
  ClientConnection* waiting_ FLARE_GUARDED_BY(lock_) = nullptr;
  std::int64_t waiting_until_ns_ FLARE_GUARDED_BY(lock_) = 0;
  // All dedicated ones, each at the place in its notes, and those of them that
  // are kept and carry no call, the one used last at the end.
  std::vector<ClientConnection*> dedicated_ FLARE_GUARDED_BY(lock_);
  std::vector<ClientConnection*> kept_ FLARE_GUARDED_BY(lock_);
  // How many of dedicated_ start later.
  std::size_t dedicated_waiting_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t turn_ FLARE_GUARDED_BY(lock_) = 0;
  // Calls that this turn may still take, of the moment in which it began.
  std::uint32_t left_in_turn_ FLARE_GUARDED_BY(lock_) = 0;
  std::uint64_t turn_began_ FLARE_GUARDED_BY(lock_) = 0;
  std::uint32_t until_look_ FLARE_GUARDED_BY(lock_) = 1;  // For a better one.
  bool shut_down_ FLARE_GUARDED_BY(lock_) = false;
  bool proven_ FLARE_GUARDED_BY(lock_) = false;
  // Attempts that failed, one after the other.
  unsigned failures_ FLARE_GUARDED_BY(lock_) = 0;
  flare::Status last_failure_ FLARE_GUARDED_BY(lock_);
  // No attempt before this; 0: at any time. Written under lock_.
  std::atomic<std::int64_t> retry_at_ns_{0};
  // How many connections there are that were started, shared and dedicated;
  // and how many of either are established. See CountConnections(). Written
  // under lock_.
  std::atomic<std::size_t> offered_{0};
  std::atomic<std::size_t> established_{0};
  std::atomic<std::size_t> dedicated_established_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_PEER_CONNECTIONS_H_
