// How the calls of a channel use connections.
//
//                  calls at a time   after a call          for
//   kMultiplexed   many              others go on          almost everything
//   kPooled        one               kept for the next     servers that serve a
//                                    call                  connection's calls
//                                                          one after the other
//   kShort         one               closed                servers behind a
//                                                          balancer of
//                                                          connections; rare
//                                                          calls
//
// Chosen by RpcChannel::Options::connection_kind. Each works with every
// protocol.

#ifndef FLARE_RPC_CONNECTION_KIND_H_
#define FLARE_RPC_CONNECTION_KIND_H_

#include <cstdint>

namespace flare {

enum class ConnectionKind : std::uint8_t {
  // Calls share connections, up to a limit for each server. Replies come in
  // any order.
  kMultiplexed,
  // A call takes a connection that carries no other call, or opens one. After
  // the reply the connection is kept for later calls. If the call ends without
  // one (timeout, cancellation), the connection is closed, since a late reply
  // might still come.
  kPooled,
  // Each call opens a connection, and closes it at its end.
  kShort,
};

}  // namespace flare

#endif  // FLARE_RPC_CONNECTION_KIND_H_
