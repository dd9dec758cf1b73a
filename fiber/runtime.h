// Starts, stops and describes the fiber runtime.
//
//   fiber::RuntimeOptions options;
//   options.concurrency = 4;
//   if (Status s = fiber::StartRuntime(options); !s.ok()) { ... }
//   fiber::Spawn([] { ... });
//   fiber::TerminateRuntime();
//
// Services call flare::Start() (init.h), which reads the flags and calls this.
// One runtime at a time in a process; it may be started again after it ended.

#ifndef FLARE_FIBER_RUNTIME_H_
#define FLARE_FIBER_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/histogram.h"
#include "flare/base/status.h"
#include "flare/fiber/runtime_options.h"
#include "flare/fiber/scheduler/poller.h"

namespace flare::fiber {

// The pollers of runtimes whose options have no make_poller; nullptr: none. For
// io/, which gives its own as the program starts. Any thread.
using PollerMaker =
    Expected<std::unique_ptr<Poller>, Status> (*)(std::size_t group);
void SetDefaultPoller(PollerMaker make) noexcept;

// Starts the workers, and returns when their threads are there. Any thread, one
// at a time. Errors: a value out of range, a CPU list that can't be read, a
// runtime already running, no memory for stacks, no more threads, an error from
// make_poller.
Status StartRuntime(const RuntimeOptions& options = {});

// Returns the text with which StartRuntime() would log the plan that it starts,
// on this machine or that of options.topology_file. Starts nothing. Errors: as
// those of StartRuntime().
Expected<std::string, Status> DescribePlan(const RuntimeOptions& options);

// Lets the workers finish all queued tasks, in all groups, then ends them.
// Blocks the thread until that is done, and blocking regions have ended, too.
// Call it from a plain thread (on a fiber, also in a blocking region, it ends
// the process), after all fibers have ended and all calls into the runtime from
// other threads have returned (Submit(), Event::Set(), ...). Fibers still
// suspended are counted in an error log line and abandoned; timers still armed
// never fire.
void TerminateRuntime();

// The functions below may be called by any thread or fiber, and don't block.
// Without a running runtime, or with a group that doesn't exist, they end the
// process with a message; but IsRuntimeRunning(), IsFiberWorker() and
// GetCurrentWorkerIndex() may always be called.

bool IsRuntimeRunning();

std::size_t GetSchedulingGroupCount();
// Workers per group.
std::size_t GetSchedulingGroupSize();
// The group of the calling worker; for a plain thread one that is fixed at its
// first call, dealt round robin.
std::size_t GetCurrentSchedulingGroupIndex();
// NUMA node of the group's workers; -1: not bound.
int GetSchedulingGroupNode(std::size_t group);
// The groups of the set `name` in RuntimeOptions::group_sets, ascending; "":
// all groups. Error ENOENT: there is no such set.
Expected<std::vector<std::size_t>, Status> FindSchedulingGroups(
    const std::string& name);
// How many tasks the group's workers have begun or resumed since the start. It
// stands still while tasks hold all of them. Any thread; doesn't block.
std::uint64_t GetTasksBegun(std::size_t group);
// The group's poller; nullptr: it has none.
Poller* GetPoller(std::size_t group);
// Is the caller running on a worker, so that blocking suspends a fiber rather
// than the thread?
bool IsFiberWorker();

// For arrays in which each worker has something of its own: how many workers
// there may be, those in reserve included, and which one the caller runs on
// until it is suspended; kNoWorker on other threads.
inline constexpr std::size_t kNoWorker = ~std::size_t{0};
std::size_t GetWorkerCount();
std::size_t GetCurrentWorkerIndex() noexcept;

// Counters since the start, summed over workers; approximate while running.
struct RuntimeStatistics {
  std::uint64_t tasks = 0;        // Run, resumed fibers included.
  std::uint64_t suspends = 0;     // Fibers that blocked.
  std::uint64_t steals = 0;       // Successful, of one or more tasks each:
  std::uint64_t near_steals = 0;  // ... those from other groups of the node,
  std::uint64_t far_steals = 0;   // ... and those from groups of other nodes.
  std::uint64_t wakes = 0;        // Idle workers woken to look for work.
  std::uint64_t watch_wakes = 0;  // Idle workers woken by the watch.
  // How often a task was found to block its worker's thread while others
  // waited, and how many workers of the reserve have been started for that.
  std::uint64_t blocked_workers = 0;
  std::uint64_t reserve_workers = 0;
  std::uint64_t parks = 0;             // Workers that went to sleep.
  std::uint64_t polls = 0;             // Calls of Poller::Poll.
  std::uint64_t overflows = 0;         // Run queues that spilled.
  std::uint64_t stuck_reports = 0;     // Tasks that held a worker too long.
  std::uint64_t blocking_threads = 0;  // Threads in blocking regions, now.
  std::uint64_t stacks = 0;            // In use now, spare ones included.
  std::uint64_t stack_shortages = 0;   // Workers that could get no spare one.
  std::uint64_t tasks_aside = 0;       // Waiting for a stack now.
  std::uint64_t rejected_tasks = 0;    // TrySpawn()s that said no.
};
RuntimeStatistics GetRuntimeStatistics();

// How long ready tasks have waited to be run, in nanoseconds, since the start:
// of a sample, up to a thousand tasks a second and worker.
Histogram GetReadyDelays();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUNTIME_H_
