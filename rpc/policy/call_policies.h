// Policies by method for calls that fail or are slow: a channel repeats them,
// or sends them to a second server ("hedges" them).
//
//   auto policies = std::make_shared<flare::CallPolicies>();
//   policies->Set("shop.Stock.Get", {.retry = flare::RetryPolicy{
//       .max_attempts = 3, .attempt_timeout = 200ms}});
//   flare::RpcChannel channel(uri, {.policies = policies});
//
// Or from a file in the form of gRPC's service config:
//
//   auto policies = flare::CallPolicies::FromFile("calls.json");
//   if (!policies) return policies.error();
//
// See docs/retries.md. A call of such a channel costs a look-up, and one with
// `done` a fiber and a copy of its request; calls of other channels cost
// nothing. Streaming calls have no policy.
#ifndef FLARE_RPC_POLICY_CALL_POLICIES_H_
#define FLARE_RPC_POLICY_CALL_POLICIES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/policy/call_policy.h"

namespace flare {

namespace rpc {
class MethodPolicy;
}  // namespace rpc

// The policies of a channel. Filled in before channels use it; from then on
// it is constant, and thread-safe.
class CallPolicies {
 public:
  CallPolicies();
  ~CallPolicies();
  CallPolicies(const CallPolicies&) = delete;
  CallPolicies& operator=(const CallPolicies&) = delete;

  // `name`: "package.Service.Method"; "package.Service" for its other methods;
  // "" for all others. Fails with a text if the policy contradicts itself, or
  // the name has one already.
  //
  // A call that a server may have run is repeated, or hedged, only if its
  // method is named here in full, or its .proto says
  //   option idempotency_level = IDEMPOTENT;  // or NO_SIDE_EFFECTS
  Status Set(const std::string& name, CallPolicy policy);

  // gRPC's service config in JSON: methodConfig, with name, timeout,
  // waitForReady, retryPolicy and hedgingPolicy. Unknown fields and bad values
  // are errors, whose text says which and where.
  static Expected<std::shared_ptr<CallPolicies>, Status> FromServiceConfig(
      const std::string& json);
  // ... in a file. Blocks the thread.
  static Expected<std::shared_ptr<CallPolicies>, Status> FromFile(
      const std::string& path);

  // For calls.
  struct Found {
    rpc::MethodPolicy* policy;  // Null: there is none.
    bool by_name;               // It is the method's own policy.
  };
  // `method`: "package.Service.Method".
  Found Find(std::string_view method) const;

 private:
  std::map<std::string, std::unique_ptr<rpc::MethodPolicy>, std::less<>>
      policies_;
};

}  // namespace flare

#endif  // FLARE_RPC_POLICY_CALL_POLICIES_H_
