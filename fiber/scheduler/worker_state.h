// The part of a worker that its group, the watches and other workers see: its
// queue, its place of sleep, its counters. worker.h has the rest, which only
// its own thread touches.

#ifndef FLARE_FIBER_WORKER_STATE_H_
#define FLARE_FIBER_WORKER_STATE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/base/cpu.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/run_queue.h"
#include "flare/fiber/scheduler/spare_carriers.h"
#include "flare/fiber/scheduler/timer_wheel.h"

namespace flare::fiber {

class WorkerState {
 public:
  virtual ~WorkerState() = default;

  WorkerState(const WorkerState&) = delete;
  WorkerState& operator=(const WorkerState&) = delete;

  // Its thread, for the group. Start() throws std::system_error if there can be
  // none; Join() does nothing if it wasn't started.
  virtual void Start() = 0;
  virtual void Join() = 0;

  std::size_t index() const noexcept { return index_; }    // Within the group.
  std::size_t number() const noexcept { return number_; }  // Among all workers.
  // The id of its thread, as of gettid(); 0 before that has started. Any
  // thread.
  pid_t thread_id() const noexcept {
    return thread_id_.load(std::memory_order_relaxed);  // Only the number.
  }

  // Any thread.
  RunQueue& run_queue() noexcept { return run_queue_; }
  TimerWheel& timers() noexcept { return timers_; }
  const TimerWheel& timers() const noexcept { return timers_; }

  // Its own thread, or before that has started.
  SpareCarriers& spares() noexcept { return spares_; }
  const SpareCarriers& spares() const noexcept { return spares_; }

  // The state that the parking protocol (scheduling_group.cc) keeps here.
  struct alignas(kCacheLine) Parking {
    // 1 while it sleeps or is about to; the waker stores 0.
    std::atomic<std::uint32_t> word{0};
    // Where it sleeps. Written before the idle bit is set, read by the thread
    // that has cleared that bit.
    enum class SleepPlace : std::uint8_t { kFutex, kPoller, kStandby };
    SleepPlace place = SleepPlace::kFutex;
    // Its own [SB2]: the other running workers, and the number of tasks they
    // had begun, when it last went to sleep in the poller.
    struct Others {
      std::uint64_t running = 0;
      std::uint64_t tasks = 0;
      bool operator==(const Others&) const = default;
    };
    Others others;
  };
  Parking& parking() noexcept { return parking_; }

  // For the watch and for statistics: written by this worker, read by anyone.
  // relaxed throughout: each is a counter of its own.
  struct Counters {
    std::atomic<std::uint64_t> tasks{0};
    std::atomic<std::uint64_t> suspends{0};
    std::atomic<std::uint64_t> resumes{0};
    std::atomic<std::uint64_t> steals{0};  // From all, the next two included.
    std::atomic<std::uint64_t> near_steals{0};  // From groups of the same node.
    std::atomic<std::uint64_t> far_steals{0};   // ... of other nodes.
    std::atomic<std::uint64_t> parks{0};
    std::atomic<std::uint64_t> polls{0};
    std::atomic<std::uint64_t> overflows{0};
  };
  const Counters& counters() const noexcept { return counters_; }
  // Changes whenever it begins or resumes a task. Any thread.
  std::uint64_t tasks_begun() const noexcept {
    // relaxed: a count.
    return counters_.tasks.load(std::memory_order_relaxed);
  }
  void CountPoll() noexcept { Bump(counters_.polls); }  // Its own thread.

 protected:
  // `index` is that within the group, `number` that among all workers.
  WorkerState(std::size_t index, std::size_t number, StackAllocator* stacks,
              Carrier::Entry enter, std::int64_t stack_idle_ns);

  // A counter that only this thread writes: no read-modify-write needed.
  static void Bump(std::atomic<std::uint64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
  }

  const std::size_t index_;
  const std::size_t number_;
  std::atomic<pid_t> thread_id_{0};
  Carrier* current_ = nullptr;
  SpareCarriers spares_;
  Counters counters_;
  alignas(kCacheLine) RunQueue run_queue_;
  TimerWheel timers_;
  Parking parking_;

 private:
  friend struct FiberInspector;  // debug_layout.cc
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WORKER_STATE_H_
