// A barrier that a fixed number of parties meet at again and again, with the
// interface of std::barrier, and deadlines and stop tokens besides. For fibers
// and plain threads.
//
//   fiber::Barrier step(parties, [&]() noexcept { Swap(); });
//   ... in each party:
//   for (...) { ComputeMyPart(); step.arrive_and_wait(); }
//
// A phase ends when as many parties have arrived as are expected: the last one
// runs the completion function, and then all waiting parties go on, into the
// next phase. The actions of parties before they arrived are visible to the
// completion function, and its actions to all parties that have waited.
//
// May be destroyed once all parties have returned from their last call.

#ifndef FLARE_FIBER_BARRIER_H_
#define FLARE_FIBER_BARRIER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::fiber {

// The part that doesn't depend on the completion function.
class BarrierBase {
 public:
  BarrierBase(const BarrierBase&) = delete;
  BarrierBase& operator=(const BarrierBase&) = delete;

  // Names the phase that was arrived in.
  using arrival_token = std::uint64_t;

  // Blocks the fiber (or thread) until the phase of `arrival` is over.
  void wait(arrival_token arrival) { WaitLimited(arrival, {}); }

  // Waits in the same way, with limits. False: the deadline passed, or a stop
  // was requested, before that. The caller has still arrived and may wait
  // again; until the phase is over it must not arrive again.
  [[nodiscard]] bool wait(const std::stop_token& stop, arrival_token arrival) {
    return WaitLimited(arrival, {kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  [[nodiscard]] bool wait_for(arrival_token arrival,
                              std::chrono::duration<Rep, Period> length) {
    return WaitLimited(arrival, {ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  [[nodiscard]] bool wait_for(const std::stop_token& stop,
                              arrival_token arrival,
                              std::chrono::duration<Rep, Period> length) {
    return WaitLimited(arrival, {ToSteadyNs(length), &stop});
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool wait_until(arrival_token arrival,
                                std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited(arrival, {ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool wait_until(const std::stop_token& stop,
                                arrival_token arrival,
                                std::chrono::time_point<Clock, Duration> at) {
    return WaitLimited(arrival, {ToSteadyNs(at), &stop});
  }

 protected:
  explicit BarrierBase(std::ptrdiff_t expected);
  ~BarrierBase() = default;

  struct Arrival {
    arrival_token phase;
    bool last;  // The phase is complete: call EndPhase().
  };
  Arrival Arrive(std::ptrdiff_t arriving, std::ptrdiff_t leaving);
  void EndPhase();

 private:
  bool WaitLimited(arrival_token arrival, const WaitLimit& limit);

  Spinlock lock_;
  std::ptrdiff_t expected_ FLARE_GUARDED_BY(lock_);  // In the next phase.
  std::ptrdiff_t missing_ FLARE_GUARDED_BY(lock_);   // In this one.
  std::uint64_t phase_ FLARE_GUARDED_BY(lock_) = 0;
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

struct NoCompletion {
  void operator()() noexcept {}
};

template <class Completion = NoCompletion>
class Barrier : public BarrierBase {
  static_assert(std::is_nothrow_invocable_v<Completion&>,
                "the completion function must be noexcept");

 public:
  // `expected` >= 0.
  explicit Barrier(std::ptrdiff_t expected,
                   Completion completion = Completion())
      : BarrierBase(expected), completion_(std::move(completion)) {}

  // Counts `n` parties in without waiting; not more than are missing. Blocks
  // only in so far as the completion function does, if this is the last one.
  [[nodiscard]] arrival_token arrive(std::ptrdiff_t n = 1) {
    return ArriveAs(n, 0);
  }

  void arrive_and_wait() { wait(arrive()); }

  // Arrives, and isn't expected any more from the next phase on.
  void arrive_and_drop() { ArriveAs(1, 1); }

 private:
  arrival_token ArriveAs(std::ptrdiff_t arriving, std::ptrdiff_t leaving) {
    const Arrival arrival = Arrive(arriving, leaving);
    if (arrival.last) {
      completion_();
      EndPhase();
    }
    return arrival.phase;
  }

  [[no_unique_address]] Completion completion_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_BARRIER_H_
