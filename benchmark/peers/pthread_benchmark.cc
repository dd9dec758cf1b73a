// The system's threads (std::thread and its synchronisation), with the
// operations of //benchmark/fiber, under the same names. Built and run by
// tools/fiber_table, which gives it one CPU where the others use one worker:
// where two threads take turns, that is best for them, too.

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "benchmark/peers/measure.h"

namespace {

void BM_SpawnRun(benchmark::State& state) {
  constexpr int kBatch = 100;
  while (state.KeepRunningBatch(kBatch)) {
    std::counting_semaphore<> ran(0);
    for (int i = 0; i < kBatch; ++i) {
      std::thread([&ran] { ran.release(); }).detach();
    }
    for (int i = 0; i < kBatch; ++i) ran.acquire();
  }
}
BENCHMARK(BM_SpawnRun)->MeasureProcessCPUTime();

void BM_SpawnJoin(benchmark::State& state) {
  std::int64_t ran = 0;
  for (auto _ : state) std::thread([&ran] { ++ran; }).join();
}
BENCHMARK(BM_SpawnJoin)->MeasureProcessCPUTime();

void BM_SpawnJoin100(benchmark::State& state) {
  constexpr int kBatch = 100;
  std::atomic<std::int64_t> ran = 0;
  std::vector<std::thread> running;
  running.reserve(kBatch);
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; ++i) running.emplace_back([&ran] { ++ran; });
    for (std::thread& thread : running) thread.join();
    running.clear();
  }
}
BENCHMARK(BM_SpawnJoin100)->MeasureProcessCPUTime();

void BM_Yield(benchmark::State& state) {
  for (auto _ : state) sched_yield();
}
BENCHMARK(BM_Yield)->MeasureProcessCPUTime();

// Two threads; the system call need not switch to the other one each time.
void BM_YieldBetweenTwo(benchmark::State& state) {
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> others = 0;
  std::thread other([&] {
    while (!stop) {
      sched_yield();
      others.fetch_add(1, std::memory_order_relaxed);
    }
  });
  while (others == 0) sched_yield();
  while (state.KeepRunningBatch(2)) sched_yield();
  stop = true;
  other.join();
}
BENCHMARK(BM_YieldBetweenTwo)->MeasureProcessCPUTime();

void BM_SemaphorePingPong(benchmark::State& state) {
  std::counting_semaphore<> ping(0);
  std::counting_semaphore<> pong(0);
  bool stop = false;
  std::thread other([&] {
    for (;;) {
      ping.acquire();
      if (stop) return;
      pong.release();
    }
  });
  for (auto _ : state) {
    ping.release();
    pong.acquire();
  }
  stop = true;
  ping.release();
  other.join();
}
BENCHMARK(BM_SemaphorePingPong)->MeasureProcessCPUTime();
BENCHMARK(BM_SemaphorePingPong)
    ->Name("BM_SemaphorePingPongTwoWorkers")
    ->UseRealTime();
BENCHMARK(BM_SemaphorePingPong)
    ->Name("BM_SemaphorePingPongThread")
    ->UseRealTime();

void BM_ConditionHop(benchmark::State& state) {
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  std::thread other([&] {
    for (std::unique_lock lock(mutex); turn != 2; changed.notify_one()) {
      changed.wait(lock, [&] { return turn != 0; });
      if (turn == 1) turn = 0;
    }
  });
  while (state.KeepRunningBatch(2)) {
    std::unique_lock lock(mutex);
    turn = 1;
    changed.notify_one();
    changed.wait(lock, [&] { return turn == 0; });
  }
  {
    std::scoped_lock lock(mutex);
    turn = 2;
    changed.notify_one();
  }
  other.join();
}
BENCHMARK(BM_ConditionHop)->MeasureProcessCPUTime();

void BM_MutexUncontended(benchmark::State& state) {
  // Libc leaves atomic operations out while there is no second thread.
  std::counting_semaphore<> end(0);
  std::thread other([&end] { end.acquire(); });
  std::mutex mutex;
  for (auto _ : state) {
    mutex.lock();
    benchmark::ClobberMemory();
    mutex.unlock();
  }
  end.release();
  other.join();
}
BENCHMARK(BM_MutexUncontended)->MeasureProcessCPUTime();

void BM_MutexContended(benchmark::State& state) {
  constexpr int kBatch = 100'000;
  while (state.KeepRunningBatch(kBatch * state.range(0))) {
    std::mutex mutex;
    std::int64_t count = 0;
    std::vector<std::thread> running;
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      running.emplace_back([&] {
        for (int k = 0; k < kBatch; ++k) {
          std::scoped_lock lock(mutex);
          ++count;
        }
      });
    }
    for (std::thread& thread : running) thread.join();
  }
}
BENCHMARK(BM_MutexContended)->Arg(2)->Arg(4)->UseRealTime();
BENCHMARK(BM_MutexContended)
    ->Name("BM_MutexContendedThreads")
    ->Arg(2)
    ->UseRealTime();

void BM_WakeSleeping(benchmark::State& state) {
  flare::peers::WakeMeter meter;
  std::counting_semaphore<> wake(0);
  bool stop = false;
  std::thread sleeper([&] {
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
}
BENCHMARK(BM_WakeSleeping)->UseManualTime()->Iterations(500);

// The kernel's memory for each thread is not in it.
void BM_IdleFiberMemory(benchmark::State& state) {
  for (auto _ : state) {
    const std::int64_t before = flare::peers::MemoryInUse();
    std::counting_semaphore<> started(0);
    std::counting_semaphore<> end(0);
    std::vector<std::thread> running;
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      running.emplace_back([&] {
        started.release();
        end.acquire();
      });
    }
    for (std::int64_t i = 0; i < state.range(0); ++i) started.acquire();
    state.counters["bytes"] =
        static_cast<double>(flare::peers::MemoryInUse() - before) /
        static_cast<double>(state.range(0));
    end.release(state.range(0));
    for (std::thread& thread : running) thread.join();
  }
}
BENCHMARK(BM_IdleFiberMemory)->Arg(2'000)->Iterations(1)->UseRealTime();

void BM_StartStop(benchmark::State& state) {
  for (auto _ : state) {
    std::vector<std::thread> workers;
    for (std::int64_t i = 0; i < state.range(0); ++i)
      workers.emplace_back([] {});
    for (std::thread& worker : workers) worker.join();
  }
}
BENCHMARK(BM_StartStop)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
