#include "example/rpc/health_check_flags.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <chrono>

#include "flare/rpc/checks/check_text.h"

DEFINE_string(health_check, "none",
              "How servers of several are asked whether they are well: none, "
              "connect, http:/path, grpc, grpc:package.Service or "
              "call:package.Service.Method (docs/resilience.md).");
DEFINE_int32(health_check_interval_ms, 5000,
             "From one check of a server to the next one; varies by 20%.");
DEFINE_int32(health_check_timeout_ms, 1000, "For one check of a server.");
DEFINE_int32(health_check_rise, 2,
             "So many good checks in a row make a server healthy.");
DEFINE_int32(health_check_fall, 3,
             "So many bad checks in a row make a server unhealthy.");

namespace example {

flare::Expected<flare::HealthCheckOptions, flare::Status>
HealthCheckFromFlags() {
  auto options = flare::rpc::ParseHealthCheck(FLAGS_health_check);
  if (!options) {
    return flare::Status(EINVAL,
                         "--health_check: " + options.error().message());
  }
  options->interval = std::chrono::milliseconds(FLAGS_health_check_interval_ms);
  options->timeout = std::chrono::milliseconds(FLAGS_health_check_timeout_ms);
  options->rise = FLAGS_health_check_rise;
  options->fall = FLAGS_health_check_fall;
  if (const flare::Status status = flare::rpc::ValidateHealthCheck(*options);
      !status.ok()) {
    return flare::Status(EINVAL, "--health_check_...: " + status.message());
  }
  return options;
}

}  // namespace example
