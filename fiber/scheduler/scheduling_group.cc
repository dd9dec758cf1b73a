// How workers sleep and are woken.
//
//  [P1] A worker that goes to sleep sets its bit in `idle_` (seq_cst) and only
//       then looks once more at the injection queue, the stop flag and the
//       timers.
//  [P2] Who adds to the injection queue, asks for or declares the end, or arms
//       a timer on another worker's wheel does so first and then reads `idle_`
//       and `searching_`; all of these accesses are seq_cst. So either the
//       sleeper sees the work or the producer sees the bit: no lost wake-up.
//  [P3] The idle bit is the right to wake: whoever clears it, by a fetch_and
//       that found it set, must store 0 into that worker's parking word and
//       rouse it; nobody else may. A worker that wakes by itself clears its own
//       bit, and if it finds it cleared already, waits for that store.
//  [P4] A searcher (woken, or looking around before it sleeps) is counted in
//       `searching_`. A producer that sees as many as it wants wakes nobody:
//       after it has stopped being counted a searcher looks at the injection
//       queue, before it runs anything as well as before it sleeps [P1].
//  [P5] Timers: a sleeping worker's own wheel bounds its sleep; the one in the
//       poller heeds all wheels of the group. Timers armed later belong to
//       workers that are awake, or come with a wake-up [P2].
//  [P6] If all workers of a group sleep, one of them sleeps in the poller: the
//       right to it (`polling_`) is only held by a worker that is awake, or by
//       the one in there, and each tries to get it before it sets its bit. One
//       that retires doesn't (reserve.cc [RV4]), and may have had it when the
//       last one tried: so the last to set its bit looks again.
//       While some worker is awake nobody need be in the poller: it polls
//       between tasks, and if one task holds it up, the watch (watch.cc) wakes
//       another.
//  [P7] Tasks that wait for events (DeferTask) are queued by running workers
//       alone, and nobody is woken for them: a worker that runs out of work
//       takes them all, and one that goes to sleep looks there as in [P1]. They
//       are found by the worker that queued them, if by no other; one that
//       retires leaves others awake. If a task holds it up, the watch wakes
//       another; if all are held up, it makes them injected tasks, which
//       neighbours take.
//  [P8] A worker that finds the poller taken may sleep where the next event
//       wakes it if whoever took the one before isn't back: standby.cc.
//
// A worker's own run queue is not part of this: its owner is awake. Whether a
// helper is woken for it is a question of profit (Worker::MaybeWakeHelper).
#include "flare/fiber/scheduler/scheduling_group.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/malloc_arena.h"
#include "flare/base/topology.h"
#include "flare/fiber/diagnostics/stuck_report.h"
#include "flare/fiber/scheduler/memory_watch.h"
#include "flare/fiber/scheduler/watch.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

using SleepPlace = Worker::Parking::SleepPlace;

}  // namespace

SchedulingGroup::SchedulingGroup(Options options)
    : options_(std::move(options)),
      stacks_(options_.stacks),
      size_(options_.workers) {
  CHECK_GE(options_.workers, 1U);
  const std::size_t capacity = options_.workers + options_.reserve;
  CHECK_LE(capacity, kMaxGroupSize);
  CHECK(options_.reserve == 0 || options_.workers > 1);  // reserve.cc [RV5]
  for (std::size_t i = 0; i < capacity; ++i) {
    // All groups are as large.
    workers_.push_back(std::make_unique<Worker>(
        this, i, options_.index * capacity + i, options_.schedule));
    workers_.back()->run_queue().set_capacity(options_.run_queue_slots);
  }
}

SchedulingGroup::~SchedulingGroup() = default;

