// The watch: one thread that keeps the promise that a ready task waits no
// longer than about two periods while a worker of its group sleeps, whatever
// the other tasks do; five behind a task that begins when others have long had
// their threads, nine the first time after a while in which nobody needed help.
//
// Workers wake each other only when a backlog is known to be worth it. They
// can't know that the task they are about to run will block the thread, or take
// long: then the tasks queued behind it, and the sockets nobody polls, would
// wait for it. The watch looks at groups that have both sleeping and running
// workers, once a period, and wakes a sleeper for a worker that has been in the
// same task since the last look, or whose queue has not moved past where it
// ended then.
//
// A look costs some 10 us of CPU time on virtual machines, where timers are
// slow. So they become rare while nobody needs help, or can have come to need
// it since the last one (watch_pace.h, docs/decisions/0012-a-calmer-watch.md,
// 0026-settled-groups.md). And nobody has to stop for one: the watch is a batch
// thread (sched(7)), which the kernel starts when a CPU has nothing to run, or
// whatever runs has had its turn. Where all CPUs are taken one more worker
// would be no help, so looks that come late become rare
// (docs/decisions/0020-the-watch-gives-way.md, 0024-late-looks.md).
//
// A group all of whose workers are busy is helped in the same cases. Workers
// whose thread is asleep in the kernel, in a task that has lasted for 200 us,
// are marked, and ones from the group's reserve run in their place
// (scheduling_group.cc [RV1]). Else a sleeping worker of a neighbour helps: one
// is invited (neighbours.h) and woken. It takes tasks and fires timers; IO
// waits for the group's own workers.
//
// While workers are found to block their threads, one more stands by for the
// next event, so that the watch has less to find
// (docs/decisions/0030-a-standby-for-the-poller.md).
//
// When there is nobody to help or no helper, the watch sleeps, at no cost.

#ifndef FLARE_FIBER_WATCH_H_
#define FLARE_FIBER_WATCH_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "flare/fiber/scheduler/poked_thread.h"
#include "flare/fiber/scheduler/thread_policy.h"
#include "flare/fiber/scheduler/watch_pace.h"

namespace flare::fiber {

class SchedulingGroup;

class Watch {
 public:
  Watch(const std::vector<SchedulingGroup*>& groups, std::int64_t period_ns);
  ~Watch();  // Stop() first.

  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Start();
  void Stop();

  // For workers to poke: one has gone to sleep or woken, and the watch may have
  // something to do [WA1].
  PokedThread* thread() noexcept { return &thread_; }

  // Idle workers woken so far.
  std::uint64_t wakes() const noexcept {
    return wakes_.load(std::memory_order_relaxed);  // A counter.
  }

 private:
  // To ask the kernel about a thread takes as long as a look: only in tasks
  // that are worth a wake-up, again when one has lasted twice as long, and so
  // many at a time.
  static constexpr std::int64_t kAskAfterNs = 200'000;
  static constexpr int kMostAsked = 4;

  struct Sample {
    bool valid = false;
    std::uint64_t tasks = 0;
    std::uint32_t tail = 0;
    std::int64_t since_ns = 0;                // The first look at this task.
    std::int64_t ask_after_ns = kAskAfterNs;  // In it, the kernel.
  };
  struct Watched {
    SchedulingGroup* group;
    std::vector<Sample> samples;  // One per worker.
    bool injected = false;        // Something was in its shared queue.
    int shortage = 0;  // Looks in a row at which it needed a neighbour's help.
  };

  void Main();
  // Looks at one group. True: somebody might have to be woken for it.
  bool Look(Watched* watched, std::int64_t now_ns);
  void LookAtPartlyIdle(Watched* watched, std::uint64_t idle,
                        std::int64_t now_ns);
  // None of its workers can be woken. True: it has a reserve, or a neighbour
  // sleeps.
  bool LookAtBusy(Watched* watched, std::uint64_t idle, std::int64_t now_ns);
  // The workers of a group at one look, as masks.
  struct Survey {
    bool held_up = false;         // Any of them.
    bool queued = false;          // As well.
    std::uint64_t running = 0;    // Those looked at.
    std::uint64_t same_task = 0;  // As at the last look.
  };
  Survey LookAtWorkers(Watched* watched, std::uint64_t idle,
                       std::int64_t now_ns);
  // Marks those that block their threads, among `suspects`.
  void MarkBlocked(Watched* watched, std::uint64_t suspects,
                   std::int64_t now_ns);
  // A sleeper, or one from the reserve. True: it was.
  bool WakeOrStart(SchedulingGroup* group);
  bool StartReserve(SchedulingGroup* group);
  static bool IsExposed(const SchedulingGroup& group, std::int64_t now_ns);
  static bool IsNeglected(const SchedulingGroup& group, const Survey& seen);
  // The result of a look at a worker.
  struct Findings {
    bool held_up = false;    // Tasks or timers wait behind its task.
    bool queued = false;     // Tasks wait, if not for long yet.
    bool same_task = false;  // As at the last look.
  };
  Findings LookAtWorker(Watched* watched, std::size_t index,
                        std::int64_t now_ns);
  // A counter with one writer.
  static void Add(int n, std::atomic<std::uint64_t>* counter) {
    // relaxed: read by statistics only.
    counter->store(counter->load(std::memory_order_relaxed) +
                       static_cast<std::uint64_t>(n),
                   std::memory_order_relaxed);
  }
  static bool Watchable(const SchedulingGroup& group);
  bool AnythingToWatch() const;

  const std::int64_t period_ns_;  // The short one.
  ThreadPolicy policy_of_workers_;
  WatchPace pace_;
  LookResult look_;  // This one.
  std::vector<Watched> groups_;
  std::atomic<std::uint64_t> wakes_{0};
  PokedThread thread_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WATCH_H_
