// Boost.Context and Boost.Fiber, with the operations of //benchmark/fiber,
// under the same names. Built and run by tools/fiber_table; nothing else needs
// Boost.
//
// As its manual advises where speed matters: launch::post, so that starting a
// fiber doesn't switch to it; stacks from a pool, of our stacks' size;
// algo::round_robin on each thread. Fibers for two threads are started there:
// algo::shared_work moves them through a queue with a mutex, which costs more.

#include <boost/context/detail/fcontext.hpp>
#include <boost/fiber/all.hpp>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "benchmark/peers/measure.h"

namespace {

namespace fibers = boost::fibers;
namespace context = boost::context::detail;

constexpr std::size_t kStack = 131072;
constexpr int kBatch = 100;

// Starts fibers whose stacks come from one pool; one for each thread.
class Starter {
 public:
  template <class F>
  fibers::fiber operator()(F&& f) {
    return fibers::fiber(fibers::launch::post, std::allocator_arg, stacks_,
                         std::forward<F>(f));
  }

 private:
  fibers::pooled_fixedsize_stack stacks_{kStack};
};

void Pong(context::transfer_t from) {
  for (;;) from = context::jump_fcontext(from.fctx, nullptr);
}

void BM_ContextSwitch(benchmark::State& state) {
  const auto stack = std::make_unique<char[]>(kStack);
  context::fcontext_t other =
      context::make_fcontext(stack.get() + kStack, kStack, &Pong);
  while (state.KeepRunningBatch(2)) {
    other = context::jump_fcontext(other, nullptr).fctx;
  }
}
BENCHMARK(BM_ContextSwitch)->MeasureProcessCPUTime();

void BM_SpawnRun(benchmark::State& state) {
  Starter start;
  std::int64_t ran = 0;
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; ++i) start([&ran] { ++ran; }).detach();
    boost::this_fiber::yield();
  }
  if (ran != state.iterations()) state.SkipWithError("some have not run");
}
BENCHMARK(BM_SpawnRun)->MeasureProcessCPUTime();

void BM_SpawnJoin(benchmark::State& state) {
  Starter start;
  std::int64_t ran = 0;
  for (auto _ : state) start([&ran] { ++ran; }).join();
}
BENCHMARK(BM_SpawnJoin)->MeasureProcessCPUTime();

void BM_SpawnJoin100(benchmark::State& state) {
  Starter start;
  std::int64_t ran = 0;
  std::vector<fibers::fiber> running;
  running.reserve(kBatch);
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; ++i) {
      running.push_back(start([&ran] { ++ran; }));
    }
    for (fibers::fiber& fiber : running) fiber.join();
    running.clear();
  }
}
BENCHMARK(BM_SpawnJoin100)->MeasureProcessCPUTime();

void BM_Yield(benchmark::State& state) {
  for (auto _ : state) boost::this_fiber::yield();
}
BENCHMARK(BM_Yield)->MeasureProcessCPUTime();
// Its way to suspend a fiber and resume it through the queue.
BENCHMARK(BM_Yield)->Name("BM_SuspendResume")->MeasureProcessCPUTime();

void BM_YieldBetweenTwo(benchmark::State& state) {
  Starter start;
  bool stop = false;
  fibers::fiber other = start([&stop] {
    while (!stop) boost::this_fiber::yield();
  });
  while (state.KeepRunningBatch(2)) boost::this_fiber::yield();
  stop = true;
  other.join();
}
BENCHMARK(BM_YieldBetweenTwo)->MeasureProcessCPUTime();

// It has no semaphore; this makes one of its parts.
class Semaphore {
 public:
  void release() {
    std::unique_lock lock(mutex_);
    ++count_;
    lock.unlock();
    changed_.notify_one();
  }

  void acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return count_ > 0; });
    --count_;
  }

 private:
  fibers::mutex mutex_;
  fibers::condition_variable changed_;
  std::int64_t count_ = 0;
};

