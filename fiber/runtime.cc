#include "flare/fiber/runtime.h"

#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/topology.h"
#include "flare/fiber/fork_guard.h"
#include "flare/fiber/group_sets.h"
#include "flare/fiber/plan.h"
#include "flare/fiber/runtime_state.h"
#include "flare/fiber/scheduling_group.h"
#include "flare/fiber/shutdown.h"
#include "flare/fiber/stuck_report.h"
#include "flare/fiber/stack.h"
#include "flare/fiber/task.h"
#include "flare/fiber/terminate_handler.h"
#include "flare/fiber/watch.h"
#include "flare/fiber/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// Two of these are what a ready task may have to wait for the watch.
constexpr std::int64_t kWatchPeriodNs = 50'000;

struct Runtime {
  Plan plan;
  GroupSets sets;
  std::vector<std::unique_ptr<SchedulingGroup>> groups;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<StuckWatch> stuck;  // nullptr: no reports.
  Shutdown shutdown;
};

// Set before the workers start and cleared after they ended; read by everyone.
std::atomic<Runtime*> runtime{nullptr};
// In a forked child, the parent's: it can't be used, nor destroyed.
Runtime* abandoned = nullptr;

// acquire: pairs with the release in StartRuntime.
Runtime* Current() { return runtime.load(std::memory_order_acquire); }

Runtime* MustBeRunning() {
  Runtime* const current = Current();
  if (current == nullptr && IsForkedChild()) DieAsForkedChild();
  CHECK(current != nullptr)
      << "the fiber runtime is not running: call this inside flare::Start() "
         "(or between fiber::StartRuntime() and TerminateRuntime())";
  return current;
}

// The CPUs that workers may run on.
Expected<Topology, Status> ReadTopology(const std::string& accessible_cpus) {
  Topology topology = Topology::FromSystem();
  if (accessible_cpus.empty()) return topology;
  Expected<std::vector<int>, Status> wanted = ParseCpuList(accessible_cpus);
  if (!wanted) return Unexpected(wanted.error());
  return topology.RestrictedTo(*wanted);
}

// Built by a thread that is bound like the group's workers, so that its memory
// lies on their node.
std::unique_ptr<SchedulingGroup> BuildGroup(SchedulingGroup::Options options) {
  std::unique_ptr<SchedulingGroup> group;
  std::thread([&] {
    if (!options.cpus.empty()) {
      const Status bound = SetThreadAffinity(options.cpus);
      LOG_IF(ERROR, !bound.ok()) << bound.message();
    }
    group = std::make_unique<SchedulingGroup>(std::move(options));
  }).join();
  return group;
}

void ConnectNeighbours(Runtime* rt) {
  for (auto& group : rt->groups) {
    std::vector<SchedulingGroup*> neighbours;
    for (auto& other : rt->groups) {
      if (other != group && other->node() == group->node() &&
          rt->sets.Together(other->index(), group->index())) {
        neighbours.push_back(other.get());
      }
    }
    group->SetNeighbours(std::move(neighbours));
    group->SetWatch(rt->watch.get());
    group->SetShutdown(&rt->shutdown);
  }
}

Status Validate(const RuntimeOptions& options) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (options.stack_size < page + kLeastStack ||
      options.stack_size % page != 0) {
    return Status(-1, "flare_fiber_stack_size is " +
                          std::to_string(options.stack_size) +
                          "; it must be a multiple of the page size, " +
                          std::to_string(page) + ", and at least " +
                          std::to_string(page + kLeastStack));
  }
  if (options.work_stealing_ratio < 0) {
    return Status(-1, "flare_work_stealing_ratio must not be negative");
  }
  return Status();
}

void StartStuckWatch(const RuntimeOptions& options, Runtime* rt,
                     std::vector<SchedulingGroup*> groups) {
  if (options.stuck_threshold.count() <= 0) return;
  rt->stuck = std::make_unique<StuckWatch>(
      std::move(groups),
      StuckWatch::Options{options.stuck_threshold.count(), options.on_stuck});
  for (auto& group : rt->groups) group->SetStuckWatch(rt->stuck.get());
  rt->stuck->Start();
}

// What makes mistakes visible.
void InstallGuards(const RuntimeOptions& options) {
  SetThreadLockCheck(options.thread_lock_check);
  InstallTerminateHandler();
  ArmForkGuard([] {
    // relaxed: the only thread of the child.
    abandoned = runtime.exchange(nullptr, std::memory_order_relaxed);
  });
}

}  // namespace

