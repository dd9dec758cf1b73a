#include "flare/fiber/runtime.h"

#include <atomic>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "flare/fiber/diagnostics/stack_overflow.h"
#include "flare/fiber/diagnostics/stack_sampler.h"
#include "flare/fiber/diagnostics/stuck_report.h"
#include "flare/fiber/diagnostics/terminate_handler.h"
#include "flare/fiber/diagnostics/thread_exit.h"
#include "flare/fiber/diagnostics/thread_lock_check.h"
#include "flare/fiber/scheduler/blocking_pool.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/scheduler/membarrier.h"
#include "flare/fiber/scheduler/memory_watch.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/schedule.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/thread_hooks.h"
#include "flare/fiber/scheduler/watch.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/address_space.h"
#include "flare/fiber/stack/stack_use.h"
#include "flare/fiber/startup/group_builder.h"
#include "flare/fiber/startup/runtime_plan.h"
#include "flare/fiber/sync/thread_wait.h"
#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

struct Runtime : RuntimeState {
  ~Runtime() {
    for (const auto& group : groups) group->EndTimers();
  }

  RuntimePlan plan;
  std::shared_ptr<Schedule> schedule;  // nullptr but in tests.
  std::unique_ptr<Watch> watch;
  std::unique_ptr<StuckWatch> stuck;  // nullptr: no reports.
  std::unique_ptr<MemoryWatch> memory;
  Shutdown shutdown;
};

// In a forked child, the parent's: it can't be used or destroyed.
RuntimeState* abandoned = nullptr;

Runtime* Running() { return static_cast<Runtime*>(MustBeRunning()); }

Expected<RuntimePlan, Status> PlanFromOptions(const RuntimeOptions& options) {
  auto machine = ReadMachine(options);
  if (!machine) return machine.error();
  return PlanRuntime(options, *std::move(machine));
}

std::atomic<PollerMaker> default_poller{nullptr};

MakePoller PollersFor(const RuntimeOptions& options, const Schedule* schedule) {
  if (options.make_poller) return options.make_poller;
  if (schedule != nullptr && schedule->deterministic()) return nullptr;
  // relaxed: a function, which refers to nothing.
  return default_poller.load(std::memory_order_relaxed);
}

Expected<std::shared_ptr<Schedule>, Status> ScheduleFor(
    const RuntimeOptions& options) {
  if (options.schedule == nullptr) return ScheduleFromEnvironment();
  return options.schedule;
}

void MakeStuckWatch(const RuntimeOptions& options, Runtime* rt,
                    const std::vector<SchedulingGroup*>& groups) {
  if (options.stuck_threshold.count() <= 0) return;
  rt->stuck = std::make_unique<StuckWatch>(
      groups,
      StuckWatch::Options{options.stuck_threshold.count(), options.on_stuck});
  for (auto& group : rt->groups) group->SetStuckWatch(rt->stuck->thread());
}

// Without one under a schedule, as it goes by the real time.
void MakeMemoryWatch(const RuntimeOptions& options, Runtime* rt,
                     const std::vector<SchedulingGroup*>& groups) {
  if (rt->schedule != nullptr) return;
  rt->memory = std::make_unique<MemoryWatch>(
      groups, MemoryWatch::Options{options.stack_idle.count(),
                                   options.heap_idle.count()});
  for (auto& group : rt->groups) group->SetMemoryWatch(rt->memory->thread());
}

void MakeWhatGroupsShare(const RuntimeOptions& options, Runtime* rt) {
  std::vector<SchedulingGroup*> all;
  for (auto& group : rt->groups) all.push_back(group.get());
  rt->shutdown.SetMembers({all.begin(), all.end()});
  rt->blocking = std::make_unique<BlockingPool>(
      options.max_blocking_threads, options.blocking_thread_idle.count(),
      &rt->shutdown);
  MakeStuckWatch(options, rt, all);
  MakeMemoryWatch(options, rt, all);
  rt->watch = std::make_unique<Watch>(all, options.watch_period.count());
  for (auto& group : rt->groups) {
    group->SetWatch(rt->watch->thread());
    group->SetShutdown(&rt->shutdown);
  }
}

