// [WA1] Before the watch sleeps without limit it looks at the groups' idle
//       masks; workers change their idle bit (seq_cst) and then poke it. So, by
//       [PT1], either the watch sees that there is a group to help and a
//       helper, or the worker wakes it. A worker that goes to sleep doesn't
//       poke if all of its group do and no neighbour is busy, by masks it reads
//       after the change: a neighbour that becomes busy later is so by a worker
//       that wakes up, and that one always pokes.
#include "flare/fiber/scheduler/watch.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <bit>

#include "flare/base/clock.h"
#include "flare/base/malloc_arena.h"
#include "flare/fiber/scheduler/scheduling_group.h"

namespace flare::fiber {

Watch::Watch(const std::vector<SchedulingGroup*>& groups,
             std::int64_t period_ns)
    : period_ns_(period_ns), pace_(period_ns) {
  for (SchedulingGroup* group : groups) {
    // A single worker has nobody to help it.
    if (group->capacity() < 2 && group->neighbours().empty()) continue;
    groups_.push_back({group, std::vector<Sample>(group->capacity())});
  }
}

Watch::~Watch() = default;

void Watch::Start() {
  if (groups_.empty() || period_ns_ <= 0) return;
  thread_.Start([this] { Main(); });
}

void Watch::Stop() { thread_.Stop(); }

void Watch::Main() {
  pthread_setname_np(pthread_self(), "flare_watch");
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default 50 us is half a period.
  policy_of_workers_ = ThreadPolicy::OfThisThread();
  policy_of_workers_.GivingWay().Apply();
  // Its first allocation may be that of another worker, when there is no
  // memory: jemalloc crashes in the first one of a thread for which it has no
  // arena.
  CurrentMallocArena();
  int quiet = 0;
  std::size_t first = 0;
  std::int64_t due = NowNs();
  while (!thread_.stopping()) {
    const std::int64_t now = NowNs();
    look_ = {.late_ns = now - due};
    bool active = false;
    // Elsewhere each time, or of those that the same neighbour could help one
    // would always be the first.
    ++first;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      active |= Look(&groups_[(first + i) % groups_.size()], now);
    }
    quiet = active ? 0 : quiet + 1;
    if (quiet < 3) {
      due = now + pace_.After(look_);
      thread_.SleepUntil(due);
    } else {
      thread_.SleepUnless([this] { return AnythingToWatch(); });  // [WA1]
      due = NowNs();
      quiet = 0;
    }
  }
}

bool Watch::Look(Watched* watched, std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  const std::uint64_t idle = group->idle_mask();
  if (idle == group->all_idle_mask() ||
      (!group->CanWake() && !LookAtBusy(watched, idle, now_ns))) {
    watched->shortage = 0;
    look_.unguarded |= !group->WantsStandby(now_ns);
    for (Sample& sample : watched->samples) sample.valid = false;
    return false;
  }
  if (group->CanWake()) {
    watched->shortage = 0;
    look_.unguarded |= !group->WantsStandby(now_ns);
    LookAtPartlyIdle(watched, idle, now_ns);
  } else {
    look_.unguarded = true;
  }
  return true;
}

void Watch::LookAtPartlyIdle(Watched* watched, std::uint64_t idle,
                             std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  look_.partly_idle = true;
  const Survey seen = LookAtWorkers(watched, idle, now_ns);
  // Nobody should be needed for injected tasks (scheduling_group.cc [P4]); a
  // net.
  const bool help =
      group->injected() != 0 || seen.held_up || IsNeglected(*group, seen);
  look_.need |= help;
  look_.exposed |= seen.queued || IsExposed(*group, now_ns);
  look_.unsettled |= help || seen.running != seen.same_task;
  if (help && group->Wake(1)) Add(1, &wakes_);
  // Before there is need: it may be that all that seem to run are blocked.
  MarkBlocked(watched, seen.same_task, now_ns);
  // It doesn't matter which thread has marked them. Act before others are
  // blocked as well, so that a thread has time to start.
  const bool all_blocked = (seen.running & ~group->blocked_mask()) == 0;
  if (all_blocked && group->LacksStandby(now_ns) && !group->WakeToStandBy()) {
    StartReserve(group);
  }
}

