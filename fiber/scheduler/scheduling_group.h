// A scheduling group: workers that share work, an injection queue and a poller.
// Bound to one NUMA node when the plan says so. Holds the protocol by which
// workers go to sleep and are woken (rules in scheduling_group.cc).

#ifndef FLARE_FIBER_SCHEDULING_GROUP_H_
#define FLARE_FIBER_SCHEDULING_GROUP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/base/histogram.h"
#include "flare/fiber/scheduler/group_size.h"
#include "flare/fiber/scheduler/injection_queue.h"
#include "flare/fiber/scheduler/neighbours.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/run_queue.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/stack_shortage.h"
#include "flare/fiber/scheduler/task_list.h"
#include "flare/fiber/scheduler/worker_state.h"
#include "flare/fiber/stack/stack.h"

namespace flare::fiber {

class PokedThread;
class Schedule;

class SchedulingGroup final : public Shutdown::Member {
 public:
  // Makes the worker with that index in the group, and that number among all.
  using MakeWorker = std::unique_ptr<WorkerState> (*)(SchedulingGroup* group,
                                                      std::size_t index,
                                                      std::size_t number,
                                                      Schedule* schedule);

  struct Options {
    std::size_t index = 0;
    std::size_t workers = 1;  // That run at a time.
    // Further ones, for when some of those block their threads [RV1];
    // kMaxGroupSize at most with them.
    std::size_t reserve = 0;
    int node = -1;          // NUMA node; -1: not bound.
    std::vector<int> cpus;  // Workers run on these; empty: anywhere.
    std::vector<int> pins;  // If not empty, worker i only on pins[i].
    // Arenas of the general allocator that workers use in turn (malloc_arena.h
    // in base/); empty: the allocator's choice.
    std::vector<unsigned> arenas;
    std::uint32_t run_queue_slots = RunQueue::kSlots;  // Slots of each worker.
    // A worker wakes an idle sibling when its queued tasks will take it longer
    // than this.
    std::int64_t wake_threshold_ns = 20'000;
    StackAllocator::Options stacks;
    // Within which time workers give up spare stacks that they don't need; 0:
    // never.
    std::int64_t stack_idle_ns = 10'000'000'000;
    std::unique_ptr<Poller> poller;
    Schedule* schedule = nullptr;      // Outlives the group.
    MakeWorker make_worker = nullptr;  // Worker::Make; must be given.
  };

  explicit SchedulingGroup(Options options);
  ~SchedulingGroup() override;

  SchedulingGroup(const SchedulingGroup&) = delete;
  SchedulingGroup& operator=(const SchedulingGroup&) = delete;

  // The other groups whose work this one may take.
  Neighbours& neighbours() noexcept { return neighbours_; }
  const Neighbours& neighbours() const noexcept { return neighbours_; }
  // Returns the neighbour with the most sleeping workers, if any has some, a
  // far one only if no near one has, after so many `periods` of shortage as its
  // ratio is; nullptr: none. AnyNeighbourIsIdle(): does any, near or far, have
  // a sleeping worker? For the watch (watch.cc). Any thread.
  SchedulingGroup* MostIdleNeighbour(int periods) const;
  bool AnyNeighbourIsIdle() const;

  // The shutdown that the group takes part in; before Start().
  void SetShutdown(Shutdown* shutdown) { shutdown_ = shutdown; }
  // Has the runtime been asked to end, and has it ended?
  bool ending() const noexcept { return shutdown_->requested(); }
  bool finished() const noexcept { return shutdown_->finished(); }
  // The thread of the watch, to poke when workers go to sleep or wake; before
  // Start().
  void SetWatch(PokedThread* thread) { watch_ = thread; }
  // The thread of stuck reports, which is poked at the same times; nullptr:
  // there is none.
  void SetStuckWatch(PokedThread* thread) { stuck_watch_ = thread; }
  // The thread that returns memory, which is poked at the same times; nullptr:
  // there is none.
  void SetMemoryWatch(PokedThread* thread) { memory_watch_ = thread; }

