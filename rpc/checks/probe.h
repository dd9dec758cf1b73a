// One check of one server.
//
//   ServerCheck check{.options = options, .endpoint = endpoint};
//   check.host = "a:80";
//   Status status = CheckServer(check, stop);

#ifndef FLARE_RPC_CHECKS_PROBE_H_
#define FLARE_RPC_CHECKS_PROBE_H_

#include <stop_token>

#include "flare/base/status.h"
#include "flare/rpc/checks/server_check.h"

namespace flare::rpc {

// Connects, sends the question of the check's kind on the new connection, and
// closes it. While the backlog of a Unix socket is full, connecting is
// repeated. An HTTP response is judged by its status line; interim responses
// are skipped. Blocks the fiber, for options.timeout at most.
//
// OK: the server is healthy. Errors: an errno value if it can't be connected
// to; ETIMEDOUT; EPROTO for an answer that is malformed or a failure. ECANCELED
// (`stop` was requested) and the codes of IsShortage() say nothing about the
// server.
flare::Status CheckServer(const ServerCheck& check,
                          const std::stop_token& stop);

// Whether connecting failed because this process is out of descriptors or
// memory, which says nothing about the server. EADDRNOTAVAIL isn't such a code:
// other servers may be reachable when no port or address leads to this one.
bool IsShortage(int code);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_PROBE_H_
