// Fibers that wait for each other and exclude each other.

#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/semaphore.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// Two fibers wake each other; per round trip. Two workers may do as they see
// fit.
void SemaphorePingPong(benchmark::State& state, int workers) {
  OnFiber(workers, [&] {
    Semaphore ping(0);
    Semaphore pong(0);
    bool stop = false;
    Fiber other([&] {
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
  });
}

void BM_SemaphorePingPong(benchmark::State& state) {
  SemaphorePingPong(state, 1);
}
BENCHMARK(BM_SemaphorePingPong)->MeasureProcessCPUTime();

void BM_SemaphorePingPongTwoWorkers(benchmark::State& state) {
  SemaphorePingPong(state, 2);
}
BENCHMARK(BM_SemaphorePingPongTwoWorkers)->UseRealTime();

// A plain thread and a fiber do, so that each has to wake the other's thread.
void BM_SemaphorePingPongThread(benchmark::State& state) {
  StartWorkers(1);
  Semaphore ping(0);
  Semaphore pong(0);
  bool stop = false;
  Fiber other([&] {
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
  TerminateRuntime();
}
BENCHMARK(BM_SemaphorePingPongThread)->UseRealTime();

// Two fibers hand a turn to each other under a mutex; per hop.
void BM_ConditionHop(benchmark::State& state) {
  OnFiber(1, [&] {
    Mutex mutex;
    ConditionVariable changed;
    int turn = 0;  // 2: stop.
    Fiber other([&] {
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
  });
}
BENCHMARK(BM_ConditionHop)->MeasureProcessCPUTime();

void BM_EventSetWait(benchmark::State& state) {
  OnFiber(1, [&] {
    for (auto _ : state) {
      Event event;
      event.Set();
      event.Wait();
    }
  });
}
BENCHMARK(BM_EventSetWait)->MeasureProcessCPUTime();

void BM_MutexUncontended(benchmark::State& state) {
  OnFiber(1, [&] {
    Mutex mutex;
    for (auto _ : state) {
      mutex.lock();
      benchmark::ClobberMemory();
      mutex.unlock();
    }
  });
}
BENCHMARK(BM_MutexUncontended)->MeasureProcessCPUTime();

// Lock, ++, unlock, by `range` fibers on two workers; per lock.
void BM_MutexContended(benchmark::State& state) {
  constexpr int kBatch = 100'000;
  OnFiber(2, [&] {
    while (state.KeepRunningBatch(kBatch * state.range(0))) {
      Mutex mutex;
      std::int64_t count = 0;
      std::vector<Fiber> running;
      for (std::int64_t i = 0; i < state.range(0); ++i) {
        running.emplace_back([&] {
          for (int k = 0; k < kBatch; ++k) {
            std::scoped_lock lock(mutex);
            ++count;
          }
        });
      }
      for (Fiber& fiber : running) fiber.join();
      CHECK_EQ(count, kBatch * state.range(0));
    }
  });
}
BENCHMARK(BM_MutexContended)->Arg(2)->Arg(4)->UseRealTime();

// Contention between `range` plain threads.
void BM_MutexContendedThreads(benchmark::State& state) {
  constexpr int kBatch = 100'000;
  while (state.KeepRunningBatch(kBatch * state.range(0))) {
    Mutex mutex;
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
    CHECK_EQ(count, kBatch * state.range(0));
  }
}
BENCHMARK(BM_MutexContendedThreads)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace flare::fiber
