// Starting work, and waiting for its end.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

constexpr int kBatch = 100;

// Spawn a closure that doesn't block, and run it: in batches that fit the run
// queue, as a read event or a fan-out makes them.
void BM_SpawnRun(benchmark::State& state) {
  OnFiber(1, [&] {
    std::int64_t ran = 0;
    while (state.KeepRunningBatch(kBatch)) {
      for (int i = 0; i < kBatch; ++i) Spawn([&ran] { ++ran; });
      this_fiber::Yield();
    }
    CHECK_EQ(ran, state.iterations());
  });
}
BENCHMARK(BM_SpawnRun)->MeasureProcessCPUTime();

// One fiber after the other: the caller is suspended for each.
void BM_SpawnJoin(benchmark::State& state) {
  OnFiber(1, [&] {
    std::int64_t ran = 0;
    for (auto _ : state) Fiber([&ran] { ++ran; }).join();
    CHECK_EQ(ran, state.iterations());
  });
}
BENCHMARK(BM_SpawnJoin)->MeasureProcessCPUTime();

// A hundred, then wait for each; per fiber.
void BM_SpawnJoin100(benchmark::State& state) {
  OnFiber(1, [&] {
    std::int64_t ran = 0;
    std::vector<Fiber> fibers;
    fibers.reserve(kBatch);
    while (state.KeepRunningBatch(kBatch)) {
      for (int i = 0; i < kBatch; ++i) fibers.emplace_back([&ran] { ++ran; });
      for (Fiber& fiber : fibers) fiber.join();
      fibers.clear();
    }
    CHECK_EQ(ran, state.iterations());
  });
}
BENCHMARK(BM_SpawnJoin100)->MeasureProcessCPUTime();

}  // namespace
}  // namespace flare::fiber
