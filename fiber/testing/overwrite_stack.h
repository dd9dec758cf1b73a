// For tests of what must not be touched any more once a function has returned.

#ifndef FLARE_FIBER_TESTING_OVERWRITE_STACK_H_
#define FLARE_FIBER_TESTING_OVERWRITE_STACK_H_

#include <cstddef>

namespace flare::fiber::testing {

// Overwrites what the last call left below the caller's frame.
[[gnu::noinline]] inline void OverwriteStack() {
  volatile std::byte bytes[1024];
  for (volatile std::byte& byte : bytes) byte = std::byte{0xff};
}

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_OVERWRITE_STACK_H_
