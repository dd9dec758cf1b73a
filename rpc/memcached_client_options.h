// The options and the errors of a MemcachedClient (memcached_client.h).
#ifndef FLARE_RPC_MEMCACHED_CLIENT_OPTIONS_H_
#define FLARE_RPC_MEMCACHED_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "flare/io/tls_options.h"

namespace flare {

namespace rpc {

// Why a command has no reply: Status::code() of its error. From
// MEMCACHED_TIMEOUT on the command was sent, and may have run:
// MemcachedClient::MayHaveRun().
enum MemcachedErrorCode : int {
  MEMCACHED_INVALID_SERVERS = 1,  // For MemcachedClient::Open().
  // The key or the value isn't one, or the client isn't open.
  MEMCACHED_INVALID_COMMAND = 2,
  // Nobody answers there, by TLS neither, or the last attempt to connect failed
  // just now.
  MEMCACHED_FAIL_TO_CONNECT = 3,
  // The server doesn't know meta commands, or wants another username or
  // password.
  MEMCACHED_REFUSED = 4,
  MEMCACHED_OVERLOADED = 5,  // max_outstanding or max_outstanding_bytes.
  MEMCACHED_SHUTDOWN = 6,    // The client side of the process has ended.
  // The time was over, or the call that it was part of had ended, before it was
  // sent.
  MEMCACHED_TIMEOUT_UNSENT = 7,
  MEMCACHED_CANCELLED_UNSENT = 8,
  // The server's answer is a CLIENT_ERROR, such as "cannot increment or
  // decrement non-numeric value": the command has done nothing.
  MEMCACHED_ERROR_REPLY = 9,

  MEMCACHED_TIMEOUT = 101,
  MEMCACHED_CANCELLED = 102,  // The call that it was part of has ended.
  MEMCACHED_CONNECTION_LOST = 103,
  // The reply is malformed, answers another command, or exceeds max_value_size.
  // The connection is closed.
  MEMCACHED_MALFORMED_REPLY = 104,
  // The answer is a SERVER_ERROR, such as "object too large for cache": a
  // former value of the key may be gone. It may be a proxy's, about a command
  // that its server has run.
  MEMCACHED_SERVER_ERROR = 105,
};

}  // namespace rpc

struct MemcachedClientOptions {
  // Speaks TLS with all servers.
  std::optional<TlsClientOptions> tls = {};
  // For servers that were started with -Y; others aren't told. Without TLS they
  // travel in the clear. Neither has spaces or control characters.
  std::string username = {};
  std::string password = {};
  // For a command, connecting included, unless it has another one. Commands
  // that are made while a call is served take no longer than the rest of its
  // time.
  std::chrono::nanoseconds timeout = std::chrono::seconds(1);
  // Establishing a connection to one address may take so long.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(1);
  // After an attempt to connect that failed, or a connection that broke within
  // max_reconnect_delay, commands for that server fail at once until it is
  // connected again. The next attempt begins with the first command after so
  // long: at first, and at most. It doubles with each of them.
  std::chrono::nanoseconds min_reconnect_delay = std::chrono::milliseconds(50);
  std::chrono::nanoseconds max_reconnect_delay = std::chrono::seconds(1);
  // When a command's time is over, or max_outstanding is reached, and the
  // server has sent nothing for so long, with a command waiting, the connection
  // is closed, and a new one made. The kernel, too, gives up a server whose
  // host acknowledges nothing for so long, at least 10 s.
  std::chrono::nanoseconds max_silence = std::chrono::seconds(10);
  // Commands to a server without a reply, also those that nobody waits for any
  // more, and their bytes. Further ones fail with MEMCACHED_OVERLOADED.
  std::size_t max_outstanding = 65536;
  std::size_t max_outstanding_bytes = std::size_t{64} << 20;
  // Bytes of a value, sent or received, up to 2 GiB - 3. Servers take 1 MiB by
  // default.
  std::size_t max_value_size = std::size_t{64} << 20;
};

struct MemcachedCallOptions {
  // None: MemcachedClientOptions::timeout.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

}  // namespace flare

#endif  // FLARE_RPC_MEMCACHED_CLIENT_OPTIONS_H_