void StartThreads(Runtime* rt) {
  if (rt->stuck != nullptr) rt->stuck->Start();
  for (auto& group : rt->groups) group->Start();
  rt->watch->Start();
  if (rt->memory != nullptr) rt->memory->Start();
}

// Once they have been told to end. Also if only some of them have started.
void JoinThreads(Runtime* rt) {
  for (auto& group : rt->groups) group->Join();
  rt->watch->Stop();
  for (auto& group : rt->groups) group->JoinReserve();
  rt->blocking->Stop();
  if (rt->stuck != nullptr) rt->stuck->Stop();
  if (rt->memory != nullptr) rt->memory->Stop();
}

void Forget() {
  SetCurrentRuntime(nullptr);
  DisarmForkGuard();
}

// Throws std::system_error if there can be no more threads; *started is deleted
// then.
void StartThreadsOrUndo(Runtime* started) {
  try {
    StartThreads(started);
  } catch (const std::system_error&) {
    // Those that have started wait for the others to be idle.
    started->shutdown.Finish();
    JoinThreads(started);
    Forget();
    delete started;
    throw;
  }
}

// Runs on each thread that runs fibers.
void GuardThread() {
  AcceptStackSampling();
  InstallOverflowHandlerForThread();
  ForbidThreadExit();
}

// Installs the guards that make mistakes visible.
void InstallGuards(const RuntimeOptions& options) {
  SetThreadLockCheck(options.thread_lock_check);
  InstallTerminateHandler();
  InstallOverflowHandler();
  SetThreadHooks({.start = &GuardThread,
                  .end = &AllowThreadExit,
                  .suspension_under_lock = &ReportSuspensionUnderLock});
  SetStackProfile(options.stack_profile);
  ArmForkGuard([] { abandoned = SetCurrentRuntime(nullptr); });
}

// Throws std::system_error if there can be no more threads; nothing is left of
// the runtime then.
Status TryToStartRuntime(const RuntimeOptions& options) {
  if (IsForkedChild()) return Status(-1, kForkedChildMessage);
  if (IsRuntimeRunning()) return Status(-1, "the runtime is running already");
  auto plan = PlanFromOptions(options);
  if (!plan) return plan.error();
  auto schedule = ScheduleFor(options);
  if (!schedule) return schedule.error();

  // While there is one thread only, if there is: the kernel takes 20 ms else.
  static_cast<void>(MembarrierAvailable());
  auto rt = std::make_unique<Runtime>();
  rt->plan = *std::move(plan);
  rt->schedule = *std::move(schedule);
  // It decides among workers that are all there from the start.
  if (rt->schedule != nullptr) rt->plan.reserve = 0;
  if (Status s = BuildGroups(options, rt->plan,
                             PollersFor(options, rt->schedule.get()),
                             rt->schedule.get(), &rt->groups);
      !s.ok()) {
    return s;
  }
  // Besides the workers: three watches, and the thread that waits for signals.
  if (Status s = CheckAddressSpace(
          rt->plan.shape.groups * rt->plan.shape.workers_per_group + 4);
      !s.ok()) {
    return s;
  }
  MakeWhatGroupsShare(options, rt.get());
  // Skipped in thousands of runs.
  LOG_IF(INFO, rt->schedule == nullptr || !rt->schedule->deterministic())
      << "fiber runtime: " << rt->plan.ToString();
  Runtime* const started = rt.release();
  SetCurrentRuntime(started);
  InstallGuards(options);
  SetThreadSpin(options.thread_spin.count());
  StartThreadsOrUndo(started);
  return Status();
}

}  // namespace

void SetDefaultPoller(PollerMaker make) noexcept {
  // relaxed: see PollersFor.
  default_poller.store(make, std::memory_order_relaxed);
}

Status StartRuntime(const RuntimeOptions& options) {
  try {
    return TryToStartRuntime(options);
  } catch (const std::system_error& error) {
    return Status(error.code().value(),
                  std::string("can't start a thread: ") + error.what() +
                      "; have fewer workers (--flare_concurrency_hint), or "
                      "raise the limit of threads (ulimit -u, the cgroup's "
                      "pids.max) or of memory (ulimit -v)");
  }
}