Status StartRuntime(const RuntimeOptions& options) {
  if (IsForkedChild()) return Status(-1, kForkedChildMessage);
  if (IsRuntimeRunning()) return Status(-1, "the runtime is running already");
  if (Status status = Validate(options); !status.ok()) return status;
  Expected<Topology, Status> topology = ReadTopology(options.accessible_cpus);
  if (!topology) return topology.error();
  PlanRequest request;
  request.concurrency = options.concurrency;
  request.cpus = static_cast<std::size_t>(topology->parallelism());
  request.nodes = topology->nodes().size();
  request.optimize_for = options.optimize_for;
  request.group_size = options.group_size;
  request.numa_aware = options.numa_aware;
  Expected<Plan, Status> plan = MakePlan(request);
  if (!plan) return plan.error();

  Expected<GroupSets, Status> sets =
      GroupSets::Parse(options.group_sets, plan->groups);
  if (!sets) return sets.error();

  auto rt = std::make_unique<Runtime>();
  rt->plan = *plan;
  rt->sets = *std::move(sets);
  for (std::size_t i = 0; i < plan->groups; ++i) {
    SchedulingGroup::Options group;
    group.index = i;
    group.workers = plan->workers_per_group;
    group.wake_threshold_ns = plan->wake_threshold_ns;
    group.work_stealing_ratio = options.work_stealing_ratio;
    group.stacks.stack_size = options.stack_size;
    group.stacks.guard = options.stack_guard;
    const Topology::Node& node =
        topology->nodes()[i % topology->nodes().size()];
    if (plan->numa_aware) group.node = node.id;
    group.cpus = plan->numa_aware ? node.cpus : topology->cpus();
    if (options.make_poller) group.poller = options.make_poller(i);
    rt->groups.push_back(BuildGroup(std::move(group)));
  }
  std::vector<SchedulingGroup*> all;
  for (auto& group : rt->groups) all.push_back(group.get());
  rt->shutdown.SetGroups(all);
  StartStuckWatch(options, rt.get(), all);
  rt->watch = std::make_unique<Watch>(std::move(all), kWatchPeriodNs);
  ConnectNeighbours(rt.get());
  LOG(INFO) << "fiber runtime: " << plan->groups << " scheduling group(s) of "
            << plan->workers_per_group << " worker(s), "
            << (plan->numa_aware ? "bound to NUMA nodes" : "not NUMA-bound")
            << " (" << plan->why << "; " << topology->ToString() << ")";
  Runtime* const started = rt.release();
  // release: pairs with the acquire in Current.
  runtime.store(started, std::memory_order_release);
  InstallGuards(options);
  for (auto& group : started->groups) group->Start();
  started->watch->Start();
  return Status();
}

void TerminateRuntime() {
  std::unique_ptr<Runtime> ending(MustBeRunning());
  CHECK(!IsFiberWorker()) << "TerminateRuntime() from a fiber would wait for "
                             "itself";
  ending->shutdown.Request();
  for (auto& group : ending->groups) group->Join();
  ending->watch->Stop();
  if (ending->stuck != nullptr) ending->stuck->Stop();
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
  // release: pairs with the acquire in Current.
  runtime.store(nullptr, std::memory_order_release);
  DisarmForkGuard();
}

bool IsRuntimeRunning() { return Current() != nullptr; }

bool IsFiberWorker() { return CurrentWorker() != nullptr; }

std::size_t GetSchedulingGroupCount() { return MustBeRunning()->groups.size(); }

std::size_t GetSchedulingGroupSize() {
  return MustBeRunning()->plan.workers_per_group;
}

std::size_t GetCurrentSchedulingGroupIndex() { return NearestGroup()->index(); }

int GetSchedulingGroupNode(std::size_t group) {
  return GetGroup(group)->node();
}

Expected<std::vector<std::size_t>, Status> FindSchedulingGroups(
    const std::string& name) {
  return MustBeRunning()->sets.Find(name);
}

Poller* GetPoller(std::size_t group) { return GetGroup(group)->poller(); }

RuntimeStatistics GetRuntimeStatistics() {
  RuntimeStatistics sum;
  Runtime* const rt = MustBeRunning();
  // relaxed: independent counters.
  const auto get = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  for (auto& group : rt->groups) {
    for (std::size_t i = 0; i < group->size(); ++i) {
      const Worker::Counters& counters = group->worker(i)->counters();
      sum.tasks += get(counters.tasks);
      sum.suspends += get(counters.suspends);
      sum.steals += get(counters.steals);
      sum.parks += get(counters.parks);
      sum.polls += get(counters.polls);
      sum.overflows += get(counters.overflows);
    }
    sum.wakes += group->wakes();
  }
  sum.watch_wakes = rt->watch->wakes();
  if (rt->stuck != nullptr) sum.stuck_reports = rt->stuck->reports();
  return sum;
}

Histogram GetReadyDelays() {
  Histogram sum;
  for (auto& group : MustBeRunning()->groups) {
    sum.Merge(group->ready_delays().Snapshot());
  }
  return sum;
}

SchedulingGroup* GetGroup(std::size_t index) {
  Runtime* const rt = MustBeRunning();
  CHECK_LT(index, rt->groups.size()) << "no such scheduling group";
  return rt->groups[index].get();
}

SchedulingGroup* NearestGroup() {
  if (Worker* const worker = CurrentWorker()) return worker->group();
  static std::atomic<std::size_t> next{0};
  // relaxed: only to deal threads out. A plain thread never changes under us.
  static thread_local const std::size_t turn =
      next.fetch_add(1, std::memory_order_relaxed);
  Runtime* const rt = MustBeRunning();
  return rt->groups[turn % rt->groups.size()].get();
}

void Submit(Task* task) { SubmitFrom(CurrentWorker(), task); }

void SubmitFrom(Worker* worker, Task* task) {
  if (worker != nullptr) {
    worker->Push(task);
  } else {
    NearestGroup()->Inject(task);
  }
}

void SubmitAll(TaskList&& tasks) {
  if (Worker* const worker = CurrentWorker()) {
    worker->PushAll(std::move(tasks));
  } else {
    NearestGroup()->InjectAll(std::move(tasks));
  }
}

void SubmitTo(std::size_t group, Task* task) {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->group()->index() == group) {
    worker->Push(task);
  } else {
    GetGroup(group)->Inject(task);
  }
}

}  // namespace flare::fiber
