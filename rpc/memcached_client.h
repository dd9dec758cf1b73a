// A client of memcached, for fibers and plain threads.
//
//   flare::MemcachedClient client;
//   if (auto opened = client.Open("10.0.0.1,10.0.0.2,10.0.0.3:11212");
//       !opened.ok()) return opened;
//   auto reply = client.Get(key);
//   if (!reply) return reply.error();       // There is no reply, and why.
//   if (reply->ok()) return reply->value;   // Else: not found.
//   client.Set(key, value, {.ttl = 5min});
//
// Each key belongs to one of the servers. All commands for a server share one
// connection. They are sent together when they come at the same moment, and
// none waits for the replies to others. So make one client and use it for all.
// Keys of a server that couldn't be reached fail at once, and connections to it
// are tried in the background: no other server takes its place.
//
// Servers need memcached 1.6.10: its meta commands are used. No command that
// may have run is repeated. MayHaveRun() tells of an error. docs/memcached.md
// has more.
#ifndef FLARE_RPC_MEMCACHED_CLIENT_H_
#define FLARE_RPC_MEMCACHED_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/future.h"
#include "flare/base/status.h"
#include "flare/rpc/memcached_client_options.h"
#include "flare/rpc/memcached_command.h"
#include "flare/rpc/memcached_reply.h"

namespace flare {

namespace rpc {
class MemcachedServers;
}  // namespace rpc

// Needs a running runtime. Thread-safe once it is open. Copies share
// connections and options. The last copy may go while commands are under way:
// these run to their end, and the connections are closed after them.
class MemcachedClient {
 public:
  using Options = MemcachedClientOptions;
  using CallOptions = MemcachedCallOptions;
  using StoreOptions = MemcachedStoreOptions;
  using CountOptions = MemcachedCountOptions;
  using Seconds = std::chrono::seconds;
  using enum rpc::MemcachedErrorCode;

  // A reply, whose outcome says what the server did; or an error, whose code is
  // a MemcachedErrorCode and whose text says what failed, with which server,
  // and why.
  using Result = Expected<MemcachedReply, Status>;
  // One result for each command, in order.
  using Results = std::vector<Result>;

  MemcachedClient() = default;  // It isn't open: commands fail.

  // `servers`: with commas between them, "cache.example.com", "10.0.0.1:11212",
  // "[::1]:11212" or "unix:/run/memcached.sock". Their port is 11211 if it is
  // left out. All clients of these servers must list the same names, in any
  // order, or they look for keys at other servers. Doesn't block, and doesn't
  // connect: the first command does. Fails if the list is malformed.
  [[nodiscard]] Status Open(std::string_view servers,
                            const Options& options = {});

  // Sends a command and waits for its reply. Blocks the fiber (or the thread),
  // for CallOptions::timeout at most. When the time is over the connection
  // stays in order: the late reply is dropped.
  Result Execute(const MemcachedCommand& command,
                 const CallOptions& options = {}) const;

  // Sends commands at once, each to the server of its key, and waits for all
  // replies. So one server that can't be asked makes some of the results
  // errors. Those for one server run in order, with commands of others between
  // them.
  Results ExecuteAll(const std::vector<MemcachedCommand>& commands,
                     const CallOptions& options = {}) const;

  // Execute() and ExecuteAll() on fibers of their own. Those that begin at the
  // same time may be sent in any order.
  Future<Result> AsyncExecute(MemcachedCommand command,
                              const CallOptions& options = {}) const;
  Future<Results> AsyncExecuteAll(std::vector<MemcachedCommand> commands,
                                  const CallOptions& options = {}) const;

  // Execute() with the command of that name, which memcached_command.h
  // describes.
  Result Get(std::string_view key, const CallOptions& options = {}) const;
  Result GetAndTouch(std::string_view key, Seconds ttl,
                     const CallOptions& options = {}) const;
  Result Touch(std::string_view key, Seconds ttl,
               const CallOptions& options = {}) const;
  Result Set(std::string_view key, std::string_view value,
             const StoreOptions& store = {},
             const CallOptions& options = {}) const;
  Result Add(std::string_view key, std::string_view value,
             const StoreOptions& store = {},
             const CallOptions& options = {}) const;
  Result Replace(std::string_view key, std::string_view value,
                 const StoreOptions& store = {},
                 const CallOptions& options = {}) const;
  Result Append(std::string_view key, std::string_view value,
                const CallOptions& options = {}) const;
  Result Prepend(std::string_view key, std::string_view value,
                 const CallOptions& options = {}) const;
  Result Delete(std::string_view key, std::optional<std::uint64_t> cas = {},
                const CallOptions& options = {}) const;
  Result Increment(std::string_view key, std::uint64_t by = 1,
                   const CountOptions& count = {},
                   const CallOptions& options = {}) const;
  Result Decrement(std::string_view key, std::uint64_t by = 1,
                   const CountOptions& count = {},
                   const CallOptions& options = {}) const;

  // ExecuteAll() with Get() of each key.
  Results MultiGet(const std::vector<std::string>& keys,
                   const CallOptions& options = {}) const;

  // The command of this error was sent, and the server may have run it.
  static bool MayHaveRun(const Status& error) {
    return error.code() >= rpc::MEMCACHED_TIMEOUT;
  }
  // "MEMCACHED_TIMEOUT" for 101; "MEMCACHED_UNKNOWN" for other numbers.
  static const char* ErrorCodeToString(int code);

 private:
  std::shared_ptr<rpc::MemcachedServers> servers_;  // Null: not open.
};

}  // namespace flare

#endif  // FLARE_RPC_MEMCACHED_CLIENT_H_
