// The cost of a message in buffers, without system calls.

#include <cstring>
#include <string>

#include "benchmark/benchmark.h"
#include "flare/base/buffer.h"
#include "flare/base/object_pool.h"
#include "flare/base/read_space.h"

namespace flare {
namespace {

void BM_PoolGetPut(benchmark::State& state) {
  for (auto _ : state) {
    void* p = PoolAllocate<64>();
    benchmark::DoNotOptimize(p);
    PoolFree<64>(p);
  }
}
BENCHMARK(BM_PoolGetPut);

// One reply of a batch: built, and appended to the connection's output.
void BM_BuildAndAppend(benchmark::State& state) {
  const std::string body(static_cast<std::size_t>(state.range(0)), 'x');
  Buffer output;
  for (auto _ : state) {
    BufferBuilder builder;
    std::memset(builder.Reserve(16), 'h', 16);
    builder.Append(body);
    output.Append(builder.DestructiveGet());
    if (output.size() > 1500) output.Clear();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_BuildAndAppend)->Arg(10)->Arg(100)->Arg(1000);

// One request of a batch: cut from the input, its body cut from it, dropped.
void BM_CutAndDrop(benchmark::State& state) {
  Buffer input;
  for (auto _ : state) {
    if (input.size() < 64) {
      ReadSpace space;
      input.Append(space.Commit(4096));
    }
    Buffer message = input.Cut(64);
    message.Skip(32);
    benchmark::DoNotOptimize(message.FirstContiguous());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_CutAndDrop);

void BM_ReadSpace(benchmark::State& state) {
  const auto hint = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    ReadSpace space(hint);
    Buffer b = space.Commit(hint ? hint : 1000);
    benchmark::DoNotOptimize(b.size());
  }
}
BENCHMARK(BM_ReadSpace)->Arg(0)->Arg(65536)->Arg(1 << 20);

void BM_ShareAndDrop(benchmark::State& state) {
  const Buffer original = CreateBufferSlow("shared by many");
  for (auto _ : state) {
    Buffer copy = original;
    benchmark::DoNotOptimize(copy.size());
  }
}
BENCHMARK(BM_ShareAndDrop);

}  // namespace
}  // namespace flare
