// A worker: one thread that runs tasks. Its loop, next -> run -> steal -> park,
// lives at the bottom of every carrier (carrier.h); this class holds the state
// that the loop needs, wherever it currently runs.

#ifndef FLARE_FIBER_WORKER_H_
#define FLARE_FIBER_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "flare/base/clock.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/delay_probe.h"
#include "flare/fiber/scheduler/spawn_nodes.h"
#include "flare/fiber/scheduler/task_list.h"
#include "flare/fiber/scheduler/worker_state.h"

namespace flare::fiber {

class Schedule;
class SchedulingGroup;

class Worker final : public WorkerState {
 public:
  // `index` is that within the group, `number` that among all workers.
  // `schedule`: nullptr but in tests (schedule.h).
  Worker(SchedulingGroup* group, std::size_t index, std::size_t number,
         Schedule* schedule);
  ~Worker() override;

  // Makes a worker in the form that SchedulingGroup::Options asks for.
  static std::unique_ptr<WorkerState> Make(SchedulingGroup* group,
                                           std::size_t index,
                                           std::size_t number,
                                           Schedule* schedule);

  void Start() override;
  void Join() override;

  SchedulingGroup* group() const noexcept { return group_; }
  Carrier* current() const noexcept { return current_; }

  // Queues `task` behind this worker's tasks; its own thread only.
  void Push(Task* task) {
    if (!run_queue_.Push(task)) [[unlikely]] {
      Overflow(task);
    }
    MaybeWakeHelper();
  }
  // Pushes a batch. If its tasks are long only the front stays here; the rest
  // is left to whichever worker of the group comes first.
  void PushAll(TaskList&& tasks);

  // Push() if some short tasks are queued, or pending events, `most_events` at
  // most, are available that make some, which are worth waiting for.
  bool PushBehindOthers(Task* task, std::size_t most_events);
  // Push(), but behind all tasks that this worker has, and all pending events.
  bool PushBehindEvents(Task* task);

  // True once for each task, when it has run for kMaintenanceNs. False where
  // tasks are short on average, as there is no look at the clock before each.
  // Its own thread only.
  bool ClaimLongTask() {
    if (mean_task_ns_ <= kMaintenanceNs / 2 ||
        claimed_since_ns_ == estimate_since_ns_ ||
        NowNs() - estimate_since_ns_ < kMaintenanceNs) {
      return false;
    }
    claimed_since_ns_ = estimate_since_ns_;
    return true;
  }

  // Polls once without waiting; its own thread only.
  void LookForIo();

  // Memory for spawned closures; its own thread only.
  SpawnNodes& spawn_nodes() noexcept { return spawn_nodes_; }

 private:
  friend class BlockingRegion;
  friend void SuspendFiber(WaitReason reason, void (*hook)(void*),
                           void* argument);

  // Ring tasks run between two looks at the injection queue, timers and IO, or
  // fewer if they are expected to take longer than this. One of the group's
  // workers looks for IO in this time, as long as there are tasks to run.
  static constexpr std::uint32_t kMaintenanceInterval = 61;
  static constexpr std::int64_t kMaintenanceNs = 100'000;
  // A worker that was maintained so often and didn't run out of tasks meanwhile
  // takes so many events at a time.
  static constexpr std::uint32_t kEndless = 32;
  static constexpr int kEventsAtATime = 8;
  // Where there are more than two workers, one that finds the poller taken
  // while events are pending looks so often whether it is free: a microsecond
  // at most. Another one has it for a third of that, to take one event.
  static constexpr int kPollerLooks = 24;
  // Waiting behind so few costs more than it brings.
  static constexpr std::uint32_t kFewTasks = 8;
  // The work of a batch that stays with the worker that queued it, at most.
  static constexpr std::int64_t kKeepNs = 500'000;
  // A worker retires after there has been a surplus for so long.
  static constexpr std::int64_t kSurplusNs = 1'000'000;

  // The loop.

  void ThreadMain();
  // The bottom of each carrier's stack.
  static void EnterLoop(void* carrier, void* worker);
  // The scheduling loop; runs on carriers. Leaves (by switching to the thread's
  // own stack) when the group stops.
  // A second one keeps the stack profile (stack_profile.h).
  template <bool kProfiled>
  static void Loop(Carrier* self);
  void LeaveToThread();
  // The next task to run; sleeps while there is none. nullptr: stop.
  Task* Next();
  Task* NextWhenEmpty();
  Task* LookAround(bool searching);
  bool Sleep();
  // The oldest task, or the one that the schedule chooses.
  Task* Pop() {
    if (schedule_ != nullptr) [[unlikely]]
      Reorder();
    return run_queue_.Pop();
  }
  // Brings the task that the schedule chooses to the front of the ring.
  void Reorder();
  // Fires timers and polls IO without waiting, into the run queue.
  void Maintain();
  std::uint32_t TasksUntilMaintenance() const;
  // Queues them all here.
  void Keep(TaskList&& tasks);
  void Overflow(Task* task);
  // How many more tasks are worth keeping here.
  std::uint32_t Room() const {
    const std::uint32_t queued = run_queue_.size();
    return queued < keep_limit_ ? keep_limit_ - queued : 0;
  }
  std::size_t ShareOfInjected();

  // Wakes an idle sibling if the tasks queued here are worth it.
  void MaybeWakeHelper() {
    const std::uint32_t queued = run_queue_.size();
    if (queued >= wake_backlog_) [[unlikely]] {
      WakeHelper(queued);
    }
  }
  void WakeHelper(std::uint32_t queued);
  void WakeForInjected();

