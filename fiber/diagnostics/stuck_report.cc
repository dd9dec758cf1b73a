// [SW1] Before the watch sleeps without limit it looks at the groups' idle
//       masks; workers change their idle bit (seq_cst) and then poke it. So, by
//       [PT1], either the watch sees a worker that runs, or that worker wakes
//       it.
#include "flare/fiber/diagnostics/stuck_report.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/diagnostics/debug_layout.h"
#include "flare/fiber/diagnostics/stack_sampler.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker_state.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kPatienceNs = 200'000'000;
constexpr std::int64_t kLogWindowNs = 10'000'000'000;
constexpr int kLogsPerWindow = 10;

// Changes whenever a task ends, and when a worker that had none goes to sleep.
std::uint64_t StepsOf(const WorkerState& worker) {
  // relaxed, both: counters, compared with themselves.
  return worker.counters().tasks.load(std::memory_order_relaxed) +
         worker.counters().parks.load(std::memory_order_relaxed);
}

// `trace` is the backtrace as text. The lock of an initialiser has no name in
// the program, and a BlockingRegion is no cure for it.
const char* AdviceFor(const std::string& trace) {
  const bool initialiser =
      trace.find(" __cxa_guard_acquire") != std::string::npos ||
      trace.find(" pthread_once") != std::string::npos ||
      trace.find(" __pthread_once") != std::string::npos;
  return initialiser ? "It waits for an initialiser that runs once, of a "
                       "variable in a function or by std::call_once(). Such an "
                       "initialiser must not suspend its fiber."
                     : "Code that blocks the thread belongs into a "
                       "BlockingRegion, long computations should Yield() now "
                       "and then.";
}

}  // namespace

std::string StuckReport::ToString() const {
  char text[80];
  std::snprintf(text, sizeof(text), "worker %zu/%zu for %.3f s", group, worker,
                static_cast<double>(held_ns) * 1e-9);
  std::string all = std::string("a task holds ") + text + ": fiber ";
  all += name.empty() ? "without name" : '"' + name + '"';
  if (fiber_id != 0) all += ", id " + std::to_string(fiber_id);
  const std::string trace =
      backtrace.empty() ? "    (no backtrace: the thread didn't answer)\n"
                        : backtrace.ToString();
  all += ", entry " + EntryName(entry) + ". " + AdviceFor(trace) + "\n";
  return all + trace;
}

StuckWatch::StuckWatch(const std::vector<SchedulingGroup*>& groups,
                       Options options)
    : options_(std::move(options)) {
  CHECK_GT(options_.threshold_ns, 0);
  for (SchedulingGroup* group : groups) {
    groups_.push_back({group, std::vector<Sample>(group->capacity())});
  }
}

StuckWatch::~StuckWatch() = default;

void StuckWatch::Start() {
  StartStackSampler();  // For the samples of the thread.
  try {
    thread_.Start([this] { Main(); });
  } catch (const std::system_error&) {
    StopStackSampler();
    throw;
  }
}

void StuckWatch::Stop() {
  if (thread_.Stop()) StopStackSampler();
}

void StuckWatch::Main() {
  pthread_setname_np(pthread_self(), "flare_stuck");
  const std::int64_t tick_ns =
      std::max<std::int64_t>(options_.threshold_ns / 2, 1'000'000);
  while (!thread_.stopping()) {
    if (Look(NowNs())) {
      thread_.SleepUntil(NowNs() + tick_ns);
    } else {
      thread_.SleepUnless([this] { return AnyRuns(); });  // [SW1]
    }
  }
}

bool StuckWatch::Look(std::int64_t now_ns) {
  bool any_runs = false;
  std::uint64_t rouses = 0;
  for (Watched& watched : groups_) {
    rouses += watched.group->rouses();
    const std::uint64_t idle = watched.group->idle_mask();
    for (std::size_t i = 0; i < watched.group->size(); ++i) {
      Sample* const sample = &watched.samples[i];
      if ((idle >> i & 1) != 0) {
        sample->valid = false;
        continue;
      }
      any_runs = true;
      const WorkerState& worker = *watched.group->worker(i);
      if (!IsStuck(worker, now_ns, sample)) continue;
      sample->reported = true;
      Report(*watched.group, worker, now_ns - sample->since_ns);
    }
  }
  // Without this, each wake-up of workers with short tasks would wake the
  // watch.
  const bool any_woke = std::exchange(rouses_seen_, rouses) != rouses;
  return any_runs || any_woke;
}

// In a task that has lasted too long, and was not reported yet?
bool StuckWatch::IsStuck(const WorkerState& worker, std::int64_t now_ns,
                         Sample* sample) const {
  const std::uint64_t steps = StepsOf(worker);
  if (!sample->valid || sample->steps != steps) {
    *sample = {true, false, steps, now_ns};
    return false;
  }
  return !sample->reported &&
         now_ns - sample->since_ns >= options_.threshold_ns;
}

void StuckWatch::Report(const SchedulingGroup& group, const WorkerState& worker,
                        std::int64_t held_ns) {
  const std::uint64_t steps = StepsOf(worker);
  StuckReport report;
  report.group = group.index();
  report.worker = worker.index();
  report.held_ns = held_ns;
  CarrierView view;
  if (ReadCarrier(ReadCurrentCarrier(worker), &view)) {
    report.fiber_id = view.fiber_id;
    report.name = ReadName(view.name);
    report.entry = reinterpret_cast<const void*>(view.entry);
  }
  report.backtrace = SampleStack(worker.thread_id(), kPatienceNs);
  // It has ended meanwhile: where the thread is now says nothing about it.
  if (StepsOf(worker) != steps) report.backtrace = Backtrace();
  // relaxed: a counter with one writer.
  reports_.store(reports() + 1, std::memory_order_relaxed);
  if (options_.on_report) {
    options_.on_report(report);
  } else {
    Log(report);
  }
}

void StuckWatch::Log(const StuckReport& report) {
  const std::int64_t now = NowNs();
  if (now - log_window_ns_ >= kLogWindowNs) {
    LOG_IF(WARNING, logged_ > kLogsPerWindow)
        << logged_ - kLogsPerWindow << " more tasks held their workers";
    log_window_ns_ = now;
    logged_ = 0;
  }
  if (++logged_ <= kLogsPerWindow) LOG(WARNING) << report.ToString();
}

bool StuckWatch::AnyRuns() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const Watched& w) {
    return w.group->idle_mask() != w.group->all_idle_mask();
  });
}

}  // namespace flare::fiber
