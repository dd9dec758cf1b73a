// Rules:
//  [CG1] Each call reads one word: how long it may have waited without being
//        asked about. All other state is read and written by calls that are
//        asked. kShedding, kAskAll and kGateClosed have all calls asked; the
//        latter two stay.
//  [CG2] All is relaxed: the words are limits that order no other memory. A
//        call that reads an old one is judged as if it had come a moment
//        sooner.
//  [CG3] A call that waited longer than its LongestWait() is refused, and from
//        then on the gate sheds: calls that may wait no longer than that one
//        are refused after a tenth of their time. More patient ones aren't:
//        the queue isn't too long for them.
//  [CG4] Shedding ends when for a while (half of the time that began it) no
//        call has waited for a twentieth of that time: the queue was short for
//        all that while. A shed queue is a tenth long as long as the overload
//        lasts.
#include "flare/rpc/server/call_gate.h"

#include <algorithm>

namespace flare::rpc {
namespace {

// For look_beyond_ns_.
constexpr std::int64_t kShedding = -1;
constexpr std::int64_t kGateClosed = -2;
constexpr std::int64_t kAskAll = -3;

// Shedding lasts no less.
constexpr std::int64_t kLeastSheddingNs = 100 * kNsPerMs;

}  // namespace

void CallGate::SetUp(std::chrono::nanoseconds max_wait, bool ask_all) {
  automatic_ = max_wait.count() < 0;
  if (max_wait.count() > 0) max_wait_ns_ = max_wait.count();
  const std::int64_t usual = automatic_ ? kNeverLongNs : max_wait_ns_;
  // relaxed, here and below: [CG2].
  look_beyond_ns_.store(ask_all ? kAskAll : usual, std::memory_order_relaxed);
}

CallGate::Verdict CallGate::Ask(const Call& call) {
  if (call.now_ns > closed_at_ns_.load(std::memory_order_relaxed)) {
    return Verdict::kStopping;
  }
  if (automatic_) return call.limited ? Verdict::kBegin : AskQueue(call);
  return call.waited_ns > max_wait_ns_ ? Verdict::kOverloaded : Verdict::kBegin;
}

// An eighth of the caller's time is for the way, and twice the method's usual
// time for the call; of callers that leave it too little, some are served all
// the same.
std::int64_t CallGate::LongestWait(const Call& call) {
  if (call.timeout_ns == 0) {
    return std::max(kUsualPatienceNs, 2 * call.usual_ns);
  }
  return std::max(
      std::min(call.timeout_ns / 8 * 7, call.timeout_ns - 2 * call.usual_ns),
      call.timeout_ns / 16);
}

CallGate::Verdict CallGate::AskQueue(const Call& call) {
  const std::int64_t longest_ns = LongestWait(call);
  std::int64_t bound_ns = shed_bound_ns_.load(std::memory_order_relaxed);
  if (bound_ns != 0 &&
      call.now_ns - last_long_ns_.load(std::memory_order_relaxed) >
          std::max(bound_ns / 2, kLeastSheddingNs)) {
    EndShedding();  // [CG4]
    bound_ns = 0;
  }
  if (call.waited_ns > std::max(longest_ns, kNeverLongNs)) {
    last_long_ns_.store(call.now_ns, std::memory_order_relaxed);
    if (longest_ns > bound_ns) BeginShedding(longest_ns);
    return Verdict::kOverloaded;
  }
  if (bound_ns == 0) return Verdict::kBegin;
  if (call.waited_ns > bound_ns / 20) {
    last_long_ns_.store(call.now_ns, std::memory_order_relaxed);
  }
  const bool shed = longest_ns <= bound_ns &&
                    call.waited_ns > std::max(longest_ns / 10, kNeverLongNs);
  return shed ? Verdict::kOverloaded : Verdict::kBegin;  // [CG3]
}

void CallGate::BeginShedding(std::int64_t bound_ns) {
  shed_bound_ns_.store(bound_ns, std::memory_order_relaxed);
  std::int64_t usual = kNeverLongNs;
  look_beyond_ns_.compare_exchange_strong(usual, kShedding,
                                          std::memory_order_relaxed);
}

void CallGate::EndShedding() {
  shed_bound_ns_.store(0, std::memory_order_relaxed);
  std::int64_t shedding = kShedding;
  look_beyond_ns_.compare_exchange_strong(shedding, kNeverLongNs,
                                          std::memory_order_relaxed);
}

void CallGate::CloseAt(std::int64_t at_ns) {
  std::int64_t before = closed_at_ns_.load(std::memory_order_relaxed);
  while (at_ns < before && !closed_at_ns_.compare_exchange_weak(
                               before, at_ns, std::memory_order_relaxed)) {
  }
  look_beyond_ns_.store(kGateClosed, std::memory_order_relaxed);
}

}  // namespace flare::rpc
