// [MW1] Before the watch sleeps without limit it looks at the groups' idle
//       masks, and at how often workers have woken; workers change both
//       (seq_cst) and then poke it. So, by [PT1], either the watch sees that a
//       worker has been awake since it last looked, or that worker wakes it.
#include "flare/fiber/scheduler/memory_watch.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/free_memory.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker_state.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kLeastIdleNs = 2'000'000;
constexpr std::int64_t kMostIdleNs = std::int64_t{1} << 56;  // Two years.

// While tasks run, an allocator that doesn't know how old free memory is has to
// search all of it. That is done only while few run, from one look to the next,
// and at longer intervals if it returns little, until the process has grown or
// been busy again.
constexpr std::uint64_t kFewTasks = 1000;
constexpr std::size_t kLittleBytes = std::size_t{1} << 20;
constexpr std::size_t kGrowthBytes = std::size_t{16} << 20;
constexpr int kMostStretched = 32;

// 0 stays 0.
std::int64_t Sensible(std::int64_t idle_ns) {
  return idle_ns <= 0 ? 0 : std::clamp(idle_ns, kLeastIdleNs, kMostIdleNs);
}

}  // namespace

MemoryWatch::MemoryWatch(std::vector<SchedulingGroup*> groups,
                         const Options& options)
    : groups_(std::move(groups)),
      options_{Sensible(options.stack_idle_ns),
               Sensible(options.heap_idle_ns)} {}

MemoryWatch::~MemoryWatch() = default;

void MemoryWatch::Start() {
  if (options_.stack_idle_ns == 0 && options_.heap_idle_ns == 0) return;
  thread_.Start([this] { Main(); });
}

void MemoryWatch::Stop() { thread_.Stop(); }

void MemoryWatch::Main() {
  pthread_setname_np(pthread_self(), "flare_memory");
  heap_returned_ = options_.heap_idle_ns == 0;
  while (!thread_.stopping()) {
    const std::int64_t now = NowNs();
    const bool any_awake = Look(now);
    if (options_.stack_idle_ns != 0) TrimStacks(now);
    if (!heap_returned_) TrimHeap(now);
    if (any_awake || !heap_returned_ || HasWarmStacks()) {
      thread_.SleepUntil(NextLook());
    } else {
      thread_.SleepUnless([this] { return Changed(); });  // [MW1]
    }
  }
}

bool MemoryWatch::Changed() const {
  std::uint64_t rouses = 0;
  for (const SchedulingGroup* group : groups_) {
    if (group->idle_mask() != group->all_idle_mask()) return true;
    rouses += group->rouses();
  }
  return rouses != rouses_seen_;
}

bool MemoryWatch::Look(std::int64_t now_ns) {
  bool any_awake = false;
  std::uint64_t rouses = 0;
  std::uint64_t tasks = 0;
  for (const SchedulingGroup* group : groups_) {
    rouses += group->rouses();
    any_awake |= group->idle_mask() != group->all_idle_mask();
    for (std::size_t i = 0; i < group->size(); ++i) {
      // relaxed: a counter, compared with itself.
      tasks +=
          group->worker(i)->counters().tasks.load(std::memory_order_relaxed);
    }
  }
  // Workers also wake to return spare stacks of theirs, and run no task then.
  if (any_awake || tasks != tasks_seen_) {
    last_active_ns_ = now_ns;
    heap_returned_ = options_.heap_idle_ns == 0;
  }
  rouses_seen_ = rouses;
  tasks_seen_ = tasks;
  return any_awake;
}

void MemoryWatch::TrimStacks(std::int64_t now_ns) {
  if (now_ns < next_stacks_ns_) return;
  next_stacks_ns_ = SaturatingAdd(now_ns, options_.stack_idle_ns / 2);
  for (SchedulingGroup* group : groups_) group->stacks()->Trim();
}

bool MemoryWatch::HasWarmStacks() const {
  return options_.stack_idle_ns != 0 &&
         std::ranges::any_of(groups_, [](SchedulingGroup* group) {
           return group->stacks()->warm() != 0;
         });
}

void MemoryWatch::TrimHeap(std::int64_t now_ns) {
  if (now_ns - last_active_ns_ >= options_.heap_idle_ns) {
    ReturnAllFreeMemory();
    heap_returned_ = true;
    return;
  }
  if (now_ns < next_heap_ns_) return;
  next_heap_ns_ = SaturatingAdd(now_ns, options_.heap_idle_ns / 2);
  if (!ReturnOldFreeMemory()) SearchHeap(now_ns);
}

void MemoryWatch::SearchHeap(std::int64_t now_ns) {
  const bool busy = tasks_seen_ - tasks_then_ > kFewTasks;
  tasks_then_ = tasks_seen_;
  const std::size_t resident = ResidentBytes();
  if (busy || resident > resident_then_ + kGrowthBytes) {
    stretched_ = 1;
    next_search_ns_ = now_ns;
  }
  resident_then_ = resident;
  if (busy || now_ns < next_search_ns_) return;
  ReturnAllFreeMemory();
  resident_then_ = ResidentBytes();
  const bool little = resident < resident_then_ + kLittleBytes;
  stretched_ = little ? std::min(2 * stretched_, kMostStretched) : 1;
  // Half a look early, as looks are late.
  next_search_ns_ =
      SaturatingAdd(now_ns, options_.heap_idle_ns / 4 * (2 * stretched_ - 1));
}

std::int64_t MemoryWatch::NextLook() const {
  std::int64_t next = kNoDeadline;
  if (options_.stack_idle_ns != 0) next = next_stacks_ns_;
  if (!heap_returned_) {
    next = std::min({next, next_heap_ns_,
                     SaturatingAdd(last_active_ns_, options_.heap_idle_ns)});
  }
  return next;
}

}  // namespace flare::fiber
