// The command line of press. docs/press.md describes the flags.

#ifndef EXAMPLE_RPC_PRESS_FLAGS_H_
#define EXAMPLE_RPC_PRESS_FLAGS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "example/rpc/load_options.h"
#include "example/rpc/press_run.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

struct PressOptions {
  std::vector<LoadOptions> targets;  // At least one.
  RunOptions run;
  std::string json;     // Names of files; "": none, "-": stdout.
  std::string hdr_log;  // "": none.
  // The value in place of flare_rpc_client_max_connections_per_server.
  std::optional<int> max_connections;
};

// The options that the flags ask for; the error names the impossible one. For
// after the command line has been parsed.
flare::Expected<PressOptions, flare::Status> PressOptionsFromFlags();

// For --print: prints recorded calls. Blocks the thread for a moment, and the
// fiber while it asks a server for descriptions. The code is EINVAL if a flag
// or a file is wrong.
flare::Status PrintRecordingsFromFlags();

}  // namespace example

#endif  // EXAMPLE_RPC_PRESS_FLAGS_H_
