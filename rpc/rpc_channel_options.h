// The options of a channel: `RpcChannel::Options`.
//
//   flare::RpcChannel channel("flare://10.0.0.1:5567",
//                             {.timeout = 300ms,
//                              .connection_kind =
//                              flare::ConnectionKind::kPooled});
//
// An option that is left open (std::nullopt) is filled in from the flag named
// beside it, once: when the channel makes its first call, so that flags may be
// parsed after a channel with static storage was opened. Which of them to use:
// docs/client_options.md.

#ifndef FLARE_RPC_RPC_CHANNEL_OPTIONS_H_
#define FLARE_RPC_RPC_CHANNEL_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/io/tls_options.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/health_check_options.h"
#include "flare/rpc/health_options.h"

namespace flare {

class ChannelCredentials;
class CallPolicies;
class ClientInterceptor;
class ConnectionPool;

struct RpcChannelOptions {
  // Bytes of one reply, framing included: a larger one fails its call with
  // STATUS_MALFORMED_DATA. If it doesn't announce its size (chunked HTTP) or
  // is over 64 MiB, too, its connection ends, and the other calls on it fail
  // with STATUS_IO_ERROR; over HTTP that call itself does so, too.
  // 0: --flare_rpc_channel_max_packet_size.
  std::size_t maximum_packet_size = 0;
  // "resolver+balancer" instead of the default "list+rr" (name_resolver.h,
  // load_balancer.h).
  std::string override_nslb = {};

  // --- Calls ---

  // The time of a call whose controller says nothing else.
  // --flare_rpc_client_default_rpc_timeout_ms
  std::optional<std::chrono::nanoseconds> timeout = {};
  // The time of a streaming call, to the end of its last message.
  // --flare_rpc_client_default_streaming_rpc_timeout_ms
  std::optional<std::chrono::nanoseconds> stream_timeout = {};
  // Calls that are made while a request is served take no longer than the rest
  // of its deadline, and end when its caller leaves.
  // --flare_rpc_propagate_deadline
  std::optional<bool> inherits_context = {};
  // Calls wait for a server that can be connected to, until their timeouts
  // (RpcClientController::SetWaitForReady).
  bool wait_for_ready = false;
  // Bytes of a compressed body, or of a compressed attachment, after
  // decompression. 0: as many as maximum_packet_size.
  // --flare_rpc_max_decompressed_size
  std::optional<std::size_t> max_decompressed_size = {};
  // Retries and hedged calls, by method (policy/call_policies.h).
  std::shared_ptr<const CallPolicies> policies = nullptr;
  // Code around each call, the outermost first (interceptor.h).
  std::vector<std::shared_ptr<ClientInterceptor>> interceptors = {};
  // Interceptors of extensions (extension.h) wrap calls, too. False: for
  // channels that an extension uses itself.
  bool extensions = true;
  // A credential that each call carries (channel_credentials.h). With URIs that
  // don't begin with "tls+" it is an error, unless it allows that.
  std::shared_ptr<ChannelCredentials> credentials = nullptr;

  // --- Connections ---

  // How calls use connections (connection_kind.h).
  ConnectionKind connection_kind = ConnectionKind::kMultiplexed;
  // Establishing a connection may take so long. The calls that wait for it then
  // fail. --flare_rpc_client_connect_timeout_ms
  std::optional<std::chrono::nanoseconds> connect_timeout = {};
  // Shared connections (kMultiplexed) to one server. All scheduling groups
  // share the number, but each has at least one.
  // --flare_rpc_client_max_connections_per_server
  std::optional<std::size_t> max_connections_per_server = {};
  // Connections of calls of kPooled and kShort, and of streams that need one of
  // their own, to one server. Further calls fail with STATUS_OVERLOADED.
  // --flare_rpc_client_max_dedicated_connections_per_server
  std::optional<std::size_t> max_dedicated_connections_per_server = {};
  // A connection without traffic for so long is closed. 0: it never is.
  // --flare_rpc_client_connection_max_idle
  std::optional<std::chrono::nanoseconds> connection_max_idle = {};
  // A server on whose connection calls wait, and nothing was sent or received
  // for so long, is asked whether it is there, over protocols that have a
  // question for that: `grpc`, by a PING of HTTP/2. If nothing comes for as
  // long again the connection breaks. 0: it isn't asked. The kernel asks in any
  // case (docs/flags.md), but that ends at a proxy between the two.
  std::chrono::nanoseconds keep_alive{0};
  // How "tls+..." channels check servers, and their own certificate
  // (docs/security.md). Nothing: the defaults, the roots of the system. With
  // other URIs it is an error.
  std::optional<TlsClientOptions> tls = {};
  // Host names are looked up again after so long, by "list" and "file"; by
  // "dns", which has times to live else, too.
  // --flare_name_resolver_update_interval_seconds
  std::optional<std::chrono::nanoseconds> name_update_interval = {};

  // --- Choice of servers ---

  // The caller's zone. Calls go to servers of that zone as long as enough of
  // them can take calls (docs/balancing.md#zones). Empty:
  // --flare_rpc_client_zone; if that is empty, too, zones don't matter.
  std::string zone = {};
  // Only servers that have all these tags, with these values, get calls.
  std::map<std::string, std::string> tags = {};
  // When servers of several are left alone for a while.
  HealthOptions health = {};
  // Health checks of the servers, if there are several. Off by default.
  HealthCheckOptions health_check = {};
  // The connections that the channel shares with others. Null: the pool of the
  // process, ConnectionPool::Default().
  std::shared_ptr<ConnectionPool> pool = nullptr;
};

}  // namespace flare

#endif  // FLARE_RPC_RPC_CHANNEL_OPTIONS_H_
