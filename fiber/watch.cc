// [WA1] Before it sleeps without limit, the watch stores 1 to `asleep_`
//       (seq_cst) and then looks at the groups' idle masks; workers change
//       their idle bit (seq_cst) and then load `asleep_`. So either the watch
//       sees that there is a group to help and a helper, or the worker sees it
//       asleep. A worker that goes to sleep skips that load if all of its group
//       do and no neighbour is busy, by masks it reads after the change: a
//       neighbour that becomes busy later is so by a worker that wakes up, and
//       that one always looks.
#include "flare/fiber/watch.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/fiber/scheduling_group.h"

namespace flare::fiber {

Watch::Watch(std::vector<SchedulingGroup*> groups, std::int64_t period_ns)
    : period_ns_(period_ns) {
  for (SchedulingGroup* group : groups) {
    // A single worker has nobody to help it.
    if (group->size() < 2 && group->neighbours().empty()) continue;
    groups_.push_back({group, std::vector<Sample>(group->size())});
  }
}

Watch::~Watch() = default;

void Watch::Start() {
  if (groups_.empty() || period_ns_ <= 0) return;
  thread_ = std::thread([this] { Main(); });
}

void Watch::Stop() {
  if (!thread_.joinable()) return;
  // seq_cst: pairs with the loads in Main and Sleep, as [WA1].
  stop_.store(1, std::memory_order_seq_cst);
  FutexWake(&stop_, 1);
  WakeUp();
  thread_.join();
}

void Watch::Main() {
  pthread_setname_np(pthread_self(), "flare_watch");
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; the default 50 us is half a period.
  int quiet = 0;
  // seq_cst: pairs with the store in Stop.
  while (stop_.load(std::memory_order_seq_cst) == 0) {
    const std::int64_t now = NowNs();
    bool active = false;
    for (Watched& watched : groups_) active |= Look(&watched, now);
    quiet = active ? 0 : quiet + 1;
    if (quiet < 3) {
      FutexWait(&stop_, 0, now + NextPeriod());
    } else {
      Sleep();
      quiet = 0;
    }
  }
}

bool Watch::Look(Watched* watched, std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  const std::uint64_t idle = group->idle_mask();
  if (idle == 0 && LookAtBusy(watched, now_ns)) return true;
  watched->shortage = 0;
  if (idle == 0 || idle == group->all_idle_mask()) {
    for (Sample& sample : watched->samples) sample.valid = false;
    return false;
  }
  LookAtPartlyIdle(watched, idle, now_ns);
  return true;
}

void Watch::LookAtPartlyIdle(Watched* watched, std::uint64_t idle,
                             std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  // Nobody should be needed for this (scheduling_group.cc [P4]); a net.
  bool help = group->injected() != 0;
  for (std::size_t i = 0; i < group->size(); ++i) {
    if ((idle >> i & 1) != 0) {
      watched->samples[i].valid = false;
      continue;
    }
    const Findings found = LookAtWorker(watched, i, now_ns);
    help |= found.held_up || (found.same_task && group->poller() != nullptr &&
                              !group->anybody_polls());
  }
  found_need_ |= help;
  if (help && group->Wake(1)) CountWake();
}

bool Watch::LookAtBusy(Watched* watched, std::int64_t now_ns) {
  SchedulingGroup* const group = watched->group;
  SchedulingGroup* const helper =
      group->neighbours().MostIdle(watched->shortage + 1);
  const bool injected = group->injected() != 0;
  bool help = injected && watched->injected;
  watched->injected = injected;
  // Far helpers are to be had later only: keep looking.
  if (helper == nullptr && !group->neighbours().AnyIdle()) return false;
  for (std::size_t i = 0; i < group->size(); ++i) {
    help |= LookAtWorker(watched, i, now_ns).held_up;
  }
  found_need_ |= help;
  watched->shortage = help ? watched->shortage + 1 : 0;
  if (help && helper != nullptr) {
    helper->neighbours().Invite(group);
    if (helper->Wake(1)) CountWake();
  }
  return true;
}

Watch::Findings Watch::LookAtWorker(Watched* watched, std::size_t index,
                                    std::int64_t now_ns) {
  Worker* const worker = watched->group->worker(index);
  const RunQueue& queue = worker->run_queue();
  const Sample last = watched->samples[index];
  // relaxed: a counter, compared with itself.
  const Sample now = {true,
                      worker->counters().tasks.load(std::memory_order_relaxed),
                      queue.tail()};
  watched->samples[index] = now;
  Findings found;
  found.held_up = worker->timers().next_deadline() < now_ns - period_ns_;
  if (!last.valid) return found;
  found.same_task = now.tasks == last.tasks;
  const bool queued = queue.size() + queue.claimed() != 0;
  const bool still_waiting =
      static_cast<std::int32_t>(queue.head() - last.tail) < 0;
  if (queued && (found.same_task || still_waiting)) {
    found.held_up = true;
    if (queue.claimed() != 0) worker->run_queue().AskForRescue();
  }
  return found;
}

std::int64_t Watch::NextPeriod() {
  if (std::exchange(found_need_, false)) {
    stretched_ = 1;
    calm_looks_ = 0;
  } else if (++calm_looks_ == kCalmLooks) {
    stretched_ = std::min(2 * stretched_, kMostStretched);
    calm_looks_ = 0;
  }
  return stretched_ * period_ns_;
}

void Watch::CountWake() {
  // relaxed: a counter with one writer.
  wakes_.store(wakes() + 1, std::memory_order_relaxed);
}

bool Watch::Watchable(const SchedulingGroup& group) {
  const std::uint64_t idle = group.idle_mask();
  return idle == 0 ? group.neighbours().AnyIdle()
                   : idle != group.all_idle_mask();
}

bool Watch::AnythingToWatch() const {
  return std::any_of(
      groups_.begin(), groups_.end(),
      [](const Watched& watched) { return Watchable(*watched.group); });
}

void Watch::Sleep() {
  // seq_cst: pairs with the load in Poke [WA1].
  asleep_.store(1, std::memory_order_seq_cst);
  // seq_cst: pairs with the store in Stop.
  if (!AnythingToWatch() && stop_.load(std::memory_order_seq_cst) == 0) {
    FutexWait(&asleep_, 1, -1);
  }
  asleep_.store(0, std::memory_order_seq_cst);
}

void Watch::WakeUp() {
  // seq_cst: one waker is enough; pairs with Sleep [WA1].
  if (asleep_.exchange(0, std::memory_order_seq_cst) != 0) {
    FutexWake(&asleep_, 1);
  }
}

}  // namespace flare::fiber