void SchedulingGroup::PlaceThread(std::size_t index) const {
  const std::vector<int> cpus = index < options_.pins.size()
                                    ? std::vector<int>{options_.pins[index]}
                                    : options_.cpus;
  if (!cpus.empty()) {
    const Status bound = SetThreadAffinity(cpus);
    LOG_IF(ERROR, !bound.ok()) << bound.message();
  }
  if (!options_.arenas.empty()) {
    const unsigned arena = options_.arenas[index % options_.arenas.size()];
    LOG_IF(ERROR, !UseMallocArena(arena)) << "can't use malloc arena " << arena;
  }
}

bool SchedulingGroup::GetFirstStacks() {
  for (std::size_t i = 0; i < limit(); ++i) {
    if (!workers_[i]->GetFirstStacks()) return false;
  }
  return true;
}

void SchedulingGroup::Start() {
  for (std::size_t i = 0; i < limit(); ++i) workers_[i]->Start();
}

void SchedulingGroup::Join() {
  for (std::size_t i = 0; i < limit(); ++i) workers_[i]->Join();
}

void SchedulingGroup::JoinReserve() {
  for (std::size_t i = limit(); i < size(); ++i) workers_[i]->Join();
  LOG_IF(ERROR, shortage_.aside() != 0)
      << shortage_.aside() << " task(s) still waited for a stack when the "
      << "runtime ended; they are abandoned";
}

void SchedulingGroup::EndTimers() {
  for (const auto& worker : workers_) worker->timers().End();
}

void SchedulingGroup::Inject(Task* task) {
  injection_.Push(task);
  Wake(1);  // [P2]
}

void SchedulingGroup::InjectAll(TaskList&& tasks) {
  if (tasks.empty()) return;
  const std::size_t size = tasks.size();
  injection_.PushAll(std::move(tasks));
  WakeFor(size);  // [P2]
}

void SchedulingGroup::InjectDeferred() {
  const std::size_t moved = deferred_.MoveAllTo(&injection_);
  if (moved != 0) WakeFor(moved);  // [P2]
}

void SchedulingGroup::Return(TaskList&& tasks) {
  if (tasks.empty()) return;
  const std::size_t size = tasks.size();
  injection_.Return(std::move(tasks));
  WakeFor(size);  // [P2]
}

bool SchedulingGroup::WakeFor(std::size_t tasks) {
  const std::int64_t worth = wake_threshold_ns() / mean_task_ns();
  return Wake(static_cast<std::int64_t>(tasks) >
                      std::max<std::int64_t>(worth, 1)
                  ? kMaxSearchers
                  : 1);
}

bool SchedulingGroup::Wake(int searchers) {
  // seq_cst: pair with the fetch_or in Park [P1] and the fetch_sub in EndSearch
  // [P4]; order the producer's push before these loads.
  const int already = searching_.load(std::memory_order_seq_cst);
  if (already >= searchers) return false;
  bool woken = false;
  for (int i = already; i < searchers && WakeSomebody(); ++i) woken = true;
  return woken;
}

bool SchedulingGroup::WakeSomebody() {
  // seq_cst: as in Wake.
  std::uint64_t idle = idle_.load(std::memory_order_seq_cst);
  while (const std::uint64_t bit = NextToWake(idle)) {
    // seq_cst: pairs with the fetch_or in Park [P3].
    idle = idle_.fetch_and(~bit, std::memory_order_seq_cst);
    if ((idle & bit) != 0) {
      searching_.fetch_add(1, std::memory_order_seq_cst);  // [P4]
      wakes_.fetch_add(1, std::memory_order_relaxed);      // A counter.
      Unpark(static_cast<std::size_t>(std::countr_zero(bit)));
      return true;
    }
  }
  return false;
}

bool SchedulingGroup::WakeWorker(std::size_t index) {
  const std::uint64_t bit = std::uint64_t{1} << index;
  // seq_cst: as in WakeSomebody [P3].
  if ((idle_.fetch_and(~bit, std::memory_order_seq_cst) & bit) == 0) {
    return false;
  }
  searching_.fetch_add(1, std::memory_order_seq_cst);  // [P4]
  Unpark(index);
  return true;
}

