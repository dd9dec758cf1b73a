// A worker: one thread that runs tasks. Its loop, next -> run -> steal -> park,
// lives at the bottom of every carrier (carrier.h); this class holds what the
// loop needs, wherever it currently runs.

#ifndef FLARE_FIBER_WORKER_H_
#define FLARE_FIBER_WORKER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>

#include "flare/base/cpu.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/run_queue.h"
#include "flare/fiber/scheduler/timer_wheel.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

class Schedule;
class SchedulingGroup;

class Worker {
 public:
  // `index` is that within the group, `number` that among all workers.
  // `schedule`: nullptr but in tests (schedule.h).
  Worker(SchedulingGroup* group, std::size_t index, std::size_t number,
         Schedule* schedule);
  ~Worker();

  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Start();
  void Join();  // If it was started.

  SchedulingGroup* group() const noexcept { return group_; }
  std::size_t index() const noexcept { return index_; }    // Within the group.
  std::size_t number() const noexcept { return number_; }  // Among all workers.
  Carrier* current() const noexcept { return current_; }
  // Of its thread, as of gettid(); 0 before that has started. Any thread.
  pid_t thread_id() const noexcept {
    return thread_id_.load(std::memory_order_relaxed);  // Only the number.
  }

  // Queues `task` behind what this worker has; its own thread only.
  void Push(Task* task) {
    if (!run_queue_.Push(task)) [[unlikely]] {
      Overflow(task);
    }
    MaybeWakeHelper();
  }
  // The same for a batch. If its tasks are long only the front stays here; the
  // rest is left to whichever worker of the group comes first.
  void PushAll(TaskList&& tasks);

  // Push() if some short tasks are queued, or pending events, `most_events` at
  // most, can be had that make some, which are worth waiting for.
  bool PushBehindOthers(Task* task, std::size_t most_events);
  // The same, but behind all that this worker has, and all pending events.
  bool PushBehindEvents(Task* task);

  // Any thread.
  RunQueue& run_queue() noexcept { return run_queue_; }
  TimerWheel& timers() noexcept { return timers_; }

  // Nodes for spawned closures, owner only.
  void* AllocateNode() {
    if (nodes_ == nullptr) [[unlikely]] {
      RefillNodes();
    }
    FreeNode* const node = nodes_;
    nodes_ = node->next;
    --node_count_;
    return node;
  }
  void RecycleNode(void* memory) {
    nodes_ = new (memory) FreeNode{nodes_};
    if (++node_count_ >= 2 * kNodeBatch) [[unlikely]] {
      ReturnNodes();
    }
  }

  // What the parking protocol (scheduling_group.cc) keeps here.
  struct alignas(kCacheLine) Parking {
    // 1 while it sleeps or is about to; the waker stores 0.
    std::atomic<std::uint32_t> word{0};
    // Where it sleeps. Written before the idle bit is set, read by the thread
    // that has cleared that bit.
    enum class SleepPlace : std::uint8_t { kFutex, kPoller, kStandby };
    SleepPlace place = SleepPlace::kFutex;
    // Its own, for standby.cc: who else ran, and the number of tasks they had
    // begun, when it last went to sleep in the poller.
    struct Others {
      std::uint64_t running = 0;
      std::uint64_t tasks = 0;
      bool operator==(const Others&) const = default;
    };
    Others others;
  };
  Parking& parking() noexcept { return parking_; }

  // For the watch and for statistics: written by this worker, read by anyone.
  // relaxed throughout: each is a counter of its own.
  struct Counters {
    std::atomic<std::uint64_t> tasks{0};
    std::atomic<std::uint64_t> suspends{0};
    std::atomic<std::uint64_t> resumes{0};
    std::atomic<std::uint64_t> steals{0};  // From all, the next two included.
    std::atomic<std::uint64_t> near_steals{0};  // From groups of the same node.
    std::atomic<std::uint64_t> far_steals{0};   // ... of other nodes.
    std::atomic<std::uint64_t> parks{0};
    std::atomic<std::uint64_t> polls{0};
    std::atomic<std::uint64_t> overflows{0};
  };
  const Counters& counters() const noexcept { return counters_; }
  // Changes whenever it begins or resumes a task. Any thread.
  std::uint64_t tasks_begun() const noexcept {
    return counters_.tasks.load(std::memory_order_relaxed);  // As above.
  }

 private:
  friend class BlockingRegion;
  friend class Carrier;
  friend class SchedulingGroup;
  friend struct FiberInspector;  // debug_layout.cc
  friend void SuspendFiber(WaitReason reason, void (*hook)(void*),
                           void* argument);

  struct FreeNode {
    FreeNode* next;
  };
  static constexpr std::size_t kNodeBatch = 256;
  // More than fibers end, in a relay, between two that are suspended.
  static constexpr std::size_t kMaxSpares = 1024;
  // Ring tasks run between two looks at the injection queue, timers and IO, or
  // fewer if they are expected to take longer than this. Of the group's workers
  // one looks for IO in this time, as long as there are tasks to run.
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
  // Of a batch only so much work stays with the worker that queued it.
  static constexpr std::int64_t kKeepNs = 500'000;
  // A worker retires after there has been a surplus for so long.
  static constexpr std::int64_t kSurplusNs = 1'000'000;
  static constexpr std::int64_t kProbeIntervalNs = 1'000'000;
  static constexpr std::int64_t kStackRetryNs = 10'000'000;

  // A counter that only this thread writes: no read-modify-write needed.
  static void Bump(std::atomic<std::uint64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
  }

  // The loop (carrier.cc), and what it runs (worker.cc).

