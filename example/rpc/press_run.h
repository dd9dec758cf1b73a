// One run of press from its first call to its last: warm-up, measurement with
// a report line every so often, and the end, by clock, count or signal.

#ifndef EXAMPLE_RPC_PRESS_RUN_H_
#define EXAMPLE_RPC_PRESS_RUN_H_

#include "example/rpc/call_recorder.h"
#include "example/rpc/load_generator.h"
#include "example/rpc/report.h"

namespace example {

struct RunOptions {
  double warm_up_s = 0;
  double duration_s = 0;  // 0: no limit.
  double report_interval_s = 10;
  double patience_s = 10;  // How long to wait for calls under way at the end.
  bool show_progress = false;  // A line on stderr that is written over.
};

// Blocks the fiber until the run is over. `load` is open, `recorder` the one
// that it records to. If the summary's `unended` is not 0, neither may be
// destroyed. Quit signals end the run, from now on.
Summary RunLoad(const RunOptions& options, LoadGenerator* load,
                CallRecorder* recorder);

}  // namespace example

#endif  // EXAMPLE_RPC_PRESS_RUN_H_