bool Watch::LookAtBusy(Watched* watched, std::uint64_t idle,
                       std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  const bool injected = group->injected() != 0;
  const bool still_injected = injected && watched->injected;
  watched->injected = injected;
  SchedulingGroup* const helper =
      group->MostIdleNeighbour(watched->shortage + 1);
  // Far helpers become available later only: keep looking.
  const bool neighbours = helper != nullptr || group->AnyNeighbourIsIdle();
  const bool reserve = group->capacity() != group->limit();
  if (!neighbours && !reserve) return false;
  look_.unsettled = true;
  const Survey seen = LookAtWorkers(watched, idle, now_ns);
  bool help = still_injected || seen.held_up;
  if (reserve && (help || IsNeglected(*group, seen))) {
    MarkBlocked(watched, seen.same_task, now_ns);
    if (group->HasVacancy() && WakeOrStart(group)) {
      look_.need = true;
      watched->shortage = 0;
      return true;
    }
  }
  if (neighbours && group->deferred() != 0 && seen.running == seen.same_task) {
    // Neighbours take from the shared queue, and not from that.
    group->InjectDeferred();
    help = true;
  }
  look_.need |= help && neighbours;
  watched->shortage = help ? watched->shortage + 1 : 0;
  if (help && helper != nullptr) {
    helper->neighbours().Invite(group);
    if (helper->Wake(1)) Add(1, &wakes_);
  }
  return true;
}

void Watch::MarkBlocked(Watched* watched, std::uint64_t suspects,
                        std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  suspects &= ~group->blocked_mask();
  std::uint64_t asked = 0;
  for (int n = 0; n < kMostAsked && suspects != 0; suspects &= suspects - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(suspects));
    Sample& sample = watched->samples[i];
    const std::int64_t age_ns = now_ns - sample.since_ns;
    if (age_ns < sample.ask_after_ns) continue;
    sample.ask_after_ns = 2 * age_ns;
    ++n;
    asked |= std::uint64_t{1} << i;
  }
  if (asked != 0) group->MarkBlocked(asked);
}

bool Watch::WakeOrStart(SchedulingGroup* group) {
  const bool woken =
      group->idle_mask() == 0 ? StartReserve(group) : group->Wake(1);
  if (woken) Add(1, &wakes_);
  return woken;
}

// The kernel shall schedule it like the others, not like this thread.
bool Watch::StartReserve(SchedulingGroup* group) {
  policy_of_workers_.Apply();
  const bool started = group->StartReserve();
  policy_of_workers_.GivingWay().Apply();
  return started;
}

Watch::Survey Watch::LookAtWorkers(Watched* watched, std::uint64_t idle,
                                   std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  Survey seen;
  for (std::size_t i = 0; i < group->size(); ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    if ((idle & bit) != 0) {
      watched->samples[i].valid = false;
      group->UnmarkBlocked(bit);
      continue;
    }
    const Findings found = LookAtWorker(watched, i, now_ns);
    seen.running |= bit;
    seen.held_up |= found.held_up;
    seen.queued |= found.queued;
    if (found.same_task) {
      seen.same_task |= bit;
    } else {
      group->UnmarkBlocked(bit);  // scheduling_group.cc [RV3]
    }
  }
  return seen;
}

// Do events wait, or would the next one where somebody should be sure to see
// it?
bool Watch::IsExposed(const SchedulingGroup& group, std::int64_t now_ns) {
  return group.pending_events() != 0 ||
         (group.WantsStandby(now_ns) && !group.WillSeeNextEvent());
}

// Do all running tasks hold their workers up, so that nobody looks for IO, or
// runs the tasks that have waited for it?
bool Watch::IsNeglected(const SchedulingGroup& group, const Survey& seen) {
  if (seen.running != seen.same_task) return false;
  if (group.deferred() != 0 || group.pending_events() != 0) return true;
  return group.poller() != nullptr && !group.WillSeeNextEvent();
}

Watch::Findings Watch::LookAtWorker(Watched* watched, std::size_t index,
                                    std::int64_t now_ns) {
  WorkerState* const worker = watched->group->worker(index);
  const RunQueue& queue = worker->run_queue();
  const Sample last = watched->samples[index];
  Sample now{.valid = true,
             .tasks = worker->tasks_begun(),
             .tail = queue.tail(),
             .since_ns = now_ns};
  if (last.valid && now.tasks == last.tasks) {
    now.since_ns = last.since_ns;
    now.ask_after_ns = last.ask_after_ns;
  }
  watched->samples[index] = now;
  Findings found;
  found.queued = queue.size() + queue.claimed() != 0;
  if (!last.valid) return found;
  found.same_task = now.tasks == last.tasks;
  // Between two tasks it looks at its timers by itself.
  found.held_up =
      found.same_task && worker->timers().next_deadline() < now_ns - period_ns_;
  const bool still_waiting =
      static_cast<std::int32_t>(queue.head() - last.tail) < 0;
  if (found.queued && (found.same_task || still_waiting)) {
    found.held_up = true;
    if (queue.claimed() != 0) worker->run_queue().AskForRescue();
  }
  return found;
}

bool Watch::Watchable(const SchedulingGroup& group) {
  const std::uint64_t idle = group.idle_mask();
  return idle == 0
             ? group.capacity() != group.limit() || group.AnyNeighbourIsIdle()
             : idle != group.all_idle_mask();
}

bool Watch::AnythingToWatch() const {
  return std::any_of(
      groups_.begin(), groups_.end(),
      [](const Watched& watched) { return Watchable(*watched.group); });
}

}  // namespace flare::fiber
