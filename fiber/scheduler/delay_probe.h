// A task that measures how long it takes to be run: it goes the way of all
// others, through its worker's ring, and may be stolen. Once a millisecond at
// most.

#ifndef FLARE_FIBER_DELAY_PROBE_H_
#define FLARE_FIBER_DELAY_PROBE_H_

#include <atomic>
#include <cstdint>

#include "flare/base/histogram.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

// The probe of one worker. Its thread queues it; any worker's may run it.
class DelayProbe : public Task {
 public:
  // Its time goes to `delays`, which outlives it.
  explicit DelayProbe(ConcurrentHistogram* delays);

  // For good.
  void Disable();

  // True: the caller is to queue it now. False: it is too early, or the last
  // one hasn't run yet.
  bool Begin(std::int64_t now_ns);
  bool due(std::int64_t now_ns) const noexcept { return now_ns >= next_at_ns_; }

 private:
  static constexpr std::int64_t kIntervalNs = 1'000'000;

  static void Record(Task* self);

  ConcurrentHistogram* const delays_;
  std::int64_t queued_at_ns_ = 0;
  std::int64_t next_at_ns_ = 0;  // The next start is at this time or later.
  std::atomic<bool> queued_{false};
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_DELAY_PROBE_H_
