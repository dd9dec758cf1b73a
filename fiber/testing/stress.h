// How long stress tests run.

#ifndef FLARE_FIBER_TESTING_STRESS_H_
#define FLARE_FIBER_TESTING_STRESS_H_

#include <cstdint>
#include <cstdlib>

namespace flare::fiber::testing {

// $FLARE_STRESS_SECONDS as nanoseconds, or `otherwise` where it isn't set.
inline std::int64_t StressNs(std::int64_t otherwise) {
  const char* const seconds = std::getenv("FLARE_STRESS_SECONDS");
  if (seconds == nullptr) return otherwise;
  return static_cast<std::int64_t>(std::strtod(seconds, nullptr) * 1e9);
}

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_STRESS_H_