  // Gets the stacks that the workers start with. False: there are none.
  bool GetFirstStacks();
  void Start();
  // Waits for the workers to leave, after Shutdown::Request(); for those of the
  // reserve only after the watch, which may still start some, has stopped.
  void Join();
  void JoinReserve();
  // Afterwards, before any group is destroyed: a fiber that others have taken
  // sleeps on a stack of this group by a timer of theirs.
  void EndTimers();

  // Any thread.
  void Inject(Task* task);
  void InjectAll(TaskList&& tasks);
  // Injects tasks that are older than the queued ones. Any thread.
  void Return(TaskList&& tasks);

  // For a worker of the group: runs `task` when some worker has run out of
  // work, pending events included [P7].
  void DeferTask(Task* task) { deferred_.Push(task); }
  TaskList TakeDeferred() { return deferred_.Take(deferred_.size()); }
  std::size_t deferred() const noexcept { return deferred_.size(); }
  // Has them run as injected ones, which neighbours take, too. Any thread: they
  // are in a queue all the time, so the shutdown sees them.
  void InjectDeferred();

  // Makes sure that `searchers` workers are looking for work, as far as there
  // are idle ones to wake: at most kMaxSearchers. True: one or more were woken.
  // Any thread.
  bool Wake(int searchers);
  // Wakes for the tasks of a queue: one searcher if they are short work, two if
  // they are worth it; those wake others in their turn.
  bool WakeFor(std::size_t tasks);

  // Wakes the worker `index` if it is idle, to look at its timers or at the
  // stop flag again. True: it was. Any thread.
  bool WakeWorker(std::size_t index);
  void WakeAllIdle() override;

  std::size_t index() const noexcept { return options_.index; }
  int node() const noexcept { return options_.node; }
  // Workers that have started; those of the reserve start when needed.
  std::size_t size() const noexcept {
    // seq_cst: pairs with the changes in StartReserve, for the shutdown [SD1].
    return size_.load(std::memory_order_seq_cst);
  }
  // Workers that there may be, those of the reserve included.
  std::size_t capacity() const noexcept { return workers_.size(); }
  // Workers that may run at a time, not counting those that are known to block
  // their threads.
  std::size_t limit() const noexcept { return options_.workers; }
  WorkerState* worker(std::size_t i) const noexcept {
    return workers_[i].get();
  }
  Poller* poller() const noexcept { return options_.poller.get(); }
  // The pending events of the poller; 0 without one.
  std::size_t pending_events() const noexcept {
    return options_.poller == nullptr ? 0 : options_.poller->pending();
  }
  StackAllocator* stacks() noexcept { return &stacks_; }
  StackShortage& shortage() noexcept { return shortage_; }
  const StackShortage& shortage() const noexcept { return shortage_; }
  std::int64_t stack_idle_ns() const noexcept { return options_.stack_idle_ns; }
  const std::vector<int>& cpus() const noexcept { return options_.cpus; }
  // Binds the calling thread to the CPUs, and has it allocate from the arena,
  // of the worker `index`. Logs failures.
  void PlaceThread(std::size_t index) const;
  std::int64_t wake_threshold_ns() const noexcept {
    return options_.wake_threshold_ns;
  }

  // Bit i: worker i sleeps. seq_cst: pairs with the changes in Park, for the
  // watch (watch.cc [WA1]).
  std::uint64_t idle_mask() const noexcept {
    return idle_.load(std::memory_order_seq_cst);
  }
  // How many sleeping workers may be woken; any at all, without counting.
  std::size_t wakeable() const noexcept;
  bool CanWake() const noexcept {
    const std::uint64_t idle = idle_mask();
    return idle != 0 && (size() == limit() || Vacancies(idle) > 0);
  }

  // The limit isn't reached.
  bool HasVacancy() const noexcept { return Vacancies(idle_mask()) > 0; }

