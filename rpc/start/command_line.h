// Reading the command line of a program, by gflags.
#ifndef FLARE_RPC_START_COMMAND_LINE_H_
#define FLARE_RPC_START_COMMAND_LINE_H_

#include <string>

namespace flare::rpc {

// As gflags::ParseCommandLineFlags(), which also removes the flags, with these
// differences:
//  - --help shows the program's own flags only (HelpText) and exits with 0;
//    --helpfull shows those of the libraries, too.
//  - -h is --help, in programs without a flag of that name.
//  - --version shows flare's version in programs that have set none by
//    gflags::SetVersionString().
void ParseCommandLine(int* argc, char*** argv);

// Usage message and the flags that the program defines itself: all flags except
// those of flare, glog and gflags. Sorted by name.
std::string HelpText();

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_COMMAND_LINE_H_
