// Waiting, in tests, for conditions that nobody signals.

#ifndef FLARE_FIBER_TESTING_EVENTUALLY_H_
#define FLARE_FIBER_TESTING_EVENTUALLY_H_

#include <chrono>
#include <cstdint>
#include <thread>

#include "flare/base/clock.h"

namespace flare::fiber::testing {

// Looks until `condition` holds. False: it doesn't within half a minute. Blocks
// the thread, not the fiber.
template <class F>
[[nodiscard]] bool Eventually(F&& condition) {
  const std::int64_t begin_ns = NowNs();
  while (!condition()) {
    const std::int64_t waited_ns = NowNs() - begin_ns;
    if (waited_ns > 30'000'000'000) return false;
    // Most conditions hold soon. For the others it doesn't take the CPU from
    // tests that run at the same time.
    if (waited_ns < 200'000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_EVENTUALLY_H_
