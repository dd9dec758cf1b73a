#include "flare/rpc/server/call_admission.h"

#include <string>

#include "flare/base/clock.h"
#include "flare/rpc/own_request.h"

namespace flare::rpc {

CallGate::Verdict CallAdmission::Ask(CallConnection* connection,
                                     const InboundRequest& request,
                                     std::int64_t received_ns,
                                     std::int64_t now_ns) {
  CallGate::Call call;
  call.now_ns = now_ns;
  call.waited_ns = now_ns - received_ns;
  const Method* method = nullptr;
  if (request.own == nullptr) {
    call.timeout_ns = std::int64_t{request.head.timeout_ms} * kNsPerMs;
    method = connection->FindMethod(request.head);
    if (method != nullptr) {
      call.usual_ns = method->counters.usual_ns();
      call.limited = method->limits_wait();
    }
    // A late call is refused as such.
    if (call.timeout_ns != 0 && call.waited_ns > call.timeout_ns) {
      return CallGate::Verdict::kBegin;
    }
  }
  ServerState& state = connection->state();
  const CallGate::Verdict verdict = state.gate(connection->group()).Ask(call);
  AdmissionControl* const control = state.admission();
  if (verdict != CallGate::Verdict::kBegin || control == nullptr ||
      AskRules(control, connection, request, call, method)) {
    return verdict;
  }
  return CallGate::Verdict::kOverloaded;
}

// False: the call is refused.
bool CallAdmission::AskRules(AdmissionControl* control,
                             CallConnection* connection,
                             const InboundRequest& request,
                             const CallGate::Call& asked,
                             const Method* method) {
  AdmissionControl::Call call{.group = connection->group(),
                              .now_ns = asked.now_ns,
                              .waited_ns = asked.waited_ns,
                              .timeout_ns = asked.timeout_ns,
                              .usual_ns = asked.usual_ns,
                              .under_way = connection->state().calls_running()};
  if (request.own != nullptr) {
    if (request.own->IsExempt()) return true;
  } else {
    if (method == nullptr) return true;  // It fails.
    const std::string& key = control->priority_key();
    if (!key.empty() && request.metadata != nullptr) {
      call.priority = PriorityOf(request.metadata->Get(key).value_or(""));
    }
    call.method = method->admission.get();
    call.streaming = method->streaming();
  }
  if (!control->Admit(call)) return false;
  place_ = Place::kMetered;
  metered_ = method;
  received_ns_ = asked.now_ns - asked.waited_ns;
  dispatched_ns_ = asked.now_ns;
  return true;
}

void CallAdmission::LeaveMetered(ServerState* state, std::size_t worker) {
  if (!has_place()) return;
  EndMetering(state);
  Leave(state, worker);
}

void CallAdmission::EndMetering(ServerState* state) {
  place_ = Place::kTaken;
  AdmissionControl::Ended ended{.timed = begun_,
                                .received_ns = received_ns_,
                                .dispatched_ns = dispatched_ns_,
                                .now_ns = NowNs()};
  if (metered_ != nullptr) {
    ended.method = metered_->admission.get();
    ended.streaming = metered_->streaming();
  }
  state->admission()->Leave(ended);
}

}  // namespace flare::rpc
