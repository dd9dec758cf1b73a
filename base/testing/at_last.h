// For tests of the end of a process: calls a function at exit, after the
// destructors of static objects.
//
//   testing::at_last = [] { std::_Exit(StillWorks() ? 0 : 1); };
//   std::exit(0);

#ifndef FLARE_BASE_TESTING_AT_LAST_H_
#define FLARE_BASE_TESTING_AT_LAST_H_

#include <cstdlib>

namespace flare::testing {

inline void (*at_last)() = nullptr;

// Comes before the constructors of static objects, hence the function comes
// after their destructors.
[[gnu::constructor(101)]] static void RunAtLast() {
  std::atexit([] {
    if (at_last != nullptr) at_last();
  });
}

}  // namespace flare::testing

#endif  // FLARE_BASE_TESTING_AT_LAST_H_
