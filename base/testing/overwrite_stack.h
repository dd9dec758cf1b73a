// For tests of memory that must stay untouched once a function has returned.

#ifndef FLARE_BASE_TESTING_OVERWRITE_STACK_H_
#define FLARE_BASE_TESTING_OVERWRITE_STACK_H_

#include <cstddef>

namespace flare::testing {

// Overwrites the bytes that the last call left below the caller's frame.
[[gnu::noinline]] inline void OverwriteStack() {
  volatile std::byte bytes[1024];
  for (volatile std::byte& byte : bytes) byte = std::byte{0xff};
}

}  // namespace flare::testing

#endif  // FLARE_BASE_TESTING_OVERWRITE_STACK_H_
