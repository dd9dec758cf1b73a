// A scheduling group: workers that share work, an injection queue and a poller.
// Bound to one NUMA node when the plan says so. Holds the protocol by which
// workers go to sleep and are woken (rules in scheduling_group.cc).

#ifndef FLARE_FIBER_SCHEDULING_GROUP_H_
#define FLARE_FIBER_SCHEDULING_GROUP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/fiber/injection_queue.h"
#include "flare/fiber/poller.h"
#include "flare/fiber/stack.h"
#include "flare/fiber/task.h"
#include "flare/fiber/worker.h"

namespace flare::fiber {

class Watch;

class SchedulingGroup {
 public:
  static constexpr std::size_t kMaxWorkers = 64;  // Bits of the idle mask.

  struct Options {
    std::size_t index = 0;
    std::size_t workers = 1;  // At most kMaxWorkers.
    int node = -1;            // NUMA node; -1: not bound.
    std::vector<int> cpus;    // Workers run on these; empty: anywhere.
    // A worker wakes an idle sibling when what it has queued will take it
    // longer than this.
    std::int64_t wake_threshold_ns = 20'000;
    int work_stealing_ratio = 16;
    StackAllocator::Options stacks;
    std::unique_ptr<Poller> poller;
  };

  explicit SchedulingGroup(Options options);
  ~SchedulingGroup();

  SchedulingGroup(const SchedulingGroup&) = delete;
  SchedulingGroup& operator=(const SchedulingGroup&) = delete;

  // Groups of the same node, to steal from now and then; before Start().
  void SetNeighbours(std::vector<SchedulingGroup*> neighbours) {
    neighbours_ = std::move(neighbours);
  }
  // The watch to poke when the group leaves idleness; before Start().
  void SetWatch(Watch* watch) { watch_ = watch; }

  void Start();
  // Lets the workers run what is queued, then ends them. No new work may come
  // from outside.
  void Stop();
  void Join();

  // Any thread.
  void Inject(Task* task);
  void InjectAll(TaskList&& tasks);

  // Wakes an idle worker, unless one is already looking for work. True: one
  // was woken. Any thread.
  bool WakeOne();

  // Makes the idle worker `index` look at its timers again. Any thread.
  void WakeForTimer(std::size_t index);

  std::size_t index() const noexcept { return options_.index; }
  int node() const noexcept { return options_.node; }
  std::size_t size() const noexcept { return workers_.size(); }
  Worker* worker(std::size_t i) const noexcept { return workers_[i].get(); }
  Poller* poller() const noexcept { return options_.poller.get(); }
  StackAllocator* stacks() noexcept { return &stacks_; }
  const std::vector<int>& cpus() const noexcept { return options_.cpus; }
  std::int64_t wake_threshold_ns() const noexcept {
    return options_.wake_threshold_ns;
  }

  // Bit i: worker i sleeps. seq_cst: pairs with the changes in Park, for the
  // watch (watch.cc [WA1]).
  std::uint64_t idle_mask() const noexcept {
    return idle_.load(std::memory_order_seq_cst);
  }
  bool anybody_polls() const noexcept {
    return polling_.load(std::memory_order_relaxed);  // A hint.
  }
  bool is_idle(std::size_t i) const noexcept {
    return (idle_mask() >> i & 1) != 0;
  }

 private:
  friend class Worker;

  // Sleeps until there may be work: woken, a timer due, or the poller found
  // something, which it appends to `*ready`. True: somebody woke it, and has
  // counted it as searching.
  bool Park(Worker* worker, TaskList* ready);
  std::int64_t SleepDeadline(const Worker& worker, bool in_poller) const;

  // The right to use the poller, for one thread at a time.
  bool TryAcquirePoller();
  void ReleasePoller();

  // Looking for work at siblings is limited to two at a time.
  bool BeginSearch();
  void EndSearch();

  // Fires whatever timers of the group are due.
  void FireTimers(std::int64_t now_ns);

  void Unpark(std::size_t index, std::uint64_t bit);
  bool stopping() const noexcept {
    // seq_cst: pairs with the store in Stop [P2].
    return stopping_.load(std::memory_order_seq_cst);
  }

  Options options_;
  StackAllocator stacks_;
  std::vector<SchedulingGroup*> neighbours_;
  Watch* watch_ = nullptr;
  InjectionQueue injection_;

  alignas(kCacheLine) std::atomic<std::uint64_t> idle_{0};
  alignas(kCacheLine) std::atomic<int> searching_{0};
  alignas(kCacheLine) std::atomic<bool> polling_{false};
  std::atomic<std::uint64_t> poller_bit_{0};  // Who sleeps in the poller.
  std::atomic<bool> stopping_{false};

  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SCHEDULING_GROUP_H_
