// One check of one server: is it well?
//
//   ServerCheck check{.options = options, .endpoint = endpoint, .host =
//   "a:80"}; Status status = CheckServer(check, stop);

#ifndef FLARE_RPC_CHECKS_PROBE_H_
#define FLARE_RPC_CHECKS_PROBE_H_

#include <stop_token>

#include "flare/base/status.h"
#include "flare/rpc/checks/server_check.h"

namespace flare::rpc {

// Connects, again and again while the backlog of a Unix socket is full; asks
// what the kind asks, on this new connection; then closes. Of an HTTP response
// only the status line counts; interim ones are passed over. Blocks the fiber,
// for options.timeout at most.
//
// OK: the server is well. Else why not: it can't be connected to (errno
// values), ETIMEDOUT, EPROTO for a bad answer, or one that says that it isn't
// well; ECANCELED once `stop` is requested, which says nothing about the
// server, nor does one of IsShortage().
flare::Status CheckServer(const ServerCheck& check,
                          const std::stop_token& stop);

// Whether a connection that failed with this code says nothing of the server:
// we are out of descriptors or memory ourselves. EADDRNOTAVAIL isn't such a
// code: no port or address of ours may lead to this server, and some to others.
bool IsShortage(int code);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_PROBE_H_
