// Workers in reserve, for tasks that block their threads.
//
//  [RV1] Of a group's workers limit() may run at a time, and one more for each
//       that is marked in `blocked_`. Whichever others sleep are the reserve:
//       all workers are alike, and the ones with the lowest numbers are woken
//       first.
//  [RV2] Wake() wakes nobody beyond that. No wake-up is lost by it: where it
//       refuses, limit() workers, at least one, are neither marked nor idle by
//       a mask read after the work was queued, and each of them looks at the
//       injection queue before it sleeps (scheduling_group.cc [P1]). One that
//       sleeps in the poller counts as running here, since IO wakes it without
//       asking; so it is the one to be woken if there is room for it alone.
//  [RV3] Marks are for workers that have been in one task for a while, with
//       their threads asleep in the kernel: the watch asks (watch.cc), and so
//       does a worker that is left alone with the poller (standby.cc), or about
//       to retire. The watch takes them back when the worker has got on; a
//       worker that goes to sleep does so itself. Where none of the reserve has
//       started yet they limit nothing.
//  [RV4] When a mark is gone more workers may run than should. One that has
//       found it so for a while, between two tasks, gives what it has to the
//       injection queue and retires: it sets its idle bit by a
//       compare-exchange, from a mask by which there is a surplus, and sleeps
//       though there is work. At least limit() unmarked workers are awake then;
//       they can't all retire, and those that sleep have looked at the queue
//       before [P1]. For tasks that wait for a stack it looks like others that
//       sleep (worker_stacks.cc [ST3]). It doesn't care for the poller; the
//       last to sleep does [P6].
//  [RV5] Workers beyond limit() have no thread, and no bit in the idle mask,
//       before StartReserve(), which only the watch calls. It counts them as
//       awake, and roused (shutdown.cc [SD1]), before their thread starts. The
//       watch ends after the workers, and those that it has started since are
//       joined after it. If the thread can't be started, the count is taken
//       back; for [RV2] that is no loss, since with a reserve limit() is two or
//       more, and another one of those counted was awake.
#include <algorithm>
#include <atomic>
#include <bit>
#include <system_error>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/thread_state.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {

int SchedulingGroup::Vacancies(std::uint64_t idle) const noexcept {
  const int running = std::popcount(all_idle_mask() & ~idle & ~blocked_mask());
  return static_cast<int>(limit()) - running;
}

std::size_t SchedulingGroup::wakeable() const noexcept {
  const std::uint64_t idle = idle_mask();
  return static_cast<std::size_t>(
      std::clamp(Vacancies(idle), 0, std::popcount(idle)));
}

std::uint64_t SchedulingGroup::NextToWake(std::uint64_t idle) const noexcept {
  if (idle == 0) return 0;
  // Rather not the one that waits for IO; else the lowest, so that load gathers
  // on few workers. relaxed: a preference.
  const std::uint64_t poller =
      idle & poller_bit_.load(std::memory_order_relaxed);
  const std::uint64_t others = idle & ~poller;
  std::uint64_t from = others != 0 ? others : poller;
  if (size() != limit()) {
    const int room = Vacancies(idle);  // [RV2]
    if (room <= 0) return 0;
    if (room == 1 && poller != 0) from = poller;
  }
  return from & -from;
}

void SchedulingGroup::MarkBlocked(std::uint64_t suspects) {
  suspects &= ~blocked_mask();
  std::uint64_t blocked = 0;
  for (; suspects != 0; suspects &= suspects - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(suspects));
    const std::uint64_t bit = std::uint64_t{1} << i;
    const Worker& worker = *workers_[i];
    const std::uint64_t tasks = worker.tasks_begun();
    if (!SleepsInKernel(worker.thread_id())) continue;
    // In that task still, and not for want of any.
    if (worker.tasks_begun() == tasks && (idle_mask() & bit) == 0) {
      blocked |= bit;
    }
  }
  if (blocked == 0) return;
  // relaxed, both: as in blocked_mask(); a counter.
  blocked &= ~blocked_.fetch_or(blocked, std::memory_order_relaxed);
  marks_.fetch_add(static_cast<std::uint64_t>(std::popcount(blocked)),
                   std::memory_order_relaxed);
  WantStandby(NowNs() + kStandbyNs);
}

// Has what the worker had been given back before.
bool SchedulingGroup::Retire(Worker* worker) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  Worker::Parking& parking = worker->parking();
  parking.place = Worker::Parking::SleepPlace::kFutex;
  // relaxed: both published by the exchange.
  parking.word.store(1, std::memory_order_relaxed);
  std::uint64_t idle = idle_mask();
  do {
    if (Vacancies(idle) >= 0 || shutdown_->requested()) return false;
    // seq_cst: as the fetch_or in Park [P1] [P2]; [RV4].
  } while (!idle_.compare_exchange_weak(idle, idle | bit,
                                        std::memory_order_seq_cst));
  const std::int64_t deadline = SleepDeadline(*worker, /*in_poller=*/false);
  if (!MayTakeAside(*worker) && deadline > NowNs()) {
    FutexWait(&parking.word, 1, deadline);
  }
  return FinishPark(worker);
}

bool SchedulingGroup::StartReserve() {
  const std::size_t next = size();
  if (next == capacity()) return false;
  if (!workers_[next]->GetFirstStacks()) {
    workers_[next]->KeepSpares(0);
    return false;
  }
  // seq_cst: pair with the loads in size() and rouses() [RV5].
  size_.store(next + 1, std::memory_order_seq_cst);
  rouses_.fetch_add(1, std::memory_order_seq_cst);
  try {
    workers_[next]->Start();
    return true;
  } catch (const std::system_error& error) {
    LOG_EVERY_N(ERROR, 1000)
        << "can't start another worker in place of one that is blocked: "
        << error.what();
    workers_[next]->KeepSpares(0);
    size_.store(next, std::memory_order_seq_cst);  // Pairs with size().
    // Who has parked meanwhile took it for one that is awake, and may have left
    // nobody in the poller [P6].
    Wake(1);
    if (shutdown_->requested()) shutdown_->FinishIfQuiescent();
    return false;
  }
}

// Some that seem to run may have just been blocked, and not be marked yet: so
// not at once, and not without asking.
void Worker::NoteSurplus(std::int64_t now_ns) {
  if (surplus_since_ns_ == 0) surplus_since_ns_ = now_ns;
  if (now_ns - surplus_since_ns_ < kSurplusNs) return;
  if (spares_ == nullptr) return;  // worker_stacks.cc [ST6]
  surplus_since_ns_ = 0;
  group_->MarkBlocked(group_->LookAtOthers(*this).running);
  if (!group_->HasSurplus()) return;
  retiring_ = true;  // In NextWhenEmpty.
  TaskList all;
  while (Task* const task = run_queue_.Pop()) all.PushBack(task);
  group_->Return(std::move(all));
}

bool Worker::Retire() {
  Bump(counters_.parks);
  const bool woken = group_->Retire(this);
  BeginAfterSleep();
  return woken;
}

}  // namespace flare::fiber
