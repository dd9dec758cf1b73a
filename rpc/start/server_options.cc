#include "flare/rpc/server_options.h"

#include <algorithm>
#include <cstddef>

#include "flare/rpc/protocol.h"

namespace flare::rpc {

ServerOptions WithinLimits(ServerOptions options) {
  for (std::size_t* const limit :
       {&options.maximum_packet_size, &options.max_meta_size,
        &options.max_http_header_size}) {
    *limit = std::min(*limit, kMaxLimit);
  }
  return options;
}

Limits LimitsOf(const ServerOptions& options) {
  Limits limits;
  limits.max_packet_size = options.maximum_packet_size;
  limits.max_meta_size = options.max_meta_size;
  limits.max_decompressed_size = options.max_decompressed_size != 0
                                     ? options.max_decompressed_size
                                     : options.maximum_packet_size;
  limits.max_head_size = options.max_http_header_size;
  limits.max_head_fields = options.max_http_header_fields;
  // The connection, which lets one in in any case, reads no more before the
  // protocol would refuse it.
  limits.max_pipeline =
      std::max<std::size_t>(options.max_concurrent_requests_per_connection, 1);
  limits.compress_unasked_from = options.compress_http_replies_from;
  return limits;
}

}  // namespace flare::rpc
