// The connections of the client side.
//
// All channels of a process share one pool, unless their options name another:
//
//   flare::RpcChannel::Options options;
//   options.pool = flare::ConnectionPool::Create();
//   flare::RpcChannel bulk("flare://10.0.0.1:5567", options);
//
// Calls of `bulk` then neither wait behind those of other channels nor make
// them wait. In one pool, channels share the connections that lead to the same
// server with the same protocol and the same settings (timeout to connect,
// sizes and limits), in each scheduling group: replies are read, and calls
// complete, in the group that made the call. The connections that a server may
// have are dealt out to the groups; each group has at least one shared one.
//
// Connections without traffic for RpcChannel::Options::connection_max_idle are
// closed.

#ifndef FLARE_RPC_CONNECTION_POOL_H_
#define FLARE_RPC_CONNECTION_POOL_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/peer_connections.h"

namespace flare {

// Counted; channels hold references. All functions are thread-safe; none
// blocks.
class ConnectionPool final
    : public std::enable_shared_from_this<ConnectionPool>,
      private rpc::ClientSideMember {
 public:
  struct Options {
    // Between two looks for idle connections. 0: none.
    // --flare_rpc_client_remove_idle_connection_interval
    std::optional<std::chrono::nanoseconds> idle_check_interval = {};
  };

  static std::shared_ptr<ConnectionPool> Create();
  static std::shared_ptr<ConnectionPool> Create(const Options& options);
  // The pool of the process, for channels that name none. Never destroyed.
  static const std::shared_ptr<ConnectionPool>& Default();

  // Its idle connections are closed. Those that carry calls go to the pool of
  // the process, and are closed after these.
  ~ConnectionPool();
  ConnectionPool(const ConnectionPool&) = delete;
  ConnectionPool& operator=(const ConnectionPool&) = delete;

  struct Statistics {
    std::size_t shared = 0;     // Connections that carry many calls at a time.
    std::size_t dedicated = 0;  // Connections that carry a call of their own.
    std::size_t kept = 0;       // Pooled ones without a call.
  };
  Statistics statistics() const;

  // For channels: the set for `key` in scheduling group `group`, made if there
  // is none. Takes a lock of the client side: keep the result. While that is
  // shut down: a set of its own that refuses all calls.
  std::shared_ptr<rpc::PeerConnections> Find(std::size_t group,
                                             const rpc::ConnectionKey& key);

 private:
  struct GroupedKey {
    std::size_t group;
    rpc::ConnectionKey key;
    bool operator==(const GroupedKey&) const = default;
  };
  struct GroupedKeyHash {
    std::size_t operator()(const GroupedKey& k) const;
  };
  using Set = std::shared_ptr<rpc::PeerConnections>;

  explicit ConnectionPool(const Options& options) : options_(options) {}

  void Shutdown() override;
  void Adopt(Set set);
  void StartSweeping() FLARE_REQUIRES(mutex_);
  void Sweep();

  const Options options_;
  // Taken with the lock of the client side held (client_side.h), or alone.
  mutable ThreadMutex mutex_;
  std::unordered_map<GroupedKey, Set, GroupedKeyHash> sets_
      FLARE_GUARDED_BY(mutex_);
  // Sets of pools that are gone: closed as soon as they carry no call.
  std::vector<Set> adopted_ FLARE_GUARDED_BY(mutex_);
  fiber::TimerId sweeper_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_CONNECTION_POOL_H_
