// The options and the errors of a RedisClient (redis_client.h).
#ifndef FLARE_RPC_REDIS_CLIENT_OPTIONS_H_
#define FLARE_RPC_REDIS_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "flare/io/tls_options.h"

namespace flare {

namespace rpc {

// Why there is no reply: Status::code() of a command's error. An error that the
// server replies is a reply. From REDIS_TIMEOUT on the command was sent, and
// may have run: RedisClient::MayHaveRun().
enum RedisErrorCode : int {
  REDIS_INVALID_URI = 1,
  // The command is empty, needs a connection of its own
  // (RedisClient::Dedicate), or isn't answered by one reply
  // (RedisSession::Subscribe).
  REDIS_INVALID_COMMAND = 2,
  // Nobody answers there, by TLS neither, or the last attempt to connect failed
  // just now.
  REDIS_FAIL_TO_CONNECT = 3,
  // The server doesn't take the password, the database or RESP3.
  REDIS_REFUSED = 4,
  REDIS_OVERLOADED = 5,  // max_outstanding or max_outstanding_bytes.
  REDIS_SHUTDOWN = 6,    // The client side of the process has ended.
  // The time was over, or the call that it was part of had ended, before it was
  // sent.
  REDIS_TIMEOUT_UNSENT = 7,
  REDIS_CANCELLED_UNSENT = 8,
  // The keys of the command are in several slots of the cluster.
  REDIS_CROSS_SLOT = 9,

  REDIS_TIMEOUT = 101,
  REDIS_CANCELLED = 102,  // The call that it was part of has ended.
  REDIS_CONNECTION_LOST = 103,
  // The reply is malformed, or exceeds max_reply_size or max_reply_depth. The
  // connection is closed.
  REDIS_MALFORMED_REPLY = 104,
  // The server has refused MULTI of RedisClient::Transact(), but run commands
  // of the transaction, one by one.
  REDIS_NO_TRANSACTION = 105,
  // RedisClient::ExecuteAll() to a cluster: a server couldn't be asked, but
  // others have run their commands.
  REDIS_PARTLY_RUN = 106,
};

}  // namespace rpc

struct RedisClientOptions {
  // For rediss://; with sentinels, for them and the master.
  TlsClientOptions tls = {};
  // In place of those of the URI, if they aren't empty.
  std::string user = {};
  std::string password = {};
  std::optional<int> database = {};
  // The sentinels' own; those above are the master's.
  std::string sentinel_user = {};
  std::string sentinel_password = {};
  // Speaks RESP3, which servers know from version 6 on: replies may be maps,
  // doubles and booleans.
  bool resp3 = false;
  // For a command, connecting included, unless it has another one. Commands
  // that are made while a call is served take no longer than the rest of its
  // time.
  std::chrono::nanoseconds timeout = std::chrono::seconds(2);
  // Establishing a connection to one address may take so long, with TLS, the
  // password and the database. So may asking sentinels for that address, each
  // with an equal part of the time that is left.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(3);
  // After an attempt to connect that failed, or a connection that broke within
  // max_reconnect_delay, commands fail at once for so long: at first, and at
  // most. It doubles with each of them.
  std::chrono::nanoseconds min_reconnect_delay = std::chrono::milliseconds(50);
  std::chrono::nanoseconds max_reconnect_delay = std::chrono::seconds(1);
  // When a command's time is over, or max_outstanding is reached, and the
  // server has sent nothing for so long, with a command waiting, the connection
  // is closed, and a new one made. The kernel, too, gives up a server whose
  // host acknowledges nothing for so long, at least 10 s, also that of a
  // session that waits.
  std::chrono::nanoseconds max_silence = std::chrono::seconds(10);
  // Commands without a reply, also those that nobody waits for any more, and
  // their bytes. Further ones fail with REDIS_OVERLOADED.
  std::size_t max_outstanding = 65536;
  std::size_t max_outstanding_bytes = std::size_t{64} << 20;
  // Memory of one reply; arrays within arrays.
  std::size_t max_reply_size = std::size_t{64} << 20;
  std::size_t max_reply_depth = 32;
  // Messages of a subscription that wait to be received; with more of them, or
  // if they take more than max_reply_size, the server is slowed down.
  std::size_t max_unread_messages = 1024;

  // For clusters: sends commands that only read to replicas, which may lag
  // behind their master; to the master if there is none, or it can't answer.
  bool read_from_replicas = false;
  // For clusters: how often a command is sent, or tried to be sent, until a
  // server takes it. One that may have run isn't sent again.
  int max_attempts = 8;
  // For clusters: the map of slots is asked for no more often than that.
  std::chrono::nanoseconds min_refresh_interval =
      std::chrono::milliseconds(200);
};

struct RedisCallOptions {
  // None: RedisClientOptions::timeout.
  std::optional<std::chrono::nanoseconds> timeout = {};
};

}  // namespace flare

#endif  // FLARE_RPC_REDIS_CLIENT_OPTIONS_H_
