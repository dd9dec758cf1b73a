// How workers sleep and are woken.
//
//  [P1] A worker that goes to sleep sets its bit in `idle_` (seq_cst) and only
//       then looks once more at the injection queue, the stop flag and the
//       timers.
//  [P2] A producer adds to the injection queue, asks for or declares the end,
//       or arms a timer on another worker's wheel, and only then reads `idle_`
//       and `searching_`; all of these accesses are seq_cst. So either the
//       sleeper sees the work or the producer sees the bit: no lost wake-up.
//  [P3] The idle bit is the right to wake: the thread that clears it, by a
//       fetch_and that found it set, must store 0 into that worker's parking
//       word and rouse it; nobody else may. A worker that wakes by itself
//       clears its own bit, and if it finds it cleared already, waits for that
//       store.
//  [P4] A searcher (woken, or looking around before it sleeps) is counted in
//       `searching_`. A producer that sees as many as it wants wakes nobody:
//       after it has stopped being counted a searcher looks at the injection
//       queue, before it runs anything as well as before it sleeps [P1].
//  [P5] Timers: a sleeping worker's own wheel bounds its sleep; the worker in
//       the poller heeds all wheels of the group. Timers armed later belong to
//       workers that are awake, or come with a wake-up [P2].
//  [P6] If all workers of a group sleep, one of them sleeps in the poller: the
//       right to it (`polling_`) is only held by a worker that is awake, or by
//       the one in there, and each tries to get it before it sets its bit. One
//       that retires doesn't [RV4], and may have had it when the
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
//       wakes it if the worker that took the event before isn't back [SB1].
//
// A worker's own run queue is not part of this: its owner is awake. Whether a
// helper is woken for it is a question of profit (Worker::MaybeWakeHelper).
//
// Workers in reserve, for tasks that block their threads.
//
//  [RV1] limit() of a group's workers may run at a time, and one more for each
//       worker that is marked in `blocked_`. All others that sleep are the
//       reserve: all workers are alike, and the ones with the lowest numbers
//       are woken first.
//  [RV2] Wake() wakes nobody beyond that. No wake-up is lost by it: where it
//       refuses, limit() workers, at least one, are neither marked nor idle by
//       a mask read after the work was queued, and each of them looks at the
//       injection queue before it sleeps [P1]. One that
//       sleeps in the poller counts as running here, since IO wakes it without
//       asking; so it is the one to be woken if there is room for it alone.
//  [RV3] Marks are for workers that have been in one task for a while, with
//       their threads asleep in the kernel: the watch asks (watch.cc), and so
//       does a worker that is left alone with the poller [SB2], or about
//       to retire. The watch takes them back when the worker has got on; a
//       worker that goes to sleep does so itself. Where none of the reserve has
//       started yet they limit nothing.
//  [RV4] When a mark is gone more workers may run than should. One that has
//       found it so for a while, between two tasks, gives its tasks to the
//       injection queue and retires: it sets its idle bit by a
//       compare-exchange, from a mask by which there is a surplus, and sleeps
//       though there is work. At least limit() unmarked workers are awake then;
//       they can't all retire, and those that sleep have looked at the queue
//       before [P1]. For tasks that wait for a stack it looks like others that
//       sleep (spare_carriers.cc [ST3]). It doesn't care for the poller; the
//       last to sleep does [P6].
//  [RV5] Workers beyond limit() have no thread, and no bit in the idle mask,
//       before StartReserve(), which only the watch calls. It counts them as
//       awake, and roused (shutdown.cc [SD1]), before their thread starts. The
//       watch ends after the workers, and those that it has started since are
//       joined after it. If the thread can't be started, the count is taken
//       back; for [RV2] that is no loss, since with a reserve limit() is two or
//       more, and another one of those counted was awake.
//
// The standby of the worker in the poller.
//
// The worker that takes an event runs the tasks it leads to, and if those hold
// it up, nobody waits for the next event. While tasks block their threads
// (WantStandby()), another worker therefore sleeps where that event wakes it
// (poller.h).
//
//  [SB1] For the rules of sleep [P1] to [P7] this is one more place, where a
//        wake-up that comes early is kept, as in the poller. Events may miss
//        the worker that sleeps there; then the watch acts as it does where
//        nobody stands by. If nobody is in the poller any more when it is about
//        to sleep, it doesn't, and tries for the poller.
//  [SB2] If two workers serve all events in alternation, the second to go to
//        sleep finds the poller taken, and stands by. One that goes to sleep in
//        the poller finds nobody standing by if the other one still runs. If
//        all that run have begun no other task since it last went to sleep
//        there, they are held up: it has them marked if they sleep [RV3], and
//        wakes one more worker to stand by. It doesn't do so the first time,
//        when it has just been woken itself, for it has an event to care for by
//        then. Where nobody is left to wake, the watch starts one.
//  [SB3] Whether there is room for the worker that stands by [RV1] isn't asked:
//        mostly it sleeps, and those that run are held up. If it turns out that
//        they aren't, there is a surplus for a while [RV4].
#include "flare/fiber/scheduler/scheduling_group.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <exception>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/malloc_arena.h"
#include "flare/base/topology.h"
#include "flare/fiber/scheduler/poked_thread.h"
#include "flare/fiber/scheduler/thread_state.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

