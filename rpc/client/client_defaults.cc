#include "flare/rpc/client/client_defaults.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>

#include "flare/rpc/checks/check_text.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/start/flags.h"

namespace flare::rpc {
namespace {

template <class T>
flare::Status CheckLeast(const std::optional<T>& value, T least,
                         const char* option, const char* rule) {
  if (!value || *value >= least) return {};
  return flare::Status(EINVAL,
                       std::string("Options::") + option + " must be " + rule);
}

}  // namespace

flare::Status CheckOptions(const RpcChannelOptions& options) {
  using std::chrono::nanoseconds;
  for (flare::Status status :
       {CheckLeast(options.timeout, nanoseconds(1), "timeout", "positive"),
        CheckLeast(options.stream_timeout, nanoseconds(1), "stream_timeout",
                   "positive"),
        CheckLeast(options.connect_timeout, nanoseconds(1), "connect_timeout",
                   "positive"),
        CheckLeast(options.connection_max_idle, nanoseconds(0),
                   "connection_max_idle", "0 (for ever) or more"),
        CheckLeast(std::optional(options.keep_alive), nanoseconds(0),
                   "keep_alive", "0 (never) or more"),
        CheckLeast(options.name_update_interval, nanoseconds(1),
                   "name_update_interval", "positive"),
        CheckLeast(options.max_connections_per_server, std::size_t{1},
                   "max_connections_per_server", "at least 1"),
        CheckLeast(options.max_dedicated_connections_per_server, std::size_t{1},
                   "max_dedicated_connections_per_server", "at least 1")}) {
    if (!status.ok()) return status;
  }
  if (const flare::Status status = ValidateHealthCheck(options.health_check);
      !status.ok()) {
    return flare::Status(EINVAL, "Options::health_check: " + status.message());
  }
  return {};
}

ClientSettings FillDefaults(const RpcChannelOptions& options) {
  const ClientDefaults flags = ClientDefaultsFromFlags();
  const auto limit = [](std::size_t bytes) {
    return std::min(bytes, kMaxLimit);
  };
  const std::size_t max_packet_size = options.maximum_packet_size != 0
                                          ? limit(options.maximum_packet_size)
                                          : flags.max_packet_size;
  const std::size_t max_unpacked =
      options.max_decompressed_size.value_or(flags.max_decompressed_size);
  return {
      .timeout = options.timeout.value_or(flags.rpc_timeout),
      .stream_timeout = options.stream_timeout.value_or(flags.stream_timeout),
      .inherits_context =
          options.inherits_context.value_or(flags.inherits_context),
      .wait_for_ready = options.wait_for_ready,
      .zone = options.zone.empty() ? flags.zone : options.zone,
      .connections = {
          .max_packet_size = max_packet_size,
          .max_decompressed_size =
              max_unpacked != 0 ? limit(max_unpacked) : max_packet_size,
          .max_connections = options.max_connections_per_server.value_or(
              flags.max_connections_per_server),
          .max_dedicated_connections =
              options.max_dedicated_connections_per_server.value_or(
                  flags.max_dedicated_connections_per_server),
          .connect_timeout =
              options.connect_timeout.value_or(flags.connect_timeout),
          .max_idle =
              options.connection_max_idle.value_or(flags.connection_max_idle),
          .keep_alive = options.keep_alive}};
}

}  // namespace flare::rpc
