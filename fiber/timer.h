// Timers. Two levels:
//
//  * `Timer`: an intrusive node for runtime and library code. Arming and
//    cancelling is O(1), takes one lock that is private to a worker, allocates
//    nothing and costs tens of nanoseconds: RPC time-outs are nearly always
//    cancelled.
//
//      struct Call { fiber::Timer timer{[](fiber::Timer* t) { ... }}; };
//      fiber::ArmTimer(&call.timer, NowNs() + 1'000'000);
//      if (!fiber::CancelTimer(&call.timer)) { /* it has fired */ }
//
//  * SetTimer()/KillTimer(): a closure that is run on a fiber of its own.
//
// Resolution is 16.4 us (2^14 ns); a timer never fires early. How late depends
// on load: expired timers are looked for whenever a worker polls, and by an
// idle worker if the others are busy.

#ifndef FLARE_FIBER_TIMER_H_
#define FLARE_FIBER_TIMER_H_

#include <chrono>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "flare/base/function.h"
#include "flare/fiber/scheduler/timer_node.h"

namespace flare::fiber {

// Makes `timer` fire once NowNs() >= deadline_ns (at once if that has passed).
// Any thread. Doesn't block.
void ArmTimer(Timer* timer, std::int64_t deadline_ns);

// Makes sure that the callback neither runs nor will run. True: it has not run
// since the timer was last armed, and won't. False: it has run to its end (a
// running one is waited for: the callback itself ends the process by this, and
// nobody may call it with a lock that the callback takes), or it was not armed.
// A timer that its own callback arms again is beyond this promise while that
// callback runs: keep a flag under a lock of yours, as SetTimer() does. Don't
// call it for a timer that was armed in a runtime that has ended, unless it was
// armed to the end.
bool CancelTimer(Timer* timer);

// Runs `f` on a fiber of its own, in no execution context, at `at` (at once if
// that has passed). May be called by fibers and plain threads; never blocks,
// throws nothing. An exception that leaves `f` ends the process. The id must be
// given to KillTimer() or DetachTimer() once, also if the timer has fired, in
// this run of the runtime or later; until then the timer's memory is kept. If
// the runtime ends first the timer never fires, and TerminateRuntime() destroys
// `f`, unless somebody still has the id.
using TimerId = std::uint64_t;  // Never 0.
TimerId SetTimer(std::chrono::steady_clock::time_point at, Function<void()> f);

// ... and every `interval` (more than zero) after it, or after now. Runs of one
// timer never overlap: each is timed from when it was due, so that they don't
// drift, and turns that come while one still runs are skipped. A run that ends
// after TerminateRuntime() was called is the last one.
TimerId SetTimer(std::chrono::steady_clock::time_point at,
                 std::chrono::nanoseconds interval, Function<void()> f);
TimerId SetTimer(std::chrono::nanoseconds interval, Function<void()> f);

// ... for an `f` that takes the timer's id, maybe before SetTimer() returns: to
// give it to KillTimer(), which is still called once, by `f` or by the caller.
struct TimerFunction {
  template <class F>
  requires(std::is_invocable_v<F&, TimerId> && !std::is_invocable_v<F&>)
      TimerFunction(F f)  // NOLINT: implicit, for lambdas
      : call(std::move(f)) {}

  Function<void(TimerId)> call;
};
TimerId SetTimer(std::chrono::steady_clock::time_point at, TimerFunction f);
TimerId SetTimer(std::chrono::steady_clock::time_point at,
                 std::chrono::nanoseconds interval, TimerFunction f);
TimerId SetTimer(std::chrono::nanoseconds interval, TimerFunction f);

// Nobody waits for it or stops it; a periodic one goes on to the runtime's end.
void SetDetachedTimer(std::chrono::steady_clock::time_point at,
                      Function<void()> f);
void SetDetachedTimer(std::chrono::steady_clock::time_point at,
                      std::chrono::nanoseconds interval, Function<void()> f);

// Stops the timer and frees the id. Doesn't wait: a run that has started goes
// on, and may still use the objects that `f` refers to; after KillTimer()
// returns no new one starts. `f` is destroyed here, or at the end of that run.
// May be called by anyone, also by `f` itself.
void KillTimer(TimerId id);

// Frees the id; a one-shot timer still fires, a periodic one goes on for good.
void DetachTimer(TimerId id);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TIMER_H_
