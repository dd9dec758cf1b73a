// The settings of connections: those of a channel, which has them from its
// options and the flags (client_defaults.h). Channels of one pool that have the
// same ones share connections.

#ifndef FLARE_RPC_CLIENT_CONNECTION_SETTINGS_H_
#define FLARE_RPC_CLIENT_CONNECTION_SETTINGS_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "flare/io/tls_context.h"

namespace flare::rpc {

struct ConnectionSettings {
  // In bytes: a message, and its unpacked size.
  std::size_t max_packet_size = 0;
  std::size_t max_decompressed_size = 0;
  // To one server, dealt out to the scheduling groups: shared connections, of
  // which each group has at least one, and dedicated ones.
  std::size_t max_connections = 0;
  std::size_t max_dedicated_connections = 0;
  std::chrono::nanoseconds connect_timeout{0};
  std::chrono::nanoseconds max_idle{0};    // 0: for ever.
  std::chrono::nanoseconds keep_alive{0};  // 0: no questions.
  // Null: plain connections.
  std::shared_ptr<io::TlsClientContext> tls = nullptr;

  friend bool operator==(const ConnectionSettings&,
                         const ConnectionSettings&) = default;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CONNECTION_SETTINGS_H_