void SchedulingGroup::Unpark(std::size_t index) {
  Worker::Parking& parking = workers_[index]->parking();
  // Read before the store below: after it the worker may be gone from here.
  const SleepPlace place = parking.place;
  // release: pairs with the acquire in Park [P3].
  parking.word.store(0, std::memory_order_release);
  switch (place) {
    case SleepPlace::kPoller:
      return options_.poller->Wake();
    case SleepPlace::kStandby:
      return options_.poller->WakeStandby();
    case SleepPlace::kFutex:
      FutexWake(&parking.word, 1);
  }
}

void SchedulingGroup::WakeAllIdle() {
  // seq_cst: pairs with the fetch_or in Park [P1].
  for (std::uint64_t idle = idle_mask(); idle != 0; idle &= idle - 1) {
    WakeWorker(static_cast<std::size_t>(std::countr_zero(idle)));
  }
}

bool SchedulingGroup::TryAcquirePoller() {
  // relaxed: a first look. acquire: pairs with the release in ReleasePoller, so
  // that the poller's plain state is passed on.
  return options_.poller != nullptr &&
         !polling_.load(std::memory_order_relaxed) &&
         !polling_.exchange(true, std::memory_order_acquire);
}

void SchedulingGroup::ReleasePoller() {
  // release: pairs with the exchange in TryAcquirePoller.
  polling_.store(false, std::memory_order_release);
}

Worker::Parking::SleepPlace SchedulingGroup::ChoosePlace() {
  if (TryAcquirePoller()) return SleepPlace::kPoller;
  return TryBecomeStandby() ? SleepPlace::kStandby : SleepPlace::kFutex;
}

bool SchedulingGroup::BeginSearch() {
  // relaxed: a limit on effort, not a rule.
  if (searching_.load(std::memory_order_relaxed) >= kMaxSearchers) return false;
  // seq_cst: pairs with the load in Wake [P4].
  searching_.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

void SchedulingGroup::EndSearch() {
  // seq_cst: pairs with the load in Wake [P4].
  searching_.fetch_sub(1, std::memory_order_seq_cst);
}

std::int64_t SchedulingGroup::SleepDeadline(const Worker& worker,
                                            bool in_poller) const {
  std::int64_t deadline = worker.TrimDeadline();
  if (!in_poller) return std::min(deadline, worker.timers_.next_deadline());
  for (std::size_t i = 0; i < size(); ++i) {
    deadline = std::min(deadline, workers_[i]->timers_.next_deadline());
  }
  return deadline;
}

bool SchedulingGroup::Park(Worker* worker, TaskList* ready) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  Worker::Parking& parking = worker->parking();
  UnmarkBlocked(bit);
  const SleepPlace place = ChoosePlace();
  const bool in_poller = place == SleepPlace::kPoller;
  parking.place = place;
  // relaxed: both published by the fetch_or.
  parking.word.store(1, std::memory_order_relaxed);
  if (in_poller) poller_bit_.store(bit, std::memory_order_relaxed);
  // seq_cst: pairs with the loads in Wake, WakeSomebody, WakeAllIdle and
  // idle_mask() and the fetch_and in WakeWorker [P1] [P2].
  const std::uint64_t others = idle_.fetch_or(bit, std::memory_order_seq_cst);
  // The others' tasks are no longer sure to be taken by anybody awake; and
  // there is somebody now to help a neighbour.
  if (watch_ != nullptr &&
      ((others | bit) != all_idle_mask() || neighbours_.AnyBusy())) {
    watch_->Poke();
  }
  if (shutdown_->requested()) [[unlikely]] {
    shutdown_->FinishIfQuiescent();
  }

  // relaxed: a worker that gave it up and retired set its bit after that, and
  // we have seen that bit.
  const bool unpolled = options_.poller != nullptr && !in_poller &&
                        (others | bit) == all_idle_mask() &&
                        !polling_.load(std::memory_order_relaxed);  // [P6]
  if (injection_.empty() && deferred_.empty() && !MayTakeAside(*worker) &&
      !unpolled && !shutdown_->finished()) {
    std::int64_t deadline = SleepDeadline(*worker, in_poller);
    if (worker->spares_ == nullptr) [[unlikely]] {  // worker_stacks.cc [ST6]
      deadline = std::min(deadline, NowNs() + Worker::kStackRetryNs);
    }
    if (in_poller) {
      SummonStandby(worker);
      Worker::Bump(worker->counters_.polls);
      // 0 would mean "don't wait"; a past deadline does the same.
      options_.poller->Poll(std::max<std::int64_t>(deadline, 1), ready);
    } else if (place == SleepPlace::kStandby) {
      // Nobody polls any more: it tries for the poller [SB1].
      if (anybody_polls()) options_.poller->StandBy(deadline);
    } else if (deadline > NowNs()) {
      FutexWait(&parking.word, 1, deadline);
    }
  }

  return FinishPark(worker);
}

