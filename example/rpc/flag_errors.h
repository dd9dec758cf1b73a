// With what status a program ends if its flags are wrong.

#ifndef EXAMPLE_RPC_FLAG_ERRORS_H_
#define EXAMPLE_RPC_FLAG_ERRORS_H_

namespace example {

// Exit status of a program whose flags are wrong.
inline constexpr int kBadFlags = 2;

// Flags that gflags doesn't understand end the process with kBadFlags from now
// on; by itself it says 1. Call it before the flags are parsed.
void ExitWithBadFlags();

}  // namespace example

#endif  // EXAMPLE_RPC_FLAG_ERRORS_H_
