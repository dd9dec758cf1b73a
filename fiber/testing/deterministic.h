// Deterministic runs: a piece of fiber code is run on one worker whose every
// choice is made by a seed, in virtual time. Equal seeds give equal runs, so an
// order of events that breaks something is found by trying seeds, and comes
// back as often as it is wanted.
//
//   TEST(QueueTest, LosesNothing) {
//     fiber::testing::ExploreSchedules(1000, [] {
//       Queue queue;
//       Fiber producer([&] { for (int i = 0; i < 3; ++i) queue.Push(i); });
//       for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.PopFor(1s));
//       producer.join();
//     });
//   }
//
// A seed chooses which of the ready tasks and fibers runs next, whenever one
// ends, blocks or yields, and whether time passes before that, up to the next
// timer's deadline. So time-outs race with the work that they limit. When
// nothing is ready, time moves on to the next timer at once: an hour's sleep
// costs nothing. When there is no timer either, that is a deadlock: the process
// ends with a list of all fibers and their waits.
//
// It doesn't explore: orders within a stretch of code that doesn't block (put
// PreemptionPoint() where another fiber might come between; data races are
// ThreadSanitizer's), the order of callbacks of timers that are due in the same
// 16 us, and everything that needs several workers: stealing, parking, atomics'
// orders (stress tests, shuffle.h, and the models, *.pml).
//
// A body must not use threads of its own, blocking regions, IO, real
// randomness, or clocks other than NowNs() and those that the runtime derives
// from it, or its runs differ (std::chrono::steady_clock::now() is real, and
// long past as a deadline). A loop that waits for time to pass must Yield():
// virtual time stands still while a task runs.

#ifndef FLARE_FIBER_TESTING_DETERMINISTIC_H_
#define FLARE_FIBER_TESTING_DETERMINISTIC_H_

#include <cstdint>

#include "flare/base/function.h"

namespace flare::fiber::testing {

struct DeterministicRun {
  std::uint64_t seed = 0;
  std::uint64_t decisions = 0;
  std::uint64_t trace = 0;      // A hash of all choices and their alternatives.
  std::int64_t virtual_ns = 0;  // How long the body took.
};

// Runs `body` on a fiber, in a runtime of its own that ends with it: none may
// be running. Tasks that are still queued then are run, timers and fibers that
// wait are abandoned. If the process dies meanwhile, by a signal, CHECK or
// sanitizer, the last line of stderr says how to replay the run.
DeterministicRun RunDeterministic(std::uint64_t seed, Function<void()> body);

// Runs `body`, which is called anew each time, with the seeds 1 to `count`; and
// if $FLARE_STRESS_SECONDS is set, with more of them for that long. Stops at
// the first run with a GoogleTest failure, and tells its seed. With $FLARE_SEED
// set, runs that seed only. Returns how many runs there were.
int ExploreSchedules(int count, Function<void()> body);

// In a deterministic run: another fiber may come between here, as the seed has
// it. Does nothing elsewhere, so that code under test may call it.
void PreemptionPoint();

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_DETERMINISTIC_H_
