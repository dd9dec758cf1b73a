// A look at the files of --flagfile before gflags reads them. By itself it ends
// the process by a signal on one that can't be read or names itself, takes a
// folder for an empty file, and passes over flags that the program doesn't
// know, as a file may be for several programs.
#ifndef FLARE_RPC_START_FLAG_FILE_H_
#define FLARE_RPC_START_FLAG_FILE_H_

#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

// Checks the flag files of a command line that hasn't been parsed. The error
// names the file. Else a warning for each file with something in it that gflags
// will pass over: lines of flags that the program hasn't, and of names of other
// programs, for which the flags below are. Only regular files are looked into:
// others can be read only once. Blocks the thread while it reads.
Expected<std::vector<std::string>, flare::Status> CheckFlagFiles(
    int argc, const char* const* argv);

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_FLAG_FILE_H_
