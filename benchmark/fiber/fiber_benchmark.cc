// What the scheduler's operations cost, without IO:
//
//   bazel run -c opt //benchmark/fiber:fiber_benchmark
//
// Each runs inside one fiber of a runtime with one worker, so that what is
// measured is the operation and not a wake-up of another thread.

#include <cstdint>

#include "benchmark/benchmark.h"
#include "flare/base/clock.h"
#include "flare/fiber/carrier.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// Runs `body` on a fiber and waits for it.
template <class F>
void OnFiber(F&& body) {
  Fiber(std::forward<F>(body)).join();
}

// Spawn a closure that doesn't block, and run it: in batches that fit the run
// queue, as a read event or a fan-out makes them.
void BM_SpawnRun(benchmark::State& state) {
  OnFiber([&] {
    constexpr int kBatch = 100;
    std::uint64_t ran = 0;
    while (state.KeepRunningBatch(kBatch)) {
      for (int i = 0; i < kBatch; ++i) Spawn([&ran] { ++ran; });
      this_fiber::Yield();
    }
    CHECK_EQ(ran, static_cast<std::uint64_t>(state.iterations()));
  });
}
BENCHMARK(BM_SpawnRun);

// A fiber suspends itself and is resumed through the run queue: two switches,
// a push, a pop.
void BM_SuspendResume(benchmark::State& state) {
  OnFiber([&] {
    Carrier* const self = CurrentCarrier();
    for (auto _ : state) {
      SuspendFiber(
          {"benchmark"}, [](void* task) { Submit(static_cast<Task*>(task)); },
          self->resume_task());
    }
  });
}
BENCHMARK(BM_SuspendResume);

void BM_Yield(benchmark::State& state) {
  OnFiber([&] {
    for (auto _ : state) this_fiber::Yield();
  });
}
BENCHMARK(BM_Yield);

// Two fibers that yield to each other in turn.
void BM_YieldBetweenTwo(benchmark::State& state) {
  OnFiber([&] {
    bool stop = false;
    Fiber other([&] {
      while (!stop) this_fiber::Yield();
    });
    for (auto _ : state) this_fiber::Yield();
    stop = true;
    other.join();
  });
}
BENCHMARK(BM_YieldBetweenTwo);

void BM_SpawnJoin(benchmark::State& state) {
  OnFiber([&] {
    for (auto _ : state) Fiber([] {}).join();
  });
}
BENCHMARK(BM_SpawnJoin);

void BM_MutexUncontended(benchmark::State& state) {
  OnFiber([&] {
    Mutex mutex;
    for (auto _ : state) {
      mutex.lock();
      benchmark::ClobberMemory();
      mutex.unlock();
    }
  });
}
BENCHMARK(BM_MutexUncontended);

// What an RPC that is answered in time costs in timers.
void BM_TimerArmCancel(benchmark::State& state) {
  OnFiber([&] {
    Timer timer([](Timer*) { LOG(FATAL) << "not due"; });
    const std::int64_t later = NowNs() + 3'600'000'000'000;
    for (auto _ : state) {
      ArmTimer(&timer, later);
      CHECK(CancelTimer(&timer));
    }
  });
}
BENCHMARK(BM_TimerArmCancel);

void BM_EventSetWait(benchmark::State& state) {
  OnFiber([&] {
    for (auto _ : state) {
      Event event;
      event.Set();
      event.Wait();
    }
  });
}
BENCHMARK(BM_EventSetWait);

void BM_NowNs(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(NowNs());
}
BENCHMARK(BM_NowNs);

}  // namespace
}  // namespace flare::fiber

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  flare::fiber::RuntimeOptions options;
  options.concurrency = 1;
  if (flare::Status status = flare::fiber::StartRuntime(options);
      !status.ok()) {
    LOG(ERROR) << "can't start the runtime: " << status.ToString();
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  flare::fiber::TerminateRuntime();
  return 0;
}
