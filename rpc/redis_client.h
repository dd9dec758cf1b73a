// A client of Redis, for fibers and plain threads.
//
//   flare::RedisClient client;
//   if (auto opened = client.Open("redis://:password@10.0.0.1:6379/0");
//       !opened.ok()) return opened;
//   auto reply = client.Execute({"GET", key});
//   if (!reply) return reply.error();          // There is no reply, and why.
//   if (reply->is_error()) ...          // By the server: "WRONGTYPE ..."
//   if (!reply->is_nil()) Use(reply->text());
//
// All commands of a client share one connection. They are sent together when
// they come at the same moment, and none waits for the replies to others. So
// make one client and use it for all. Commands that block or change the state
// of their connection (BLPOP, MULTI, WATCH, SELECT, SUBSCRIBE) need a
// RedisSession. Clusters, sentinels and scripts by name: docs/redis.md.
//
// A client of a cluster ("redis-cluster://10.0.0.1,10.0.0.2:6379") has one such
// connection to each server. A command goes to the server that has its keys,
// and on to another one if that server says so. A client with sentinels
// ("redis-sentinel://10.0.0.1,10.0.0.2#mymaster") connects to the server that
// is the master then.
//
// No command that may have run is repeated. MayHaveRun() tells of an error.
#ifndef FLARE_RPC_REDIS_CLIENT_H_
#define FLARE_RPC_REDIS_CLIENT_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_command.h"
#include "flare/rpc/redis_reply.h"

namespace flare {

namespace rpc {
class RedisCluster;
class RedisConnection;
class RedisConnector;
}  // namespace rpc

class RedisSession;

// Needs a running runtime. Thread-safe once it is open. Copies share connection
// and options. The last copy may go while commands are under way: these run to
// their end, and the connection is closed after them.
class RedisClient {
 public:
  using Options = RedisClientOptions;
  using CallOptions = RedisCallOptions;
  using enum rpc::RedisErrorCode;

  // A reply of any kind, the server's errors too; or an error, whose code is a
  // RedisErrorCode and whose text says what failed, with which server, and why.
  using Result = Expected<RedisReply, Status>;
  // One reply for each command, in order.
  using Results = Expected<std::vector<RedisReply>, Status>;

  RedisClient() = default;  // It isn't open: commands fail.

  // `uri`: "redis://user:password@host:port/database"; "rediss://" for TLS;
  // "unix:/path?db=1"; "redis-cluster://host:port,host:port" (rediss-cluster)
  // for a cluster, with one or more of its servers;
  // "redis-sentinel://host:port,host:port/0#mymaster" (rediss-sentinel) for the
  // master that these sentinels know by that name. All but the host, and the
  // name of the master, may be left out. In the user and the password %40 is
  // '@', and so on. Doesn't block, and doesn't connect: the first command does.
  // Fails if the URI is malformed.
  [[nodiscard]] Status Open(const std::string& uri,
                            const Options& options = {});

  // Sends a command and waits for its reply. Blocks the fiber (or the thread),
  // for CallOptions::timeout at most. When the time is over the connection
  // stays in order: the late reply is dropped. In a cluster it fails with
  // REDIS_CROSS_SLOT if its keys are in several slots.
  Result Execute(const RedisCommand& command,
                 const CallOptions& options = {}) const;

  // Sends commands at once, and waits for all replies. Other commands don't
  // come in between, but the server may serve other clients in between. After
  // an error that MayHaveRun() the server may have run some of them. In a
  // cluster they may go to several servers, which run them at the same time;
  // those with keys of one slot run in order, unless the slot is just moving.
  Results ExecuteAll(const std::vector<RedisCommand>& commands,
                     const CallOptions& options = {}) const;

  // Sends MULTI, the commands, and EXEC at once: the server runs all of them,
  // and no others in between, or none. The reply is that of EXEC, an array with
  // a reply for each command; or an error, if the server refuses one. Fails
  // with REDIS_NO_TRANSACTION if the server (or a proxy) has refused MULTI, but
  // run commands nevertheless. In a cluster all keys must be in one slot.
  Result Transact(const std::vector<RedisCommand>& commands,
                  const CallOptions& options = {}) const;

