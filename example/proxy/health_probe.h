// One look at whether a server is well.
//
//   Status status = ProbeServer(config, upstream.name, upstream.address, stop);

#ifndef EXAMPLE_PROXY_HEALTH_PROBE_H_
#define EXAMPLE_PROXY_HEALTH_PROBE_H_

#include <stop_token>
#include <string>

#include "example/proxy/config.h"
#include "flare/base/endpoint.h"
#include "flare/base/status.h"

namespace example::proxy {

// Connects, again and again while the backlog of a Unix socket is full; with
// Type::kHttp, requests the path and reads the status line, passing over
// interim responses; then closes. `header` is sent in front (a PROXY header;
// nothing may be). kNone does what kTcp does. Blocks the fiber, for
// config.timeout at most.
//
// OK: the server is well. Else why not: it can't be connected to (errno
// values), ETIMEDOUT, EPROTO for an answer that is none or a wrong one;
// ECANCELED once `stop` is requested, which says nothing about the server.
flare::Status ProbeServer(const HealthCheckConfig& config,
                          const std::string& name,
                          const flare::Endpoint& address,
                          const std::string& header,
                          const std::stop_token& stop);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_HEALTH_PROBE_H_
