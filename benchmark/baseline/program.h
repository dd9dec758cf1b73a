// The beginning of each program of this folder: flags and logging.

#ifndef BENCHMARK_BASELINE_PROGRAM_H_
#define BENCHMARK_BASELINE_PROGRAM_H_

#include <gflags/gflags_declare.h>

#include <cstddef>
#include <string>

#include "example/rpc/flag_errors.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

DECLARE_int32(threads);

namespace baseline {

using example::kBadFlags;  // Exit status.

inline constexpr int kMaxThreads = 4096;  // That a flag may ask for.

// Parses the flags and sets logging up, to stderr unless the flags say
// otherwise. Ends the process with kBadFlags if they can't be parsed, one of
// the library's is wrong, or there is something else than flags.
void BeginProgram(int argc, char** argv, const std::string& usage);

// Logs why the flags can't be meant like this; returns kBadFlags.
int RefuseFlags(const std::string& reason);

// The number of threads by --threads and --flare_concurrency_hint: at least 1.
// The error names the flag.
flare::Expected<std::size_t, flare::Status> ThreadsFromFlags();

struct ServerAddress {
  std::string scheme;
  std::string host;  // "host:port", as it was given.
  flare::Endpoint endpoint;
};
// "scheme://host:port", of one server. Blocks while a name is resolved. The
// error says its fault.
flare::Expected<ServerAddress, flare::Status> ParseServerAddress(
    const std::string& uri);

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_PROGRAM_H_
