#include "flare/rpc/checks/check_text.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>

namespace flare::rpc {
namespace {

flare::Status BadCheck(const std::string& what) {
  return flare::Status(EINVAL, what);
}

// Whether it may be in a request line, or in the path of a gRPC call.
bool IsVisible(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c > ' ' && c < '\x7f'; });
}

flare::Status ValidateTarget(const HealthCheckOptions& options) {
  const std::string& target = options.target;
  switch (options.kind) {
    case HealthCheckKind::kNone:
    case HealthCheckKind::kConnect:
      return target.empty() ? flare::Status()
                            : BadCheck(
                                  "target: a check that only connects has "
                                  "none");
    case HealthCheckKind::kHttp:
      return target.starts_with('/') && IsVisible(target)
                 ? flare::Status()
                 : BadCheck("target: '" + target +
                            "' is no path; write one as in http:/health");
    case HealthCheckKind::kGrpc:
      return IsVisible(target)
                 ? flare::Status()
                 : BadCheck("target: '" + target + "' is no service's name");
    case HealthCheckKind::kCall:
      return target.find('.') != std::string::npos && IsVisible(target)
                 ? flare::Status()
                 : BadCheck("target: '" + target +
                            "' is no method; write it as in "
                            "call:package.Service.Method");
  }
  return BadCheck("kind: not a HealthCheckKind");
}

}  // namespace

Expected<HealthCheckOptions, flare::Status> ParseHealthCheck(
    std::string_view text) {
  struct KnownKind {
    std::string_view name;
    HealthCheckKind kind;
  };
  constexpr KnownKind kKinds[] = {
      {"none", HealthCheckKind::kNone}, {"connect", HealthCheckKind::kConnect},
      {"http", HealthCheckKind::kHttp}, {"grpc", HealthCheckKind::kGrpc},
      {"call", HealthCheckKind::kCall},
  };
  if (text.empty()) return HealthCheckOptions();
  const std::string_view name = text.substr(0, text.find(':'));
  for (const KnownKind& known : kKinds) {
    if (known.name != name) continue;
    HealthCheckOptions options;
    options.kind = known.kind;
    if (name.size() < text.size())
      options.target = text.substr(name.size() + 1);
    if (const flare::Status status = ValidateTarget(options); !status.ok()) {
      return status;
    }
    return options;
  }
  return BadCheck(
      "'" + std::string(text) +
      "' is no health check; there are none, connect, http:/path, grpc, "
      "grpc:package.Service and call:package.Service.Method");
}

flare::Status ValidateHealthCheck(const HealthCheckOptions& options) {
  using std::chrono::milliseconds;
  constexpr auto kMost = std::chrono::hours(24 * 365);
  if (options.interval < milliseconds(1) || options.interval > kMost) {
    return BadCheck("interval must be from a millisecond to a year");
  }
  if (options.timeout < milliseconds(1) || options.timeout > kMost) {
    return BadCheck("timeout must be from a millisecond to a year");
  }
  if (options.jitter_percent < 0 || options.jitter_percent > 90) {
    return BadCheck("jitter_percent must be from 0 to 90");
  }
  if (options.rise < 1 || options.fall < 1) {
    return BadCheck("rise and fall must be at least 1");
  }
  return ValidateTarget(options);
}

}  // namespace flare::rpc