  // Re-estimates the mean task time, and from it how long a backlog is worth a
  // wake-up.
  void UpdateEstimate(std::int64_t now_ns);
  void SetEstimate(std::int64_t mean_task_ns);
  // With the group's estimate if that is much longer than the own, old one.
  void BeginAfterSleep();
  std::uint32_t TasksIn(std::int64_t ns) const;

  // Measures how long tasks wait, now and then.
  void Probe(std::int64_t now_ns);

  // IO: when to look, what to do with the poller's tasks, and which tasks wait
  // until none is left.

  void LookForIoBetweenTasks(std::int64_t now_ns);
  // Keep() for tasks that a poller has handed out.
  void KeepReady(TaskList&& tasks);
  // The first task of pending events; nullptr: there are none.
  Task* FromPendingEvents();
  // The first of the tasks that wait for those; nullptr: there are none.
  Task* FromDeferred();

  // Where a worker that has run out of work looks for some: the tasks of the
  // whole group, its siblings' rings, and other groups.

  Task* FromInjectionQueue();
  TaskList TakeInjected(std::size_t most);
  Task* PushAllButFirst(TaskList&& tasks);
  Task* Steal();
  // From other groups (neighbours.h).
  Task* StealFromNeighbours();
  Task* FireNeighboursTimers(std::int64_t now_ns);
  Task* StealFromGroup(SchedulingGroup* victim);
  Task* StealFrom(RunQueue* victim);

  // More workers than should run [RV4].

  // If there has been a surplus for long, the tasks queued here become the
  // group's, and this worker is to retire.
  void NoteSurplus(std::int64_t now_ns);
  // Sleeps. True: as SchedulingGroup::Park.
  bool Retire();

  // Switching.

  // Returns the worker that switched back.
  Worker* SwitchTo(Carrier* from, Carrier* to);
  void AfterSwitch(Carrier* self);
  Carrier* NextCarrier();

  // Running out of stacks (spare_carriers.cc).

  // The first task of the loop after it was switched to.
  Task* NextOnArrival() {
    if (spares_.empty()) [[unlikely]] {
      return NextWithoutSpare();
    }
    return Next();
  }
  Task* NextWithoutSpare();
  // Takes some of the tasks that wait for a stack.
  TaskList TakeAside(std::size_t most);
  // For when some worker of the group is short, perhaps this one.
  void EaseShortage();

  SchedulingGroup* const group_;
  SpawnNodes spawn_nodes_;
  // Duties on arrival after a switch: keep the carrier that was left, or run
  // the hook of the fiber that suspended itself.
  Carrier* vacated_ = nullptr;
  void (*hook_)(void*) = nullptr;
  void* hook_argument_ = nullptr;
  // The number of held ThreadMutexes whose holding is noted
  // (thread_lock_check.h).
  std::uint32_t thread_locks_held_ = 0;
  int* errno_ = nullptr;  // This thread's.
  Carrier::ExceptionGlobals* exception_globals_ = nullptr;
  Task* handed_to_loop_ = nullptr;  // The next task, taken by NextCarrier().
  Schedule* const schedule_;
  const std::uint32_t maintenance_interval_;
  std::uint32_t until_maintenance_ = 1;
  std::uint32_t wake_backlog_ = 1;
  std::uint32_t keep_limit_ = RunQueue::kSlots;  // Tasks that take kKeepNs.
  std::uint32_t turns_without_room_ = 0;
  std::uint32_t maintained_without_pause_ = 0;  // Times in a row.
  bool ran_out_ = false;                        // Since it was maintained.
  std::int64_t surplus_since_ns_ = 0;           // 0: there is none.
  bool retiring_ = false;
  std::uint32_t steal_attempts_ = 0;
  SchedulingGroup* last_victim_ = nullptr;  // A neighbour that had something.
  SchedulingGroup* invited_by_ = nullptr;   // ... whose timers may be due.
  const bool can_claim_;  // Several tasks at once: run_queue.h [RQ5].
  std::uint32_t random_;
  std::int64_t estimate_since_ns_ = 0;
  std::int64_t claimed_since_ns_ = 0;  // That of the last ClaimLongTask().
  std::uint64_t estimate_tasks_ = 0;
  std::int64_t mean_task_ns_ = 1000;
  void* thread_stack_pointer_ = nullptr;
  const void* thread_stack_bottom_ = nullptr;  // For AddressSanitizer.
  std::size_t thread_stack_size_ = 0;
  void* thread_tsan_fiber_ = nullptr;
  void* thread_fake_stack_ = nullptr;

  DelayProbe probe_;
  std::thread thread_;
};

// The worker whose thread this is; nullptr on other threads. Never inlined: its
// result is stale after anything that may suspend the fiber.
Worker* CurrentWorker() noexcept;

// Its number; `none` on other threads. For each count of a metric: as fast as
// CurrentWorker().
std::size_t CurrentWorkerNumberOr(std::size_t none) noexcept;

// In a forked child, whose thread is no worker any more: `instead` is not one,
// either (fork_guard.cc).
void ReplaceCurrentWorker(Worker* instead) noexcept;

// Suspends the calling fiber; must be called on a worker. `hook(argument)` runs
// once the fiber can be resumed (it must make sure that somebody Submit()s the
// carrier's resume_task() in time) and may do so itself. Returns after that, on
// whichever worker. Keeps errno.
void SuspendFiber(WaitReason reason, void (*hook)(void*), void* argument);

// Queues a suspended fiber again, in the group in which it was suspended, from
// wherever the caller runs: a fiber stays with its group unless it is stolen.
// Exactly once per suspension. Any thread.
void ResumeFiber(Carrier* carrier);

// The carrier that the calling code runs on; nullptr on a plain thread. Stays
// valid across suspensions: the fiber keeps its stack.
Carrier* CurrentCarrier();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WORKER_H_