using SleepPlace = WorkerState::Parking::SleepPlace;

}  // namespace

SchedulingGroup::SchedulingGroup(Options options)
    : options_(std::move(options)),
      stacks_(options_.stacks),
      size_(options_.workers) {
  CHECK_GE(options_.workers, 1U);
  const std::size_t capacity = options_.workers + options_.reserve;
  CHECK_LE(capacity, kMaxGroupSize);
  CHECK(options_.reserve == 0 || options_.workers > 1);  // [RV5]
  for (std::size_t i = 0; i < capacity; ++i) {
    // All groups are as large.
    workers_.push_back(options_.make_worker(
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
    if (!workers_[i]->spares().GetFirst()) return false;
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
  WorkerState::Parking& parking = workers_[index]->parking();
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

// In this order: the watch makes deferred tasks injected ones (shutdown.cc
// [SD1]).
bool SchedulingGroup::LooksIdle() const noexcept {
  return idle_mask() == all_idle_mask() && deferred() == 0 && injected() == 0 &&
         !CanTakeAside();
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

WorkerState::Parking::SleepPlace SchedulingGroup::ChoosePlace() {
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

std::int64_t SchedulingGroup::SleepDeadline(const WorkerState& worker,
                                            bool in_poller) const {
  std::int64_t deadline = worker.spares().trim_deadline();
  if (!in_poller) return std::min(deadline, worker.timers().next_deadline());
  for (std::size_t i = 0; i < size(); ++i) {
    deadline = std::min(deadline, workers_[i]->timers().next_deadline());
  }
  return deadline;
}

bool SchedulingGroup::Park(WorkerState* worker, TaskList* ready) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  WorkerState::Parking& parking = worker->parking();
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
      ((others | bit) != all_idle_mask() || AnyNeighbourIsBusy())) {
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
    if (worker->spares().empty()) [[unlikely]] {  // spare_carriers.cc [ST6]
      deadline = std::min(deadline, NowNs() + kStackRetryNs);
    }
    if (in_poller) {
      SummonStandby(worker);
      worker->CountPoll();
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

bool SchedulingGroup::FinishPark(WorkerState* worker) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  WorkerState::Parking& parking = worker->parking();
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
        sched_yield();  // The waker may have been preempted.
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

// spare_carriers.cc [ST3]
bool SchedulingGroup::MayTakeAside(const WorkerState& worker) const {
  return !worker.spares().empty() && shortage_.aside() != 0;
}

void SchedulingGroup::PutAside(Task* task) {
  shortage_.PutAside(task);
  WakeForAside();
}

// spare_carriers.cc [ST3]
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

// spare_carriers.cc [ST6]
void SchedulingGroup::PassAsideOn() {
  if (shortage_.aside() == 0 || shortage_.mask() != all_idle_mask()) return;
  SchedulingGroup* const neighbour = neighbours_.Find(
      [](const SchedulingGroup* group) { return !group->shortage().any(); });
  if (neighbour == nullptr) return;
  neighbour->InjectAll(shortage_.TakeAside(shortage_.aside()));
}

void SchedulingGroup::FireTimers(std::int64_t now_ns) {
  for (std::size_t i = 0; i < size(); ++i) {
    TimerWheel& wheel = workers_[i]->timers();
    if (wheel.next_deadline() <= now_ns) wheel.Fire(now_ns);
  }
}

// --- Workers in reserve ---

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
    const WorkerState& worker = *workers_[i];
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

// The caller has given the worker's tasks back before.
bool SchedulingGroup::Retire(WorkerState* worker) {
  const std::uint64_t bit = std::uint64_t{1} << worker->index();
  WorkerState::Parking& parking = worker->parking();
  parking.place = WorkerState::Parking::SleepPlace::kFutex;
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
  if (!workers_[next]->spares().GetFirst()) {
    workers_[next]->spares().Keep(0);
    return false;
  }
  // seq_cst: pair with the loads in size() and rouses() [RV5].
  size_.store(next + 1, std::memory_order_seq_cst);
  rouses_.fetch_add(1, std::memory_order_seq_cst);
  try {
    workers_[next]->Start();
    return true;
  } catch (const std::exception& error) {  // No thread, or no memory for it.
    LOG_EVERY_N(ERROR, 1000)
        << "can't start another worker in place of one that is blocked: "
        << error.what();
    workers_[next]->spares().Keep(0);
    size_.store(next, std::memory_order_seq_cst);  // Pairs with size().
    // A worker that has parked meanwhile took it for one that is awake, and may
    // have left nobody in the poller [P6].
    Wake(1);
    if (shutdown_->requested()) shutdown_->FinishIfQuiescent();
    return false;
  }
}

// --- Standing by ---

bool SchedulingGroup::TryBecomeStandby() {
  // acquire: pairs with the release in LeaveStandby.
  return LacksStandby(NowNs()) &&
         !standby_taken_.exchange(true, std::memory_order_acquire);
}

void SchedulingGroup::LeaveStandby() {
  // release: pairs with the exchange in TryBecomeStandby.
  standby_taken_.store(false, std::memory_order_release);
}

void SchedulingGroup::SummonStandby(WorkerState* worker) {
  if (!LacksStandby(NowNs())) return;
  const WorkerState::Parking::Others now = LookAtOthers(*worker);
  const bool held_up = now.running != 0 && now == worker->parking().others;
  worker->parking().others = now;
  if (!held_up) return;
  MarkBlocked(now.running);
  WakeToStandBy();
}

WorkerState::Parking::Others SchedulingGroup::LookAtOthers(
    const WorkerState& worker) const noexcept {
  WorkerState::Parking::Others others;
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

// --- Neighbours ---

SchedulingGroup* SchedulingGroup::MostIdleNeighbour(int periods) const {
  const auto most_idle_of = [](const Neighbours::Circle& circle) {
    SchedulingGroup* best = nullptr;
    std::size_t most = 0;
    for (SchedulingGroup* group : circle.groups) {
      const std::size_t idle = group->wakeable();
      if (idle > most) {
        most = idle;
        best = group;
      }
    }
    return best;
  };
  const Neighbours::Circle& far = neighbours_.far();
  SchedulingGroup* const near = most_idle_of(neighbours_.near());
  if (near != nullptr || far.groups.empty() || periods < far.ratio) return near;
  return most_idle_of(far);
}

bool SchedulingGroup::AnyNeighbourIsIdle() const {
  return neighbours_.Find([](const SchedulingGroup* group) {
    return group->CanWake();
  }) != nullptr;
}

bool SchedulingGroup::AnyNeighbourIsBusy() const {
  return neighbours_.Find([](const SchedulingGroup* group) {
    return !group->CanWake();
  }) != nullptr;
}

}  // namespace flare::fiber
