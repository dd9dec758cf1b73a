// The runtime as a whole: its start and end, the memory of fibers, and how soon
// a worker that sleeps is at work.

#include <cstdint>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "benchmark/peers/measure.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/task.h"

namespace flare::fiber {
namespace {

// Start with `range` workers, run one fiber, end.
void BM_StartStop(benchmark::State& state) {
  for (auto _ : state) {
    StartWorkers(static_cast<int>(state.range(0)));
    Fiber([] {}).join();
    TerminateRuntime();
  }
}
BENCHMARK(BM_StartStop)->Arg(1)->Arg(2)->UseRealTime();

// A plain thread wakes a fiber, whose worker sleeps.
void BM_WakeSleeping(benchmark::State& state) {
  StartWorkers(1);
  peers::WakeMeter meter;
  Semaphore wake(0);
  bool stop = false;
  Fiber sleeper([&] {
    for (;;) {
      wake.acquire();
      if (stop) return;
      meter.Woken();
    }
  });
  meter.Run(state, [&] { wake.release(); });
  stop = true;
  wake.release();
  sleeper.join();
  TerminateRuntime();
}
BENCHMARK(BM_WakeSleeping)->UseManualTime()->Iterations(500);

// Fibers that all wait for one event: the counter is the memory of each, with
// all that belongs to it.
void BM_IdleFiberMemory(benchmark::State& state) {
  for (auto _ : state) {
    OnFiber(1, [&] {
      const std::int64_t before = peers::MemoryInUse();
      Event end;
      Latch started(state.range(0));
      Latch ended(state.range(0));
      for (std::int64_t i = 0; i < state.range(0); ++i) {
        Spawn([&] {
          started.count_down();
          end.Wait();
          ended.count_down();
        });
      }
      started.wait();
      state.counters["bytes"] =
          static_cast<double>(peers::MemoryInUse() - before) /
          static_cast<double>(state.range(0));
      end.Set();
      ended.wait();
    });
  }
}
BENCHMARK(BM_IdleFiberMemory)->Arg(100'000)->Iterations(1)->UseRealTime();

}  // namespace
}  // namespace flare::fiber