// `run(other)` starts the other one.
template <class Run>
void PingPong(benchmark::State& state, Run&& run) {
  Semaphore ping;
  Semaphore pong;
  bool stop = false;
  auto other = run([&] {
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

void BM_SemaphorePingPong(benchmark::State& state) {
  PingPong(state, Starter());
}
BENCHMARK(BM_SemaphorePingPong)->MeasureProcessCPUTime();

void BM_SemaphorePingPongThread(benchmark::State& state) {
  PingPong(state, [](auto body) {
    return std::thread([body] { Starter()(body).join(); });
  });
}
BENCHMARK(BM_SemaphorePingPongThread)->UseRealTime();
BENCHMARK(BM_SemaphorePingPongThread)
    ->Name("BM_SemaphorePingPongTwoWorkers")
    ->UseRealTime();

void BM_ConditionHop(benchmark::State& state) {
  Starter start;
  fibers::mutex mutex;
  fibers::condition_variable changed;
  int turn = 0;
  fibers::fiber other = start([&] {
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
    std::unique_lock lock(mutex);
    turn = 2;
    changed.notify_one();
  }
  other.join();
}
BENCHMARK(BM_ConditionHop)->MeasureProcessCPUTime();

void BM_ChannelRoundTrip(benchmark::State& state) {
  Starter start;
  fibers::unbuffered_channel<int> ping;
  fibers::unbuffered_channel<int> pong;
  fibers::fiber other = start([&] {
    for (int value; ping.pop(value) == fibers::channel_op_status::success;) {
      pong.push(value);
    }
  });
  int value = 0;
  for (auto _ : state) {
    ping.push(1);
    pong.pop(value);
  }
  ping.close();
  other.join();
}
BENCHMARK(BM_ChannelRoundTrip)->MeasureProcessCPUTime();

void BM_ChannelSendReceive(benchmark::State& state) {
  Starter start;
  fibers::buffered_channel<int> channel(64);
  std::int64_t sum = 0;
  fibers::fiber receiver = start([&] {
    for (int value; channel.pop(value) == fibers::channel_op_status::success;) {
      sum += value;
    }
  });
  for (auto _ : state) channel.push(1);
  channel.close();
  receiver.join();
  if (sum != state.iterations()) state.SkipWithError("some are lost");
}
BENCHMARK(BM_ChannelSendReceive)->MeasureProcessCPUTime();

void BM_MutexUncontended(benchmark::State& state) {
  Starter start;
  start([&] {
    fibers::mutex mutex;
    for (auto _ : state) {
      mutex.lock();
      benchmark::ClobberMemory();
      mutex.unlock();
    }
  }).join();
}
BENCHMARK(BM_MutexUncontended)->MeasureProcessCPUTime();

void BM_MutexContended(benchmark::State& state) {
  constexpr int kLocks = 100'000;
  while (state.KeepRunningBatch(kLocks * state.range(0))) {
    fibers::mutex mutex;
    std::int64_t count = 0;
    const auto half = [&] {
      Starter start;
      std::vector<fibers::fiber> running;
      for (std::int64_t i = 0; i < state.range(0) / 2; ++i) {
        running.push_back(start([&] {
          for (int k = 0; k < kLocks; ++k) {
            std::scoped_lock lock(mutex);
            ++count;
          }
        }));
      }
      for (fibers::fiber& fiber : running) fiber.join();
    };
    std::thread first(half);
    std::thread second(half);
    first.join();
    second.join();
  }
}
BENCHMARK(BM_MutexContended)->Arg(2)->Arg(4)->UseRealTime();

void BM_WakeSleeping(benchmark::State& state) {
  flare::peers::WakeMeter meter;
  Semaphore wake;
  bool stop = false;
  std::thread sleeper([&] {
    Starter()([&] {
      for (;;) {
        wake.acquire();
        if (stop) return;
        meter.Woken();
      }
    }).join();
  });
  meter.Run(state, [&] { wake.release(); });
  stop = true;
  wake.release();
  sleeper.join();
}
BENCHMARK(BM_WakeSleeping)->UseManualTime()->Iterations(500);

void BM_IdleFiberMemory(benchmark::State& state) {
  for (auto _ : state) {
    Starter start;
    const std::int64_t before = flare::peers::MemoryInUse();
    std::vector<fibers::fiber> running;
    running.reserve(state.range(0));
    fibers::mutex mutex;
    fibers::condition_variable changed;
    bool end = false;
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      running.push_back(start([&] {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return end; });
      }));
    }
    boost::this_fiber::yield();
    state.counters["bytes"] =
        static_cast<double>(flare::peers::MemoryInUse() - before) /
        static_cast<double>(state.range(0));
    {
      std::unique_lock lock(mutex);
      end = true;
    }
    changed.notify_all();
    for (fibers::fiber& fiber : running) fiber.join();
  }
}
BENCHMARK(BM_IdleFiberMemory)->Arg(100'000)->Iterations(1)->UseRealTime();

// A thread with one fiber: all there is to start.
void BM_StartStop(benchmark::State& state) {
  for (auto _ : state) {
    std::vector<std::thread> workers;
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      workers.emplace_back([] { Starter()([] {}).join(); });
    }
    for (std::thread& worker : workers) worker.join();
  }
}
BENCHMARK(BM_StartStop)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
