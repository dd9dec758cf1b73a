#include "flare/rpc/checks/server_check.h"

namespace flare::rpc {

std::string ProtocolOfCheck(HealthCheckKind kind, const std::string& channels) {
  switch (kind) {
    case HealthCheckKind::kHttp:
      return "http";
    case HealthCheckKind::kGrpc:
      return "grpc";
    case HealthCheckKind::kNone:
    case HealthCheckKind::kConnect:
    case HealthCheckKind::kCall:
      break;
  }
  return channels;
}

}  // namespace flare::rpc
