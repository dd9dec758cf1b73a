#include "flare/rpc/client/policy_call.h"

#include <algorithm>
#include <string_view>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/random.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/context_stop.h"
#include "flare/rpc/client/hedged_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/policy/retry_budget.h"
#include "flare/rpc/repeatable.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

void PolicyCall::Run(const CallPolicies& policies,
                     const ClientCall::Arguments& arguments) {
  auto* const controller =
      static_cast<RpcClientController*>(arguments.controller);
  const CallPolicies::Found found =
      policies.Find(controller->NameOf(*arguments.method));
  if (found.policy == nullptr) return ClientCall::Run(arguments);
  PolicyCall call(found, arguments);
  const CallPolicy& policy = found.policy->policy();
  if (policy.retry || policy.hedging) RetryBudget::Default().OnCall();
  if (policy.retry) return call.RunAttempts(*policy.retry);
  if (policy.hedging && call.twice_) return call.RunHedged();
  call.RunOnce(0);
}

PolicyCall::PolicyCall(CallPolicies::Found found,
                       const ClientCall::Arguments& arguments)
    : policy_(found.policy),
      arguments_(arguments),
      controller_(static_cast<RpcClientController*>(arguments.controller)),
      twice_(found.by_name || IsIdempotent(*arguments.method)),
      started_ns_(NowNs()),
      deadline_ns_(Deadline(started_ns_)),
      timeout_kind_(controller_->timeout_kind_),
      timeout_ns_(controller_->timeout_ns_),
      wait_for_ready_(controller_->wait_for_ready_),
      wait_for_ready_set_(controller_->wait_for_ready_set_) {
  arguments_.chosen = &peer_;
  const CallPolicy& policy = policy_->policy();
  if (policy.wait_for_ready && !controller_->wait_for_ready_set_) {
    controller_->SetWaitForReady(*policy.wait_for_ready);
  }
  controller_->SetDeadline(deadline_ns_);
}

PolicyCall::~PolicyCall() {
  controller_->timeout_kind_ = timeout_kind_;
  controller_->timeout_ns_ = timeout_ns_;
  controller_->wait_for_ready_ = wait_for_ready_;
  controller_->wait_for_ready_set_ = wait_for_ready_set_;
  controller_->ends_early_ = false;
  // The start of all attempts.
  controller_->started_ns_ = started_ns_;
}

std::int64_t PolicyCall::Deadline(std::int64_t now_ns) const {
  const ClientSettings& settings = arguments_.route->settings();
  std::int64_t deadline = controller_->DeadlineFrom(now_ns).value_or(
      SaturatingAdd(now_ns, ToNs(settings.timeout)));
  if (const auto& timeout = policy_->policy().timeout) {
    deadline = std::min(deadline, SaturatingAdd(now_ns, ToNs(*timeout)));
  }
  if (!controller_->inherits_context_ || !settings.inherits_context) {
    return deadline;
  }
  return DeadlineIn(fiber::ExecutionContext::Current(), deadline);
}

void PolicyCall::RunAttempts(const RetryPolicy& retry) {
  for (std::size_t attempt = 1;; ++attempt) {
    RunOnce(ToNs(retry.attempt_timeout));
    if (!controller_->Failed()) return;
    const std::optional<std::int64_t> delay = NextDelay(retry, attempt);
    if (!delay) return;
    const std::int64_t until = SaturatingAdd(NowNs(), *delay);
    // It would fail with the deadline; as it is the caller is told why.
    if (until >= deadline_ns_ ||
        !RetryBudget::Default().Take(RetryBudget::Use::kRetry, NowNs())) {
      return;
    }
    Pause(until);
    if (arguments_.response != nullptr && !controller_->accept_raw_response_) {
      arguments_.response->Clear();
    }
  }
}

void PolicyCall::RunOnce(std::int64_t attempt_timeout_ns) {
  const std::int64_t ends = attempt_timeout_ns == 0
                                ? deadline_ns_
                                : SaturatingAdd(NowNs(), attempt_timeout_ns);
  controller_->ends_early_ = ends < deadline_ns_;
  controller_->SetDeadline(std::min(ends, deadline_ns_));
  arguments_.after = peer_;
  ClientCall::Run(arguments_);
}

std::optional<std::int64_t> PolicyCall::NextDelay(const RetryPolicy& retry,
                                                  std::size_t attempt) {
  // The end of our client side: nobody may go on calling.
  if (attempt == retry.max_attempts || controller_->IsCanceled() ||
      !IsClientSideOpen()) {
    return std::nullopt;
  }
  const int code = controller_->ErrorCode();
  const bool too_slow = code == STATUS_TIMEOUT && controller_->ends_early_;
  if (too_slow ? !twice_ : !IsRepeated(retry.statuses, code, twice_)) {
    return std::nullopt;
  }
  std::int64_t delay = BackoffNs(retry, attempt, MixBits(ReadTsc()));
  if (const auto wish =
          controller_->GetResponseMetadata().Get(kRetryPushback)) {
    if (ParsePushback(*wish, &delay) == Pushback::kNever) return std::nullopt;
  }
  return delay;
}

// Ends early when the caller, or the context, wants no more: then the next
// attempt ends at once, and says so.
void PolicyCall::Pause(std::int64_t until_ns) {
  stopped_.Reset();
  if (controller_->BeginAttempt(this)) {
    fiber::ExecutionContext* const context = fiber::ExecutionContext::Current();
    if (context != nullptr && controller_->inherits_context_ &&
        arguments_.route->settings().inherits_context) {
      stopped_.WaitUntil(context->stop_token(), ToTimePoint(until_ns));
    } else {
      stopped_.WaitUntil(until_ns);
    }
  }
  controller_->EndAttempt(this);
}

void PolicyCall::RunHedged() {
  HedgedCall(policy_, arguments_, deadline_ns_).Run();
}

}  // namespace flare::rpc
