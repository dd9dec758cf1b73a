#include "flare/rpc/start/runtime_flags.h"

#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <string>

#include "flare/fiber/scheduler/group_size.h"
#include "flare/fiber/startup/plan.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/start/flag_check.h"

// --- Workers ---

DEFINE_int32(
    flare_concurrency_hint, 0,
    "Number of fiber workers wanted, maybe rounded up a little so that "
    "scheduling groups are of equal size. 0: as many as CPUs may be "
    "used, but at least 4.");
DEFINE_int32(flare_scheduling_group_size, 0,
             "Fiber workers per scheduling group (at most 64). Given, it "
             "decides how workers are cut into groups in place of "
             "--flare_fiber_scheduling_optimize_for.");
DEFINE_bool(flare_numa_aware, true,
            "Bind each scheduling group to a NUMA node. Given, it decides how "
            "workers are cut into groups in place of "
            "--flare_fiber_scheduling_optimize_for.");
DEFINE_string(flare_fiber_scheduling_optimize_for, "neutral",
              "How workers are cut into scheduling groups and how readily idle "
              "ones are woken: compute-heavy, compute, neutral, io, io-heavy "
              "or customized.");
DEFINE_string(flare_fiber_worker_accessible_cpus, "",
              "CPUs that fiber workers may use, as in \"0-10,11,-1\"; negative "
              "numbers count from the last. CPUs that the process may not use "
              "are left out. Empty: all that it may use.");
DEFINE_string(flare_fiber_worker_inaccessible_cpus, "",
              "CPUs that fiber workers may not use. Excludes "
              "--flare_fiber_worker_accessible_cpus.");
DEFINE_bool(flare_fiber_worker_disallow_cpu_migration, false,
            "Bind each fiber worker to one CPU of its own. There must be a CPU "
            "for each; with --flare_concurrency_hint=0 there are no more "
            "workers than CPUs.");
DEFINE_int32(flare_work_stealing_ratio, 16,
             "A worker that looks for work looks into another scheduling group "
             "of its NUMA node once in this many attempts. Sleeping workers "
             "are woken for groups without free ones, too. 0: never.");
DEFINE_int32(
    flare_cross_numa_work_stealing_ratio, 0,
    "A worker that looks for work helps a group of another NUMA node when that "
    "has been short of workers for this many periods of 50 us. 0: never.");
DEFINE_string(flare_scheduling_group_sets, "",
              "Named sets of scheduling groups that never take work from each "
              "other: \"front:0-3;batch:4,5\". Groups in none make one more.");
DEFINE_int32(flare_fiber_run_queue_size, 65536,
             "Tasks that the run queues of a scheduling group's workers hold "
             "together (at most 256 each), a power of two. Beyond it tasks go "
             "through the group's shared queue, which has no limit.");
DEFINE_string(flare_topology_file, "",
              "A file that describes the CPUs and NUMA nodes to plan for, "
              "instead of this machine's: docs/numa.md.");
DEFINE_int32(flare_io_spin_us, 100,
             "Microseconds for which a worker without work looks for IO again "
             "before it sleeps, if that has proved worth it lately: a sleeping "
             "CPU is slow to wake. Less where others want the CPU. So do plain "
             "threads that wait for a reply. 0: never.");
DEFINE_int32(flare_fiber_reserve_workers, 8,
             "Workers that each scheduling group has in reserve: one takes the "
             "place of each that is found to block its thread in a task while "
             "others wait. At most 64 with the workers, so that groups of 64 "
             "have none; nor have those of a single worker. 0: none at all.");
DEFINE_int32(flare_fiber_max_blocking_threads, 256,
             "Threads that blocking regions (RunBlocking) may have together; "
             "further regions wait for one.");
DEFINE_int32(flare_fiber_stack_size, 131072,
             "Bytes of a fiber's stack, its guard page included, a multiple of "
             "the page size.");
DEFINE_bool(flare_fiber_stack_enable_guard_page, true,
            "An unusable page at the end of each fiber's stack, so that an "
            "overflow is reported instead of overwriting something.");
DEFINE_int32(flare_fiber_max_stacks, 0,
             "Stacks of fibers at a time, dealt evenly to the scheduling "
             "groups: two per worker, and one for each fiber that is to wait "
             "at a time. When there are no more, tasks that have not started "
             "wait. 0: as many as the system has.");
