// HealthCheckOptions as users write them, and their limits.
//
//   auto check = ParseHealthCheck("http:/health");
//   if (!check) return check.error();
//   check->interval = std::chrono::seconds(2);
//
// Thread-safe; nothing blocks.

#ifndef FLARE_RPC_CHECKS_CHECK_TEXT_H_
#define FLARE_RPC_CHECKS_CHECK_TEXT_H_

#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/health_check_options.h"

namespace flare::rpc {

// "none" (or ""), "connect", "http:/path", "grpc", "grpc:package.Service" or
// "call:package.Service.Method"; the other members have their defaults. Fails
// with EINVAL and a text that lists these forms.
Expected<HealthCheckOptions, flare::Status> ParseHealthCheck(
    std::string_view text);

// Fails with EINVAL and a text that names the member that is out of range.
flare::Status ValidateHealthCheck(const HealthCheckOptions& options);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_CHECK_TEXT_H_
