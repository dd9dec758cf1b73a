// Channels between fibers.

#include <cstdint>

#include "benchmark/benchmark.h"
#include "benchmark/fiber/on_fiber.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/fiber.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// A request through one channel without room, an answer through another.
void BM_ChannelRoundTrip(benchmark::State& state) {
  OnFiber(1, [&] {
    Channel<int> ping;
    Channel<int> pong;
    Fiber other([&] {
      while (auto value = ping.Receive()) {
        CHECK(pong.Send(*value) == ChannelResult::kDone);
      }
    });
    for (auto _ : state) {
      CHECK(ping.Send(1) == ChannelResult::kDone);
      CHECK(pong.Receive());
    }
    ping.Close();
    other.join();
  });
}
BENCHMARK(BM_ChannelRoundTrip)->MeasureProcessCPUTime();

// One way, as a producer and a consumer use it; per value.
void BM_ChannelSendReceive(benchmark::State& state) {
  OnFiber(1, [&] {
    Channel<int> channel(64);
    std::int64_t sum = 0;
    Fiber receiver([&] {
      while (auto value = channel.Receive()) sum += *value;
    });
    for (auto _ : state) CHECK(channel.Send(1) == ChannelResult::kDone);
    channel.Close();
    receiver.join();
    CHECK_EQ(sum, state.iterations());
  });
}
BENCHMARK(BM_ChannelSendReceive)->MeasureProcessCPUTime();

}  // namespace
}  // namespace flare::fiber