Expected<std::string, Status> DescribePlan(const RuntimeOptions& options) {
  auto plan = PlanFromOptions(options);
  if (!plan) return plan.error();
  return plan->ToString();
}

void TerminateRuntime() {
  std::unique_ptr<Runtime> ending(Running());
  // A worker runs more than fibers, and fibers run in blocking regions, too.
  CHECK(!IsFiberWorker() && CurrentFiber() == nullptr)
      << "TerminateRuntime() from a fiber would wait for itself";
  ending->shutdown.Request();
  JoinThreads(ending.get());
  const RuntimeStatistics counted = GetRuntimeStatistics();
  std::uint64_t resumes = 0;
  for (auto& group : ending->groups) {
    for (std::size_t i = 0; i < group->size(); ++i) {
      resumes += group->worker(i)->counters().resumes.load(
          std::memory_order_relaxed);  // Its thread has ended.
    }
  }
  LOG_IF(ERROR, counted.suspends != resumes)
      << counted.suspends - resumes << " fiber(s) were still suspended when "
      << "the runtime ended; they are abandoned";
  Forget();
}

bool IsRuntimeRunning() { return CurrentRuntime() != nullptr; }

bool IsFiberWorker() { return CurrentWorker() != nullptr; }

std::size_t GetWorkerCount() {
  std::size_t sum = 0;
  for (auto& group : MustBeRunning()->groups) sum += group->capacity();
  return sum;
}

std::size_t GetCurrentWorkerIndex() noexcept {
  return CurrentWorkerNumberOr(kNoWorker);
}

std::size_t GetSchedulingGroupCount() { return MustBeRunning()->groups.size(); }

std::size_t GetSchedulingGroupSize() {
  return Running()->plan.shape.workers_per_group;
}

std::size_t GetCurrentSchedulingGroupIndex() { return NearestGroup()->index(); }

int GetSchedulingGroupNode(std::size_t group) {
  return GetGroup(group)->node();
}

Expected<std::vector<std::size_t>, Status> FindSchedulingGroups(
    const std::string& name) {
  return Running()->plan.sets.Find(name);
}

std::uint64_t GetTasksBegun(std::size_t group) {
  std::uint64_t tasks = 0;
  SchedulingGroup* const workers = GetGroup(group);
  for (std::size_t i = 0; i != workers->size(); ++i) {
    tasks += workers->worker(i)->tasks_begun();
  }
  return tasks;
}

Poller* GetPoller(std::size_t group) { return GetGroup(group)->poller(); }

RuntimeStatistics GetRuntimeStatistics() {
  RuntimeStatistics sum;
  Runtime* const rt = Running();
  // relaxed: independent counters.
  const auto get = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  for (auto& group : rt->groups) {
    for (std::size_t i = 0; i < group->size(); ++i) {
      const WorkerState::Counters& counters = group->worker(i)->counters();
      sum.tasks += get(counters.tasks);
      sum.suspends += get(counters.suspends);
      sum.steals += get(counters.steals);
      sum.near_steals += get(counters.near_steals);
      sum.far_steals += get(counters.far_steals);
      sum.parks += get(counters.parks);
      sum.polls += get(counters.polls);
      sum.overflows += get(counters.overflows);
    }
    sum.wakes += group->wakes();
    sum.blocked_workers += group->marks();
    sum.reserve_workers += group->size() - group->limit();
    sum.stacks += group->stacks()->allocated();
    sum.stack_shortages += group->shortage().shortages();
    sum.tasks_aside += group->shortage().aside();
    sum.rejected_tasks += group->shortage().rejected();
  }
  sum.watch_wakes = rt->watch->wakes();
  if (rt->stuck != nullptr) sum.stuck_reports = rt->stuck->reports();
  sum.blocking_threads = rt->blocking->threads();
  return sum;
}

Histogram GetReadyDelays() {
  Histogram sum;
  for (auto& group : MustBeRunning()->groups) {
    sum.Merge(group->ready_delays().Snapshot());
  }
  return sum;
}

}  // namespace flare::fiber
