// What a worker does about IO: when it looks, what it does with what the poller
// hands out, and which tasks wait until nothing is left to hand out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"

namespace flare::fiber {

void Worker::LookForIo() {
  // Before further events are fetched, for which it would wait again.
  if (group_->pending_events() == 0) Keep(group_->TakeDeferred());
  if (!group_->TryAcquirePoller()) return;
  TaskList ready;
  Bump(counters_.polls);
  group_->poller()->Poll(0, &ready);
  group_->ReleasePoller();
  KeepReady(std::move(ready));
}

// While the ring isn't empty, and maybe never is.
void Worker::LookForIoBetweenTasks(std::int64_t now_ns) {
  const auto has_room = [this] {
    return run_queue_.size() < run_queue_.capacity() / 2;
  };
  maintained_without_pause_ =
      std::exchange(ran_out_, false) ? 0 : maintained_without_pause_ + 1;
  // A ring that is half full would overflow with what IO brings: its oldest
  // tasks would have to wait behind newer ones. They do so now and then, as
  // tasks that resubmit themselves may leave no room for ever.
  if (!has_room() && maintained_without_pause_ % 4 != 3) return;
  // A sibling's look just now has found what this one would.
  if (group_->pending_events() == 0 && schedule_ == nullptr &&
      !group_->TakeTurnToLook(now_ns, kMaintenanceNs)) {
    return;
  }
  LookForIo();
  // Events come one by one to a worker that runs out of tasks in between, even
  // if rarely, as what they bring is in the caches then. To one that doesn't,
  // several at a time.
  if (maintained_without_pause_ < kEndless) return;
  for (int i = 1; i < kEventsAtATime && has_room(); ++i) {
    if (group_->pending_events() == 0) return;
    LookForIo();
  }
}

// What is still pending is work for a sibling, too: a task for each event, and
// one at least that it leads to.
void Worker::KeepReady(TaskList&& tasks) {
  Keep(std::move(tasks));
  const std::size_t pending = group_->pending_events();
  if (pending == 0) return;
  const auto expected =
      static_cast<std::uint32_t>(run_queue_.size() + 2 * pending);
  if (expected >= wake_backlog_) WakeHelper(expected);
}

// Of many workers some often find the poller taken. Who didn't wait would steal
// half of a sibling's ring, each of whose tasks the sibling has in its cache,
// or sleep.
Task* Worker::FromPendingEvents() {
  int looks = group_->limit() > 2 ? kPollerLooks : 0;
  while (group_->pending_events() != 0) {
    if (looks > 0 && group_->anybody_polls()) {
      // Not at the number of events, which the worker in the poller writes.
      do {
        CpuRelax();
      } while (--looks > 0 && group_->anybody_polls());
      continue;
    }
    LookForIo();
    Task* const task = Pop();
    if (task != nullptr || --looks <= 0) return task;
  }
  return nullptr;
}

Task* Worker::FromDeferred() {
  if (group_->deferred() == 0) return nullptr;
  Keep(group_->TakeDeferred());
  return Pop();
}

bool Worker::PushBehindEvents(Task* task) {
  const std::size_t queued = run_queue_.size();
  const std::size_t pending = group_->pending_events();
  if (queued <= kFewTasks && pending == 0) return false;
  if (std::max(queued, pending) > keep_limit_) return false;
  group_->DeferTask(task);
  return true;
}

bool Worker::PushBehindOthers(Task* task, std::size_t most_events) {
  if (run_queue_.size() <= kFewTasks) {
    const std::size_t pending = group_->pending_events();
    if (pending == 0 || pending > most_events) return false;
    LookForIo();
  }
  const std::uint32_t queued = run_queue_.size();
  if (queued == 0 || queued > keep_limit_) return false;
  Push(task);
  return true;
}

}  // namespace flare::fiber
