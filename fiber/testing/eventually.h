// Waiting, in tests, for conditions that nobody signals.

#ifndef FLARE_FIBER_TESTING_EVENTUALLY_H_
#define FLARE_FIBER_TESTING_EVENTUALLY_H_

#include <cstdint>
#include <thread>

#include "flare/base/clock.h"

namespace flare::fiber::testing {

// Looks until `condition` holds. False: it doesn't within half a minute. Blocks
// the thread, not the fiber.
template <class F>
[[nodiscard]] bool Eventually(F&& condition) {
  const std::int64_t end_ns = NowNs() + 30'000'000'000;
  while (!condition()) {
    if (NowNs() > end_ns) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_EVENTUALLY_H_
