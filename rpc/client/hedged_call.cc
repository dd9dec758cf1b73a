// The fiber (or thread) of the call begins attempts and waits for their ends;
// each attempt is a call with `done`.
//
//  [HG1] An attempt's last use of the call is the section of `lock_` in which
//  it
//        reports its end. The call ends after it has seen, in a section of its
//        own, the ends of all attempts.
#include "flare/rpc/client/hedged_call.h"

#include <string_view>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/policy/retry_budget.h"

namespace flare::rpc {

HedgedCall::HedgedCall(MethodPolicy* policy,
                       const ClientCall::Arguments& arguments,
                       std::int64_t deadline_ns)
    : policy_(policy),
      hedging_(*policy->policy().hedging),
      arguments_(arguments),
      deadline_ns_(deadline_ns),
      began_ns_(NowNs()),
      call_(arguments.controller),
      peer_(arguments.after) {}

void HedgedCall::Run() {
  call_.Begin(this);
  Begin();
  Attempt* last = nullptr;
  for (;;) {
    const bool more = MayBegin();
    if (under_way_ == 0 && !more) break;
    Attempt* const ended = AwaitEnd(more ? next_ns_ : kNoDeadline);
    if (ended != nullptr) {
      last = ended;
      if (IsLast(*ended)) break;
    } else if (more && NowNs() >= next_ns_ && !IsCancelled()) {
      if (RetryBudget::Default().Take(RetryBudget::Use::kHedge, NowNs())) {
        Begin();
      } else {
        no_more_ = true;
      }
    }
  }
  CancelAttempts();
  while (under_way_ != 0) AwaitEnd(kNoDeadline);
  call_.End();
  TakeOutcome(last);
}

bool HedgedCall::MayBegin() {
  return !no_more_ && begun_ < hedging_.max_attempts &&
         next_ns_ < deadline_ns_ && IsClientSideOpen() && !IsCancelled();
}

void HedgedCall::Begin() {
  Attempt* attempt;
  bool cancelled;
  {
    ScopedLock guard(lock_);
    attempt = &attempts_.emplace_back();
    cancelled = cancelled_;
  }
  attempt->owner = this;
  if (arguments_.response != nullptr) {
    attempt->response.reset(arguments_.response->New());
  }
  call_.Prepare(&attempt->controller);
  if (cancelled) attempt->controller.StartCancel();
  next_ns_ = SaturatingAdd(NowNs(), policy_->HedgingDelayNs());
  ++begun_;
  ++under_way_;
  ClientCall::Arguments own = arguments_;
  own.controller = &attempt->controller;
  own.response = attempt->response.get();
  own.done = attempt;
  own.after = peer_;
  own.chosen = &peer_;
  ClientCall::Run(own);
}

void HedgedCall::Attempt::Run() {
  ScopedLock guard(owner->lock_);  // [HG1]
  owner->ended_.push_back(this);
  owner->news_.release();
}

// An attempt that has ended; null: there is none by then, or the call was
// cancelled.
HedgedCall::Attempt* HedgedCall::AwaitEnd(std::int64_t until_ns) {
  if (until_ns == kNoDeadline) {
    news_.acquire();
  } else if (!news_.try_acquire_until(ToTimePoint(until_ns))) {
    return nullptr;
  }
  ScopedLock guard(lock_);  // [HG1]
  if (ended_.empty()) return nullptr;
  Attempt* const ended = ended_.front();
  ended_.pop_front();
  --under_way_;
  return ended;
}

// True: how the attempt has ended is how the call ends. False: the next one
// needs no delay, unless the server has asked for one.
bool HedgedCall::IsLast(const Attempt& ended) {
  const RpcClientController& controller = ended.controller;
  if (!controller.Failed()) {
    policy_->NoteLatency(NowNs() - began_ns_);
    return true;
  }
  if (controller.IsCanceled() ||
      !IsRepeated(hedging_.non_fatal_statuses, controller.ErrorCode(),
                  /*twice=*/true)) {
    return true;
  }
  std::int64_t delay = 0;
  if (const auto wish = controller.GetResponseMetadata().Get(kRetryPushback)) {
    no_more_ |= ParsePushback(*wish, &delay) == Pushback::kNever;
  }
  next_ns_ = SaturatingAdd(NowNs(), delay);
  return false;
}

bool HedgedCall::IsCancelled() {
  ScopedLock guard(lock_);
  return cancelled_;
}

// Those that have ended don't mind.
void HedgedCall::CancelAttempts() {
  std::vector<RpcClientController*> controllers;
  {
    ScopedLock guard(lock_);
    for (Attempt& attempt : attempts_) {
      controllers.push_back(&attempt.controller);
    }
  }
  for (RpcClientController* const controller : controllers) {
    controller->StartCancel();
  }
}

void HedgedCall::Cancel() {
  {
    ScopedLock guard(lock_);
    cancelled_ = true;
    news_.release();
  }
  CancelAttempts();
}

// `attempt` is null if the call was cancelled before any has ended.
void HedgedCall::TakeOutcome(Attempt* attempt) {
  if (attempt == nullptr || (attempt->controller.Failed() && IsCancelled())) {
    call_.FailAsCancelled();
  } else {
    call_.TakeOutcome(&attempt->controller);
    if (arguments_.response != nullptr) {
      arguments_.response->GetReflection()->Swap(arguments_.response,
                                                 attempt->response.get());
    }
  }
  call_.Tell();
}

}  // namespace flare::rpc
