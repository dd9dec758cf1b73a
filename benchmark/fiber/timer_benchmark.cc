// Timers, and reading the clock.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/timer.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// The cost in timers of an RPC that is answered in time.
void BM_TimerArmCancel(benchmark::State& state) {
  OnFiber(1, [&] {
    Timer timer([](Timer*) { LOG(FATAL) << "not due"; });
    const std::int64_t later = NowNs() + 3'600'000'000'000;
    for (auto _ : state) {
      ArmTimer(&timer, later);
      CHECK(CancelTimer(&timer));
    }
  });
}
BENCHMARK(BM_TimerArmCancel)->MeasureProcessCPUTime();

struct Volley {
  int left = 0;
  Event done;
};

struct Shot : Timer {
  Volley* volley = nullptr;

  void Fire() {
    if (--volley->left == 0) volley->done.Set();
  }
};

// A thousand timers that are due at once; arming and firing, per timer.
void BM_TimerFire(benchmark::State& state) {
  constexpr int kShots = 1000;
  OnFiber(1, [&] {
    std::vector<Shot> shots(kShots);
    while (state.KeepRunningBatch(kShots)) {
      Volley volley{.left = kShots, .done = {}};
      const std::int64_t now = NowNs();
      for (Shot& shot : shots) {
        shot.volley = &volley;
        shot.set_callback([](Timer* t) { static_cast<Shot*>(t)->Fire(); });
        ArmTimer(&shot, now);
      }
      volley.done.Wait();
    }
  });
}
BENCHMARK(BM_TimerFire)->MeasureProcessCPUTime();

void BM_NowNs(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(NowNs());
}
BENCHMARK(BM_NowNs)->MeasureProcessCPUTime();

}  // namespace
}  // namespace flare::fiber
