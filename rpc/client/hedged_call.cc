// The fiber (or thread) of the call begins attempts and waits for their ends;
// each attempt is a call with `done`.
//
//  [HG1] An attempt's last use of the call is the section of `lock_` in which
//  it
//        reports its end. The call ends after it has seen, in a section of its
//        own, the ends of all attempts.
#include "flare/rpc/client/hedged_call.h"

#include <string_view>

#include "flare/base/clock.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/client/route.h"
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
      peer_(arguments.after) {
  fiber::ExecutionContext* const context = fiber::ExecutionContext::Current();
  const auto* const controller =
      static_cast<RpcClientController*>(arguments.controller);
  if (context != nullptr && controller->GetInheritsContext() &&
      arguments.route->settings().inherits_context) {
    stop_ = context->stop_token();
  }
}

void HedgedCall::Run() {
  call_.Begin(this);
  Begin();
  Attempt* last = nullptr;
  for (;;) {
    const bool more = MayBegin();
    if (under_way_ == 0 && !more) break;
    // Attempts that are under way end by themselves when the context is
    // stopped. One that begins then ends at once, and says so.
    const bool stopped = stop_.stop_requested();
    if (stopped && under_way_ == 0) {
      Begin();
      continue;
    }
    Attempt* const ended = AwaitEnd(more && !stopped ? next_ns_ : kNoDeadline);
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

// An attempt that can't be started, as there is no memory for it, has failed.
void HedgedCall::Begin() {
  Attempt* attempt = nullptr;
  try {
    attempt = AddAttempt();
    ++under_way_;
    Start(attempt);
  } catch (...) {
    const flare::Status why = StatusOfException("the start of an attempt");
    if (attempt == nullptr) {
      no_more_ = true;
      if (begun_ == 0) refusal_ = why;
      return;
    }
    CompositeCall::FailPart(&attempt->controller, why);
    attempt->Run();
  }
}

HedgedCall::Attempt* HedgedCall::AddAttempt() {
  ScopedLock guard(lock_);
  Attempt* const attempt = &attempts_.emplace_back();
  attempt->owner = this;
  ++begun_;
  return attempt;
}

void HedgedCall::Start(Attempt* attempt) {
  next_ns_ = SaturatingAdd(NowNs(), policy_->HedgingDelayNs());
  if (arguments_.response != nullptr) {
    attempt->response.reset(arguments_.response->New());
  }
  call_.Prepare(&attempt->controller);
  if (IsCancelled()) attempt->controller.StartCancel();
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
  (owner->last_ended_ == nullptr ? owner->first_ended_
                                 : owner->last_ended_->next_ended) = this;
  owner->last_ended_ = this;
  owner->news_.release();
}

// An attempt that has ended; null: there is none by then, or the call was
// cancelled, or its context is stopped.
HedgedCall::Attempt* HedgedCall::AwaitEnd(std::int64_t until_ns) {
  if (until_ns == kNoDeadline) {
    news_.acquire();
  } else if (!news_.try_acquire_until(stop_, ToTimePoint(until_ns))) {
    return nullptr;
  }
  ScopedLock guard(lock_);  // [HG1]
  if (first_ended_ == nullptr) return nullptr;
  Attempt* const ended = first_ended_;
  first_ended_ = ended->next_ended;
  if (first_ended_ == nullptr) last_ended_ = nullptr;
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
  for (std::size_t i = 0;; ++i) {
    RpcClientController* controller;
    {
      ScopedLock guard(lock_);
      if (i == attempts_.size()) return;
      controller = &attempts_[i].controller;
    }
    // Outside of the lock: it stays where it is until the end of the call.
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

// `attempt` is null if the call was cancelled before any has ended, or if none
// could be made.
void HedgedCall::TakeOutcome(Attempt* attempt) {
  if (attempt == nullptr && !refusal_.ok() && !IsCancelled()) {
    call_.Fail(refusal_.code(), refusal_.message());
  } else if (attempt == nullptr ||
             (attempt->controller.Failed() && IsCancelled())) {
    call_.FailAsCancelled();
  } else {
    call_.TakeOutcome(&attempt->controller);
    if (attempt->response != nullptr) {
      arguments_.response->GetReflection()->Swap(arguments_.response,
                                                 attempt->response.get());
    }
  }
  call_.Tell();
}

}  // namespace flare::rpc
