// The contents of files that flags name.

#ifndef EXAMPLE_RPC_TEXT_FILE_H_
#define EXAMPLE_RPC_TEXT_FILE_H_

#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// All bytes of the file at `path`; "-": of stdin. Blocks the thread. The text
// of a failure names the file.
flare::Expected<std::string, flare::Status> ReadTextFile(
    const std::string& path);

}  // namespace example

#endif  // EXAMPLE_RPC_TEXT_FILE_H_
