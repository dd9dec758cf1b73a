// One run of press from its first call to its last: warm-up, measurement with
// a report line every so often, and the end, by clock, count or signal.

#ifndef EXAMPLE_RPC_PRESS_RUN_H_
#define EXAMPLE_RPC_PRESS_RUN_H_

#include <string>
#include <vector>

#include "example/rpc/call_sequence.h"
#include "example/rpc/hdr_log.h"
#include "example/rpc/load_generator.h"
#include "example/rpc/report.h"

namespace example {

struct RunOptions {
  double warm_up_s = 0;
  double duration_s = 0;  // 0: no limit.
  double report_interval_s = 10;
  double patience_s = 10;  // How long to wait for calls under way at the end.
  // How long before that calls are sent which were due in time, at a fixed
  // rate.
  double late_s = 0;
  bool has_tail = false;       // Is there a long tail?
  bool replays = false;        // Calls are recorded ones.
  bool show_progress = false;  // A line on stderr that is written over.
};

// One of those that are loaded side by side.
struct PressTarget {
  std::string server_addr;
  LoadGenerator* load = nullptr;     // Open.
  LoadRecorder* recorder = nullptr;  // The recorder in use.
};

// Blocks the fiber until the run is over. `hdr_log` may be null. If the
// summary's `unended` is not 0, loads and recorders may not be destroyed. Quit
// signals end the run, from now on; during the warm-up without a measurement.
Summary RunLoad(const RunOptions& options,
                const std::vector<PressTarget>& targets, HdrLog* hdr_log);

}  // namespace example

#endif  // EXAMPLE_RPC_PRESS_RUN_H_
