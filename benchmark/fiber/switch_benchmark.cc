// Changing from one fiber to another.

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"

namespace flare::fiber {
namespace {

// The registers and the stack pointer alone, without the runtime: two contexts
// that switch to each other; per switch. `kSwitch` is the function or its
// inlined twin (see context.h).
using Switch = void* (*)(void** save, void* target, void* value);

struct PingPong {
  void* here = nullptr;
  void* there = nullptr;
};

template <Switch kSwitch>
[[gnu::noinline]] void Pong(void* argument, void*) {
  auto* const contexts = static_cast<PingPong*>(argument);
  for (;;) kSwitch(&contexts->there, contexts->here, nullptr);
}

template <Switch kSwitch>
void MeasureSwitch(benchmark::State& state) {
  constexpr std::size_t kStack = 65536;
  const auto stack = std::make_unique<char[]>(kStack);
  PingPong contexts;
  contexts.there = MakeContext(stack.get() + kStack, &Pong<kSwitch>, &contexts);
  while (state.KeepRunningBatch(2)) {
    kSwitch(&contexts.here, contexts.there, nullptr);
  }
}

void BM_ContextSwitch(benchmark::State& state) {
  MeasureSwitch<&SwitchContext>(state);
}
BENCHMARK(BM_ContextSwitch)->MeasureProcessCPUTime();

void BM_ContextSwitchCall(benchmark::State& state) {
  MeasureSwitch<&flare_switch_context>(state);
}
BENCHMARK(BM_ContextSwitchCall)->MeasureProcessCPUTime();

// A fiber suspends itself and is resumed through the run queue.
void BM_SuspendResume(benchmark::State& state) {
  OnFiber(1, [&] {
    Carrier* const self = CurrentCarrier();
    for (auto _ : state) {
      SuspendFiber(
          {"benchmark"}, [](void* task) { Submit(static_cast<Task*>(task)); },
          self->resume_task());
    }
  });
}
BENCHMARK(BM_SuspendResume)->MeasureProcessCPUTime();

// The only fiber there is.
void BM_Yield(benchmark::State& state) {
  OnFiber(1, [&] {
    for (auto _ : state) this_fiber::Yield();
  });
}
BENCHMARK(BM_Yield)->MeasureProcessCPUTime();

// Two fibers that yield to each other; per yield.
void BM_YieldBetweenTwo(benchmark::State& state) {
  OnFiber(1, [&] {
    bool stop = false;
    Fiber other([&] {
      while (!stop) this_fiber::Yield();
    });
    while (state.KeepRunningBatch(2)) this_fiber::Yield();
    stop = true;
    other.join();
  });
}
BENCHMARK(BM_YieldBetweenTwo)->MeasureProcessCPUTime();

}  // namespace
}  // namespace flare::fiber
