// Who stands by for the worker in the poller.
//
// Whoever takes an event runs what it leads to, and if that holds it up, nobody
// waits for the next event. While tasks block their threads (WantStandby()),
// another worker therefore sleeps where that event wakes it (poller.h).
//
//  [SB1] For the rules of sleep (scheduling_group.cc [P1] to [P7]) this is one
//        more place, where a wake-up that comes early is kept, as in the
//        poller. Events may miss who sleeps there; then the watch does what it
//        does where nobody stands by. If nobody is in the poller any more when
//        it is about to sleep, it doesn't, and tries for the poller.
//  [SB2] Of two workers that serve all events by turns, the second to go to
//        sleep finds the poller taken, and stands by. One that goes to sleep in
//        the poller finds nobody standing by if the other one still runs. If
//        all that run have begun no other task since it last went to sleep
//        there, they are held up: it has them marked if they sleep (reserve.cc
//        [RV3]), and wakes one more worker to stand by. Not the first time,
//        when it has just been woken itself, for it has an event to care for
//        by then. Where nobody is left to wake, the watch starts one.
//  [SB3] Whether there is room for who stands by (reserve.cc [RV1]) isn't
//        asked: mostly it sleeps, and those that run are held up. If it turns
//        out that they aren't, there is a surplus for a while [RV4].
#include <atomic>
#include <bit>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

bool SchedulingGroup::TryBecomeStandby() {
  // acquire: pairs with the release in LeaveStandby.
  return LacksStandby(NowNs()) &&
         !standby_taken_.exchange(true, std::memory_order_acquire);
}

void SchedulingGroup::LeaveStandby() {
  // release: pairs with the exchange in TryBecomeStandby.
  standby_taken_.store(false, std::memory_order_release);
}

void SchedulingGroup::SummonStandby(Worker* worker) {
  if (!LacksStandby(NowNs())) return;
  const Worker::Parking::Others now = LookAtOthers(*worker);
  const bool held_up = now.running != 0 && now == worker->parking().others;
  worker->parking().others = now;
  if (!held_up) return;
  MarkBlocked(now.running);
  WakeToStandBy();
}

Worker::Parking::Others SchedulingGroup::LookAtOthers(
    const Worker& worker) const noexcept {
  Worker::Parking::Others others;
  others.running = all_idle_mask() & ~idle_mask();
  others.running &= ~(std::uint64_t{1} << worker.index());
  for (std::uint64_t mask = others.running; mask != 0; mask &= mask - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(mask));
    others.tasks += workers_[i]->tasks_begun();
  }
  return others;
}

bool SchedulingGroup::WakeToStandBy() {
  // relaxed: a preference.
  std::uint64_t idle =
      idle_mask() & ~poller_bit_.load(std::memory_order_relaxed);
  for (; idle != 0; idle &= idle - 1) {
    // The lowest, so that load gathers on few workers. It finds nothing to do.
    if (WakeWorker(static_cast<std::size_t>(std::countr_zero(idle)))) {
      return true;
    }
  }
  return false;
}

}  // namespace flare::fiber
