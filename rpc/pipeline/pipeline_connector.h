// The connections of a client to one server: the one that its requests share,
// which is made again when it has broken, and others of their own. Derived
// classes make them.
//
//   PipelineConnector::Connection used;
//   Status status = connector->Run(exchange, limit, &used);
#ifndef FLARE_RPC_PIPELINE_PIPELINE_CONNECTOR_H_
#define FLARE_RPC_PIPELINE_PIPELINE_CONNECTOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/server_cells.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/pipeline/pipeline_connection.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"

namespace flare::rpc {

// The failure of a request that hasn't been sent, because of this.
flare::Status AsUnsent(const flare::Status& why);

// The failure of a request that a connection has no place for.
flare::Status PipelineOverloaded();

// All functions are thread-safe.
class PipelineConnector
    : public ClientSideMember,
      public PipelineConnection::Owner,
      public std::enable_shared_from_this<PipelineConnector> {
 public:
  using Connection = RefPtr<PipelineConnection>;
  using Made = Expected<Connection, flare::Status>;
  using Role = PipelineConnection::Role;

  struct Settings {
    std::string name;     // For people.
    std::string address;  // Host and port, or a Unix socket.
    std::optional<TlsClientOptions> tls;
    // Options of the client.
    std::chrono::nanoseconds connect_timeout;
    std::chrono::nanoseconds min_reconnect_delay;
    std::chrono::nanoseconds max_reconnect_delay;
    // After an attempt that failed, requests don't wait for the next one: they
    // fail until one has gone well.
    bool fails_while_retrying;
    // Where requests count. For good.
    ServerCells* cells;
  };

  // Closes the connections.
  virtual ~PipelineConnector();
  PipelineConnector(const PipelineConnector&) = delete;
  PipelineConnector& operator=(const PipelineConnector&) = delete;

  const std::string& name() const { return settings_.name; }
  // Host and port, or the Unix socket; without sentinels.
  const std::string& address() const { return settings_.address; }

  // Returns the shared connection, once there is one. Blocks. Fails with a
  // PipelineErrorCode of requests that weren't sent.
  Made Shared(const WaitLimit& limit);
  // Makes a connection for one user, who closes it. Blocks and fails as
  // Shared() does.
  Made Dedicated(const WaitLimit& limit);

  // Sends requests over the shared connection, for which it waits no longer
  // than `to_connect`, and waits for the replies. Blocks; fails with a
  // PipelineErrorCode. `*used`: that connection.
  flare::Status Run(PipelineExchange* exchange, const WaitLimit& limit,
                    const WaitLimit& to_connect, Connection* used);

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

  // Where a request to this server counts.
  CallCells* cells();
  // The error with the server.
  flare::Status Named(const flare::Status& why) const;

 protected:
  explicit PipelineConnector(Settings settings);

  Connection Current();
  // Connects to the first address of `server` (host and port, or a Unix socket)
  // that answers.
  Made ConnectTo(const std::string& server, Role role);

  // Makes a connection that hasn't been started.
  virtual Connection MakeConnection(const Endpoint& peer,
                                    std::unique_ptr<io::Transport> transport,
                                    Role role) = 0;
  // The first requests over it. PIPELINE_TIMEOUT: no answer within the limit.
  virtual flare::Status ShakeHands(const Connection& connection,
                                   const WaitLimit& limit) = 0;
  // For ShakeHands(): sends these, and waits for the replies.
  static flare::Status Greet(const Connection& connection,
                             PipelineExchange* exchange,
                             const WaitLimit& limit);
  // Blocks.
  virtual Made Connect(Role role) { return ConnectTo(address(), role); }
  // The shared connection has broken, or one couldn't be made. Any thread;
  // doesn't block.
  virtual void OnTrouble() const {}

 private:
  using Connections = std::map<const PipelineConnection*, Connection>;

  // To connect, on a fiber of its own: a look-up can't be ended.
  struct Attempt {
    explicit Attempt(Role its_role, bool its_again = false)
        : role(its_role), again(its_again) {}
    ~Attempt();

    const Role role;
    const bool again;  // It follows a failure, of late.
    // Once it is done.
    Made made{flare::Status(PIPELINE_FAIL_TO_CONNECT, "no memory to connect")};
    std::atomic<bool> taken{false};  // Else nobody waits for it any more.
    fiber::Event done;
  };

  // ClientSideMember.
  void Shutdown() override;
  // PipelineConnection::Owner.
  void OnGone(PipelineConnection* connection,
              const flare::Status& why) override;

  // Returns the attempt under way, or a new one; null: there is no need for
  // one. Fails if it comes too soon after a failure.
  Expected<std::shared_ptr<Attempt>, flare::Status> StartShared();
  // Fails in the time between two attempts.
  flare::Status MayConnect() FLARE_REQUIRES(mutex_);
  void NoteFailure(const flare::Status& why) FLARE_REQUIRES(mutex_);
  // The failure of a request, because of that of an attempt.
  flare::Status AfterFailure(std::string_view what) FLARE_REQUIRES(mutex_);
  // Whether a failure, and nothing since, says something of the server as it is
  // now.
  bool HasFailedLately() FLARE_REQUIRES(mutex_);
  void Begin(const std::shared_ptr<Attempt>& attempt);
  void End(Attempt* attempt);
  void NoteCells();
  // Makes it the shared one, unless it has broken.
  void TakeOver(const Connection& connection) FLARE_REQUIRES(mutex_);
  Made Await(const std::shared_ptr<Attempt>& attempt, const WaitLimit& limit);

  Made ConnectToPeer(const Endpoint& peer, const std::string& server,
                     Role role);
  flare::Status Establish(const Connection& connection);
  Connections TakeOpen();

  const Settings settings_;
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
  std::int64_t failed_ns_ FLARE_GUARDED_BY(mutex_) = 0;
  bool failing_ FLARE_GUARDED_BY(mutex_) = false;  // Since it was connected.
  std::int64_t blocked_until_ns_ FLARE_GUARDED_BY(mutex_) = 0;
  std::int64_t delay_ns_ FLARE_GUARDED_BY(mutex_);  // After the next failure.
  std::int64_t connected_ns_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_PIPELINE_PIPELINE_CONNECTOR_H_
