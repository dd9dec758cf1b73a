// The connections of a RedisClient: the one that its commands share, which is
// made again when it has broken, and those of sessions.
//
//   auto connection = connector->Shared(limit);
//   if (!connection) return connection.error();
//   (*connection)->Submit(exchange);
#ifndef FLARE_RPC_REDIS_REDIS_CONNECTOR_H_
#define FLARE_RPC_REDIS_REDIS_CONNECTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_connection.h"
#include "flare/rpc/redis/redis_uri.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

// The failure of a command that hasn't been sent, because of this.
flare::Status AsUnsent(const flare::Status& why);

// A server's place among others; none if it is alone.
struct RedisPlace {
  // Sends READONLY first, so that a replica of a cluster runs reads.
  bool reads_replicas = false;
  // Finds the address to connect to, in place of those of the URI, and is told
  // that it wasn't a master's: see RedisSentinels. Empty: the URI has it.
  std::function<Expected<std::string, flare::Status>()> find_master = {};
  std::function<void()> doubt_master = {};
  // The server may not be the right one any more: the shared connection has
  // broken or couldn't be made, or a slot has moved away. Any thread; doesn't
  // block.
  std::function<void()> on_trouble = {};
};

// All functions are thread-safe.
class RedisConnector final
    : public ClientSideMember,
      public RedisConnection::Owner,
      public std::enable_shared_from_this<RedisConnector> {
 public:
  using Connection = RefPtr<RedisConnection>;
  using Made = Expected<Connection, flare::Status>;

  // `uri`: of one server, or of sentinels that `place` has, too.
  static std::shared_ptr<RedisConnector> Create(RedisUri uri,
                                                RedisClientOptions options,
                                                RedisPlace place = {});
  // Closes the connections.
  ~RedisConnector();
  RedisConnector(const RedisConnector&) = delete;
  RedisConnector& operator=(const RedisConnector&) = delete;

  const RedisClientOptions& options() const { return options_; }
  const std::string& name() const { return name_; }
  // Host and port, or the Unix socket; without sentinels.
  const std::string& address() const { return uri_.addresses.front(); }

  // Returns the shared connection, once there is one. Blocks. Fails with a
  // RedisErrorCode of commands that weren't sent.
  Made Shared(const WaitLimit& limit);
  // Makes a connection for a session, which closes it. Blocks
  // and fails as Shared() does.
  Made Dedicated(const WaitLimit& limit);

  // There is a shared connection, which isn't closed.
  bool connected() { return Current() != nullptr; }
  // There is none, though it was tried to make one: while that goes on, too, as
  // a server without power doesn't even refuse.
  bool in_doubt() {
    // relaxed: a hint.
    return tried_.load(std::memory_order_relaxed) && !connected();
  }
  // Begins to make the shared connection, unless that happens already, or comes
  // too soon after a failure. Doesn't block.
  void ConnectSoon();
  // The server has answered with this error, over this connection.
  void NoteError(const RedisReply& error, RedisConnection* connection);

  // Where a command of this server counts.
  CallCells* cells();

 private:
  using Connections = std::map<const RedisConnection*, Connection>;

  // To connect, on a fiber of its own: a look-up can't be ended.
  struct Attempt {
    explicit Attempt(RedisConnection::Role its_role) : role(its_role) {}
    ~Attempt();

    const RedisConnection::Role role;
    // Once it is done.
    Made made{flare::Status(REDIS_FAIL_TO_CONNECT, "no memory to connect")};
    std::atomic<bool> taken{false};  // Else nobody waits for it any more.
    fiber::Event done;
  };

  RedisConnector(RedisUri uri, RedisClientOptions options, RedisPlace place);

  // ClientSideMember.
  void Shutdown() override;
  // RedisConnection::Owner.
  void OnGone(RedisConnection* connection, const flare::Status& why) override;

  Connection Current();
  // Returns the attempt under way, or a new one; null: there is no need for
  // one. Fails if it comes too soon after a failure.
  Expected<std::shared_ptr<Attempt>, flare::Status> StartShared();
  // Fails in the time between two attempts.
  flare::Status MayConnect() FLARE_REQUIRES(mutex_);
  void NoteFailure(const flare::Status& why) FLARE_REQUIRES(mutex_);
  void ReportTrouble() const;
  void Begin(const std::shared_ptr<Attempt>& attempt);
  void End(Attempt* attempt);
  void NoteCells();
  // Makes it the shared one, unless it has broken.
  void TakeOver(const Connection& connection) FLARE_REQUIRES(mutex_);
  Made Await(const std::shared_ptr<Attempt>& attempt, const WaitLimit& limit);

  Made Connect(RedisConnection::Role role);
  // `server`: host and port, or a Unix socket.
  Made ConnectTo(const std::string& server, RedisConnection::Role role);
  Made ConnectToPeer(const Endpoint& peer, const std::string& server,
                     RedisConnection::Role role);
  flare::Status Establish(const Connection& connection);
  flare::Status ShakeHands(const Connection& connection,
                           const WaitLimit& limit);
  Connections TakeOpen();

  const RedisUri uri_;
  const RedisClientOptions options_;
  const RedisPlace place_;
  const std::string name_;
  std::atomic<CallCells*> cells_{nullptr};  // Null: it has never connected.
  std::atomic<bool> tried_{false};          // To connect.

  Spinlock current_lock_;
  Connection current_ FLARE_GUARDED_BY(current_lock_);

  // Taken with the lock of the client side held (client_side.h), or alone;
  // locks of connections may be taken with it held.
  ThreadMutex mutex_;
  std::shared_ptr<Attempt> attempt_
      FLARE_GUARDED_BY(mutex_);  // The shared one.
  Connections open_ FLARE_GUARDED_BY(mutex_);
  flare::Status last_failure_ FLARE_GUARDED_BY(mutex_);
  std::int64_t blocked_until_ns_ FLARE_GUARDED_BY(mutex_) = 0;
  std::int64_t delay_ns_ FLARE_GUARDED_BY(mutex_);  // After the next failure.
  std::int64_t connected_ns_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_CONNECTOR_H_
