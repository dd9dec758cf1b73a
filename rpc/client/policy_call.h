// A call by the policy that its channel has for its method
// (policy/call_policies.h): attempts, one after the other or side by side, each
// of which is a ClientCall.
#ifndef FLARE_RPC_CLIENT_POLICY_CALL_H_
#define FLARE_RPC_CLIENT_POLICY_CALL_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "flare/fiber/event.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/policy/method_policy.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

class PolicyCall final : private CancelTarget {
 public:
  // Like ClientCall::Run(). `arguments` has a route and an RpcClientController,
  // and no `done`: it blocks until the end of the call.
  static void Run(const CallPolicies& policies,
                  const ClientCall::Arguments& arguments);

 private:
  PolicyCall(CallPolicies::Found found, const ClientCall::Arguments& arguments);
  ~PolicyCall();

  std::int64_t Deadline(std::int64_t now_ns) const;
  void RunAttempts(const RetryPolicy& retry);
  void RunHedged();
  void RunOnce(std::int64_t attempt_timeout_ns);
  // How long to wait before the next attempt; nullopt: there is none.
  std::optional<std::int64_t> NextDelay(const RetryPolicy& retry,
                                        std::size_t attempt);
  void Pause(std::int64_t until_ns);
  void Cancel() override { stopped_.Set(); }

  MethodPolicy* const policy_;
  ClientCall::Arguments arguments_;
  RpcClientController* const controller_;
  const bool twice_;  // The method may run twice.
  const std::int64_t started_ns_;
  const std::int64_t deadline_ns_;
  std::uint32_t peer_ = Route::kNoPeer;  // The last attempt's.
  fiber::Event stopped_;                 // The caller wants no more.

  // The caller's setting, to be put back.
  const RpcClientController::TimeoutKind timeout_kind_;
  const std::int64_t timeout_ns_;
  const bool wait_for_ready_;
  const bool wait_for_ready_set_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_POLICY_CALL_H_
