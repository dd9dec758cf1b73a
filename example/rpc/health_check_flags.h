// Health checks of servers by the flags of a client: --health_check,
// --health_check_interval_ms, --health_check_timeout_ms, --health_check_rise,
// --health_check_fall.

#ifndef EXAMPLE_RPC_HEALTH_CHECK_FLAGS_H_
#define EXAMPLE_RPC_HEALTH_CHECK_FLAGS_H_

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/health_check_options.h"

namespace example {

// For RpcChannel::Options::health_check. Fails with a text that names the flag.
flare::Expected<flare::HealthCheckOptions, flare::Status>
HealthCheckFromFlags();

}  // namespace example

#endif  // EXAMPLE_RPC_HEALTH_CHECK_FLAGS_H_