  // Workers that have been found to block their threads [RV1]. Bit i:
  // worker i does. relaxed: says how many should run, no more.
  std::uint64_t blocked_mask() const noexcept {
    return blocked_.load(std::memory_order_relaxed);
  }
  // Marks those of `suspects`, which have run the same task for a while, whose
  // threads sleep, if they aren't yet; from then on somebody is to stand by,
  // for a while. Asks the kernel, some microseconds for each. Any thread.
  void MarkBlocked(std::uint64_t suspects);
  void UnmarkBlocked(std::uint64_t workers) noexcept {
    if ((blocked_mask() & workers) == 0) return;
    // relaxed: a count.
    blocked_.fetch_and(~workers, std::memory_order_relaxed);
  }
  // Marks so far. relaxed: a counter.
  std::uint64_t marks() const noexcept {
    return marks_.load(std::memory_order_relaxed);
  }
  // Starts another worker of the reserve. False: none is left, or there is no
  // thread or stack for it, which is logged. By the watch alone.
  bool StartReserve();

  bool anybody_polls() const noexcept {
    return polling_.load(std::memory_order_relaxed);  // A hint.
  }
  // The next event finds a worker, though others may have their threads. A
  // hint; there must be a poller.
  bool WillSeeNextEvent() const noexcept {
    return anybody_polls() || options_.poller->standby_is_alert();
  }

  // Has a worker stand by for the one in the poller [SB1] until `until_ns`
  // (NowNs()), if not for longer already. Any thread, all these.
  void WantStandby(std::int64_t until_ns) noexcept {
    // relaxed, both: a preference.
    if (until_ns > standby_until_ns_.load(std::memory_order_relaxed)) {
      standby_until_ns_.store(until_ns, std::memory_order_relaxed);
    }
  }
  bool WantsStandby(std::int64_t now_ns) const noexcept {
    // relaxed: a preference.
    return standby_until_ns_.load(std::memory_order_relaxed) > now_ns &&
           options_.poller != nullptr && options_.poller->can_stand_by();
  }
  // One is to, and none does, nor is about to.
  bool LacksStandby(std::int64_t now_ns) const noexcept {
    // relaxed: a hint.
    return !standby_taken_.load(std::memory_order_relaxed) &&
           WantsStandby(now_ns);
  }
  // Wakes one that sleeps elsewhere than in the poller, to stand by. False:
  // there is none.
  bool WakeToStandBy();
  // How often workers have come out of sleep. seq_cst: pairs with the count in
  // Park (shutdown.cc [SD1]).
  std::uint64_t rouses() const noexcept override {
    return rouses_.load(std::memory_order_seq_cst);
  }
  // All workers sleep, and nothing is queued.
  bool LooksIdle() const noexcept override;
  std::size_t injected() const noexcept { return injection_.size(); }

  // Nobody has begun to look for IO between tasks since `interval_ns` before
  // `now_ns`. The caller is to do so then.
  bool TakeTurnToLook(std::int64_t now_ns, std::int64_t interval_ns) noexcept {
    // relaxed, both: two that look at once do no harm.
    if (now_ns - looked_at_ns_.load(std::memory_order_relaxed) < interval_ns) {
      return false;
    }
    looked_at_ns_.store(now_ns, std::memory_order_relaxed);
    return true;
  }

  // How long the group's tasks have taken lately, on the mean.
  std::int64_t mean_task_ns() const noexcept {
    return mean_task_ns_.load(std::memory_order_relaxed);  // A hint.
  }
  void set_mean_task_ns(std::int64_t mean) noexcept {
    mean_task_ns_.store(mean, std::memory_order_relaxed);  // A hint.
  }

  // Idle workers woken to look for work.
  std::uint64_t wakes() const noexcept {
    return wakes_.load(std::memory_order_relaxed);  // A counter.
  }

  // How long ready tasks have waited to be run: see delay_probe.h.
  ConcurrentHistogram& ready_delays() noexcept { return ready_delays_; }
  // Tasks wait for a stack (spare_carriers.cc), and a worker could take them.
  bool CanTakeAside() const noexcept {
    return shortage_.aside() != 0 && shortage_.mask() != all_idle_mask();
  }
  std::uint64_t all_idle_mask() const noexcept {
    return ~std::uint64_t{0} >> (kMaxGroupSize - size());
  }

  // For the group's workers only, each on its own thread.

  InjectionQueue& injection() noexcept { return injection_; }

  // Sleeps until there may be work: woken, a timer due, or the poller found
  // something, which it appends to `*ready`. True: somebody woke it, and has
  // counted it as searching.
  bool Park(WorkerState* worker, TaskList* ready);
  // Sleeps, whatever work there is, if there still is a surplus. True: as Park.
  bool Retire(WorkerState* worker);
  std::int64_t SleepDeadline(const WorkerState& worker, bool in_poller) const;

