// Rules:
//  [MC1] Only a slot's worker changes it, by plain loads and stores: nothing in
//        between suspends the fiber. The shared one changes by
//        read-modify-writes. All is relaxed: the numbers order nothing, and the
//        code that passes a reply on, here, in the kernel and at the peer, sees
//        to it that a client that has got it sees its call counted.
//  [MC2] Which calls are measured doesn't depend on how long they took, or
//        some lengths would be found too often: a worker's answers are cut into
//        periods of kPeriod, and of each either all are measured or the last
//        one, which counts for all. Which of the two depends on how long the
//        period before took.
#include "flare/rpc/server/method_counters.h"

#include <algorithm>
#include <chrono>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kBusyPeriodNs = std::int64_t{MethodCounters::kPeriod} *
                                       kNsPerSecond /
                                       std::int64_t{MethodCounters::kFewCalls};

}  // namespace

void MethodCounters::SetUp() {
  slots_ = fiber::GetWorkerCount();
  slot_ = std::make_unique<Slot[]>(slots_);
}

void MethodCounters::Refuse(std::size_t worker, int status, bool overloaded) {
  Slot* const mine = SlotOf(worker);
  failures_.Add(status);
  Add(&Slot::refused, mine);
  if (overloaded) Add(&Slot::overloaded, mine);
}

// The status first: Read() looks at it last.
void MethodCounters::CountFailed(Slot* mine, int status) {
  failures_.Add(status);
  Add(&Slot::failed, mine);
}

// `answered` is how many there are with this one [MC2].
void MethodCounters::Measure(Slot* mine, std::uint64_t answered,
                             std::int64_t received_ns,
                             std::int64_t dispatched_ns) {
  const std::int64_t now_ns = NowNs();
  std::uint64_t times = 1;
  if (mine != &shared_) {
    if (mine->measure_at != 0) times = kPeriod;
    if (answered >= mine->period_end) {
      const bool busy = now_ns - mine->period_began_ns < kBusyPeriodNs;
      mine->period_began_ns = now_ns;
      mine->period_end = answered + kPeriod;
      mine->measure_at = busy ? mine->period_end : 0;
    }
  }
  latencies_ns_.RecordMany(now_ns - received_ns, times);
  // Workers that do this at once lose measurements of each other [MC1].
  const std::int64_t usual_ns = usual_ns_.load(std::memory_order_relaxed);
  const std::int64_t took_ns = now_ns - dispatched_ns;
  usual_ns_.store(usual_ns == 0 ? took_ns : usual_ns + (took_ns - usual_ns) / 8,
                  std::memory_order_relaxed);
}

void MethodCounters::Sample(std::int64_t now_ns) {
  RecentCalls::Totals totals;
  const auto add = [&](const Slot& slot) {
    // relaxed, all: [MC1]. A failed call is counted behind its answer.
    const std::uint64_t refused = slot.refused.load(std::memory_order_relaxed);
    totals.failed += refused + slot.failed.load(std::memory_order_relaxed);
    totals.ended += refused + slot.answered.load(std::memory_order_relaxed);
  };
  add(shared_);
  for (std::size_t i = 0; i < slots_; ++i) add(slot_[i]);
  recent_.Sample(now_ns, totals, latencies_ns_);
}

ServerMethodStatistics MethodCounters::Read() const {
  ServerMethodStatistics sum;
  std::uint64_t ended = 0;
  const auto add = [&](const Slot& slot) {
    // relaxed, all: [MC1].
    const std::uint64_t refused = slot.refused.load(std::memory_order_relaxed);
    ended += refused + slot.answered.load(std::memory_order_relaxed);
    sum.failed += refused + slot.failed.load(std::memory_order_relaxed);
    sum.overloaded += slot.overloaded.load(std::memory_order_relaxed);
    sum.calls += slot.begun.load(std::memory_order_relaxed);
  };
  add(shared_);
  for (std::size_t i = 0; i < slots_; ++i) add(slot_[i]);
  // Those that move while all are added up may be seen to end only.
  sum.running = sum.calls - std::min(sum.calls, ended);
  // Behind those that have failed, each of which has its status counted then.
  sum.failures = failures_.Read().counts;
  sum.latencies_ns = latencies_ns_.Snapshot();
  sum.last_10s = recent_.Over(std::chrono::seconds(10));
  sum.last_minute = recent_.Over(std::chrono::minutes(1));
  return sum;
}

}  // namespace flare::rpc
