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
//        are refused after a tenth of their time at most. More patient ones
//        aren't: the queue isn't too long for them.
//  [CG4] A worker must find a call when it looks for one; a longer queue only
//        makes calls wait. So each interval of shedding counts the calls that
//        come, and the next one refuses calls that wait for longer than
//        kNeverLongNs and than kShedCalls of them take to come.
//  [CG5] Shedding ends when for a while (half of the time that began it) there
//        was no interval in which half of the calls waited for half of that
//        bound, or there were no calls. All calls of an overload wait for about
//        the bound, but few of those that come to a server with a hiccup.
#include "flare/rpc/server/call_gate.h"

#include <algorithm>

namespace flare::rpc {
namespace {

// For look_beyond_ns_.
constexpr std::int64_t kShedding = -1;
constexpr std::int64_t kGateClosed = -2;
constexpr std::int64_t kAskAll = -3;

constexpr std::int64_t kIntervalNs = 100 * kNsPerMs;  // [CG4]
// Shedding lasts no less.
constexpr std::int64_t kLeastSheddingNs = 2 * kIntervalNs;

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
  if (shed_bound_ns_.load(std::memory_order_relaxed) != 0) {
    Count(call, longest_ns);
  }
  const std::int64_t bound_ns = shed_bound_ns_.load(std::memory_order_relaxed);
  if (call.waited_ns > std::max(longest_ns, kNeverLongNs)) {
    if (longest_ns > bound_ns) BeginShedding(longest_ns, call.now_ns);
    return Verdict::kOverloaded;
  }
  const bool shed =
      longest_ns <= bound_ns && call.waited_ns > ShedWait(longest_ns);
  return shed ? Verdict::kOverloaded : Verdict::kBegin;  // [CG3]
}

// For calls that may wait for `longest_ns` while there is no overload.
std::int64_t CallGate::ShedWait(std::int64_t longest_ns) const {
  return std::max(
      std::min(longest_ns / 10, shed_wait_ns_.load(std::memory_order_relaxed)),
      kNeverLongNs);
}

// While it sheds.
void CallGate::Count(const Call& call, std::int64_t longest_ns) {
  asked_.fetch_add(1, std::memory_order_relaxed);
  if (call.waited_ns > ShedWait(longest_ns) / 2) {
    long_.fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t end_ns = interval_end_ns_.load(std::memory_order_relaxed);
  if (call.now_ns >= end_ns &&
      interval_end_ns_.compare_exchange_strong(
          end_ns, call.now_ns + kIntervalNs, std::memory_order_relaxed)) {
    CloseInterval(end_ns, call.now_ns);
  }
}

// `end_ns`: when it was to end.
void CallGate::CloseInterval(std::int64_t end_ns, std::int64_t now_ns) {
  const std::int64_t while_ns = std::max(
      shed_bound_ns_.load(std::memory_order_relaxed) / 2, kLeastSheddingNs);
  const std::int64_t asked = asked_.exchange(0, std::memory_order_relaxed);
  const std::int64_t waited = long_.exchange(0, std::memory_order_relaxed);
  const bool paused = now_ns - end_ns > while_ns;
  if (!paused && 2 * waited >= asked) {
    last_long_ns_.store(now_ns, std::memory_order_relaxed);
  } else if (now_ns - last_long_ns_.load(std::memory_order_relaxed) >
             while_ns) {
    return EndShedding();  // [CG5]
  }
  const std::int64_t length_ns = now_ns - end_ns + kIntervalNs;
  shed_wait_ns_.store(kShedCalls * length_ns / std::max<std::int64_t>(asked, 1),
                      std::memory_order_relaxed);  // [CG4]
}

void CallGate::BeginShedding(std::int64_t bound_ns, std::int64_t now_ns) {
  asked_.store(0, std::memory_order_relaxed);
  long_.store(0, std::memory_order_relaxed);
  last_long_ns_.store(now_ns, std::memory_order_relaxed);
  interval_end_ns_.store(now_ns + kIntervalNs, std::memory_order_relaxed);
  shed_wait_ns_.store(bound_ns / 10, std::memory_order_relaxed);
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
