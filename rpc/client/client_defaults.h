// The settings of a channel: its options, and the flags as their defaults.
// Nothing else of the client side reads flags for a channel.

#ifndef FLARE_RPC_CLIENT_CLIENT_DEFAULTS_H_
#define FLARE_RPC_CLIENT_CLIENT_DEFAULTS_H_

#include <chrono>
#include <string>

#include "flare/base/status.h"
#include "flare/rpc/client/connection_settings.h"
#include "flare/rpc/rpc_channel_options.h"

namespace flare::rpc {

struct ClientSettings {
  std::chrono::nanoseconds timeout{0};
  std::chrono::nanoseconds stream_timeout{0};
  bool inherits_context = true;
  bool wait_for_ready = false;
  std::string zone;
  ConnectionSettings connections;
};

// Fails with a text that names the option that makes no sense.
flare::Status CheckOptions(const RpcChannelOptions& options);

// For options that pass CheckOptions().
ClientSettings FillDefaults(const RpcChannelOptions& options);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CLIENT_DEFAULTS_H_
