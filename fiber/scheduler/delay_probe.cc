#include "flare/fiber/scheduler/delay_probe.h"

#include <algorithm>

#include "flare/base/clock.h"

namespace flare::fiber {

DelayProbe::DelayProbe(ConcurrentHistogram* delays) : delays_(delays) {
  run = &DelayProbe::Record;
}

void DelayProbe::Disable() { next_at_ns_ = kNoDeadline; }

bool DelayProbe::Begin(std::int64_t now_ns) {
  // acquire: pairs with the release in Record: its time has been read.
  if (!due(now_ns) || queued_.load(std::memory_order_acquire)) return false;
  next_at_ns_ = now_ns + kIntervalNs;
  queued_at_ns_ = now_ns;
  // relaxed: read by this thread only until the task has run.
  queued_.store(true, std::memory_order_relaxed);
  return true;
}

void DelayProbe::Record(Task* self) {
  auto* const probe = static_cast<DelayProbe*>(self);
  probe->delays_->Record(
      std::max<std::int64_t>(0, NowNs() - probe->queued_at_ns_));
  // release: pairs with the acquire in Begin.
  probe->queued_.store(false, std::memory_order_release);
}

}  // namespace flare::fiber
