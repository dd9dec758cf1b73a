// The calls of recordings (docs/record_replay.md), for programs that send them
// again or print them.

#ifndef EXAMPLE_RPC_RECORDED_CALLS_H_
#define EXAMPLE_RPC_RECORDED_CALLS_H_

#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/recording/recorded_call.h"

namespace example {

// Reads all calls of `paths`, files or folders of them, whose methods' full
// names begin as one of `methods` (none: all), in the order in which they came.
// A file that is cut off is read up to there; the log says so. Fails, with a
// text, if a file can't be read or is damaged. Blocks the thread.
flare::Expected<std::vector<flare::RecordedCall>, flare::Status>
ReadRecordedCalls(const std::vector<std::string>& paths,
                  const std::vector<std::string>& methods);

}  // namespace example

#endif  // EXAMPLE_RPC_RECORDED_CALLS_H_
