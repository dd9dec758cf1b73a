// Threads that use a limit at once; adaptive_limit_test.cc has all else, with
// one thread.
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/rpc/admission/adaptive_limit.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(AdaptiveLimitRace, ThreadsMayUseItAtOnce) {
  AdaptiveLimit limit;
  limit.SetUp(1000);
  std::atomic<std::int64_t> now_ns{1000 * kNsPerSecond};
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call != 20'000; ++call) {
        limit.Admits(30);
        limit.Record(kNsPerMs, now_ns.fetch_add(100'000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(limit.limit(), AdaptiveLimit::kFirst);
}

}  // namespace
}  // namespace flare::rpc
