// A server of the Redis protocol: redis-cli, redis-benchmark and the client
// libraries of all languages call handlers of this program.
//
//   flare::RedisService redis;
//   redis.Handle("GET", 2, [&](const flare::RedisRequest& request) {
//     return store.Get(request[1]);             // A RedisReply.
//   });
//   server.AddRedisService(std::move(redis));   // server.h
//
// The connections are the server's: they share its port with its other
// protocols, and its limits, memory, TLS and stop hold for them. Its
// interceptors are not called: RequireAuth() keeps strangers out.
//
// Commands of a connection run one after the other, in their order, on a fiber;
// those of different connections run side by side. So a handler may block its
// fiber, and has to be thread-safe. Commands that came together are one request
// where the server counts requests.
//
// Answered without a handler: AUTH, CLIENT, COMMAND, DISCARD, ECHO, EXEC,
// HELLO, INFO, MULTI, PING, QUIT, RESET, SELECT. A handler of that name takes
// the place of the answer, except for AUTH, DISCARD, EXEC, HELLO, MULTI, QUIT
// and RESET.
#ifndef FLARE_RPC_REDIS_SERVICE_H_
#define FLARE_RPC_REDIS_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/function.h"
#include "flare/base/status.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare {

namespace rpc {
class CallCells;
class OwnRequestHost;
class RedisBatch;
class RedisDispatcher;
}  // namespace rpc

// A connection of a client, as handlers see it. For the handler that runs: of a
// connection there is one at a time. Nothing blocks.
class RedisPeer {
 public:
  // For tests of handlers.
  explicit RedisPeer(std::uint64_t id = 0) : id_(id) {}
  RedisPeer(const RedisPeer&) = delete;
  RedisPeer& operator=(const RedisPeer&) = delete;

  // Its address; empty outside a server.
  const Endpoint& endpoint() const;
  // Null: it has shown no certificate.
  const PeerIdentity* identity() const;
  // Other than those of other connections.
  std::uint64_t id() const { return id_; }
  // As CLIENT SETNAME or HELLO gave it; "": not.
  const std::string& name() const { return name_; }
  // The user whose password it has shown: "default" if AUTH named nobody. "":
  // none.
  const std::string& user() const { return user_; }
  // By SELECT.
  int database() const { return database_; }
  // It has asked for RESP3, by HELLO 3. Replies are written in either.
  bool resp3() const { return resp3_; }

  // The connection is closed behind the reply.
  void CloseAfterReply() { closing_ = true; }

  // The service's own, for the time of the connection. Null at first. It goes
  // with the connection, on any thread, before Server::Join() returns 0.
  std::shared_ptr<void>& data() { return data_; }

 private:
  friend class rpc::RedisBatch;
  friend class rpc::RedisDispatcher;

  using Words = std::vector<std::string>;

  const rpc::OwnRequestHost* host_ = nullptr;  // Set while a handler runs.
  const std::uint64_t id_;
  std::string name_;
  std::string user_;
  std::shared_ptr<void> data_;
  std::vector<Words> queued_;  // By MULTI.
  std::size_t queued_bytes_ = 0;
  int database_ = 0;
  bool resp3_ = false;
  bool closing_ = false;
  bool authenticated_ = false;
  bool queues_ = false;        // Between MULTI and EXEC.
  bool queue_failed_ = false;  // A command couldn't be queued.
};

// A command, while its handler runs.
class RedisRequest {
 public:
  RedisRequest(std::span<const std::string_view> words, RedisPeer* peer,
               bool in_transaction = false)
      : words_(words), peer_(peer), in_transaction_(in_transaction) {}

  // The first word is the command's name, as the client has written it. There
  // is one at least. Any bytes.
  std::span<const std::string_view> words() const { return words_; }
  std::size_t size() const { return words_.size(); }
  // `n` must be less than size().
  std::string_view operator[](std::size_t n) const { return words_[n]; }
  std::string_view name() const { return words_[0]; }

  RedisPeer& peer() const { return *peer_; }
  // EXEC runs it, within the guard of AllowTransactions().
  bool in_transaction() const { return in_transaction_; }

 private:
  std::span<const std::string_view> words_;
  RedisPeer* peer_;
  bool in_transaction_;
};

// Handlers by the names of their commands. Set up by one thread, then given to
// a server. Mistakes are remembered for AddRedisService(), which fails then.
class RedisService {
 public:
  // Characters of a command's name.
  static constexpr std::size_t kMaxName = 32;

  // Called on fibers, several at a time. An exception is logged, and answered
  // with an error.
  using Handler = Function<RedisReply(const RedisRequest&)>;
  // Whether the user has that password. As a handler; "default" is the user of
  // an AUTH without one.
  using Authenticator =
      Function<bool(std::string_view user, std::string_view password)>;
  // Calls `run` once, with locks held or the like; or not at all, which answers
  // EXEC with RedisReply::OfNilArray(). As a handler.
  using TransactionGuard = Function<void(const std::function<void()>& run)>;

  RedisService() = default;
  RedisService(RedisService&&) = default;
  RedisService& operator=(RedisService&&) = default;

  // `name`: without regard to case. `arity`: the number of words with the name,
  // or, negative, the least number, as Redis' COMMAND has it; 0: any. Requests
  // with another number are answered with an error.
  RedisService& Handle(std::string_view name, int arity, Handler handler);
  // For all commands that have neither a handler nor an answer of their own; in
  // place of "ERR unknown command".
  RedisService& HandleOthers(Handler handler);
  // Commands are refused until AUTH, or HELLO, has shown a password.
  RedisService& RequireAuth(Authenticator authenticator);
  // How many databases SELECT knows; 16 at first.
  RedisService& SetDatabases(int databases);
  // MULTI queues commands until EXEC, which runs them within `guard`: it has to
  // keep out the handlers of other connections, if clients rely on that.
  // An exception of a handler ends the transaction there. Replies of more than
  // 32 MiB together don't fit: errors take their place, though the commands
  // run. They count for Server::Options::max_buffered_bytes until the end.
  // Without this MULTI is an unknown command. WATCH always is.
  RedisService& AllowTransactions(TransactionGuard guard);

  // The first mistake in the functions above.
  const Status& error() const { return error_; }

 private:
  friend class rpc::RedisDispatcher;

  struct Command {
    int arity = 0;
    Handler handler;
    rpc::CallCells* counters = nullptr;  // Lent; see redis_command_counters.h.
  };

  static bool IsFixed(std::string_view name);
  std::string WhyNot(const std::string& capitals, bool legal,
                     const Handler& handler) const;
  void Fail(std::string what);

  std::map<std::string, Command, std::less<>> commands_;  // In capitals.
  Command others_;
  Authenticator authenticator_;
  TransactionGuard guard_;
  int databases_ = 16;
  Status error_;
};

}  // namespace flare

#endif  // FLARE_RPC_REDIS_SERVICE_H_
