// What a program does if its command line is wrong.

#ifndef EXAMPLE_RPC_FLAG_ERRORS_H_
#define EXAMPLE_RPC_FLAG_ERRORS_H_

namespace example {

// Exit status of a program whose flags are wrong.
inline constexpr int kBadFlags = 2;

// Flags that gflags doesn't understand end the process with kBadFlags from now
// on; by itself it says 1. Call it before the flags are parsed.
void ExitWithBadFlags();

// Whether nothing is left but the program's name, now that the flags have been
// parsed and taken away. If not, logs which word is none.
bool HasOnlyFlags(int argc, char** argv);

}  // namespace example

#endif  // EXAMPLE_RPC_FLAG_ERRORS_H_
