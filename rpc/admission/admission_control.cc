// All orders here are relaxed: the atomics are counts and a time, which order
// no other memory.
#include "flare/rpc/admission/admission_control.h"

#include <algorithm>

#include "flare/base/clock.h"

namespace flare::rpc {
namespace {

// How often a late call of a method is begun all the same. If all of them were
// refused, nobody would notice that the method has become quicker.
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

// With priorities only those queued calls count to which this call gives way:
// the limit refuses the others when their turn comes.
bool AdmissionControl::IsBeyondLimit(const Call& call, double share) {
  const std::uint64_t streams = streams_.load(std::memory_order_relaxed);
  std::uint64_t calls = call.under_way - std::min(call.under_way, streams);
  if (has_priorities()) {
    const std::uint64_t with_it = running_.load(std::memory_order_relaxed) + 1;
    const double queued = static_cast<double>(calls - std::min(calls, with_it));
    calls = with_it + static_cast<std::uint64_t>(
                          queued * mix_.AtLeast(call.priority) + 0.5);
  }
  return !limit_.Admits(calls, share);
}

bool AdmissionControl::IsBeyondMethodLimit(MethodAdmission* method,
                                           double share) {
  const std::uint64_t running =
      method->running.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!Judge(Rule::kMethodLimit, options_.method_limits,
             !method->limit.Admits(running, share))) {
    return false;
  }
  method->running.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

bool AdmissionControl::IsRefused(const Call& call, double share) {
  if (options_.queue != Mode::kOff &&
      Judge(Rule::kQueue, options_.queue,
            queues_[call.group].Sheds(call.waited_ns, call.now_ns, share))) {
    return true;
  }
  if (options_.late != Mode::kOff &&
      Judge(Rule::kLate, options_.late, IsLate(call))) {
    return true;
  }
  if (call.streaming) return false;
  if (options_.limit != Mode::kOff &&
      Judge(Rule::kLimit, options_.limit, IsBeyondLimit(call, share))) {
    return true;
  }
  return options_.method_limits != Mode::kOff && call.method != nullptr &&
         IsBeyondMethodLimit(call.method, share);
}

bool AdmissionControl::Admit(const Call& call) {
  double share = 1;
  if (has_priorities()) {
    mix_.Count(call.priority, call.now_ns);
    share = ShareOf(call.priority);
  }
  if (IsRefused(call, share)) {
    if (has_priorities()) {
      refused_by_priority_[call.priority].fetch_add(1,
                                                    std::memory_order_relaxed);
    }
    return false;
  }
  if (call.streaming) {
    streams_.fetch_add(1, std::memory_order_relaxed);
  } else if (has_priorities()) {
    running_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void AdmissionControl::Leave(const Ended& call) {
  if (call.streaming) {
    streams_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  if (has_priorities()) running_.fetch_sub(1, std::memory_order_relaxed);
  if (options_.limit != Mode::kOff && call.timed) {
    limit_.Record(call.now_ns - call.received_ns, call.now_ns);
  }
  if (options_.method_limits == Mode::kOff || call.method == nullptr) return;
  call.method->running.fetch_sub(1, std::memory_order_relaxed);
  if (call.timed) {
    call.method->limit.Record(call.now_ns - call.dispatched_ns, call.now_ns);
  }
}

AdmissionStatistics AdmissionControl::statistics() const {
  AdmissionStatistics now{.on = true};
  if (options_.limit != Mode::kOff) now.limit = limit_.limit();
  for (std::size_t i = 0; i != kAdmissionRules; ++i) {
    now.refused[i] = counters_[i].refused.load(std::memory_order_relaxed);
    now.would_refuse[i] =
        counters_[i].would_refuse.load(std::memory_order_relaxed);
  }
  now.has_priorities = has_priorities();
  for (std::size_t i = 0; i != kPriorities; ++i) {
    now.refused_by_priority[i] =
        refused_by_priority_[i].load(std::memory_order_relaxed);
  }
  return now;
}

}  // namespace flare::rpc
