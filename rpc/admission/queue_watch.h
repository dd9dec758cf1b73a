// Detects a queue that stays long, unlike that of a burst: its shortest wait in
// an interval exceeds a target. After CoDel, "Controlling Queue Delay" by
// Nichols and Jacobson, for calls in place of packets.
//
//   QueueWatch watch;
//   watch.SetUp(/*target_ns=*/5'000'000, /*interval_ns=*/100'000'000);
//   if (watch.Sheds(waited_ns, NowNs())) return Refuse();
//
// A queue that is short at least once in each interval, or empty, is only a
// burst, however long it is at other times: nothing is refused. A queue that is
// never short helps nobody: calls that have waited for more than twice the
// target are refused, until most calls of an interval have waited for less than
// the target, or there were none for a quarter of it. The factor of two lets
// the queue of an overloaded server settle above the target, and a few calls
// that a worker takes out of turn don't count, so that shedding doesn't end and
// begin again.
//
// Any thread, except SetUp(); nothing blocks. All orders are relaxed: the words
// are limits that order no other memory.
#ifndef FLARE_RPC_ADMISSION_QUEUE_WATCH_H_
#define FLARE_RPC_ADMISSION_QUEUE_WATCH_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "flare/base/cpu.h"

namespace flare::rpc {

class alignas(kCacheLine) QueueWatch {
 public:
  // Call it before anything else.
  void SetUp(std::int64_t target_ns, std::int64_t interval_ns) {
    target_ns_ = target_ns;
    interval_ns_ = interval_ns;
  }

  // Whether to refuse a call that its worker takes at `now_ns` (NowNs()), after
  // it has waited for `waited_ns`. A share of less than 1 refuses it after a
  // shorter wait, but not below the target.
  bool Sheds(std::int64_t waited_ns, std::int64_t now_ns, double share = 1) {
    // It came long after the one before it was taken.
    if (now_ns - waited_ns - last_ns_.load(std::memory_order_relaxed) >
        interval_ns_ / 4) {
      ran_empty_.store(true, std::memory_order_relaxed);
    }
    last_ns_.store(now_ns, std::memory_order_relaxed);
    std::int64_t end_ns = end_ns_.load(std::memory_order_relaxed);
    if (now_ns >= end_ns &&
        end_ns_.compare_exchange_strong(end_ns, now_ns + interval_ns_,
                                        std::memory_order_relaxed)) {
      // No call came for an interval or more, so the queue was empty.
      const bool paused = now_ns - end_ns > interval_ns_;
      const bool empty = ran_empty_.exchange(false, std::memory_order_relaxed);
      shedding_.store(!paused && !empty && IsLong(), std::memory_order_relaxed);
      least_ns_.store(waited_ns, std::memory_order_relaxed);
      balance_.store(0, std::memory_order_relaxed);
    } else if (waited_ns < least_ns_.load(std::memory_order_relaxed)) {
      least_ns_.store(waited_ns, std::memory_order_relaxed);
    }
    if (!shedding()) return false;
    balance_.fetch_add(waited_ns > target_ns_ ? 1 : -1,
                       std::memory_order_relaxed);
    const double bound = 2 * static_cast<double>(target_ns_) * share;
    return static_cast<double>(waited_ns) >
           std::max(bound, static_cast<double>(target_ns_));
  }

  bool shedding() const { return shedding_.load(std::memory_order_relaxed); }

 private:
  // Whether the queue was, in the interval that ends.
  bool IsLong() const {
    return least_ns_.load(std::memory_order_relaxed) > target_ns_ ||
           balance_.load(std::memory_order_relaxed) > 0;
  }

  std::int64_t target_ns_ = 0;             // Constant after SetUp().
  std::int64_t interval_ns_ = 0;           // Constant after SetUp().
  std::atomic<std::int64_t> end_ns_{0};    // The end of the interval.
  std::atomic<std::int64_t> least_ns_{0};  // Its shortest wait.
  // While it sheds: its calls that waited for longer than the target, less the
  // others.
  std::atomic<std::int64_t> balance_{0};
  std::atomic<std::int64_t> last_ns_{0};  // When a call was taken.
  std::atomic<bool> ran_empty_{false};    // In the interval.
  std::atomic<bool> shedding_{false};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_QUEUE_WATCH_H_
