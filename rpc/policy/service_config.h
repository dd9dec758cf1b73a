// gRPC's service config (https://github.com/grpc/grpc/blob/master/doc/
// service_config.md), the part of it that is about calls.
#ifndef FLARE_RPC_POLICY_SERVICE_CONFIG_H_
#define FLARE_RPC_POLICY_SERVICE_CONFIG_H_

#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/policy/call_policy.h"

namespace flare::rpc {

struct ServiceConfigEntry {
  std::string name;   // As for CallPolicies::Set().
  std::string where;  // "methodConfig[1].name[0]"
  CallPolicy policy;
};

// Fails with EINVAL and a text that says where it is wrong, as
// "methodConfig[1].retryPolicy.maxAttempts: ...".
Expected<std::vector<ServiceConfigEntry>, flare::Status> ReadServiceConfig(
    const std::string& json);

}  // namespace flare::rpc

#endif  // FLARE_RPC_POLICY_SERVICE_CONFIG_H_
