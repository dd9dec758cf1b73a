// Rules:
//  [CG1] Each call reads one word: how long it may have waited without being
//        asked about. All other state is read and written by calls that are
//        asked. kShedding, kAskAll and kGateClosed have all calls asked; the
//        latter two stay.
//  [CG2] All is relaxed: the words are limits that order no other memory. A
//        call that reads an old one is judged as if it had come a moment
//        sooner.
//  [CG3] A call that waited longer than its LongestWait() is refused. If such
//        calls keep coming, a quarter of that time apart at most and for as
//        long, the gate sheds: calls that may wait no longer than these are
//        refused after a tenth of their time at most. More patient ones aren't:
//        the queue isn't too long for them. A single stall makes calls late,
//        too, but not for long.
//  [CG4] A worker must find a call when it looks for one; a longer queue only
//        makes calls wait. So the calls that are asked in each interval are
//        counted, and while it sheds the next one refuses calls that wait for
//        longer than kNeverLongNs and than kShedCalls of them take to come.
//  [CG5] Shedding is useful in an interval if half of its calls waited for half
//        of that bound, as all calls of an overload do, and half as many were
//        begun as in the best intervals before: bursts, and callers that call
//        again as soon as they are refused, leave the workers without calls to
//        begin. So it is while it makes a long queue shorter. It ends when it
//        wasn't useful for a while (half of the time that began it), or no
//        calls came. And in any case after so long that it hardly matters if it
//        has to begin anew.
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
// And no longer than so many times the while in which it is seen to be of no
// use [CG5]. To begin anew takes three or four: of the calls of a lasting
// overload less than one in a hundred waits for it.
constexpr std::int64_t kMostWhiles = 512;
// Calls begun are counted per so long.
constexpr std::int64_t kRateNs = 100 * kNsPerSecond;

}  // namespace

void CallGate::SetUp(std::chrono::nanoseconds max_wait, OtherRules others) {
  automatic_ = max_wait.count() < 0;
  may_shed_ = others != OtherRules::kKeepItShort;
  if (max_wait.count() > 0) max_wait_ns_ = max_wait.count();
  const std::int64_t usual = automatic_ ? kNeverLongNs : max_wait_ns_;
  // relaxed, here and below: [CG2].
  look_beyond_ns_.store(others == OtherRules::kNone ? usual : kAskAll,
                        std::memory_order_relaxed);
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
  FollowTime(call);
  const std::int64_t longest_ns = LongestWait(call);
  const std::int64_t bound_ns = shed_bound_ns_.load(std::memory_order_relaxed);
  const std::int64_t shed_wait_ns = ShedWait(longest_ns);
  asked_.fetch_add(1, std::memory_order_relaxed);
  if (call.waited_ns > shed_wait_ns / 2) {
    long_.fetch_add(1, std::memory_order_relaxed);
  }
  if (call.waited_ns > std::max(longest_ns, kNeverLongNs)) {
    if (longest_ns > bound_ns && may_shed_) NoteLate(longest_ns, call.now_ns);
    return Verdict::kOverloaded;
  }
  if (longest_ns <= bound_ns && call.waited_ns > shed_wait_ns) {  // [CG3]
    return Verdict::kOverloaded;
  }
  begun_.fetch_add(1, std::memory_order_relaxed);
  return Verdict::kBegin;
}

// [CG3]
void CallGate::NoteLate(std::int64_t longest_ns, std::int64_t now_ns) {
  const std::int64_t while_ns = std::max(longest_ns / 4, kIntervalNs);
  const std::int64_t last_ns =
      last_late_ns_.exchange(now_ns, std::memory_order_relaxed);
  if (now_ns - last_ns > while_ns) {
    late_since_ns_.store(now_ns, std::memory_order_relaxed);
  } else if (now_ns - late_since_ns_.load(std::memory_order_relaxed) >=
             while_ns) {
    BeginShedding(longest_ns, now_ns);
  }
}

// For calls that may wait for `longest_ns` while there is no overload.
std::int64_t CallGate::ShedWait(std::int64_t longest_ns) const {
  return std::max(
      std::min(longest_ns / 10, shed_wait_ns_.load(std::memory_order_relaxed)),
      kNeverLongNs);
}

void CallGate::FollowTime(const Call& call) {
  std::int64_t end_ns = interval_end_ns_.load(std::memory_order_relaxed);
  if (call.now_ns >= end_ns &&
      interval_end_ns_.compare_exchange_strong(
          end_ns, call.now_ns + kIntervalNs, std::memory_order_relaxed)) {
    CloseInterval(call.now_ns - end_ns + kIntervalNs, call);
  }
}

// `next`: the first call after it.
void CallGate::CloseInterval(std::int64_t length_ns, const Call& next) {
  const std::int64_t asked = asked_.exchange(0, std::memory_order_relaxed);
  const std::int64_t waited = long_.exchange(0, std::memory_order_relaxed);
  const std::int64_t rate =
      begun_.exchange(0, std::memory_order_relaxed) * kRateNs / length_ns;
  const std::int64_t full_rate = full_rate_.load(std::memory_order_relaxed);
  const std::int64_t bound_ns = shed_bound_ns_.load(std::memory_order_relaxed);
  if (bound_ns == 0) {
    full_rate_.store(std::max(rate, full_rate - full_rate / 8),
                     std::memory_order_relaxed);
    return;
  }
  const std::int64_t while_ns = std::max(bound_ns / 2, kLeastSheddingNs);
  const std::int64_t since_ns = shed_since_ns_.load(std::memory_order_relaxed);
  const bool paused = length_ns > kIntervalNs + while_ns;
  const bool useful = 2 * waited >= asked && 2 * rate >= full_rate;
  const bool shorter =
      last_waited_ns_.exchange(next.waited_ns, std::memory_order_relaxed) >=
      next.waited_ns + kIntervalNs / 2;
  if (!paused && (useful || shorter)) {
    last_useful_ns_.store(next.now_ns, std::memory_order_relaxed);
  }
  if (next.now_ns - last_useful_ns_.load(std::memory_order_relaxed) >
          while_ns ||
      next.now_ns - since_ns > kMostWhiles * while_ns) {
    return EndShedding();  // [CG5]
  }
  shed_wait_ns_.store(kShedCalls * length_ns / std::max<std::int64_t>(asked, 1),
                      std::memory_order_relaxed);  // [CG4]
}

void CallGate::BeginShedding(std::int64_t bound_ns, std::int64_t now_ns) {
  asked_.store(0, std::memory_order_relaxed);
  long_.store(0, std::memory_order_relaxed);
  begun_.store(0, std::memory_order_relaxed);
  last_useful_ns_.store(now_ns, std::memory_order_relaxed);
  last_waited_ns_.store(bound_ns, std::memory_order_relaxed);
  shed_since_ns_.store(now_ns, std::memory_order_relaxed);
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
