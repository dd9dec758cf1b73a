// Measurements that the benchmarks of our fibers and of their peers share.

#ifndef FLARE_BENCHMARK_PEERS_MEASURE_H_
#define FLARE_BENCHMARK_PEERS_MEASURE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"

namespace flare::peers {

// The memory of the process now, page tables included, in bytes.
inline std::int64_t MemoryInUse() {
  std::ifstream status("/proc/self/status");
  std::int64_t kilobytes = 0;
  for (std::string word; status >> word;) {
    std::int64_t value = 0;
    if ((word == "VmRSS:" || word == "VmPTE:") && status >> value) {
      kilobytes += value;
    }
  }
  return kilobytes * 1024;
}

// How long it takes until somebody runs who sleeps on a thread that sleeps.
// `wake()` wakes them; they call Woken() and sleep again. Reports the median as
// the counter "p50_ns", since a mean tells most about the other programs on the
// machine.
class WakeMeter {
 public:
  void Woken() {
    // release: pairs with the acquire in Run [WM1].
    woken_at_.store(Now(), std::memory_order_release);
  }

  template <class Wake>
  void Run(benchmark::State& state, Wake&& wake) {
    std::vector<std::int64_t> delays;
    for (auto _ : state) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      woken_at_.store(0, std::memory_order_relaxed);
      const std::int64_t started = Now();
      wake();
      std::int64_t woken = 0;
      do {
        // acquire: pairs with the release in Woken [WM1].
        woken = woken_at_.load(std::memory_order_acquire);
      } while (woken == 0);
      delays.push_back(woken - started);
      state.SetIterationTime(static_cast<double>(delays.back()) * 1e-9);
    }
    const auto middle = delays.begin() + delays.size() / 2;
    std::nth_element(delays.begin(), middle, delays.end());
    state.counters["p50_ns"] = static_cast<double>(*middle);
  }

 private:
  static std::int64_t Now() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }

  std::atomic<std::int64_t> woken_at_{0};
};

}  // namespace flare::peers

#endif  // FLARE_BENCHMARK_PEERS_MEASURE_H_