DEFINE_int32(flare_fiber_stack_idle_seconds, 10,
             "Seconds within which stacks that aren't needed return their "
             "memory to the system, after half of them at the earliest. 0: "
             "never.");
DEFINE_int32(
    flare_heap_idle_seconds, 10,
    "Seconds without a task after which free memory of the general "
    "allocator (jemalloc or glibc's) returns to the system; while tasks run, "
    "only memory that has been free for long does. 0: the allocator decides.");

// --- Finding mistakes ---

DEFINE_int32(flare_fiber_stuck_threshold_ms, 1000,
             "Milliseconds after which a task that holds its worker, by "
             "computing or by blocking the thread, is logged with its "
             "backtrace. 0: never.");
DEFINE_string(flare_fiber_check_thread_locks, "default",
              "The reaction when a fiber is suspended while its thread holds a "
              "flare::ThreadMutex: \"report\" logs both places as an error, "
              "\"abort\" ends the program as well, \"off\" doesn't look; "
              "\"default\" is abort in debug builds, off in others.");

DEFINE_bool(flare_fiber_stack_profile, false,
            "Record how deep the stacks of fibers get, at 1 to 3 us per task "
            "(fiber/stack_profile.h).");

namespace flare::rpc {
namespace {

const FlagRange kRuntimeRanges[] = {
    {"flare_concurrency_hint", &FLAGS_flare_concurrency_hint, 0,
     fiber::kMaxConcurrency},
    {"flare_scheduling_group_size", &FLAGS_flare_scheduling_group_size, 0,
     fiber::kMaxGroupSize},
    {"flare_work_stealing_ratio", &FLAGS_flare_work_stealing_ratio, 0,
     kNoMaxFlag},
    {"flare_cross_numa_work_stealing_ratio",
     &FLAGS_flare_cross_numa_work_stealing_ratio, 0, kNoMaxFlag},
    {"flare_fiber_run_queue_size", &FLAGS_flare_fiber_run_queue_size, 4,
     1 << 24},
    {"flare_io_spin_us", &FLAGS_flare_io_spin_us, 0, 1000},
    {"flare_fiber_reserve_workers", &FLAGS_flare_fiber_reserve_workers, 0,
     fiber::kMaxGroupSize},
    {"flare_fiber_max_blocking_threads",
     &FLAGS_flare_fiber_max_blocking_threads, 1, 1 << 15},
    {"flare_fiber_stack_size", &FLAGS_flare_fiber_stack_size, 16384, 1 << 30},
    {"flare_fiber_max_stacks", &FLAGS_flare_fiber_max_stacks, 0, kNoMaxFlag},
    {"flare_fiber_stack_idle_seconds", &FLAGS_flare_fiber_stack_idle_seconds, 0,
     kMaxFlagSeconds},
    {"flare_heap_idle_seconds", &FLAGS_flare_heap_idle_seconds, 0,
     kMaxFlagSeconds},
    {"flare_fiber_stuck_threshold_ms", &FLAGS_flare_fiber_stuck_threshold_ms, 0,
     kNoMaxFlag},
};

struct ThreadLockCheckName {
  const char* name;
  fiber::ThreadLockCheck check;
};
constexpr ThreadLockCheckName kThreadLockChecks[] = {
    {"default", fiber::kDefaultThreadLockCheck},
    {"off", fiber::ThreadLockCheck::kOff},
    {"report", fiber::ThreadLockCheck::kReport},
    {"abort", fiber::ThreadLockCheck::kAbort},
};

// nullptr: there is none of that name.
const ThreadLockCheckName* FindThreadLockCheck(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kThreadLockChecks), std::end(kThreadLockChecks),
                   [&](const auto& check) { return name == check.name; });
  return found == std::end(kThreadLockChecks) ? nullptr : found;
}

bool GivenExplicitly(const char* flag) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(flag, &info) && !info.is_default;
}

}  // namespace

