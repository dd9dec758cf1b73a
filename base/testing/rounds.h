// How often tests of random or of all inputs look.

#ifndef FLARE_BASE_TESTING_ROUNDS_H_
#define FLARE_BASE_TESTING_ROUNDS_H_

#include "flare/base/sanitizer.h"

namespace flare::testing {

// A fifth of `n` in builds with a sanitizer, where each round takes five to ten
// times as long.
constexpr int Rounds(int n) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  return n / 5;
#else
  return n;
#endif
}

}  // namespace flare::testing

#endif  // FLARE_BASE_TESTING_ROUNDS_H_
