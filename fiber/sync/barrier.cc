// [BA1] From the last arrival to EndPhase() nobody changes the barrier: all
//       expected parties have arrived, and may not arrive again before the
//       phase is over. So the completion function runs without the lock, and
//       may block.
// [BA2] A party that the end of a phase let go on takes the lock before it
//       returns, hence comes after the one that ended the phase: a caller that
//       lets all parties end may destroy the barrier.
#include "flare/fiber/barrier.h"

#include "flare/fiber/scheduler/carrier.h"
#include "glog/logging.h"

namespace flare::fiber {

BarrierBase::BarrierBase(std::ptrdiff_t expected)
    : expected_(expected), missing_(expected) {
  CHECK_GE(expected, 0) << "a Barrier can't expect fewer than nobody";
}

BarrierBase::Arrival BarrierBase::Arrive(std::ptrdiff_t arriving,
                                         std::ptrdiff_t leaving) {
  ScopedLock guard(lock_);
  CHECK(arriving > 0 && arriving <= missing_)
      << arriving << " arrive at a Barrier where " << missing_
      << " are missing in this phase";
  missing_ -= arriving;
  expected_ -= leaving;
  return {phase_, missing_ == 0};
}

void BarrierBase::EndPhase() {
  ScopedLock guard(lock_);
  ++phase_;
  missing_ = expected_;
  waiters_.WakeAll();
}

bool BarrierBase::WaitLimited(arrival_token arrival, const WaitLimit& limit) {
  {
    ScopedLock guard(lock_);
    if (phase_ != arrival) return true;
    if (waiters_.Wait(&guard, {"Barrier", this}, limit) != WaitResult::kWoken) {
      return false;
    }
  }
  ScopedLock guard(lock_);  // [BA2]
  return true;
}

}  // namespace flare::fiber
