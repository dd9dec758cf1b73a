// The costs of the scheduler's operations, without IO:
//
//   bazel build -c opt //benchmark/fiber:fiber_benchmark
//   bazel-bin/benchmark/fiber/fiber_benchmark --benchmark_filter=Yield
//
// on_fiber.h says how it is measured; tools/fiber_table shows the rows beside
// those of other libraries.

#include "benchmark/benchmark.h"
#include "glog/logging.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  FLAGS_minloglevel = 1;  // Each row starts a runtime, which would say so.
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
