// Coroutines, and fibers that do the same.

#include <utility>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/base/future.h"
#include "flare/fiber/coroutine.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"

namespace flare::fiber {
namespace {

// Call one that never waits, and take its result.
void BM_CoroutineCall(benchmark::State& state) {
  const auto same = [](int n) -> Future<int> { co_return n; };
  OnFiber(1, [&] {
    for (auto _ : state) benchmark::DoNotOptimize(same(1).Take());
  });
}
BENCHMARK(BM_CoroutineCall)->MeasureProcessCPUTime();

// Make a future with its value, and take it by co_await.
void BM_AwaitReady(benchmark::State& state) {
  const auto body = [](benchmark::State& state) -> Future<> {
    for (auto _ : state) {
      benchmark::DoNotOptimize(co_await MakeReadyFuture(1));
    }
  };
  OnFiber(1, [&] { BlockingGet(body(state)); });
}
BENCHMARK(BM_AwaitReady)->MeasureProcessCPUTime();

void BM_BlockingGetReady(benchmark::State& state) {
  OnFiber(1, [&] {
    for (auto _ : state) {
      benchmark::DoNotOptimize(BlockingGet(MakeReadyFuture(1)));
    }
  });
}
BENCHMARK(BM_BlockingGetReady)->MeasureProcessCPUTime();

// A value at a time, for which another one waits.
struct Values {
  // For fibers.
  void Set() {
    Promise<int> promise = std::exchange(next, Promise<int>());
    promise.SetValue(1);
    this_fiber::Yield();
  }
  template <class Ended>
  void SetAll(benchmark::State& state, Ended ended) {
    this_fiber::Yield();
    for (auto _ : state) Set();
    stop = true;
    Set();
    ended();
  }

  Promise<int> next;
  bool stop = false;
};

// Wait for a future, get its value and go on; with the making of the future, a
// yield, and the setting of the value.
void BM_AwaitPending(benchmark::State& state) {
  const auto body = [](Values* values) -> Future<> {
    while (!values->stop) co_await values->next.GetFuture();
  };
  OnFiber(1, [&] {
    Values values;
    Future<> waiter = body(&values);
    values.SetAll(state, [&] { BlockingGet(&waiter); });
  });
}
BENCHMARK(BM_AwaitPending)->MeasureProcessCPUTime();

void BM_BlockingGetPending(benchmark::State& state) {
  OnFiber(1, [&] {
    Values values;
    Fiber waiter([&] {
      while (!values.stop) BlockingGet(values.next.GetFuture());
    });
    values.SetAll(state, [&] { waiter.join(); });
  });
}
BENCHMARK(BM_BlockingGetPending)->MeasureProcessCPUTime();

}  // namespace
}  // namespace flare::fiber
