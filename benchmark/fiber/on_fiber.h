// The environment of this folder's benchmarks.
//
//   void BM_Yield(benchmark::State& state) {
//     OnFiber(1, [&] {
//       for (auto _ : state) this_fiber::Yield();
//     });
//   }
//
// Names are stable: tools/fiber_table looks rows up by them, and the peers in
// benchmark/peers/ have the same ones. Where all work happens on one worker,
// time is the CPU time of the whole process: nothing waits there, so its sum is
// the cost of the operation, and other programs' turns on the CPU are left out.
// Where two workers hand work to each other or are in each other's way, the
// delay is what counts, and time is real time.

#ifndef FLARE_BENCHMARK_FIBER_ON_FIBER_H_
#define FLARE_BENCHMARK_FIBER_ON_FIBER_H_

#include <utility>

#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "glog/logging.h"

namespace flare::fiber {

// Starts a runtime with one group of `workers` workers.
inline void StartWorkers(int workers) {
  RuntimeOptions options;
  options.concurrency = workers;
  options.group_size = workers;
  const Status status = StartRuntime(options);
  CHECK(status.ok()) << "can't start the runtime: " << status.ToString();
}

// Runs `body` on a fiber of such a runtime, and ends the runtime. For plain
// threads.
template <class F>
void OnFiber(int workers, F&& body) {
  StartWorkers(workers);
  Fiber(std::forward<F>(body)).join();
  TerminateRuntime();
}

}  // namespace flare::fiber

#endif  // FLARE_BENCHMARK_FIBER_ON_FIBER_H_