  // The right to use the poller, for one thread at a time.
  bool TryAcquirePoller();
  void ReleasePoller();

  // Looking for work at siblings is limited to so many at a time.
  bool BeginSearch();
  void EndSearch();

  // Fires whatever timers of the group are due.
  void FireTimers(std::int64_t now_ns);

  // Lets a task wait until a worker has a stack to spare.
  void PutAside(Task* task);
  // Wakes a worker that has stacks if tasks wait for one.
  void WakeForAside();
  // Gives such tasks to a neighbour that has stacks, if no worker here has.
  void PassAsideOn();

  // More workers run than should, as one that was thought to block its thread
  // doesn't any more [RV4].
  bool HasSurplus() const noexcept {
    return size() != limit() && Vacancies(idle_mask()) < 0;
  }
  // Returns the workers that run, except `worker`, and how far they are.
  WorkerState::Parking::Others LookAtOthers(
      const WorkerState& worker) const noexcept;

 private:
  // For so long after a task has been found to block its thread a worker is to
  // stand by.
  static constexpr std::int64_t kStandbyNs = 100'000'000;
  static constexpr int kMaxSearchers = 2;
  // A worker that is short of stacks sleeps for so long [ST6].
  static constexpr std::int64_t kStackRetryNs = 10'000'000;

  // The rest of Park(), once it is awake again.
  bool FinishPark(WorkerState* worker);

  // Where a worker is to sleep, with the right to it.
  WorkerState::Parking::SleepPlace ChoosePlace();

  // The right to stand by, for one thread at a time [SB1].
  bool TryBecomeStandby();
  void LeaveStandby();
  // For a worker that is about to sleep in the poller, as its bit says: has
  // somebody stand by if nobody does and all that run are held up.
  void SummonStandby(WorkerState* worker);

  // Tasks wait for a stack, and the worker has one.
  bool MayTakeAside(const WorkerState& worker) const;

  // How many more workers may run, by that idle mask.
  int Vacancies(std::uint64_t idle) const noexcept;
  // The one of `idle` to wake next, as a bit; 0: wake none.
  std::uint64_t NextToWake(std::uint64_t idle) const noexcept;

  bool WakeSomebody();
  void Unpark(std::size_t index);

  // All workers of some neighbour are awake.
  bool AnyNeighbourIsBusy() const;

  Options options_;
  StackAllocator stacks_;
  StackShortage shortage_;
  Neighbours neighbours_;
  PokedThread* watch_ = nullptr;
  PokedThread* stuck_watch_ = nullptr;
  PokedThread* memory_watch_ = nullptr;
  Shutdown* shutdown_ = nullptr;
  InjectionQueue injection_;
  InjectionQueue deferred_;

  alignas(kCacheLine) std::atomic<std::uint64_t> idle_{0};
  alignas(kCacheLine) std::atomic<int> searching_{0};
  // Changes twice for each event that a poller hands out.
  alignas(kCacheLine) std::atomic<bool> polling_{false};
  // Members that change as workers sleep and wake, and now and then while they
  // run.
  alignas(kCacheLine) std::atomic<std::uint64_t> rouses_{0};
  std::atomic<std::uint64_t> wakes_{0};
  std::atomic<std::uint64_t> poller_bit_{0};  // The worker in the poller.
  std::atomic<bool> standby_taken_{false};    // Somebody has the right to.
  std::atomic<std::int64_t> standby_until_ns_{0};
  std::atomic<std::int64_t> looked_at_ns_{0};
  std::atomic<std::int64_t> mean_task_ns_{1000};
  std::atomic<std::uint64_t> marks_{0};
  ConcurrentHistogram ready_delays_;

  // Members that each search and each look at timers reads, and that seldom
  // change.
  alignas(kCacheLine) std::atomic<std::size_t> size_;
  std::atomic<std::uint64_t> blocked_{0};
  std::vector<std::unique_ptr<WorkerState>> workers_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SCHEDULING_GROUP_H_
