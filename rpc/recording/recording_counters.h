// Counters of recorders of calls, for /metrics and their statistics.
#ifndef FLARE_RPC_RECORDING_RECORDING_COUNTERS_H_
#define FLARE_RPC_RECORDING_RECORDING_COUNTERS_H_

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/metrics.h"

namespace flare {

// All recorders of the process count here, one after the other.
struct RecordingCounters {
  // Made by the first caller. Fails if the program has metrics of these names.
  // Any thread.
  static const Expected<RecordingCounters, Status>& Get();

  metrics::Counter* recorded;
  metrics::Counter* over_limit;
  metrics::Counter* queue_full;
  metrics::Counter* not_written;
  metrics::Counter* streaming;
  metrics::Counter* bytes;
};

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_COUNTERS_H_