  // Execute() and ExecuteAll() on fibers of their own. Those that begin at the
  // same time may be sent in any order.
  Future<Result> AsyncExecute(RedisCommand command,
                              const CallOptions& options = {}) const;
  Future<Results> AsyncExecuteAll(std::vector<RedisCommand> commands,
                                  const CallOptions& options = {}) const;

  // Makes a connection of its own, for commands that must not run on the shared
  // one. Blocks until it is established. In a cluster it leads to any master
  // that can be reached, or to the one that has the key. After a reply "MOVED
  // ..." the program should make another session.
  Expected<RedisSession, Status> Dedicate(
      const CallOptions& options = {}) const;
  Expected<RedisSession, Status> DedicateFor(
      std::string_view key, const CallOptions& options = {}) const;

  // A client for each master of a cluster, for commands that concern a server
  // and not a key, as SCAN, DBSIZE and SCRIPT LOAD do. They share the
  // connections of this client, and don't follow slots that move. Without a
  // cluster it is this client. Blocks until the servers are known.
  Expected<std::vector<RedisClient>, Status> Masters(
      const CallOptions& options = {}) const;

  // The command of this error of a client or a session was sent, and the server
  // may have run it.
  static bool MayHaveRun(const Status& error) {
    return error.code() >= rpc::REDIS_TIMEOUT;
  }
  // "REDIS_TIMEOUT" for 101; "REDIS_UNKNOWN" for other numbers.
  static const char* ErrorCodeToString(int code);

 private:
  Result ExecuteInCluster(const RedisCommand& command,
                          const CallOptions& options) const;
  Expected<RedisSession, Status> DedicateTo(std::optional<std::string_view> key,
                                            const CallOptions& options) const;

  std::shared_ptr<rpc::RedisConnector> connector_;  // Null: a cluster.
  std::shared_ptr<rpc::RedisCluster> cluster_;      // Null: one server.
};

// A connection of its own, on which any command may run. It isn't made again
// when it breaks, as the server has forgotten its state: further commands fail,
// and Dedicate() makes another.
//
//   auto session = client.Dedicate();
//   if (!session) return session.error();
//   auto job = session->Execute({"BLPOP", "jobs", "30"}, {.timeout = 35s});
//
// Thread-safe, Receive() for one fiber at a time. Its end closes the
// connection; nothing may wait on it then.
class RedisSession {
 public:
  using CallOptions = RedisCallOptions;
  using Result = RedisClient::Result;
  using Results = RedisClient::Results;

  RedisSession(RedisSession&& other) noexcept;
  RedisSession& operator=(RedisSession&& other) noexcept;
  ~RedisSession();

  // As those of RedisClient. A command that blocks at the server should block
  // there for less than its timeout: BLPOP whose late reply is dropped loses
  // the element. Commands that are answered by messages, as SUBSCRIBE and
  // MONITOR, are for Subscribe(): here they fail.
  Result Execute(const RedisCommand& command, const CallOptions& options = {});
  Results ExecuteAll(const std::vector<RedisCommand>& commands,
                     const CallOptions& options = {});

  // Sends a command that is answered by messages: SUBSCRIBE, PSUBSCRIBE,
  // MONITOR and the like. Fails, and sends nothing, while a command waits for
  // its reply, or more than max_outstanding_bytes wait to be sent
  // (REDIS_OVERLOADED). From now on the session has only messages, and
  // Execute() fails; UNSUBSCRIBE, PING and further subscriptions go through
  // this function, too. Doesn't wait for an answer.
  [[nodiscard]] Status Subscribe(const RedisCommand& command);

  // Waits for the next message, ["message", channel, payload] for instance, and
  // the answers to Subscribe(), ["subscribe", channel, 1] or an error. Blocks,
  // without a timeout for as long as it takes, but no longer than the call
  // that is being served. Pushes of RESP3 (CLIENT TRACKING) come here, too;
  // they must be received beside Execute(), which waits behind unread ones.
  // Messages that have come are returned even if the connection has broken
  // since.
  Result Receive(const CallOptions& options = {});

 private:
  friend class RedisClient;
  RedisSession(std::shared_ptr<rpc::RedisConnector> connector,
               RefPtr<rpc::RedisConnection> connection);

  void Close();

  std::shared_ptr<rpc::RedisConnector> connector_;
  RefPtr<rpc::RedisConnection> connection_;  // Null: moved from.
};

}  // namespace flare

#endif  // FLARE_RPC_REDIS_CLIENT_H_
