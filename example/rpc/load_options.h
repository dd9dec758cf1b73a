// The options of a load: the servers, the rate, the requests.

#ifndef EXAMPLE_RPC_LOAD_OPTIONS_H_
#define EXAMPLE_RPC_LOAD_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "example/rpc/size_distribution.h"
#include "example/rpc/work.h"
#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/health_check_options.h"

namespace example {

struct AnyMethod;
class Replay;
struct RecordedPace;

// The callers.
enum class CallerKind {
  kLoop,    // State machines that no reply wakes a fiber for.
  kFiber,   // Fibers that block until the reply is there ...
  kThread,  // ... and plain threads.
};

struct LoadOptions {
  // As for RpcChannel::Open(); or "http://host:port/path": plain HTTP.
  std::string server_addr;
  std::string override_nslb;                   // Empty: the default.
  std::optional<flare::TlsClientOptions> tls;  // For "tls+..." addresses.
  flare::HealthCheckOptions health_check;
  flare::ConnectionKind connection_kind = flare::ConnectionKind::kMultiplexed;
  bool relay_stub = false;  // RelayService.Relay, not EchoService.Echo.
  // A method of any service in place of these (any_call.h); null: none.
  std::shared_ptr<const AnyMethod> any_method;
  // Recorded calls in place of these (replay.h); null: none.
  std::shared_ptr<const Replay> replay;
  std::shared_ptr<const RecordedPace> pace;  // Null: at `qps`.
  std::size_t max_pending = 1;               // Callers.
  CallerKind caller_kind = CallerKind::kLoop;
  std::chrono::milliseconds timeout{1000};
  double qps = 0;              // Calls per second; 0: no fixed rate.
  std::uint64_t requests = 0;  // Calls to make; 0: no limit.
  std::uint64_t seed = 0;      // For random draws.

  std::string body;
  // Each call sends so many bytes of `body`, which has them; none: all.
  std::optional<SizeDistribution> body_sizes;
  flare::Buffer attachment;
  flare::CompressionAlgorithm compression = flare::CompressionAlgorithm::kNone;
  bool verify = false;  // Replies that aren't an echo count as failures.

  // So many calls of all ask the server for that work, ...
  double tail_ratio = 0;
  Work tail_work;
  // ... or over plain HTTP for this path.
  std::string tail_path;
};

}  // namespace example

#endif  // EXAMPLE_RPC_LOAD_OPTIONS_H_
