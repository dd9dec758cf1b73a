// How a channel asks its servers whether they are well, whatever its calls
// find out: `RpcChannel::Options::health_check`. Off by default.
//
//   options.health_check = {.kind = flare::HealthCheckKind::kHttp,
//                           .target = "/health",
//                           .interval = 2s};
//
// A server whose checks fail gets no calls until they succeed again; then its
// share of calls grows back slowly. Servers whose calls fail are ejected
// without checks, too (health_options.h): checks find servers that fail before
// calls do, and servers that say that they are about to stop. Of no effect with
// a single server.
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
  // The server accepts a connection; of a "tls+" channel, the handshake, too.
  kConnect,
  // It answers a GET of the path `target` with a status of 200 to 299.
  kHttp,
  // It says by grpc.health.v1, over the protocol `grpc`, that the service
  // `target` is SERVING. Without a target: the server as a whole.
  kGrpc,
  // A call of the method `target` ("package.Service.Method") with an empty
  // request succeeds, over the protocol of the channel.
  kCall,
};

struct HealthCheckOptions {
  HealthCheckKind kind = HealthCheckKind::kNone;
  std::string target = {};

  // From the end of a check to the next one, each time longer or shorter by up
  // to `jitter_percent`.
  std::chrono::nanoseconds interval = std::chrono::seconds(5);
  int jitter_percent = 20;
  // For one check, connecting included.
  std::chrono::nanoseconds timeout = std::chrono::seconds(1);
  // The first check decides alone. After that so many good ones in a row make
  // the server healthy, and so many bad ones unhealthy.
  int rise = 2;
  int fall = 3;

  friend bool operator==(const HealthCheckOptions&,
                         const HealthCheckOptions&) = default;
};

}  // namespace flare

#endif  // FLARE_RPC_HEALTH_CHECK_OPTIONS_H_