Expected<fiber::RuntimeOptions, flare::Status> RuntimeOptionsFromFlags() {
  fiber::RuntimeOptions options;
  options.concurrency = FLAGS_flare_concurrency_hint;
  options.optimize_for = FLAGS_flare_fiber_scheduling_optimize_for;
  if (FLAGS_flare_scheduling_group_size > 0) {
    options.group_size = FLAGS_flare_scheduling_group_size;
  }
  if (GivenExplicitly("flare_numa_aware")) {
    options.numa_aware = FLAGS_flare_numa_aware;
  }
  options.reserve_workers = FLAGS_flare_fiber_reserve_workers;
  options.max_blocking_threads =
      static_cast<std::size_t>(FLAGS_flare_fiber_max_blocking_threads);
  options.stack_size = static_cast<std::size_t>(FLAGS_flare_fiber_stack_size);
  options.stack_guard = FLAGS_flare_fiber_stack_enable_guard_page;
  options.stack_profile = FLAGS_flare_fiber_stack_profile;
  options.max_stacks = static_cast<std::size_t>(FLAGS_flare_fiber_max_stacks);
  options.stack_idle =
      std::chrono::seconds(FLAGS_flare_fiber_stack_idle_seconds);
  options.heap_idle = std::chrono::seconds(FLAGS_flare_heap_idle_seconds);
  options.stuck_threshold =
      std::chrono::milliseconds(FLAGS_flare_fiber_stuck_threshold_ms);
  if (const auto* const found =
          FindThreadLockCheck(FLAGS_flare_fiber_check_thread_locks)) {
    options.thread_lock_check = found->check;
  }
  options.make_poller = io::EpollPoller::Factory(
      {.spin = std::chrono::microseconds(FLAGS_flare_io_spin_us)});
  options.thread_spin = std::chrono::microseconds(FLAGS_flare_io_spin_us);
  options.work_stealing_ratio = FLAGS_flare_work_stealing_ratio;
  options.cross_numa_work_stealing_ratio =
      FLAGS_flare_cross_numa_work_stealing_ratio;
  options.run_queue_size =
      static_cast<std::size_t>(FLAGS_flare_fiber_run_queue_size);
  options.accessible_cpus = FLAGS_flare_fiber_worker_accessible_cpus;
  options.inaccessible_cpus = FLAGS_flare_fiber_worker_inaccessible_cpus;
  options.disallow_cpu_migration =
      FLAGS_flare_fiber_worker_disallow_cpu_migration;
  options.group_sets = FLAGS_flare_scheduling_group_sets;
  options.topology_file = FLAGS_flare_topology_file;
  // Each may be right and all of them together impossible.
  auto plan = fiber::DescribePlan(options);
  if (!plan) return plan.error();
  return options;
}

flare::Status ValidateRuntimeFlags() {
  if (flare::Status s = CheckFlagRanges(kRuntimeRanges); !s.ok()) return s;
  if (FLAGS_flare_fiber_stack_size % sysconf(_SC_PAGESIZE) != 0) {
    return BadFlag("flare_fiber_stack_size",
                   std::to_string(FLAGS_flare_fiber_stack_size),
                   "a multiple of the page size, " +
                       std::to_string(sysconf(_SC_PAGESIZE)));
  }
  if (const auto size = static_cast<unsigned>(FLAGS_flare_fiber_run_queue_size);
      !std::has_single_bit(size)) {
    return BadFlag("flare_fiber_run_queue_size", std::to_string(size),
                   "a power of two");
  }
  if (FindThreadLockCheck(FLAGS_flare_fiber_check_thread_locks) == nullptr) {
    return BadFlag("flare_fiber_check_thread_locks",
                   FLAGS_flare_fiber_check_thread_locks,
                   "default, off, report or abort");
  }
  const std::string& preset = FLAGS_flare_fiber_scheduling_optimize_for;
  if (!fiber::IsPreset(preset)) {
    return BadFlag("flare_fiber_scheduling_optimize_for", preset,
                   "compute-heavy, compute, neutral, io, io-heavy or "
                   "customized");
  }
  if (!FLAGS_flare_fiber_worker_accessible_cpus.empty() &&
      !FLAGS_flare_fiber_worker_inaccessible_cpus.empty()) {
    return flare::Status(EINVAL,
                         "--flare_fiber_worker_accessible_cpus and "
                         "--flare_fiber_worker_inaccessible_cpus exclude each "
                         "other: give one of them.");
  }
  return flare::Status();
}

}  // namespace flare::rpc
