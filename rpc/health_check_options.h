// Health checks by which a channel asks its servers whether they are well,
// besides its calls: `RpcChannel::Options::health_check`. Off by default.
//
//   options.health_check = {.kind = flare::HealthCheckKind::kHttp,
//                           .target = "/health",
//                           .interval = 2s};
//
// A server whose checks fail gets no calls until they succeed again; then its
// share of calls grows back slowly. Without checks a channel still ejects
// servers whose calls fail (health_options.h). Checks find failing servers
// before calls do, and servers that say that they are about to stop. They have
// no effect with a single server.
//
// Channels of a process that want the same checks of a server share them.
// docs/resilience.md says what to expect.

#ifndef FLARE_RPC_HEALTH_CHECK_OPTIONS_H_
#define FLARE_RPC_HEALTH_CHECK_OPTIONS_H_

#include <chrono>
#include <string>

namespace flare {

enum class HealthCheckKind {
  kNone,
  // The server accepts a connection and, for a "tls+" channel, makes the
  // handshake.
  kConnect,
  // The server answers a GET of the path `target` with a status of 200 to 299.
  kHttp,
  // The server says by grpc.health.v1, over the protocol `grpc`, that the
  // service `target` is SERVING. Without a target: the server as a whole.
  kGrpc,
  // A call of the method `target` ("package.Service.Method") with an empty
  // request succeeds, over the protocol of the channel.
  kCall,
};

struct HealthCheckOptions {
  HealthCheckKind kind = HealthCheckKind::kNone;
  std::string target = {};

  // The pause between two checks, each time longer or shorter by up to
  // `jitter_percent`.
  std::chrono::nanoseconds interval = std::chrono::seconds(5);
  int jitter_percent = 20;
  // The limit of one check, connecting included.
  std::chrono::nanoseconds timeout = std::chrono::seconds(1);
  // The first check decides alone. After that `rise` passed checks in a row
  // make the server healthy, and `fall` failed ones unhealthy.
  int rise = 2;
  int fall = 3;

  friend bool operator==(const HealthCheckOptions&,
                         const HealthCheckOptions&) = default;
};

}  // namespace flare

#endif  // FLARE_RPC_HEALTH_CHECK_OPTIONS_H_
