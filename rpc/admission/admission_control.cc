// All atomics here are relaxed: they are counts and a time, which order no
// other memory.
#include "flare/rpc/admission/admission_control.h"

#include <algorithm>

#include "flare/base/clock.h"

namespace flare::rpc {
namespace {

// If all callers of a method waited for less than it takes, none would be
// begun, and nobody would notice that it has become quicker: one is, so often.
constexpr std::int64_t kLateCallEveryNs = 100 * kNsPerMs;

}  // namespace

AdmissionControl::AdmissionControl(const AdmissionOptions& options,
                                   std::size_t groups, std::uint64_t most_calls)
    : options_(options), most_(most_calls), queues_(groups) {
  limit_.SetUp(most_);
  for (QueueWatch& queue : queues_) {
    queue.SetUp(options_.queue_target.count(), options_.queue_interval.count());
  }
}

bool AdmissionControl::Judge(Rule rule, Mode mode, bool exceeds) {
  if (!exceeds) return false;
  Counters& counters = counters_[static_cast<std::size_t>(rule)];
  const bool refuses = mode == Mode::kRefuse;
  (refuses ? counters.refused : counters.would_refuse)
      .fetch_add(1, std::memory_order_relaxed);
  return refuses;
}

bool AdmissionControl::IsLate(const Call& call) const {
  if (call.timeout_ns == 0 || call.method == nullptr || call.streaming) {
    return false;
  }
  if (call.timeout_ns - call.waited_ns >= call.usual_ns) return false;
  std::int64_t next_ns =
      call.method->late_call_ns.load(std::memory_order_relaxed);
  return call.now_ns < next_ns ||
         !call.method->late_call_ns.compare_exchange_strong(
             next_ns, call.now_ns + kLateCallEveryNs,
             std::memory_order_relaxed);
}

bool AdmissionControl::IsBeyondLimit(const Call& call) {
  const std::uint64_t streams = streams_.load(std::memory_order_relaxed);
  return !limit_.Admits(call.under_way - std::min(call.under_way, streams));
}

bool AdmissionControl::Admit(const Call& call) {
  if (options_.queue != Mode::kOff &&
      Judge(Rule::kQueue, options_.queue,
            queues_[call.group].Sheds(call.waited_ns, call.now_ns))) {
    return false;
  }
  if (options_.late != Mode::kOff &&
      Judge(Rule::kLate, options_.late, IsLate(call))) {
    return false;
  }
  if (call.streaming) {
    streams_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  if (options_.limit != Mode::kOff &&
      Judge(Rule::kLimit, options_.limit, IsBeyondLimit(call))) {
    return false;
  }
  if (options_.method_limits == Mode::kOff || call.method == nullptr) {
    return true;
  }
  const std::uint64_t running =
      call.method->running.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!Judge(Rule::kMethodLimit, options_.method_limits,
             !call.method->limit.Admits(running))) {
    return true;
  }
  call.method->running.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void AdmissionControl::Leave(MethodAdmission* method, bool streaming,
                             std::int64_t received_ns,
                             std::int64_t dispatched_ns) {
  if (streaming) {
    streams_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  const std::int64_t now_ns = NowNs();
  if (options_.limit != Mode::kOff) limit_.Record(now_ns - received_ns, now_ns);
  if (options_.method_limits == Mode::kOff || method == nullptr) return;
  method->running.fetch_sub(1, std::memory_order_relaxed);
  method->limit.Record(now_ns - dispatched_ns, now_ns);
}

AdmissionStatistics AdmissionControl::statistics() const {
  AdmissionStatistics now{.on = true};
  if (options_.limit != Mode::kOff) now.limit = limit_.limit();
  for (std::size_t i = 0; i != kAdmissionRules; ++i) {
    now.refused[i] = counters_[i].refused.load(std::memory_order_relaxed);
    now.would_refuse[i] =
        counters_[i].would_refuse.load(std::memory_order_relaxed);
  }
  return now;
}

}  // namespace flare::rpc
