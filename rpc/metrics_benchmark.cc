// The cost of counting on a worker, and on a plain thread.
#include "benchmark/benchmark.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/metrics.h"
#include "glog/logging.h"

namespace flare::metrics {
namespace {

// Counts on a worker of a runtime.
template <class Count>
void OnWorker(benchmark::State& state, Count count) {
  fiber::RuntimeOptions options;
  options.concurrency = 1;
  const Status started = fiber::StartRuntime(options);
  CHECK(started.ok()) << started;
  Fiber([&] {
    for (auto _ : state) count();
  }).join();
  fiber::TerminateRuntime();
}

void BM_CounterAdd(benchmark::State& state) {
  Counter counter;
  OnWorker(state, [&] { counter.Add(); });
}
BENCHMARK(BM_CounterAdd)->MeasureProcessCPUTime();

void BM_GaugeAdd(benchmark::State& state) {
  Gauge gauge;
  OnWorker(state, [&] { gauge.Add(1); });
}
BENCHMARK(BM_GaugeAdd)->MeasureProcessCPUTime();

void BM_HistogramObserve(benchmark::State& state) {
  Histogram histogram(LatencyBounds());
  OnWorker(state, [&] { histogram.Observe(0.003); });
}
BENCHMARK(BM_HistogramObserve)->MeasureProcessCPUTime();

void BM_CounterAddOnThread(benchmark::State& state) {
  Counter counter;
  for (auto _ : state) counter.Add();
}
BENCHMARK(BM_CounterAddOnThread);

}  // namespace
}  // namespace flare::metrics