  void ThreadMain();
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
  // Brings what the schedule chooses to the front of the ring.
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

  // Wakes an idle sibling if what is queued here is worth it.
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

  // A task that measures how long it takes to be run: it goes the way of all
  // others, through the ring, and may be stolen. Once a millisecond at most.
  struct DelayProbe : Task {
    static void Run(Task* self);
    SchedulingGroup* group = nullptr;
    std::int64_t queued_at_ns = 0;
    std::int64_t next_at_ns = 0;  // Not before this.
    std::atomic<bool> queued{false};
  };
  void Probe(std::int64_t now_ns);

  // IO (worker_io.cc).

  // Polls once without waiting.
  void LookForIo();
  void LookForIoBetweenTasks(std::int64_t now_ns);
  // Keep() for what a poller has handed out.
  void KeepReady(TaskList&& tasks);
  // The first task of pending events; nullptr: there are none.
  Task* FromPendingEvents();
  // The first of the tasks that wait for those; nullptr: there are none.
  Task* FromDeferred();

  // Tasks of others (worker_search.cc).

  Task* FromInjectionQueue();
  TaskList TakeInjected(std::size_t most);
  Task* PushAllButFirst(TaskList&& tasks);
  Task* Steal();
  // From other groups (neighbours.h).
  Task* StealFromNeighbours();
  Task* FireNeighboursTimers(std::int64_t now_ns);
  Task* StealFromGroup(SchedulingGroup* victim);
  Task* StealFrom(RunQueue* victim);

  // More workers than should run (reserve.cc) [RV4].

  // If there has been a surplus for long: what is queued here is the group's,
  // and this worker is to retire.
  void NoteSurplus(std::int64_t now_ns);
  // Sleeps. True: as SchedulingGroup::Park.
  bool Retire();

  // Switching (carrier.cc).

  // Returns the worker that switched back.
  Worker* SwitchTo(Carrier* from, Carrier* to);
  void AfterSwitch(Carrier* self);
  Carrier* NextCarrier();

  // Spare carriers (worker_stacks.cc), with the rules [ST1] to [ST6].

  Carrier* TakeSpare() {  // There is one [ST1].
    Carrier* const carrier = spares_;
    spares_ = carrier->next_spare_;
    --spare_count_;
    return carrier;
  }
  void AddSpare(Carrier* carrier) {
    if (spare_count_ >= kMaxSpares) [[unlikely]] {
      carrier->Destroy();
      return;
    }
    carrier->next_spare_ = spares_;
    spares_ = carrier;
    ++spare_count_;
  }
  // Before the start. False: there are no stacks.
  bool GetFirstStacks();
  bool GetSpare();
  void KeepSpares(std::size_t count);
  // The first task of the loop after it was switched to.
  Task* NextOnArrival() {
    if (spares_ == nullptr) [[unlikely]] {
      return NextWithoutSpare();
    }
    return Next();
  }
  Task* NextWithoutSpare();
  static bool IsResumption(const Task* task) {
    return task->run == &Carrier::Resume;
  }
  // Of the tasks that wait for a stack.
  TaskList TakeAside(std::size_t most);
  // For when some worker of the group is short, perhaps this one.
  void EaseShortage();
  void TrimSpares(std::int64_t now_ns);
  std::int64_t TrimDeadline() const;

  // Memory of closures (worker_nodes.cc).

  void RefillNodes();
  void ReturnNodes();

  SchedulingGroup* const group_;
  const std::size_t index_;
  const std::size_t number_;

  // Owner only, hot.
  Carrier* current_ = nullptr;
  Carrier* spares_ = nullptr;
  std::size_t spare_count_ = 0;
  FreeNode* nodes_ = nullptr;
  std::size_t node_count_ = 0;
  // What to do on arrival after a switch: keep the carrier that was left, or
  // run the hook of the fiber that suspended itself.
  Carrier* vacated_ = nullptr;
  void (*hook_)(void*) = nullptr;
  void* hook_argument_ = nullptr;
  // Of ThreadMutexes whose holding is noted (thread_lock_check.h).
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
  bool ran_out_ = false;               // Of tasks, since it was maintained.
  std::int64_t surplus_since_ns_ = 0;  // 0: there is none.
  bool retiring_ = false;
  std::uint32_t steal_attempts_ = 0;
  SchedulingGroup* last_victim_ = nullptr;  // A neighbour that had something.
  SchedulingGroup* invited_by_ = nullptr;   // ... whose timers may be due.
  const bool can_claim_;  // Several tasks at once: run_queue.h [RQ5].
  std::uint32_t random_;
  std::int64_t next_trim_ns_ = 0;
  std::int64_t estimate_since_ns_ = 0;
  std::uint64_t estimate_tasks_ = 0;
  std::int64_t mean_task_ns_ = 1000;
  void* thread_stack_pointer_ = nullptr;
  const void* thread_stack_bottom_ = nullptr;  // For AddressSanitizer.
  std::size_t thread_stack_size_ = 0;
  void* thread_tsan_fiber_ = nullptr;
  void* thread_fake_stack_ = nullptr;

  Counters counters_;
  alignas(kCacheLine) RunQueue run_queue_;
  DelayProbe probe_;
  TimerWheel timers_;
  Parking parking_;
  std::atomic<pid_t> thread_id_{0};
  std::thread thread_;
};

// The worker whose thread this is; nullptr on other threads. Never inlined:
// what it returns is stale after anything that may suspend the fiber.
Worker* CurrentWorker() noexcept;

// In a forked child, whose thread is no worker any more: `instead` is not one,
// either (fork_guard.cc).
void ReplaceCurrentWorker(Worker* instead) noexcept;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WORKER_H_
