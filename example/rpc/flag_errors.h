// What a program does if its command line is wrong.

#ifndef EXAMPLE_RPC_FLAG_ERRORS_H_
#define EXAMPLE_RPC_FLAG_ERRORS_H_

#include <functional>

namespace example {

// Exit status of a program whose flags are wrong.
inline constexpr int kBadFlags = 2;

// As flare::Start(), but flags that gflags or the library refuses end in
// kBadFlags, and --help and the like in 0; by themselves they say 1.
int StartProgram(int argc, char** argv, std::function<int(int, char**)> entry);

// Whether nothing is left but the program's name, now that the flags have been
// parsed and taken away. If not, logs which word is none.
bool HasOnlyFlags(int argc, char** argv);

}  // namespace example

#endif  // EXAMPLE_RPC_FLAG_ERRORS_H_
