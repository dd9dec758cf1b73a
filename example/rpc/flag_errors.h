// A program's end if its command line is wrong.

#ifndef EXAMPLE_RPC_FLAG_ERRORS_H_
#define EXAMPLE_RPC_FLAG_ERRORS_H_

#include <functional>

namespace example {

// Exit status of a program whose flags are wrong.
inline constexpr int kBadFlags = 2;

// Whether gflags can read the files of --flagfile; if not, says on stderr which
// one it can't. For before the flags are parsed.
bool HasGoodFlagFiles(int argc, char** argv);

// Flags that gflags doesn't understand end the process with kBadFlags from now
// on, and --help and the like with 0; by itself it says 1. Call it before the
// flags are parsed.
void ExitWithBadFlags();

// ExitWithBadFlags() and flare::Start(), where flags that the library refuses,
// and bad flag files, end in kBadFlags, too. --help begins with `usage`.
int StartProgram(int argc, char** argv, const char* usage,
                 std::function<int(int, char**)> entry);

// Whether nothing is left but the program's name, now that the flags have been
// parsed and taken away. If not, logs which word is none.
bool HasOnlyFlags(int argc, char** argv);

}  // namespace example

#endif  // EXAMPLE_RPC_FLAG_ERRORS_H_