bool SchedulingGroup::FinishPark(Worker* worker) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  Worker::Parking& parking = worker->parking();
  // seq_cst: as the fetch_or in Park and the exchange in Retire; [P3].
  const bool woken =
      (idle_.fetch_and(~bit, std::memory_order_seq_cst) & bit) == 0;
  // seq_cst: pairs with the load in rouses() (shutdown.cc [SD1]).
  rouses_.fetch_add(1, std::memory_order_seq_cst);
  if (woken) {
    // acquire: pairs with the release in Unpark [P3].
    for (int spins = 0; parking.word.load(std::memory_order_acquire) != 0;) {
      if (++spins < 100) {
        CpuRelax();
      } else {
        sched_yield();  // Who woke us may have been preempted.
      }
    }
  }
  if (parking.place == SleepPlace::kPoller) {
    // relaxed: a preference.
    poller_bit_.store(0, std::memory_order_relaxed);
    ReleasePoller();
  } else if (parking.place == SleepPlace::kStandby) {
    LeaveStandby();
  }
  if (watch_ != nullptr) watch_->Poke();
  if (stuck_watch_ != nullptr) stuck_watch_->Poke();
  if (memory_watch_ != nullptr) memory_watch_->Poke();
  return woken;
}

// worker_stacks.cc [ST3]
bool SchedulingGroup::MayTakeAside(const Worker& worker) const {
  return worker.spares_ != nullptr && shortage_.aside() != 0;
}

void SchedulingGroup::PutAside(Task* task) {
  shortage_.PutAside(task);
  WakeForAside();
}

// worker_stacks.cc [ST3]
void SchedulingGroup::WakeForAside() {
  // The push was before this, and is seq_cst, as these loads are.
  if (shortage_.aside() == 0) return;
  // The bits first, so that a worker seen asleep is seen short, too [ST3].
  std::uint64_t idle = idle_mask();
  idle &= ~shortage_.mask();
  // One that has just woken by itself may be about to run something else.
  while (idle != 0 &&
         !WakeWorker(static_cast<std::size_t>(std::countr_zero(idle)))) {
    idle &= idle - 1;
  }
}

// worker_stacks.cc [ST6]
void SchedulingGroup::PassAsideOn() {
  if (shortage_.aside() == 0 || shortage_.mask() != all_idle_mask()) return;
  SchedulingGroup* const neighbour = neighbours_.AnyWithStacks();
  if (neighbour == nullptr) return;
  neighbour->InjectAll(shortage_.TakeAside(shortage_.aside()));
}

void SchedulingGroup::FireTimers(std::int64_t now_ns) {
  for (std::size_t i = 0; i < size(); ++i) {
    TimerWheel& wheel = workers_[i]->timers();
    if (wheel.next_deadline() <= now_ns) wheel.Fire(now_ns);
  }
}

}  // namespace flare::fiber
