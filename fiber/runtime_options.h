// RuntimeOptions: how StartRuntime() (runtime.h) sets up the runtime.

#ifndef FLARE_FIBER_RUNTIME_OPTIONS_H_
#define FLARE_FIBER_RUNTIME_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/diagnostics/thread_lock_check.h"
#include "flare/fiber/scheduler/poller.h"

namespace flare::fiber {

class Schedule;
struct StuckReport;

struct RuntimeOptions {
  // Workers wanted; 0: as many as CPUs are available, at least 4. May be
  // rounded up so that groups are of equal size (see plan.h).
  int concurrency = 0;

  // "compute-heavy", "compute", "neutral", "io", "io-heavy", "customized":
  // how workers are cut into groups and how eagerly idle ones are woken.
  std::string optimize_for = "neutral";

  // Given explicitly, either of these makes the plan "customized".
  std::optional<int> group_size = std::nullopt;
  std::optional<bool> numa_aware = std::nullopt;

  // Bytes of one fiber stack, a multiple of the page size, guard included.
  std::size_t stack_size = 131072;
  bool stack_guard = true;
  // Stacks that there may be at a time, dealt evenly to the groups; 0: as many
  // as the system has. At least two per worker. When a group has no more, tasks
  // that have not started wait; those that have go on. See ShortOfStacks().
  std::size_t max_stacks = 0;
  // Stacks that nobody needed for half of this, up to all of it, return their
  // memory. 0: never.
  std::chrono::nanoseconds stack_idle = std::chrono::seconds(10);
  // Free memory of the general allocator is returned to the system when no task
  // has run for so long, and before if it has been free for long or few tasks
  // run (memory_watch.h). Works with jemalloc and glibc. 0: when the allocator
  // likes.
  std::chrono::nanoseconds heap_idle = std::chrono::seconds(10);
  // Records how deep stacks get (stack_profile.h), at 1 to 3 us per task.
  bool stack_profile = false;

  // How readily a group's idle workers take work from another group of the same
  // node: one search in this many looks there, and a group whose workers are
  // all busy while work waits is helped by an idle one at the latest after two
  // periods of the watch (watch.h). 0: never.
  int work_stealing_ratio = 16;
  // The ratio for groups of other nodes, which are helped when they have been
  // short of workers for this many periods of the watch. 0: never.
  int cross_numa_work_stealing_ratio = 0;

  // Tasks that the run queues of a group's workers hold together, a power of
  // two; beyond it tasks go through the group's shared queue, which has no
  // limit. A worker's own queue is never longer than 256, so more than 256 per
  // worker means just that.
  std::size_t run_queue_size = 65536;

  // Restricts workers to these CPUs ("0-3,6"), or to all but those; empty: all
  // that the process may use. Negative numbers count from the last CPU. One of
  // them at most.
  std::string accessible_cpus = "";
  std::string inaccessible_cpus = "";

  // Binds each worker to one CPU of its own. An error if there are fewer CPUs
  // than workers; with concurrency 0 there are as many workers as CPUs.
  bool disallow_cpu_migration = false;

  // Named sets of groups, "front:0-3;batch:4,5" (group_sets.h). Groups of
  // different sets never take work from each other.
  std::string group_sets = "";

  // A file that describes the machine (Topology::FromDescription in
  // base/topology.h), used instead of the kernel's description: to plan for
  // another one. Workers are bound to the CPUs described if the process may use
  // them all.
  std::string topology_file = "";

  // A task that holds its worker for longer than this is reported with its
  // backtrace (stuck_report.h), to `on_stuck` if given, else to the log. 0:
  // never.
  std::chrono::nanoseconds stuck_threshold = std::chrono::seconds(1);
  std::function<void(const StuckReport&)> on_stuck = nullptr;

  // How often the watch looks whether a task holds up others while a worker
  // sleeps: about half of how long those may wait. Four times as long while no
  // task has begun that could, up to eight times while nobody has needed help,
  // or 32 times if all are busy; 16 times where a worker stands by, as long as
  // nothing waits (watch.h). 0: never, and they wait for as long as that task
  // runs.
  std::chrono::nanoseconds watch_period = std::chrono::microseconds(50);

  // Workers that each group has in reserve: when the watch finds that a task
  // blocks its worker's thread while other tasks wait for a worker, one of
  // these takes its place until it has ended. They are started when first
  // needed, and one more, to stand by for the next event. Fewer in groups that
  // would have more than 64 workers with them, and none for groups of a single
  // worker: nothing runs in parallel there.
  int reserve_workers = 8;

  // Decides in which order tasks are run (schedule.h). For tests. nullptr: the
  // schedule that $FLARE_SHUFFLE_SEED asks for (shuffle.h), usually none.
  std::shared_ptr<Schedule> schedule = nullptr;

  // For how long a plain thread that waits for a fiber looks whether it has
  // been woken, if that has proved worth it lately, before it sleeps
  // (thread_wait.h): a sleeping CPU is slow to wake. 0: never.
  std::chrono::nanoseconds thread_spin = std::chrono::microseconds(100);

  // Whether it is reported, and fatal, that a fiber is suspended while its
  // thread holds a ThreadMutex (thread_lock_check.h).
  ThreadLockCheck thread_lock_check = kDefaultThreadLockCheck;

  // Threads that blocking regions may have together (blocking_region.h), and
  // after how long without one they end.
  std::size_t max_blocking_threads = 256;
  std::chrono::nanoseconds blocking_thread_idle = std::chrono::seconds(10);

  // Makes the poller that idle workers of a group wait in. Empty: the one that
  // SetDefaultPoller() was given, so epoll in a program that links io/. They
  // only wait for each other and for timers where there is no poller: where
  // neither is given, or `make_poller` returns nullptr, or `schedule` is
  // deterministic.
  std::function<Expected<std::unique_ptr<Poller>, Status>(std::size_t group)>
      make_poller = nullptr;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUNTIME_OPTIONS_H_
