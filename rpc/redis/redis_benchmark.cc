// Commands per second of a RedisClient, for comparison with redis-benchmark.
//
//   redis_benchmark --redis=redis://127.0.0.1:6379 --fibers=50 --batch=1

#include <gflags/gflags.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/init.h"
#include "flare/rpc/redis_client.h"

DEFINE_string(redis, "redis://127.0.0.1:6379", "The server's URI.");
DEFINE_int32(fibers, 50, "They send GETs, one batch after the other.");
DEFINE_int32(batch, 1, "GETs that a fiber sends at once.");
DEFINE_int32(commands, 500'000, "GETs of all fibers together.");

namespace {

// Returns how many batches failed.
int Get(const flare::RedisClient& client, int batches) {
  const flare::RedisCommand get{"GET", "key"};
  const std::vector<flare::RedisCommand> all(
      static_cast<std::size_t>(FLAGS_batch), get);
  int failed = 0;
  for (int i = 0; i != batches; ++i) {
    const bool replied = FLAGS_batch == 1
                             ? client.Execute({"GET", "key"}).has_value()
                             : client.ExecuteAll(all).has_value();
    if (!replied) ++failed;
  }
  return failed;
}

int Entry(int, char**) {
  flare::RedisClient client;
  flare::Status opened = client.Open(FLAGS_redis);
  const auto set = client.Execute({"SET", "key", "xxx"});
  if (!opened.ok() || !set) {
    std::cerr << (set ? opened : set.error()) << '\n';
    return 1;
  }
  const int batches = FLAGS_commands / FLAGS_fibers / FLAGS_batch;
  const std::int64_t began_ns = flare::NowNs();
  std::vector<flare::Future<int>> fibers;
  for (int i = 0; i != FLAGS_fibers; ++i) {
    fibers.push_back(flare::fiber::Async([&] { return Get(client, batches); }));
  }
  int failed = 0;
  for (auto& fiber : fibers) {
    failed += flare::fiber::BlockingGet(std::move(fiber));
  }
  const double seconds =
      static_cast<double>(flare::NowNs() - began_ns) / flare::kNsPerSecond;
  std::cout << batches * FLAGS_fibers * FLAGS_batch / seconds << " commands/s, "
            << failed << " failed\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
